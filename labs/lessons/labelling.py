"""Exercise `labels`: `join` and `may_hold`, judged by what a lab mounts that has nothing else.

The same operations are run twice: with the functions that are handed in, and with the engine's own.
The first block that is mounted and must not be, or need not be computed and is, is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from inms_lab.books import label
from inms_lab.books.events import Allocated, Shared
from inms_lab.books.label import Label
from inms_lab.hindsight.shadow import Site
from inms_lab.logs.log import Log
from inms_lab.publishing.records import Prompt, Record, publish
from inms_lab.serving.request import Request

from .guarded import Faulty, Guarded, Unserved, braced
from .teams import PROMPT, Op, random_story, story
from .wrong import Wrong, shown

PARTS = ("bar", "map", "agents", "detail")


@dataclass(frozen=True, slots=True)
class Moment:
    """An operation and what it mounted: (log index, holder, segment, block)."""

    op: Op
    start: int
    stop: int
    mounts: tuple[tuple[int, int, int, Site], ...]


class Run:
    """Operations, one after the other, on a guarded engine."""

    def __init__(self, ops: Sequence[Op], join: Any, may_hold: Any) -> None:
        self.engine = engine = Guarded(join, may_hold)
        self.log: Log = engine.log
        self.seqs: dict[str, int] = {}
        self.records: dict[tuple[str, int], Record] = {}
        self.moments: list[Moment] = []
        self.fault: Wrong | None = None
        engine.open_pools(("checkout", "support"), engine.model.new_store().bytes_per_token)
        tokens = engine.words.encode(PROMPT)
        self.prompt = Prompt(tuple(tokens), engine.log.add_tokens(tokens)[0])
        try:
            self._ask(self.prompt.request(engine.register("prompt", "prompt", label.PUBLIC)))
            for number, op in enumerate(ops):
                self._do(number, op)
        except Unserved:
            pass  # what is missing is found by comparing
        except Faulty as fault:
            self._tell(fault.wrong)

    def _do(self, number: int, op: Op) -> None:
        start = len(self.log)
        try:
            getattr(self, f"_{op.verb}")(op)
        finally:
            mounts = []
            for index, event in enumerate(self.log.events[start:], start):
                if isinstance(event, Shared) and event.cause != "fork":
                    where = event.seq_id, event.segment
                    mounts += [(index, *where, (event.pool_id, b)) for b in event.blocks]
            self.moments.append(Moment(op, start, len(self.log), tuple(mounts)))

    def _tell(self, wrong: Wrong) -> None:
        op = self.moments.pop().op.words() if self.moments else "the prompt is read"
        where = f"operation {len(self.moments)}: {op}; {wrong.where}"
        self.fault = replace(wrong, where=where, log=self.log, parts=PARTS)

    def _ask(self, request: Request) -> Any:
        self.engine.submit(request)
        while self.engine.has_work:
            self.engine.step()
        return request.future.result()

    def _come(self, op: Op) -> None:
        name = op.who.split()[0]
        clearance = label.join(label.private(name), *map(label.group, op.teams))
        self.seqs[op.who] = self.engine.register("agent", name, clearance)
        self._ask(self.prompt.request(self.seqs[op.who]))

    def _read(self, op: Op) -> None:
        tokens = self.engine.words.encode(op.text)
        self._ask(Request(self.seqs[op.who], "append", tokens, seal=True))

    def _fork(self, op: Op) -> None:
        self.seqs[f"{op.who} fork"] = self._ask(Request(self.seqs[op.who], "fork"))

    def _publish(self, op: Op) -> None:
        (team,) = op.teams
        number = 1 + sum(name == team for name, _ in self.records)
        tokens = tuple(self.engine.words.encode(op.text))
        draft = Record(f"{team}/{number}", op.who, tokens, -1, -1, team, 1, False)
        made = publish(self.engine, self.engine.submit, draft, [self.prompt], ())
        self.records[team, number] = made[0]
        while self.engine.has_work:
            self.engine.step()

    def _attach(self, op: Op) -> None:
        self._ask(self.records[op.teams[0], op.number].request(self.seqs[op.who]))


STORIES: tuple[Callable[[], tuple[Op, ...]], ...] = (
    story,
    *(lambda seed=seed: random_story(seed) for seed in range(3)),  # type: ignore[misc]
)


@cache
def reference(number: int) -> Run:
    """The run of a story with the engine's own functions."""
    run = Run(STORIES[number](), label.join, label.may_hold)
    assert run.fault is None
    return run


def labels(join: Any, may_hold: Any) -> Wrong | None:
    """`join` and `may_hold` let everybody have what it may, and nothing else."""
    for name, function in (("join", join), ("may_hold", may_hold)):
        if not callable(function):
            return Wrong(f"a function {name}", shown(function), name)
    for number, ops in enumerate(STORIES):
        truth, run = reference(number), Run(ops(), join, may_hold)
        for step, (wanted, got) in enumerate(zip(truth.moments, run.moments, strict=False)):
            if wanted.mounts != got.mounts:
                where = f"operation {step}" if number == 0 else f"operation {step} of another run"
                if wrong := _differs(f"{where}: {got.op.words()}", wanted, got, run):
                    return wrong
        if run.fault is not None:
            return run.fault
    return None


def _differs(where: str, wanted: Moment, got: Moment, run: Run) -> Wrong | None:
    """The first mount that only one of the two has."""
    due = {mount[1:] for mount in wanted.mounts}
    done = {mount[1:]: mount[0] for mount in got.mounts}
    books = run.log.replay(got.stop)
    for (seq_id, segment, site), index in done.items():
        if (seq_id, segment, site) in due:
            continue
        reader, seen = books.sequences[seq_id], frozenset(books.pools[site[0]].labels[site[1]])
        if not label.may_hold(seen, reader.clearance):
            came = f"{reader.name} mounts {_name(site)}, which has seen {braced(seen)}"
            expected = f"not this block: the reader's clearance is {braced(reader.clearance)}"
            hint = _hint(run, seq_id, site, seen)
            return Wrong(expected, came, where, hint, run.log, index + 1, site, parts=PARTS)
    for _, seq_id, _, site in wanted.mounts:
        if site not in {mount[3] for mount in got.mounts}:
            reader = books.sequences[seq_id]
            seen = frozenset(books.pools[site[0]].labels[site[1]])
            expected = f"{reader.name} mounts {_name(site)}, label {braced(seen)}"
            after = _computed(run.log, seq_id, got)
            came = "it is not given them" if after is None else "it computes these words once more"
            came += f"; its clearance is {braced(reader.clearance)}"
            hint = _hint(run, seq_id, site, seen)
            return Wrong(expected, came, where, hint, run.log, after, site, parts=PARTS)
    return None


def _hint(run: Run, seq_id: int, site: Site, seen: Label) -> str:
    """Which of the two functions answered what. Not what it should have."""
    made, books = run.engine.carried[site], run.engine.ledger
    if made.label != seen:
        return f"{made.words()}: whose words has this block seen?"
    clearance = books.sequences[seq_id].clearance
    answer = run.engine.answers.get((seq_id, site))
    return f"may_hold({braced(made.label)}, {braced(clearance)}) gave {answer}"


def _computed(log: Log, seq_id: int, moment: Moment) -> int | None:
    """The index after the event by which a holder took blocks for words of its own, if it did."""
    for index in range(moment.start, moment.stop):
        event = log.events[index]
        if isinstance(event, Allocated) and event.seq_id == seq_id:
            return index + 1
    return None


def _name(site: Site) -> str:
    return f"block {site[1]} of {site[0]}"
