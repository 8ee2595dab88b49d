"""Exercise `blocks`: a pool of blocks with copy-on-write beside the engine, operation by operation.

The same 200 operations go to the engine (a lab without weights) and to the student's pool. After
each, both must read the same texts, hold the same blocks together and count the same holders.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Any

from inms_lab.logs.log import Log
from inms_lab.notebook.agent import Agent
from inms_lab.notebook.lab import Lab

from .small_labs import letter_lab
from .wrong import Wrong, in_a_line, shown

WORDS = ("mint", "rose", "sage", "dill")
NAMES = (
    *("ada", "bob", "cat", "dan", "eve", "fay", "gus", "hal", "ida", "jan", "kim", "lea", "max"),
    *("nan", "ola", "pam", "quo", "ray", "sam", "tea", "ulf", "vic", "wim", "xan", "yes", "zoe"),
)
MOST_LIVE = 6
NUM_OPERATIONS, SEED = 200, 39  # a seed at which each of the three faults shows in its turn
MOST_BLOCKS = 5  # of a sequence
NUM_BLOCKS = 24  # of the student's pool
LETTERS = "abcdefghijklmnopqrstuvwxyz"

Place = tuple[str, int]  # a sequence, and which of its blocks


@dataclass(frozen=True, slots=True)
class Moment:
    """What holds when the engine has done an operation, and `index` events have happened."""

    operation: tuple[str, ...]
    texts: dict[str, tuple[str, ...]]
    blocks: dict[Place, int]
    pool_id: str
    index: int

    def words(self) -> str:
        """The operation as a call."""
        verb, *arguments = self.operation
        return f"{verb}({', '.join(map(repr, arguments))})"

    @property
    def num_held(self) -> int:
        """Blocks that somebody holds."""
        return len(set(self.blocks.values()))


def blocks(pool: Any) -> Wrong | None:
    """The first of the operations after which a student's pool differs from the engine's."""
    moments, log = reference()
    if not isinstance(pool, type):
        return Wrong("a class", shown(pool), hint="hand in the class itself: Blocks")
    mine = pool(NUM_BLOCKS)
    for number, moment in enumerate(moments):
        verb, *arguments = moment.operation
        where = f"operation {number}, {moment.words()}"
        try:
            getattr(mine, verb)(*arguments)
            found = differs(mine, moment)
        except Exception as error:
            found = ("no error", in_a_line(error), _last_used(moment), "run that line by hand")
        if found:
            expected, came, place, hint = found
            block = moment.blocks.get(place) if place else None
            pin = None if block is None else (moment.pool_id, block)
            return Wrong(expected, came, where, hint, log, moment.index, pin)
    return None


Difference = tuple[str, str, Place | None, str]  # expected, came, where it can be seen, a hint


def differs(mine: Any, moment: Moment) -> Difference | None:
    """The first difference between a student's pool and what holds."""
    for name in [*moment.texts, *(n for n in mine.table if n not in moment.texts)]:
        wanted, row = moment.texts.get(name, ()), list(mine.table.get(name, ()))
        came = tuple(_get(mine.text, block) for block in row)
        if came != wanted:
            pairs = enumerate(zip(came, wanted, strict=False))
            wrong = next((i for i, (has, its) in pairs if has != its), None)
            if wrong is None:
                hint = f"its table has {len(came)} blocks, {len(wanted)} were written"
                place = _last_used(moment)
            else:
                hint = f"{name} never asked for {shown(came[wrong])}{_written(came[wrong])}"
                place = (name, wrong)
            return f"{name} reads {list(wanted)}", shown(list(came), 120), place, hint
    return _counts(mine, moment)


def _written(text: Any) -> str:
    """Where a text comes from that stands where it should not."""
    for number, moment in enumerate(reference()[0]):
        if moment.operation[0] == "write" and moment.operation[2] == text:
            where = f"operation {number}, {moment.words()}"
            return f": it was written in {where}. Under which key can its block be found since?"
    return ""


def _counts(mine: Any, moment: Moment) -> Difference | None:
    table = {(n, i): block for n in moment.texts for i, block in enumerate(mine.table[n])}
    refs, held = Counter(moment.blocks.values()), Counter(table.values())
    for place, block in moment.blocks.items():
        name, i = place
        what, own = f"block {i} of {name} ({moment.texts[name][i]!r})", table[place]
        if held[own] != refs[block]:
            together = [n for (n, j), b in moment.blocks.items() if b == block]
            who = f"{what} in the tables of {', '.join(together)}"
            same = [n for (n, j), b in table.items() if b == own]
            hint = "a text that is held with all that stands before it is shared, any other is not"
            return who, f"in those of {', '.join(same)}", place, hint
        if (count := _get(mine.refs, own)) != refs[block]:
            hint = "a refcount is the number of tables that hold the block"
            return f"refcount {refs[block]} for {what}", shown(count), place, hint
    free = NUM_BLOCKS - moment.num_held
    if len(mine.free) != free or set(mine.free) & set(held):
        hint = "a block is free when nobody holds it, and only then"
        both = sorted(set(mine.free) & set(held))
        came = f"{len(mine.free)}" + f", {both} of them are held" * bool(both)
        return f"{free} free blocks", came, _last_used(moment), hint
    return None


def _get(kept: Any, block: Any) -> Any:
    """What a student keeps for a block, in a dict or in a list."""
    try:
        return kept[block]
    except (KeyError, IndexError, TypeError):
        return None


def _last_used(moment: Moment) -> Place | None:
    """The last block of the sequence that the operation was about."""
    places = [place for place in moment.blocks if place[0] in moment.operation[1:]]
    return places[-1] if places else None


# --- the engine's side -------------------------------------------------------------------------


@cache
def reference() -> tuple[tuple[Moment, ...], Log]:
    """The operations as the engine does them, and its log."""
    agents: dict[str, Agent] = {}
    moments = []
    with letter_lab(mode="global") as lab:
        for operation in operations(random.Random(SEED)):
            apply(lab, agents, operation)
            moments.append(seen(lab, agents, operation))
    return tuple(moments), lab.log


def apply(lab: Lab, agents: dict[str, Agent], operation: tuple[str, ...]) -> None:
    """One operation on a lab whose tokens are letters."""
    verb, name, *rest = operation
    if verb == "append":
        if name not in agents:
            agents[name] = lab.agent(name)
        agents[name].read(rest[0]).result()
    elif verb == "write":
        agents[name].rollback(2).result()  # the first two letters stay
        agents[name].read(rest[0][2:]).result()
    elif verb == "fork":
        agents[rest[0]] = agents[name].fork().result()
    else:
        agents.pop(name).close().result()


def seen(lab: Lab, agents: dict[str, Agent], operation: tuple[str, ...]) -> Moment:
    """What the engine's books say now."""
    books, texts = lab.engine.ledger, {}
    places: dict[Place, int] = {}
    for name, agent in agents.items():
        (segment,) = books.sequences[agent.seq_id].segments
        text, size = lab.text.decode(segment.tokens), segment.block_size
        texts[name] = tuple(text[at : at + size] for at in range(0, len(text), size))
        places |= {(name, i): block for i, block in enumerate(segment.blocks)}
    (pool_id,) = books.pools
    return Moment(operation, texts, places, pool_id, len(lab.log))


def operations(rng: random.Random) -> list[tuple[str, ...]]:
    """Random operations; a text that is written is never one that is appended."""
    held: dict[str, int] = {}  # sequence -> its blocks
    last: dict[str, str] = {}  # sequence -> the text of its last block
    out: list[tuple[str, ...]] = []
    names, num_made = list(reversed(NAMES)), 0
    while len(out) < NUM_OPERATIONS:
        verb, new = rng.choices(VERBS, WEIGHTS)[0], len(held) < MOST_LIVE
        name = rng.choice([*held, *names[-1:]] if new else list(held))
        count, room = held.get(name, 0), NUM_BLOCKS - sum(held.values())
        if verb == "append" and count < MOST_BLOCKS and room > 0:
            if not count:
                names.pop()
                num_made += 1
            text = rng.choice(WORDS[: 2 + (count > 1)])
            held[name], last[name] = count + 1, text
            out.append((verb, name, text))
        elif verb == "write" and count:
            number = len(out)
            last[name] = f"{last[name][:2]}{LETTERS[number // 26]}{LETTERS[number % 26]}"
            out.append((verb, name, last[name]))
        elif verb == "fork" and count and new and room > count:
            child = f"{name.partition(' ')[0]} (fork {num_made})"  # as the views call it
            num_made += 1
            held[child], last[child] = count, last[name]
            out.append((verb, name, child))
        elif verb == "close" and count:
            del held[name], last[name]
            out.append((verb, name))
    return out


VERBS, WEIGHTS = ("append", "write", "fork", "close"), (12, 5, 3, 2)
