"""A model is admitted by experiment: what it does under our attention, not what it is called.

    the first forward    every layer must ask our attention once, with nothing that we do not know
    packed = dense       two contexts in three chunks must give the logits of stock transformers
    rows (rows.py)       how far rows must be padded so that their bits depend on nothing else
    positions            which layers may be used at another position, and up to which length

The first two can refuse a model; the third never does; the fourth refuses learned positions and
otherwise says whether fragments may be shared. A few seconds for a small model.
"""

from __future__ import annotations

import html
import time
from dataclasses import dataclass, field
from itertools import groupby

import torch

from inms_lab.attention.rope import Rotation
from inms_lab.errors import InmsError, ModelCorrupted, ModelRefused
from inms_lab.model import probe, rows
from inms_lab.model.positions import Finding, Positions, named_reason
from inms_lab.model.runner import Runner

LOGIT_ERROR = 2e-4  # fp32: the largest; for logits that spread by less than 1, times their spread
LOGIT_ERROR_HALF = 0.1  # half precision: the root mean square, times their spread
SMALLEST_CONTEXT = 2 * (probe.SHARED + probe.OWN)  # tokens; less leaves no room to experiment
ADVICE = (
    "use a decoder with rotary positions and plain causal attention (Llama, Qwen2, Qwen3, Mistral "
    "without a window), or the lab's own 'smollm2-135m'"
)


@dataclass(frozen=True, slots=True)
class LayerReport:
    """What one decoder layer does under our attention."""

    layer: int
    called: bool  # it asked our attention, once per forward
    kv_shape: tuple[int, int]  # KV heads, head size
    rotation: str  # "half-split", "interleaved", "..., partial n/D", "none" or "unsafe: reason"
    error: float  # largest relative deviation of q and k from that rotation
    rope: Rotation | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Admission:
    """The verdict on an admitted model, and what it rests on."""

    name: str
    architecture: str
    layers: tuple[LayerReport, ...]
    max_logit_error: float  # packed chunks against stock transformers; half precision: the rms
    tolerance: float  # what that error was allowed to be
    row_multiple: int
    bitwise: bool
    max_context: int  # tokens
    context_reason: str  # why not more, or empty: it is the model's own limit
    fragments: bool  # whether its KV may be used at another position
    fragments_reason: str  # why not, or empty
    seconds: float
    compiled: bool = False  # whether matrix products and tiles are read by compiled kernels

    def facts(self) -> list[tuple[str, str]]:
        """The findings on the whole model as (what, finding)."""
        rows_text = f"padded to multiples of {self.row_multiple}; "
        tolerance = f"equal within {self.tolerance:.1e}"
        rows_text += "same bits whatever they are batched with" if self.bitwise else tolerance
        fragments = "yes, at any shift" if self.fragments else f"no: {self.fragments_reason}"
        contexts = f"up to {self.max_context} tokens"
        contexts += f": {self.context_reason}" if self.context_reason else ""
        error = f"{self.max_logit_error:.1e} off stock transformers (limit {self.tolerance:.1e})"
        rows_text += "; compiled kernels" if self.compiled else ""
        return [
            ("model", f"{self.name} ({self.architecture}), admitted in {self.seconds:.1f} s"),
            ("logits", error),
            ("rows", rows_text),
            ("contexts", contexts),
            ("fragments", fragments),
        ]

    def table(self) -> list[tuple[str, ...]]:
        """Rows of the layers' table, header first; neighbours that are alike share a row."""
        out: list[tuple[str, ...]] = [("layers", "attention", "KV heads x size", "rotation", "off")]
        for _, alike in groupby(self.layers, key=lambda x: (x.called, x.kv_shape, x.rotation)):
            group = list(alike)
            first, last = group[0], group[-1]
            number = f"{first.layer}-{last.layer}" if len(group) > 1 else str(first.layer)
            asked = "once" if first.called else "never"
            shape = f"{first.kv_shape[0]} x {first.kv_shape[1]}"
            error = f"{max(layer.error for layer in group):.1e}"
            out.append((number, asked, shape, first.rotation, error))
        return out

    def report(self) -> str:
        """The verdict as a readable text."""
        table = self.table()
        widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
        lines = [f"{what:<10} {finding}" for what, finding in self.facts()] + [""]
        for row in table:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        facts = "".join(
            f"<tr><th style='text-align:left'>{html.escape(what)}</th>"
            f"<td style='text-align:left'>{html.escape(finding)}</td></tr>"
            for what, finding in self.facts()
        )
        head, *body = (
            "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)
            for row, tag in zip(self.table(), ["th"] + ["td"] * len(self.layers), strict=False)
        )
        layers = "".join(f"<tr>{cells}</tr>" for cells in (head, *body))
        return f"<table>{facts}</table><table>{layers}</table>"


@torch.inference_mode()
def admit(runner: Runner, tile: int = 16) -> Admission:
    """Try the model; sets its `row_multiple`, `bitwise`, `max_context` and `admission`.

    Raises `ModelRefused` with the architecture, the reason and what to do, and `ModelCorrupted` if
    the model gives no numbers at all.
    """
    started = time.perf_counter()
    architecture = type(runner.model).__name__
    try:
        positions = _first_forward(runner, tile)
        positions.check_input()
        error, tolerance = _compare(runner, tile)
    except ModelRefused as reason:
        text = f"{architecture} ({runner.name}) is refused: {reason}; {ADVICE}"
        raise ModelRefused(text) from reason
    why = named_reason(runner)
    length = positions.constant_length()
    if length < runner.max_context:
        why = why or "its frequencies depend on the length of the context"
        runner.max_context = length  # beyond it, neighbours in a batch would change the angles
        runner.context_reason = "beyond that its frequencies would change"
    findings = positions.findings(why)
    why = why or _unsafe(findings)
    g = runner.geometry
    runner.admission = Admission(
        name=runner.name,
        architecture=architecture,
        layers=tuple(
            LayerReport(i, True, (g.num_kv_heads, g.head_dim), f.name, f.error, f.rotation)
            for i, f in enumerate(findings)
        ),
        max_logit_error=error,
        tolerance=tolerance,
        row_multiple=runner.row_multiple,
        bitwise=runner.bitwise,
        max_context=runner.max_context,
        context_reason=runner.context_reason,
        fragments=not why,
        fragments_reason=why,
        seconds=time.perf_counter() - started,
        compiled=runner.native is not None,
    )
    return runner.admission


def _first_forward(runner: Runner, tile: int) -> Positions:
    if runner.max_context < SMALLEST_CONTEXT:
        raise ModelRefused(f"its contexts end at {runner.max_context} tokens")
    runner.row_multiple = rows.candidates(runner)[0]
    try:
        positions = Positions(runner, tile)
    except (InmsError, torch.OutOfMemoryError):
        raise
    except (TypeError, ValueError, AttributeError, LookupError, RuntimeError) as error:
        # A model may fail in any way over arguments that it was not made for.
        first_line = (str(error).strip().splitlines() or [""])[0]
        raise ModelRefused(
            f"its forward fails over packed tokens ({type(error).__name__}: {first_line})"
        ) from error
    calls, every = positions.near.calls, range(runner.geometry.num_layers)
    if never := [layer for layer in every if layer not in calls]:
        listed = ", ".join(map(str, never[:8])) + (", ..." if len(never) > 8 else "")
        raise ModelRefused(
            f"{len(never)} of its {len(every)} layers never call transformers' attention interface "
            f"(layer {listed})"
        )
    if again := [layer for layer in every if calls.count(layer) > 1]:
        raise ModelRefused(f"layer {again[0]} calls its attention {calls.count(again[0])} times")
    if len(runner.last_logits) != len(positions.near.logit_rows):
        raise ModelRefused("it gives logits of all rows when only some are asked for")
    return positions


def _compare(runner: Runner, tile: int) -> tuple[float, float]:
    """Error of packed chunks against stock transformers, and its limit; then settle the rows."""
    packed = probe.packed(runner, tile)
    dense = probe.dense(runner)
    if not all(bool(logits.isfinite().all()) for logits in dense):
        raise ModelCorrupted(
            f"{runner.name} gives logits that are not finite, in stock transformers too: its "
            f"weights are damaged (copy or download them again), or {runner.dtype} is too small"
        )
    truth = torch.cat(dense)
    off = torch.cat((packed.first, packed.second)) - truth
    spread = float(truth.std())
    if runner.dtype == torch.float32:
        error, tolerance = float(off.abs().max()), LOGIT_ERROR * min(1.0, spread)
    else:  # rounding alone makes some logits differ a lot, a mistake makes most of them differ
        error, tolerance = float(off.pow(2).mean().sqrt()), LOGIT_ERROR_HALF * spread
    if not error <= tolerance:
        raise ModelRefused(
            f"its logits over packed chunks differ by {error:.1e} from stock transformers (limit "
            f"{tolerance:.1e}), so its attention does something that it does not tell"
        )
    rows.settle(runner, tile, packed)
    return error, tolerance


def _unsafe(findings: list[Finding]) -> str:
    unsafe = [(i, finding.unsafe) for i, finding in enumerate(findings) if finding.unsafe]
    return f"in layer {unsafe[0][0]}, {unsafe[0][1]}" if unsafe else ""
