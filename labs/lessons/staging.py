"""Lab 08: a team's run in each mode, to be looked at, and what the modes hold, risk and bring.

Without weights; a token is a word, a block has eight of them. So what reaches the reader can be
read, block by block: computed by itself, or mounted from somebody who has looked at something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import pandas as pd

from inms_lab.books.events import Allocated, Copied, Shared
from inms_lab.books.gate import OPEN
from inms_lab.books.ledger import Ledger
from inms_lab.errors import BadInput
from inms_lab.experiment import modes
from inms_lab.experiment.labs import Settings, open_lab
from inms_lab.experiment.modes import MODES, STAGES
from inms_lab.experiment.reading import NAMES, WAYS
from inms_lab.experiment.rehearsal import share_of
from inms_lab.experiment.report import tables
from inms_lab.experiment.tasks import DECIDERS, READER, Team, Tokens, family
from inms_lab.logs.log import Log
from inms_lab.model.forward import DryModel

from .results import results
from .small_labs import WORD_BYTES, WORDS, Words

BLOCK = 8  # words
READERS = (1, 2, 4, 8)
MIB = 2**20
INT8 = 68 / 256  # bytes of a vector of 64 numbers and its scale, to those in float32
VISIBLE = modes.POOLED  # other agents' private text is in the context: what it tells is read there
KV_OF = {  # the way in which shared text is encoded, as `leak_rank.json` calls it
    modes.CONTENT: "private",
    modes.RECORDS: "public",
    modes.REBUILT: "public",
}
SHOWN = {VISIBLE: f"what {NAMES[0]} thinks", modes.COPIES: "a decision that was replaced since"}
UNSHARED = "full prefill"  # the reader computes what it reads: nothing can leak
LOGITS, LESS_OWN = "logits", "less own"  # readers who see logits; the second one compares, too
ENDS = ("", "_low", "_high")


@dataclass(frozen=True, slots=True)
class Scene:
    """The log of a team's run, and the moment at which a text reaches the reader: `index` events
    have happened, and `block` (pool, number) is the first that holds nothing but this text."""

    log: Log
    index: int
    block: tuple[str, int]
    what: str


@cache
def scene(name: str) -> Scene:
    """A small team's run in the mode with this name."""
    if name not in MODES:
        raise BadInput(f"no mode is called {name!r}; there are: {', '.join(MODES)}")
    mode, text = MODES[name], Words()
    team = family(text, 1)[0].team
    dry = DryModel(WORDS, 4096, WORD_BYTES)
    settings = Settings(block_size=BLOCK, gate=OPEN)
    room = share_of(dry, team, settings) if mode.texts == modes.TRUNCATED else 0
    with open_lab(dry, mode, settings) as lab:
        lab.text, lab.log.piece = text, text.piece
        lab.preload(team.prompt, progress=False)
        story = WAYS[mode.texts](lab, team, len(NAMES), room)
        for step in (story.begin, story.hear):
            step(DECIDERS)
            step([READER])
        log, seq_id = lab.log.copy(), story.reader.seq_id
    index, block = reached(log, seq_id, _wanted(team, mode.texts))
    what = SHOWN.get(mode.texts, "the newest decision")
    return Scene(log, index, block, f"{what} reaches the reader")


def _wanted(team: Team, texts: str) -> Tokens:
    """The text to look at: a private one where it is seen, else the decision that came last; where
    no news arrives, what it replaced."""
    if texts == VISIBLE:
        return team.private[DECIDERS[0]]
    (last,) = (decision for decision in team.decisions if decision.changed)
    return last.text if texts == modes.COPIES else last.changed


def reached(log: Log, seq_id: int, wanted: Sequence[int]) -> tuple[int, tuple[str, int]]:
    """When a text came into the table of a holder, and the first block that holds nothing else; the
    last time, if there are several."""
    books, found = Ledger.replay(log.snapshot, (), log.tokens), None
    for index, event in enumerate(log.events, log.first + 1):
        books.apply(event)
        if isinstance(event, (Shared, Allocated, Copied)) and event.seq_id == seq_id:
            site = _site(books, seq_id, tuple(wanted))
            if site is not None and (found is None or found[1] != site):
                found = (index, site)
    if found is None:
        raise BadInput("this text never reaches the holder")
    return found


def _site(books: Ledger, seq_id: int, wanted: Tokens) -> tuple[str, int] | None:
    """The first block that holds nothing but this text, if its tokens have blocks yet."""
    seq = books.sequences[seq_id]
    held = tuple(seq.tokens())
    starts = range(len(held) - len(wanted) + 1)
    at = next((i for i in starts if held[i : i + len(wanted)] == wanted), None)
    for segment in seq.segments if at is not None else ():
        start = at - segment.first_position if at is not None else -1
        if 0 <= start < len(segment.tokens):
            number = -(-start // segment.block_size)
            there = number < len(segment.blocks)
            return (segment.pool_id, segment.blocks[number]) if there else None
    return None


def risks(readers: int = 1, names: Sequence[str] | None = None) -> pd.DataFrame:
    """What was measured, a row a mode: `memory` (MiB of KV at its peak, with that many readers),
    `quality` (share of right answers) and `leak` (how often another agent's private value is held
    for likelier than an arbitrary one: 0.5 is chance, 1 is certainty), with their intervals.

    `leak` is of what reaches the reader: private text itself where that is in the context (from the
    experiment's answers), else the KV of shared text, by a reader who sees logits and compares them
    with those of its own (`leak_rank.json`; by what the text was encoded behind, whatever number
    format its KV has).
    """
    if readers not in READERS:
        raise BadInput(f"it was counted for {', '.join(map(str, READERS))} readers, not {readers}")
    measured = results("experiment")
    found = tables(measured)
    rows = {}
    for name in names or found["modes"].index:
        mode, row = MODES[name], found["modes"].loc[name]
        blocks = found["readers"].loc[name, str(readers)]
        size = measured["block_size"] * WORD_BYTES * (INT8 if mode.int8 else 1)
        leak = row if mode.texts == VISIBLE else None
        rows[name] = {
            "memory": blocks * size / MIB,
            **{f"quality{end}": row[f"correct{end}"] for end in ENDS},
            **_leak(mode.texts if mode.policy.encodes_records else "", leak),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("mode")


def stages(readers: int = 1) -> pd.DataFrame:
    """The same of the stages of `inms` alone."""
    return risks(readers, STAGES)


def _leak(texts: str, seen: pd.Series | None) -> dict[str, float]:
    if seen is not None:
        return {f"leak{end}": float(seen[f"leak{end}"]) for end in ENDS}
    variant = KV_OF.get(texts, UNSHARED)
    reader = LOGITS if variant == UNSHARED else LESS_OWN
    rows = results("leak_rank")["rows"]
    (row,) = (r for r in rows if (r["variant"], r["reader"]) == (variant, reader))
    return {f"leak{end}": row[f"auc{end}"] for end in ENDS}
