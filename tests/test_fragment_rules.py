"""Edited plans that would mount what is not the reader's to hold: each is refused, whole.

A fragment names another holder's KV, so every field of the command that takes it in, and of the
event that mounts it, is a way to ask for too much. Whatever is asked, the door says no, nothing has
changed, and the plan as it was made is still accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from toy import Toy, plain

from inms_lab.books.events import (
    Allocated,
    Commanded,
    Copied,
    Event,
    Evicted,
    Freed,
    Published,
    Released,
    Shared,
    Stepped,
)
from inms_lab.books.gate import OPEN
from inms_lab.decisions.outcome import Plan
from inms_lab.decisions.plan import plan_extend
from inms_lab.errors import PlanInvalid
from inms_lab.logs import audit
from inms_lab.serving.commands import entry
from inms_lab.serving.request import Request

SYSTEM = [1, 2, 3, 4, 0, 1]
NEWS = [3, 3, 1, 1, 3, 3, 1, 1, 2, 2]  # the first two blocks are alike
SECRET = [4, 4, 4, 4, 2, 2, 2, 2]
MINE = [0, 0, 0, 2, 2]


class Story:
    """`reader` has the prompt and text of its own and is about to attach the team's record."""

    def __init__(self) -> None:
        self.toy = toy = Toy(gate=OPEN, groups=("team", "others"), blocks=(8, 16, 24))
        self.other = toy.agent("b", "team")
        for text in (SECRET, NEWS):
            toy.do(self.other, "append", text, seal=True)
        toy.prompt(SYSTEM)
        self.record = self.published("team", [SYSTEM])
        self.alike = self.published("team")  # the same text at another place
        self.theirs = self.published("others", [SYSTEM])
        ours = toy.engine.namespace
        toy.engine.namespace = replace(ours, salt="pepper")
        self.foreign = self.published("team")
        toy.engine.namespace = ours
        self.twin = toy.agent("a", "team")
        toy.do(self.twin, "append", SECRET, seal=True)
        toy.do(self.twin, "append", MINE)
        self.reader = toy.agent("a", "team")
        toy.do(self.reader, "append", SYSTEM, tier="global", seal=True)
        toy.do(self.reader, "append", MINE)
        self.plan = self.planned(self.record)
        toy.log.add_tokens([0] * 4)

    def published(self, team: str, behind: list[list[int]] | None = None) -> int:
        """A record with this text that was encoded here and nowhere else."""
        record = self.toy.record(team, behind=behind or [])
        self.toy.do(record, "append", NEWS, tier="group", group=team, seal=True, fresh=True)
        return record

    def planned(self, record: int, late: bool = False) -> Plan:
        """Attach and mount, in one plan; `late`: it is mounted later."""
        toy, who = self.toy, self.reader
        request = Request(who, "append", NEWS, "group", "team", seal=True, record=record)
        request.offset = toy.log.add_tokens(NEWS)[0]
        made = entry(toy.ledger, toy.log, toy.engine.policy, request, 100, toy.engine.terms)
        if late:
            return made
        trial = toy.ledger.overlay()
        for event in made.events:
            trial.apply(event)
        mounts = plan_extend(trial, len(toy.log), who, 100)
        assert isinstance(mounts, Plan)
        assert mounts.chunk is None
        return Plan(len(toy.log), (*made.events, *mounts.events))

    def refuses(self, events: tuple[Event, ...], words: str) -> None:
        """The door says no in these words, and nothing moved; the plan itself is good."""
        toy = self.toy
        before, index, slots = plain(toy.ledger), len(toy.log), repr(toy.cache.store.slots)
        with pytest.raises(PlanInvalid, match=words):
            toy.cache.commit(Plan(index, events))
        assert plain(toy.ledger) == before
        assert (len(toy.log), repr(toy.cache.store.slots)) == (index, slots)
        assert not audit.faults(toy.ledger)

    def segments(self, seq_id: int) -> list[Any]:
        return self.toy.ledger.sequences[seq_id].segments


def test_the_plan_of_the_story_is_accepted_as_it_is() -> None:
    story = Story()
    command, shared = story.plan.events
    assert isinstance(command, Commanded)
    assert (command.source, command.piece, command.encoded) == (story.record, 1, 6)
    assert shared == Shared(story.reader, 2, "group:team", (0, 1, 2), 10, "hit")
    assert story.toy.cache.commit(story.plan) is None
    assert story.segments(story.reader)[2].shift == 5


# the command ---------------------------------------------------------------------------------

Change = Callable[[Story, Commanded], Commanded]


def field(**changes: Any) -> Change:
    return lambda story, e: replace(e, **changes)


def source(who: str, piece: int = 1, **changes: Any) -> Change:
    return lambda story, e: replace(e, source=getattr(story, who), piece=piece, **changes)


OWN = ("agent:a",)
PRIVATE = {"tier": "private", "pool_id": "private"}
COMMANDS: dict[str, tuple[str, Change]] = {
    "a record of another tenant": ("the same namespace", source("foreign", 0, encoded=0)),
    "a record of another team": ("keeps pool and label", source("theirs")),
    "a record of another team, under its label": (
        r"may not hold \['group:others'\]",
        source("theirs", label=("group:others",), pool_id="group:others"),
    ),
    "another's private text": (
        "may not hold",
        source("other", encoded=8, label=("agent:b",), **PRIVATE),
    ),
    "another's private text, as if one's own": (
        "keeps pool and label",
        source("other", encoded=8, label=OWN, **PRIVATE),
    ),
    "another's private text, as if the team's": (
        "keeps pool and label",
        source("other", encoded=8),
    ),
    "a segment that is not there": ("does not exist", field(piece=2)),
    "a holder that is not there": ("there is no holder 99", field(source=99)),
    "no holder": ("does not exist", field(source=-1)),
    "other text of the same holder": ("keeps pool and label", field(piece=0)),
    "text that is still open": (
        "sealed text",
        lambda story, e: replace(
            source("twin", 1, encoded=8, length=5, label=OWN, **PRIVATE)(story, e),
            offset=story.toy.log.add_tokens(MINE)[0],
        ),
    ),
    "a record at the place of another": ("whole blocks", source("alike", 0)),
    "from before its beginning": ("whole blocks", field(encoded=2)),
    "from within a block": ("whole blocks", field(encoded=7)),
    "from the next block on": ("text that it stands for", field(encoded=10, length=6)),
    "at no position": ("whole blocks", field(encoded=-1)),
    "to within a block": ("whole blocks", field(length=9)),
    "beyond its end": ("whole blocks", field(length=11)),
    "no token": ("at least one token", field(length=0)),
    "a negative number of tokens": ("outside the token table", field(length=-4)),
    "tokens before the table": ("outside the token table", field(offset=-10)),
    "tokens behind the table": ("outside the token table", field(offset=10**6)),
    "other tokens": ("text that it stands for", lambda story, e: replace(e, offset=e.offset - 1)),
    "a lower label": ("keeps pool and label", field(label=())),
    "a higher label": ("keeps pool and label", field(label=("agent:a", "group:team"))),
    "another pool": ("keeps pool and label", field(pool_id="private")),
    "another tier": ("keeps pool and label", field(tier="private")),
    "not to be found": ("keeps pool and label", field(indexed=False)),
    "open": ("sealed text", field(seal=False)),
    "a turn to write": ("sealed text", field(verb="write", count=3)),
}


@pytest.mark.parametrize(("words", "change"), COMMANDS.values(), ids=COMMANDS)
def test_a_command_cannot_name_kv_that_is_not_a_fragment_for_its_reader(
    words: str, change: Change
) -> None:
    story = Story()
    command, *rest = story.plan.events
    assert isinstance(command, Commanded)
    edited = change(story, command)
    assert edited != command
    story.refuses((edited,), words)
    story.refuses((edited, *rest), words)
    assert story.toy.cache.commit(story.plan) is None


# what mounts ---------------------------------------------------------------------------------

Events = Callable[[Story, Shared], tuple[Event, ...]]


def mount(**changes: Any) -> Events:
    return lambda story, e: (replace(e, **changes),)


def blocks_of(who: str, piece: int, **changes: Any) -> Events:
    return lambda story, e: (
        replace(e, blocks=tuple(story.segments(getattr(story, who))[piece].blocks), **changes),
    )


def copied(story: Story, e: Shared) -> tuple[Event, ...]:
    return (Copied(story.reader, 2, 0, "group:team", 0, "group:team", 9, 4),)


MOUNTS: dict[str, tuple[str, Events]] = {
    "the same text of another place": ("another fingerprint", blocks_of("alike", 0)),
    "the same text of another tenant": ("another fingerprint", blocks_of("foreign", 0)),
    "the same text, as if a fork's": ("does not exist", blocks_of("alike", 0, cause="fork")),
    "a pool that is not the segment's": (
        "is not in private",
        blocks_of("other", 1, pool_id="private"),
    ),
    "another team's pool": ("is not in group:others", mount(pool_id="group:others")),
    "blocks in another order": ("other tokens|fingerprint", mount(blocks=(1, 0, 2))),
    "one block twice": ("another fingerprint", mount(blocks=(0, 0, 2))),
    "part of a block": ("whole blocks", mount(blocks=(0,), length=3)),
    "part of the last block": ("whole blocks", mount(length=9)),
    "more than there is": ("slots and tokens differ", mount(length=12)),
    "a block too few": ("slots are 3 blocks", mount(blocks=(0, 1))),
    "a free block": ("not published", mount(blocks=(0, 1, 15))),
    "blocks to write into": (
        "may write to group:team",
        lambda story, e: (Allocated(story.reader, 2, "group:team", (9,), (b"",), 4),),
    ),
    "a copy": ("may write to group:team", copied),
}


@pytest.mark.parametrize(("words", "change"), MOUNTS.values(), ids=MOUNTS)
def test_only_the_donors_own_blocks_are_mounted_and_whole(words: str, change: Events) -> None:
    story = Story()
    command, shared = story.plan.events
    assert isinstance(shared, Shared)
    story.refuses((command, *change(story, shared)), words)
    assert story.toy.cache.commit(story.plan) is None


def test_a_fragment_is_not_mounted_before_what_stands_before_it_is_computed() -> None:
    """Else the next tokens to be computed would be counted from the wrong place."""
    story = Story()
    toy = story.toy
    toy.ask(story.reader, "append", MINE)
    toy.engine.enter()
    attach = story.planned(story.record, late=True)
    trial = toy.ledger.overlay()
    trial.apply(attach.events[0])
    taken = plan_extend(trial, attach.at, story.reader, 100)
    assert isinstance(taken, Plan)
    assert [type(e) for e in taken.events] == [Allocated]
    shared = Shared(story.reader, 2, "group:team", (0, 1, 2), 10, "hit")
    words = "when what stands before is computed"
    story.refuses((*attach.events, *taken.events, shared), words)
    assert toy.cache.commit(replace(attach, events=(*attach.events, *taken.events))) is None


# what comes after ----------------------------------------------------------------------------


def own_fragment() -> Story:
    """The reader has mounted its own sealed text, which its twin has elsewhere: blocks 2 and 3 of
    the private pool, in the reader's segment 2."""
    story = Story()
    toy, who = story.toy, story.reader
    piece = next(i for i, s in enumerate(story.segments(story.twin)) if [*s.tokens] == [*SECRET])
    donor, offset = story.segments(story.twin)[piece], toy.log.add_tokens(SECRET)[0]
    number = toy.ledger.sequences[who].number + 1
    place = (donor.tier, donor.label, donor.pool_id, offset, len(SECRET))
    whose = {"source": story.twin, "piece": piece, "encoded": donor.encoded}
    made = Commanded(who, number, "append", *place, seal=True, **whose)
    assert toy.cache.commit(Plan(len(toy.log), (made,))) is None
    toy.run()
    (segment,) = story.segments(who)[2:]
    assert (segment.is_fragment, segment.computed, segment.pool_id) == (True, 8, "private")
    return story


def lone_fragment() -> Story:
    """The same after its twin has ended, so that the reader alone holds the blocks."""
    story = own_fragment()
    pool = story.toy.ledger.pools["private"]
    story.toy.enter(story.twin, "close")
    assert [pool.refs[b] for b in story.segments(story.reader)[2].blocks] == [1, 1]
    return story


def evicted(story: Story, index: int) -> Evicted:
    """A block of the fragment loses its identity, as if its only holder wrote into it."""
    pool, block = story.toy.ledger.pools["private"], story.segments(story.reader)[2].blocks[index]
    return Evicted("private", (block,), (pool.keys[block],), (0,), "overwritten")


def test_nobody_writes_into_a_fragment_or_a_copy_of_it() -> None:
    story = own_fragment()
    toy, who = story.toy, story.reader
    blocks = story.segments(who)[2].blocks
    (free,) = toy.ledger.pools["private"].next_free(1)
    last = Copied(who, 2, 1, "private", blocks[1], "private", free, 4)
    story.refuses((last,), "nobody writes into a fragment")
    step = Stepped(toy.ledger.num_steps + 1, 0, ((who, 1, 0, False),))
    story.refuses((step,), "without slots")
    cut = Freed(who, 2, "private", (), 7, "cut")
    story.refuses((cut,), "whole blocks")
    story.refuses((cut, step), "whole blocks")


def test_not_even_who_alone_holds_its_blocks() -> None:
    story = lone_fragment()
    who = story.reader
    step = Stepped(story.toy.ledger.num_steps + 1, 0, ((who, 1, 0, False),))
    cut = Freed(who, 2, "private", (), 7, "cut")
    story.refuses((evicted(story, 1), cut, step), "whole blocks")
    (block,) = story.segments(who)[2].blocks[1:]
    wrong = Published(who, 2, "private", 1, (block,), (b"k" * 16,))
    story.refuses((evicted(story, 1), wrong), "the keys are not the content's")


# detach --------------------------------------------------------------------------------------


def gone() -> tuple[Story, Commanded]:
    """A fragment that lost its KV, and the command that makes it the reader's own text."""
    story = Story()
    toy, who = story.toy, story.reader
    toy.cache.commit(Plan(story.plan.at, story.plan.events[:1]))
    label = ("agent:a", "group:team")
    number = toy.ledger.sequences[who].number + 1
    made = Commanded(who, number, "detach", label=label, count=2, source=story.record, **PRIVATE)
    return story, made


DETACHED: dict[str, tuple[str, dict[str, Any]]] = {
    "of no fragment": ("another holder's KV", {"count": 1}),
    "of the prompt": ("another holder's KV", {"count": 0}),
    "of what is not there": ("does not exist", {"count": 3}),
    "counted from the end": ("a negative number", {"count": -1}),
    "with a lower label": ("a label joins", {"label": ("agent:a",)}),
    "with no label": ("a label joins", {"label": ()}),
    "with a label beyond the clearance": (
        "may not hold",
        {"label": ("agent:a", "agent:b", "group:team")},
    ),
    "into the team's pool": (
        "label too high|a label joins",
        {"tier": "group", "pool_id": "group:team"},
    ),
    "into the global pool": ("label too high", {"tier": "global", "pool_id": "global"}),
    "into a pool of another tier": ("not of tier", {"tier": "group"}),
}


@pytest.mark.parametrize(("words", "changes"), DETACHED.values(), ids=DETACHED)
def test_what_is_detached_becomes_private_text_and_nothing_else(
    words: str, changes: dict[str, Any]
) -> None:
    story, made = gone()
    story.refuses((replace(made, **changes),), words)
    assert story.toy.cache.commit(Plan(len(story.toy.log), (made,))) is None
    assert [s.tier for s in story.segments(story.reader)] == ["global", "private", "private"]


def test_what_is_mounted_whole_is_not_detached() -> None:
    story = Story()
    toy, who = story.toy, story.reader
    toy.cache.commit(story.plan)
    label = ("agent:a", "group:team")
    number = toy.ledger.sequences[who].number + 1
    made = Commanded(who, number, "detach", label=label, count=2, **PRIVATE)
    story.refuses((made,), "what is mounted whole")


def test_what_the_reader_computes_itself_is_not_detached() -> None:
    """A record's text, its holder ended: the reader's own from the beginning, and half computed."""
    story = Story()
    toy, who = story.toy, story.reader
    toy.enter(story.record, "close")
    toy.enter(who, "append", NEWS, tier="group", group="team", seal=True, record=story.record)
    label = ("agent:a", "group:team")
    number = toy.ledger.sequences[who].number + 1
    made = Commanded(who, number, "detach", label=label, count=2, **PRIVATE)
    segment = story.segments(who)[2]
    assert (segment.source, segment.tier) == (story.record, "private")
    for computed in (0, 3, 6):
        while segment.computed < computed:
            toy.step(budget=3)
        plan = plan_extend(toy.ledger, len(toy.log), who, 3)
        assert isinstance(plan, Plan)
        for before in ((), plan.events):
            story.refuses((*before, made), "another holder's KV")


# inputs that make no sense -------------------------------------------------------------------


def test_offsets_and_counts_are_not_negative_and_sources_exist() -> None:
    story = Story()
    toy, who = story.toy, story.reader
    number = toy.ledger.sequences[who].number + 1
    text = Commanded(who, number, "append", "private", OWN, "private", 0, 4)
    for changes, words in (
        ({"offset": -4}, "outside the token table"),
        ({"length": -1}, "outside the token table"),
        ({"source": 99}, "there is no holder 99"),
        ({"verb": "write", "length": 0, "count": -1}, "a negative number"),
    ):
        story.refuses((replace(text, **changes),), words)
    released = Released(story.record, "a", "team", -4, 4)
    story.refuses((released,), "outside the token table")
    step = Stepped(toy.ledger.num_steps + 1, 0, ((who, -1, 0, False),))
    story.refuses((step,), "a negative number")
    words = "outside the token table|a negative number"
    story.refuses((replace(step, items=((who, 0, -1, False),)),), words)
    toy.enter(who, "write", count=2)
    late = replace(step, offset=len(toy.log.tokens), items=((who, 0, 1, False),))
    story.refuses((late,), "outside the token table")
    story.refuses((replace(late, offset=-1),), "outside the token table")
