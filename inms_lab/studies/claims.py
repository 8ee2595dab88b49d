"""What has been claimed about memory sharing, each claim beside its measurement.

No measured value is typed in here: it is computed when the registry is read, or it comes from a
file of `benchmarks/results/` that the named command wrote. Such a file may hold, beside anything
else,

    {"command": ..., "machine": ..., "seed": ...,
     "claims": {claim_id: {"measured": ..., "interval": ..., "verdict": ...}}}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from json import dumps, loads
from pathlib import Path
from typing import Any

from inms_lab.errors import BadInput
from inms_lab.studies import bill

HOLDS, DOES_NOT_HOLD = "holds", "does not hold"
NOT_TESTABLE, NOT_MEASURED = "not testable here", "not measured yet"
VERDICTS = (HOLDS, DOES_NOT_HOLD, NOT_TESTABLE, NOT_MEASURED)
BEGIN, END = "<!-- claims:begin -->", "<!-- claims:end -->"
RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"

_GIB = 1024**3
_ABOUT = 0.05  # how far a figure given as "about" may lie from the measured one
_CACHES, _PARAMETERS = "write-up on KV caches", "write-up on shared parameters"


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim and what became of it; empty strings and None where nothing was measured.

    `area` is the part of the project that measures it: memory, fragments, robustness, parameters.
    """

    claim_id: str
    text: str
    source: str
    command: str = ""
    measured: str = ""
    interval: str = ""
    machine: str = ""
    seed: int | None = None
    verdict: str = NOT_MEASURED
    area: str = "memory"

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise BadInput(
                f"claim {self.claim_id}: verdict {self.verdict!r} is none of {', '.join(VERDICTS)}"
            )


def registry(results: Path = RESULTS) -> tuple[Claim, ...]:
    """All claims, the computed ones first; measurements are read from `results` (a folder)."""
    computed = (_token_of_a_7b_model(), _eight_agents(), _three_agents())
    measured = _measurements(results)
    if unknown := sorted(measured.keys() - {claim.claim_id for claim in _TO_MEASURE}):
        raise BadInput(f"{results} holds results for unknown claims: {', '.join(unknown)}")
    return (*computed, *(replace(c, **measured.get(c.claim_id, {})) for c in _TO_MEASURE))


# --- computed when asked ---------------------------------------------------------------------


def _arithmetic(claim_id: str, text: str, section: str, measured: str, holds: bool) -> Claim:
    return Claim(
        claim_id,
        text,
        f"{_CACHES}, section {section}",
        command="inms-lab claims",
        measured=measured,
        interval=f"exact; about = within {_ABOUT:.0%}",
        machine="any (arithmetic)",
        verdict=HOLDS if holds else DOES_NOT_HOLD,
    )


def _near(value: float, claimed: float, tolerance: float) -> bool:
    return abs(value - claimed) <= tolerance * claimed


def _token_of_a_7b_model() -> Claim:
    size = bill.kv_bytes_per_token(num_layers=32, num_kv_heads=32, head_dim=128, dtype_bytes=2)
    return _arithmetic(
        "kv-token-7b",
        "32 layers of width 4096 in half precision, no grouped queries: 512 KiB a token",
        "1.2",
        f"{size / 1024:g} KiB",
        size == 512 * 1024,
    )


def _eight_agents() -> Claim:
    n, tokens, p, size = 8, 16 * 1024, 0.6, 512 * 1024
    alone = bill.independent_bytes(n, tokens, size) / _GIB
    together = bill.shared_bytes(n, tokens, p, size) / _GIB
    return _arithmetic(
        "kv-eight-agents",
        "8 agents of 16k tokens, 60 % common, 512 KiB a token: 64 GiB become about 34 GiB",
        "1.2",
        f"{alone:.1f} GiB become {together:.1f} GiB by the claim's own formula,"
        f" {bill.saving(n, p):.1%} less",
        _near(alone, 64, _ABOUT) and _near(together, 34, _ABOUT),
    )


def _three_agents() -> Claim:
    n, tokens, size = 3, 8 * 1024, 512 * 1024
    alone = bill.independent_bytes(n, tokens, size) / _GIB
    exact, rounded = float(Fraction(9, 16)), 0.56  # 4.5k of 8k tokens, and as it is printed
    together, printed = (bill.shared_bytes(n, tokens, p, size) / _GIB for p in (exact, rounded))
    saved = bill.saving(n, exact)
    return _arithmetic(
        "kv-three-agents",
        "3 agents of 8k tokens, 4.5k common (about 56 %): 12 GiB become about 7.5 GiB, 37.5 % less",
        "4.1",
        f"{alone:.2f} GiB become {together:.2f} GiB, {saved:.1%} less, with 4.5k of 8k;"
        f" {printed:.2f} GiB, {bill.saving(n, rounded):.1%} less, with the rounded {rounded:.0%}",
        _near(alone, 12, _ABOUT) and _near(together, 7.5, _ABOUT) and _near(saved, 0.375, 1e-9),
    )


# --- waiting for a measurement ---------------------------------------------------------------

_TO_MEASURE = (
    Claim(
        "block-size-256",
        "of blocks of 128, 256 and 512 tokens, 256 balances sharing and waste best",
        f"{_CACHES}, section 3.1",
        area="fragments",
    ),
    Claim(
        "fine-locks",
        "a lock per block in place of one lock moves throughput of 8 agents by 30 %",
        f"{_CACHES}, section 3.3",
        area="robustness",
    ),
    Claim(
        "zero-copy-messages",
        "messages between agents by reference have 83 % less latency",
        f"{_PARAMETERS}, section 3.1",
        area="parameters",
    ),
    Claim(
        "locality",
        "grouping agents and splitting hot from cold parameters speeds inference up by 22 %",
        f"{_PARAMETERS}, section 3.2",
        area="parameters",
    ),
    Claim(
        "embeddings-across-models",
        "BERT and GPT-2 with one embedding between them take 37 % less memory",
        f"{_PARAMETERS}, section 5.1",
        area="parameters",
    ),
    Claim(
        "federated-rounds",
        "federated rounds on shared memory spend 60 % less time on synchronisation",
        f"{_PARAMETERS}, section 5.2",
        area="parameters",
    ),
    Claim(
        "ten-7b-agents",
        "ten agents of a 7B model need about 24 GB where they needed 160 GB",
        f"{_PARAMETERS}, closing paragraph",
        area="parameters",
    ),
)


def _measurements(folder: Path) -> dict[str, dict[str, Any]]:
    """claim_id -> the fields that a result file gives; files without "claims" are passed over."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            result = loads(path.read_text("utf-8"))
            entries = result.get("claims", {}) if isinstance(result, dict) else {}
            where = {key: result[key] for key in ("command", "machine", "seed")} if entries else {}
            for claim_id, entry in entries.items():
                if claim_id in found:
                    raise BadInput(f"two results for claim {claim_id}, one in {path}; remove one")
                values = {key: entry[key] for key in ("measured", "interval", "verdict")}
                found[claim_id] = {**where, **values}
        except BadInput:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(f"{path} is no readable result ({error!r}); write it again") from error
    return found


# --- shown -----------------------------------------------------------------------------------


def to_markdown(claims: Sequence[Claim] | None = None) -> str:
    """The table for the README, markers included."""
    head = ("Claim", "Source", "Measured", "Interval", "Machine", "Seed", "Command", "Verdict")
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for c in registry() if claims is None else claims:
        command = f"`{c.command}`" if c.command else ""
        seed = "" if c.seed is None else str(c.seed)
        verdict = f"**{c.verdict}**" + (f" ({c.area})" if c.verdict == NOT_MEASURED else "")
        cells = (c.text, c.source, c.measured, c.interval, c.machine, seed, command, verdict)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([BEGIN, *lines, END])


def update_readme(path: Path) -> bool:
    """Replace what stands between the markers; True if the file changed."""
    text = path.read_text("utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise BadInput(f"{path} needs the lines {BEGIN} and {END}, in this order")
    new = before + to_markdown() + after
    if new != text:
        path.write_text(new, "utf-8")
    return new != text


def print_claims(json: bool = False) -> None:
    """Print the registry, as a list for people or as JSON."""
    claims = registry()
    if json:
        print(dumps([asdict(claim) for claim in claims], indent=2))
        return
    for c in claims:
        print(f"[{c.verdict}] {c.text}\n    {c.source} ({c.claim_id})")
        if c.measured:
            seed = "" if c.seed is None else f"; seed {c.seed}"
            print(f"    measured: {c.measured} [{c.interval}; {c.machine}{seed}; {c.command}]")
        else:
            print(f"    to be measured with the work on {c.area}")
