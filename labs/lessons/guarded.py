"""An engine in which two functions that are handed in decide who may hold which block.

All that serving has against a leak is taken away: fingerprints do not name labels, and the label
check is off. Instead each reader sees the books without what `may_hold` keeps from it, by labels
that `join` made. The log has the true labels, so it replays, and shows what a wrong function does.
No weights: a token is a word.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any

from inms_lab.books import label
from inms_lab.books.checks import may_write
from inms_lab.books.events import Allocated, Commanded
from inms_lab.books.gate import OPEN
from inms_lab.books.label import Label
from inms_lab.books.ledger import Ledger
from inms_lab.books.segment import Segment
from inms_lab.books.sequence import Sequence
from inms_lab.config import Config
from inms_lab.decisions.outcome import Gone, Outcome, Plan, Refused
from inms_lab.decisions.plan import plan_extend
from inms_lab.decisions.policy import Inms
from inms_lab.decisions.reuse import detach
from inms_lab.hindsight.shadow import Site
from inms_lab.model.forward import DryModel
from inms_lab.serving.commands import entry
from inms_lab.serving.engine import Engine
from inms_lab.serving.planning import Planner, Share
from inms_lab.serving.request import Request

from .cases import short
from .small_labs import BLOCK, WORD_BYTES, WORDS, Words
from .wrong import Wrong, in_a_line, shown

ROOM = 400 * BLOCK * WORD_BYTES  # of each pool: nobody ever gives way


@dataclass(frozen=True, slots=True)
class Made:
    """A label that `join(before, own)` made."""

    before: Label
    own: Label
    label: Label

    def words(self) -> str:
        """The call and its answer."""
        return f"join({braced(self.before)}, {braced(self.own)}) gave {braced(self.label)}"


class Faulty(BaseException):
    """A function that was handed in raised, or gave what is no answer: `wrong` says it. Not an
    Exception: the engine would put that down to whoever asked."""

    def __init__(self, wrong: Wrong) -> None:
        self.wrong = wrong


class Unserved(BaseException):
    """A holder is not given a sealed text that it needs, and may not write it itself."""


def braced(names: Label) -> str:
    """A label in short: {ada, checkout}"""
    return f"{{{short(names)}}}"


class Guarded(Engine):
    """Mounts a block for a reader exactly where `may_hold(label, clearance)` says so."""

    def __init__(self, join: Callable[..., Any], may_hold: Callable[..., Any]) -> None:
        model, self.words = DryModel(WORDS, 1024, WORD_BYTES), Words()
        config = Config(BLOCK, 0, 64, 1024, ROOM, ROOM, ROOM)
        super().__init__(model, model.new_store(), Inms().without("label"), config, OPEN)
        self.planner = _Planner(self)
        self.log.piece = self.words.piece
        self.functions = join, may_hold
        self.contexts: dict[int, list[Made]] = {}  # holder -> of each of its segments
        self.carried: dict[Site, Made] = {}  # of every block that was computed
        self.answers: dict[tuple[int, Site], bool] = {}  # what may_hold said of it to a holder

    def allows(self, reader: Sequence, site: Site) -> bool:
        """What `may_hold` says."""
        carried = self.carried[site].label
        where = f"may_hold({braced(carried)}, {braced(reader.clearance)})"
        answer = _called(self.functions[1], where, carried, reader.clearance)
        if not isinstance(answer, bool):
            raise Faulty(Wrong("True or False", shown(answer), where, _returned(answer)))
        self.answers[reader.seq_id, site] = answer
        return answer

    def joined(self, before: Label, own: Label) -> Made:
        """What `join` makes of the label of a context and that of the text behind it."""
        where = f"join({braced(before)}, {braced(own)})"
        answer = _called(self.functions[0], where, before, own)
        if not (isinstance(answer, (set, frozenset)) and all(isinstance(n, str) for n in answer)):
            raise Faulty(Wrong("a set of names", shown(answer), where, _returned(answer)))
        return Made(before, own, frozenset(answer))

    # where the engine would ask the label check --------------------------------------------

    def _book(self, request: Request) -> Plan:
        if request.verb != "append":
            plan = super()._book(request)
            if request.verb == "fork":
                child = len(self.ledger.sequences) - 1
                self.contexts[child] = list(self.contexts.get(request.seq_id, ()))
            return plan
        books = self._texts_for(self.ledger.sequences[request.seq_id], request)
        plan = entry(books, self.log, self.policy, request, self.context, self.terms)
        self.commit(plan)
        for event in plan.events:
            if isinstance(event, Commanded):
                self._label(event, request)
        return plan

    def _texts_for(self, reader: Sequence, request: Request) -> Ledger:
        """The books in which texts are blank whose KV the reader may not hold."""
        books, wanted = self.ledger.overlay(), list(request.tokens)
        for holder in self.ledger.holders():
            for number, segment in enumerate(holder.segments):
                same = segment.blocks and list(segment.tokens) == wanted
                if same and not self.allows(reader, _first(segment)):
                    del books.sequences[holder.seq_id].segments[number].tokens[:]
        return books

    def _label(self, event: Commanded, request: Request) -> None:
        """What a new segment carries: whose text it is, or, of a fragment, what its KV carries."""
        contexts = self.contexts.setdefault(event.seq_id, [])
        if event.piece >= 0:
            donor = self.ledger.sequences[event.source].segments[event.piece]
            own = self.carried[_first(donor)].label
        else:
            own = label.group(request.group) if request.group else label.PUBLIC
            if event.tier == "private":
                own |= label.private(self.ledger.sequences[event.seq_id].name)
        contexts.append(self.joined(contexts[-1].label if contexts else label.PUBLIC, own))

    def extend(self, seq_id: int, budget: int) -> Outcome:
        """Plan and commit for one holder, on the books as it may see them."""
        while True:
            books = self._blocks_for(self.ledger.sequences[seq_id])
            outcome = plan_extend(books, len(self.log), seq_id, budget)
            self.log.decide(seq_id, budget, outcome)
            if isinstance(outcome, Refused):  # what it may not hold it would have to write
                raise Unserved
            if isinstance(outcome, Gone):  # a may_hold that changes its mind
                self.commit(detach(self.ledger, self.policy, len(self.log), outcome))
                made = self.contexts[seq_id][outcome.segment]
                own = label.private(self.ledger.sequences[seq_id].name)
                self.contexts[seq_id][outcome.segment] = self.joined(made.before, made.own | own)
                continue
            if isinstance(outcome, Plan):
                taken = [event for event in outcome.events if isinstance(event, Allocated)]
                seq, pools = self.ledger.sequences[seq_id], self.ledger.pools
                if not all(may_write(seq, pools[event.pool_id].spec.tier) for event in taken):
                    raise Unserved
                self.commit(outcome)
                for event in taken:
                    made = self.contexts[seq_id][event.segment]
                    self.carried |= {(event.pool_id, block): made for block in event.blocks}
            return outcome

    def _blocks_for(self, reader: Sequence) -> Ledger:
        """The books in which the reader finds nothing for its segments that it may not hold."""
        books = self.ledger.overlay()
        for segment in reader.segments:
            index, pool_id, size = books.pools[segment.pool_id].index, segment.pool_id, BLOCK
            for number in range(segment.computed // size, -(-len(segment.tokens) // size)):
                key = segment.key(number)
                found = index.get(key, ())
                if kept := tuple(b for b in found if self.allows(reader, (pool_id, b))):
                    index[key] = kept
                elif found:
                    del index[key]
        return books


class _Planner(Planner):
    """Asks the guarded engine; its pools are large, so nobody has to give way."""

    engine: Guarded

    def _extend(
        self, share: Share, seq_id: int, budget: int, busy: Set[int], force: bool = False
    ) -> Outcome:
        return self.engine.extend(seq_id, budget)


def _first(segment: Segment) -> Site:
    return segment.pool_id, segment.blocks[0]


def _called(function: Callable[..., Any], where: str, *labels: Label) -> Any:
    try:
        return function(*labels)
    except Exception as error:
        raise Faulty(Wrong("an answer", in_a_line(error), where)) from None


def _returned(answer: object) -> str:
    return "does it return what it found?" if answer is None else ""
