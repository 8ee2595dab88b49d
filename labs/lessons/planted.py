"""The prepared logs of lab 04: opened by name, and run once more without one of their inputs.

    log = planted("leak")            # by name, wherever the lab's notebook lies
    told(log, 1234)                  # an event in words; `said(log, tokens)`: token ids as words
    again = without(log, 1234)       # the same inputs once more, but for event 1234
`tools/plant_faults.py` made them, on an engine without weights: words are tokens, and what the
agents "write" was written down beforehand.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from inms_lab.books.events import Commanded, Event, PoolOpened, Registered, Released, Stepped
from inms_lab.books.sequence import Sequence
from inms_lab.config import Config
from inms_lab.decisions.outcome import Chunk
from inms_lab.errors import BadInput
from inms_lab.hindsight.reopened import policy_of
from inms_lab.logs.log import Log
from inms_lab.model.forward import DryModel
from inms_lab.publishing.records import Prompt, Record
from inms_lab.serving.engine import Engine
from inms_lab.serving.request import Request
from inms_lab.serving.spans import Sampled

from .told import said, told

__all__ = ["NAMES", "planted", "said", "told", "without"]

LOGS = Path(__file__).parent / "logs"
NAMES = ("split", "leak", "gap", "secret", "hog", "mount")  # the first is worked through together
VOCABULARY, CONTEXT = 4096, 8192
PLANNED = ("hit", "room", "preempted")  # causes of events that planning made, not an input
INPUTS = (PoolOpened, Registered, Released, Commanded)


@cache
def planted(name: str) -> Log:
    """The prepared log called `name`; asked again, the same object, whose events are fixed."""
    if name not in NAMES:
        raise BadInput(f"no prepared log is called {name!r}; there are: {', '.join(NAMES)}")
    log = Log.load(LOGS / f"{name}.inmslog")
    log.events, log.decisions = Fixed(log.events), Fixed(log.decisions)
    return log


class Fixed(list):  # type: ignore[type-arg]
    """A list that stays as it is; a slice of it is an ordinary one."""

    def _no(self, *_: object, **__: object) -> NoReturn:
        raise BadInput("a prepared log cannot be changed: take a copy of it, `log.copy()`")

    append = clear = extend = insert = pop = remove = reverse = sort = _no
    __delitem__ = __iadd__ = __imul__ = __setitem__ = _no


class Scripted(Engine):
    """An engine without weights; `script` says what each holder writes next."""

    def __init__(self, policy: Any, config: Config, bytes_per_token: int) -> None:
        model = DryModel(VOCABULARY, CONTEXT, bytes_per_token)
        super().__init__(model, model.new_store(), policy, config)
        self.script: defaultdict[int, deque[int]] = defaultdict(deque)

    def sample(self, chunks: list[Chunk], logits: Any) -> list[Sampled]:
        """The written-down token instead of the model's."""
        out = super().sample(chunks, logits)
        return [s if s.token is None else replace(s, token=self._next(s)) for s in out]

    def _next(self, sampled: Sampled) -> int:
        ahead = self.script[sampled.chunk.seq_id]
        return ahead.popleft() if ahead else 0

    def settle(self) -> None:
        """Step until nobody has anything to do."""
        while self.has_work:
            self.step()


def without(log: Log, index: int | None = None) -> Log:
    """The log's inputs once more on an engine of the same sizes, but for the one at `index`.

    What cannot be without it goes too: all commands of a holder that was not registered, and the
    attaching of a text that was not released. `None` leaves nothing out: the same log again. Edits
    in the middle of a context are not among the inputs that it knows.
    """
    if log.first:
        raise BadInput("the beginning of this log was cut off: what came first is not known")
    if index is not None and not (0 <= index < len(log) and isinstance(log.events[index], INPUTS)):
        raise BadInput("only an input can be left out: Registered, Released or Commanded")
    rerun = _Rerun(log)
    for number, event in enumerate(log.events):
        rerun.take(event, number == index)
    rerun.engine.settle()
    return rerun.engine.log


class _Rerun:
    """Inputs of a log, handed to an engine of our own at the step boundaries at which they came."""

    def __init__(self, log: Log) -> None:
        self.log = log
        names = {f.name for f in fields(Config)}
        config = Config(**{k: v for k, v in log.about.items() if k in names})
        self.engine = Scripted(policy_of(log), config, log.about["bytes_per_token"])
        self.engine.log.piece, self.engine.log.about = log.piece, log.about
        self.ids: dict[int, int] = {}  # of holders there -> here
        self.texts: dict[int, Prompt | Record] = {}  # sealed texts here, by their offset there
        self.gone: set[int] = set()  # offsets of what was not released
        self.planned = False  # whether something was planned since the last input

    def take(self, e: Event, leave: bool) -> None:
        """The next event; `leave` it out."""
        if isinstance(e, Stepped):
            self._script(e)
            self.engine.step()
            self.planned = False
        elif not isinstance(e, INPUTS):
            self.planned |= getattr(e, "cause", "hit") in PLANNED
        else:
            if self.planned and not (isinstance(e, Commanded) and e.verb == "fail"):
                self.engine.step()  # it mounted only, and so left no `Stepped`
                self.planned = False
            self._input(e, leave)

    def _input(self, e: Event, leave: bool) -> None:
        engine = self.engine
        if isinstance(e, PoolOpened) and not leave:
            engine.cache.record(e)
        elif isinstance(e, Registered) and not leave:
            self._register(e)
        elif isinstance(e, Released) and (leave or e.seq_id not in self.ids):
            self.gone.add(e.offset)
        elif isinstance(e, Released):
            text, holder = tuple(self._tokens(e)), self.ids[e.seq_id]
            offset, length = engine.log.add_tokens(text)
            self.texts[e.offset] = Record("", e.by, text, holder, offset, e.group)
            engine.cache.record(Released(holder, e.by, e.group, offset, length))
        elif isinstance(e, Commanded) and not leave and e.seq_id in self.ids:
            self._command(e)

    def _register(self, e: Registered) -> None:
        new = len(self.engine.ledger.sequences)
        if e.parent_id < 0:
            self.engine.cache.record(replace(e, seq_id=new))
        elif e.parent_id in self.ids:
            forked = self.engine.submit(Request(self.ids[e.parent_id], "fork"))
            self.engine.enter()
            new = forked.future.result(timeout=0)
        else:
            return
        self.ids[e.seq_id] = new

    def _command(self, e: Commanded) -> None:
        seq = self.engine.ledger.sequences[self.ids[e.seq_id]]
        if e.verb == "fail" or not seq.is_live or (e.length and e.offset in self.gone):
            return  # a failure is what came of it, not an input
        self.engine.submit(self._request(e, seq))
        self.engine.enter()  # now, as then: unless its holder is still busy here

    def _request(self, e: Commanded, seq: Sequence) -> Request:
        if e.seal and seq.kind == "prompt":
            text = tuple(self._tokens(e))
            self.texts[e.offset] = Prompt(text, self.engine.log.add_tokens(text)[0])
        if e.seal and e.offset in self.texts:
            request = self.texts[e.offset].request(seq.seq_id)
            request.record = -1 if request.record == seq.seq_id else request.record  # it writes it
            return request
        request = Request(seq.seq_id, e.verb, count=e.count, cause=e.cause)
        if e.verb in ("append", "write"):
            request.tokens, request.seal = self._tokens(e), e.seal
        elif e.verb == "rollback":
            request.count = min(e.count, seq.num_tokens)
        return request

    def _tokens(self, e: Commanded | Released) -> list[int]:
        return self.log.tokens[e.offset : e.offset + e.length].tolist()

    def _script(self, e: Stepped) -> None:
        offset = e.offset
        for seq_id, _, num_sampled, _ in e.items:
            if seq_id in self.ids:
                self.engine.script[self.ids[seq_id]].extend(
                    self.log.tokens[offset : offset + num_sampled]
                )
            offset += num_sampled
