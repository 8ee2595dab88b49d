"""`inms-lab calibrate`: what fragments cost one model in quality, against full prefill."""

from __future__ import annotations

import json
import shlex
import sys
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from inms_lab.books.gate import Calibration
    from inms_lab.interference.measure import Measurement
    from inms_lab.interference.samples import Sample
    from inms_lab.interference.variants import Settings


def calibrate(
    model: Annotated[str, typer.Argument(help="name, folder or hub id")] = "smollm2-135m",
    data: Annotated[
        Path | None, typer.Option(help="a file of logs; without one the package's own")
    ] = None,
    samples: Annotated[int | None, typer.Option(help="draw this many; without it all")] = None,
    seed: Annotated[int, typer.Option(help="of the draw and of the intervals")] = 0,
    results: Annotated[Path | None, typer.Option(help="write all figures into this file")] = None,
    into: Annotated[
        Path | None, typer.Option(help="folder for the calibration, instead of your cache")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Measure what reusing fragments costs a model; the gate needs it. An interrupt may resume."""
    from inms_lab.interference import calibrate as maker
    from inms_lab.interference import samples as sampling
    from inms_lab.interference.measure import measure
    from inms_lab.interference.variants import Settings
    from inms_lab.model import load
    from inms_lab.notebook.calibrations import keep
    from inms_lab.notebook.text import Text

    runner = load(model, device=device, dtype=dtype)
    text = Text(runner.tokenizer, runner.stop_tokens)
    every = sampling.of_file(data, text) if data else sampling.of_package(text)
    drawn, settings = sampling.chosen(every, samples, seed), Settings()
    source = data.name if data else "the package's own logs"
    what = f"{len(drawn)} of {len(every)} samples of {source}, seed {seed}; {maker.machine()}"
    file = _unfinished(runner.digest, str(runner.dtype), every, settings)
    measured = measure(runner, drawn, settings, file)
    calibration = maker.calibration_from(measured, maker.cost_of(runner), what, seed)
    kept = keep(calibration, into)
    command = shlex.join(["inms-lab", *sys.argv[1:]])
    result = maker.as_result(measured, calibration, command, seed)
    if results is not None:
        results.parent.mkdir(parents=True, exist_ok=True)
        results.write_text(json.dumps(result) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(result))
    else:
        _render(model, measured, calibration, seed)
        print(f"calibration: {kept}\nsamples, one a line: {file}")


def _unfinished(digest: str, dtype: str, samples: list[Sample], settings: Settings) -> Path:
    """Where this measurement is kept, sample by sample, so that it can be resumed."""
    from inms_lab.places import cache_root

    of_samples = [sample.digest for sample in samples]
    key = blake2b(repr((dtype, of_samples, settings)).encode(), digest_size=6).hexdigest()
    return cache_root() / "measurements" / f"{digest}-{key}.jsonl"


def _render(model: str, measured: Measurement, calibration: Calibration, seed: int) -> None:
    from rich.console import Console
    from rich.table import Table

    from inms_lab.interference.calibrate import MAX_KL, MIN_AGREEMENT, holds
    from inms_lab.interference.variants import PUBLIC

    table = Table(title=f"fragments of {model} against full prefill, {calibration.num_samples}"
                        " samples, 95 % intervals")  # fmt: skip
    headings = ("KL, nats", "same best token", "perplexity", "recomputed", "KV error")
    for heading in ("the fragment is", *headings):
        table.add_column(heading, justify="left" if heading == "the fragment is" else "right")
    for name, row in measured.table(seed).iterrows():
        table.add_row(
            str(name),
            f"{row.kl:.4f} [{row.kl_low:.4f}, {row.kl_high:.4f}]",
            f"{row.agreement:.1%} [{row.agreement_low:.1%}, {row.agreement_high:.1%}]",
            f"{row.perplexity:+.1%} [{row.perplexity_low:+.1%}, {row.perplexity_high:+.1%}]",
            f"{row.recomputed:.0f}",
            "" if row.kv_error != row.kv_error else f"{row.kv_error:.3f}",
        )
    out = Console()
    out.print(table)
    verdict = "hold" if holds(calibration) else "do NOT hold"
    out.print(
        f"{PUBLIC!r}: the bounds KL <= {MAX_KL} and agreement >= {MIN_AGREEMENT:.0%} {verdict}. "
        f"Prefill {calibration.prefill_ms:.2f} ms a token, one tile more in a decode step "
        f"{calibration.tile_ms:.3f} ms.",
        highlight=False,
    )
