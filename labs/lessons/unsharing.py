"""Exercise `unshare`: which call of an agent made memory its own that was to be shared?

The rule is asked about recorded runs of real agents, by the kernel's figures alone: it sees no
names. `python -m inms_lessons.unsharing` records them anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .agent_calls import CALLS, MIB, Call, Step, record
from .wrong import Wrong, in_a_line, shown, whole

if TYPE_CHECKING:
    import pandas as pd

    from inms_lab.parameters.shared import SharedParameters

FILE = Path(__file__).parent / "logs" / "unshare.json"
ROOM = 64 * MIB  # what an innocent call may take beside, for its work
KEEPS = 3  # bytes beside each byte that is trained: its gradient, and two averages of AdamW
FIRST = "read all weights"
SCRIPTS = (  # what the agents of the runs did, after they had read all weights
    ("write 40 tokens", "read 256 tokens", "train layer 3", "train layer 3", "write 40 tokens"),
    ("write 40 tokens", "all weights times 1", "write 40 tokens"),
    ("train layers 4 to 9", "write 40 tokens", "an adapter merged"),
    ("write 40 tokens", "a deep copy", "train layers 4 to 9"),
    ("read 1,024 tokens", "untie the output", "write 40 tokens"),
    ("train layers 4 to 9", "train layer 3, all gradients", "write 40 tokens"),
    ("train layers 4 to 9", "discard all changes", "train layers 4 to 9", "an adapter merged"),
    ("read 1,024 tokens", "an adapter beside", "train layers 4 to 9", "discard all changes"),
    ("train layer 3", "model.share_memory()", "read 256 tokens"),
)


@dataclass(frozen=True, slots=True)
class Run:
    """`steps`: before the first of the `calls`, and after each."""

    calls: tuple[str, ...]
    steps: tuple[Step, ...]

    @property
    def guilty(self) -> int | None:
        """The number of the call that un-shares; None: there is none."""
        numbers = [n for n, name in enumerate(self.calls, 1) if CALLS[name].unshares]
        return numbers[0] if numbers else None

    def grown(self, number: int) -> Step:
        """How much more there is of everything after a call; `trains` is what it was told."""
        before, now = self.steps[number - 1], self.steps[number]
        return Step(
            now.trains, now.kv - before.kv, now.own - before.own, now.beside - before.beside
        )

    def table(self) -> pd.DataFrame:
        """All steps, in MiB."""
        names = ("0 · the beginning", *(f"{n} · {name}" for n, name in enumerate(self.calls, 1)))
        return in_mib(dict(zip(names, self.steps, strict=True)))


def runs() -> list[Run]:
    """The recorded runs."""
    told = json.loads(FILE.read_text("utf-8"))["runs"]
    return [Run(tuple(one["calls"]), tuple(Step(*row) for row in one["steps"])) for one in told]


def unshare(rule: object) -> Wrong | None:
    """`rule(steps)` is the number of the call that un-shared, or None."""
    if not callable(rule):
        return Wrong("a function unshare(steps)", shown(rule))
    for number, run in enumerate(runs(), 1):
        if wrong := _judged(rule, run, f"run {number}"):
            return wrong
    return None


def _judged(rule: Callable[..., Any], run: Run, where: str) -> Wrong | None:
    most = len(run.calls)
    form = f"a number from 1 to {most}, or None"
    try:
        answer = rule(list(run.steps))
    except Exception as error:
        hint = "each of steps has trains, kv, own, beside; there is one more of them than calls"
        return Wrong(form, in_a_line(error), where, hint, picture=run.table())
    number = whole(answer)
    if answer is not None and (number is None or not 1 <= number <= most):
        hint = "steps[0] is before the first call, steps[n] is after call n: return that n"
        return Wrong(form, shown(answer), where, hint, picture=run.table())
    if number == run.guilty:
        return None
    if number is None:
        return _missed(run, where)
    return _accused(run, number, where)


def _missed(run: Run, where: str) -> Wrong:
    """A call un-shared, and none was named."""
    assert run.guilty is not None
    grown = run.grown(run.guilty)
    if grown.own > grown.trains:
        hint = "one call made more pages its own than it was told to change: compare the two"
    elif grown.trains:
        hint = f"training keeps {KEEPS} bytes beside each byte that it trains. Here there are more"
    else:
        hint = "no page of the weights became its own here: a copy of them can lie elsewhere"
    return Wrong("the number of a call", "None: all are innocent", where, hint, picture=run.table())


def _accused(run: Run, number: int, where: str) -> Wrong:
    """An innocent call was named."""
    grown, guilty = run.grown(number), run.guilty
    why, hint = _innocent(CALLS[run.calls[number - 1]], grown)
    if guilty is not None and number > guilty:
        hint = "what an earlier call took is still there: look at what each call adds"
    if guilty is not None and number == guilty - 1 and not (grown.trains or grown.kv):
        hint = f"do you mean the call behind it? steps[n] is after call n; and {hint}"
    expected = "None: all calls are innocent" if guilty is None else "the number of another call"
    return Wrong(expected, f"{number}, but {why}", where, hint, picture=run.table())


def _innocent(call: Call, grown: Step) -> tuple[str, str]:
    """Why a call is, and what to look at."""
    if call.do is None:
        return "that call gave pages back", "less is never un-shared: mind the sign"
    if grown.trains:
        why = f"it was told to train {_mib(grown.trains)} of weights"
        hint = "`trains` is how many bytes of the weights' pages may become its own by this call"
        if grown.own <= grown.trains:
            hint = (
                f"it made {_mib(grown.own)} its own, and AdamW keeps {KEEPS} times as much beside"
            )
        return why, hint
    if grown.kv:
        why = f"its context has {_mib(grown.kv)} more KV"
        return why, "KV is an agent's own, and grows with its context: take it off"
    why = f"it took {_mib(grown.beside)} beside for its work, and no page of the weights"
    return why, f"up to {_mib(ROOM)} beside are no copy of anything"


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:.1f} MiB"


def unshares(grown: Step) -> bool:
    """Whether a call took more than an innocent one may."""
    room = KEEPS * grown.trains + grown.kv + ROOM
    return grown.own > grown.trains or grown.beside > room


def grown_by(params: SharedParameters, name: str) -> Step:
    """What a call makes of a new agent: how much more there is of everything."""
    return Run((name,), tuple(record(params, (name,)))).grown(1)


def in_mib(rows: dict[str, Step]) -> pd.DataFrame:
    """Steps by name as a table."""
    import pandas as pd

    columns = ["trains", "kv", "own", "beside"]
    values = [[round(part / MIB, 1) for part in astuple(step)] for step in rows.values()]
    return pd.DataFrame(values, index=[*rows], columns=columns)


def main() -> None:
    """Record all runs anew: about a minute."""
    from inms_lab.parameters import SharedParameters

    with SharedParameters("smollm2-135m") as params, params.agent("keeps the weights mapped"):
        made = []
        for script in SCRIPTS:
            calls = (FIRST, *script)
            steps = record(params, calls)
            made.append({"calls": calls, "steps": [astuple(step) for step in steps]})
        told = {
            "command": "python -m inms_lessons.unsharing",
            "model": params.source.name,
            "weights_bytes": params.layout.weight_bytes,
            "runs": made,
        }
    FILE.write_text(json.dumps(told, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
