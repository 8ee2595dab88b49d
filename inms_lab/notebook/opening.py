"""What a lab is opened with: the model, its sizes, the gate with what was measured."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from inms_lab.books.gate import DEFAULT, Gate
from inms_lab.config import Config, default_block_size
from inms_lab.errors import BadInput, NotCalibrated
from inms_lab.model.forward import DryModel, Forward
from inms_lab.notebook.calibrations import calibration_of
from inms_lab.parameters.running import runner
from inms_lab.parameters.shared import SharedParameters
from inms_lab.sizes import parse_bytes


def load_model(
    model: str | Path | Forward | SharedParameters,
    device: str | None,
    dtype: Any,
    compile: bool = False,
) -> Any:
    """The model by its name, folder or hub id, or on shared weights; one that is loaded already
    passes."""
    if isinstance(model, SharedParameters):
        return runner(model, compile)
    if isinstance(model, (str, Path)):
        from inms_lab.model import load

        return load(str(model), device=device, dtype=dtype, compile=compile)
    if compile and getattr(model, "native", None) is None:
        raise BadInput(
            "this model is loaded already, without compiled kernels: pass its name, or what "
            "load(name, compile=True) gives"
        )
    return model


def gate_for(model: Forward, gate: Gate | None) -> Gate | None:
    """The gate with the calibration of this model, where there is one.

    The default gate lets nothing through without one; a gate that was asked for, with bounds,
    raises `NotCalibrated`. So does one with the calibration of another model, except where no
    weights are: a `DryModel` computes nothing, and may stand for any model.
    """
    if gate is None:
        return None
    if not isinstance(gate, Gate):
        raise BadInput(f"gate is a Gate, e.g. Gate(max_kl=0.05), or None, not {gate!r}")
    known = gate.calibration
    if known is not None:
        if known.model != model.digest and not isinstance(model, DryModel):
            raise NotCalibrated(
                f"this calibration is of the model {known.model}, and the lab's is {model.digest}: "
                "pass a gate without one (the lab looks for its model's), or run "
                "`inms-lab calibrate MODEL` once"
            )
        return gate
    known = calibration_of(model.digest)
    bounds = gate.max_kl is not None or gate.min_agreement is not None
    if known is None and bounds and gate is not DEFAULT:
        raise NotCalibrated(
            "this gate has bounds, and nobody has measured this model: run `inms-lab calibrate "
            "MODEL` once, or pass gate=None to share text in its own place only"
        )
    return replace(gate, calibration=known)


def with_settings(config: Config, settings: dict[str, Any]) -> Config:
    """The config with single fields changed; raises `BadInput` for a name that it does not have."""
    known = [field.name for field in fields(Config)]
    wrong = next((name for name in settings if name not in known), None)
    if wrong is not None:
        raise BadInput(f"a lab has no setting {wrong!r}; there are: {', '.join(known)}")
    return replace(config, **settings) if settings else config


def config_for(
    block_size: int | None,
    context: int,
    token_budget: int,
    debug: bool,
    pool_bytes: int | str | None,
) -> Config:
    """The sizes of a lab whose contexts have `context` tokens at most."""
    size = default_block_size(context) if block_size is None else block_size
    config = Config(block_size=size, context=context, token_budget=token_budget, debug=debug)
    if pool_bytes is None:
        return config
    private = parse_bytes(pool_bytes) if isinstance(pool_bytes, str) else pool_bytes
    return replace(config, private_bytes=private)
