"""Exercise `order`: one sentence decides what agents share; run where tokens are letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any

from inms_lab.books.events import Allocated, Shared
from inms_lab.logs.log import Log

from .small_labs import letter_lab
from .wrong import Wrong, shown, whole

NAMES = ("architect", "backend", "frontend")
BLOCK_SIZE = 16  # letters
RULES = (
    "You answer in one short sentence. A customer pays once and gets one parcel. "
    "A request that is sent twice has an effect only once. "
)
TOOLS = "lookup(thing): what the shop knows of a thing. run_test(name): whether a test passes. "
OPENING = "You are the "


def sentence(name: str) -> str:
    """The only text that differs from agent to agent."""
    return f"{OPENING}{name}. "


COMMON = len(RULES) + len(TOOLS)  # letters; the sentences begin alike, too
MOST = (COMMON + len(OPENING)) // BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class Run:
    """Agents that read their texts one after the other. `found[i]`: the event by which agent i
    shared blocks, and its log index; `computed[i]`: the same of those that it computed."""

    log: Log
    found: tuple[tuple[int, Shared] | None, ...]
    computed: tuple[tuple[int, Allocated], ...]
    pool_id: str


def order(apart: Any, together: Any, hits: Any) -> Wrong | None:
    """The first thing that is wrong with two orders of the same texts, and a number of hits."""
    runs = []
    for what, function in (("apart", apart), ("together", together)):
        if not callable(function):
            return Wrong(f"a function {what}(name)", shown(function), what)
        texts: dict[str, list[str]] = {}
        for name in NAMES:
            given = function(name)
            if wrong := _texts(f"{what}({name!r})", given, name):
                return wrong
            texts[name] = list(given)
        runs.append(texts)
    return _apart(run(runs[0])) or _together(run(runs[1]), hits)


def _texts(where: str, texts: Any, name: str) -> Wrong | None:
    wanted = {"RULES": RULES, "TOOLS": TOOLS, f"sentence({name!r})": sentence(name)}
    if not isinstance(texts, (list, tuple)):
        hint = "def, not async def" if isawaitable(texts) else ""
        return Wrong(f"a list of {len(wanted)} texts", shown(texts), where, hint)
    given = [text for text in texts if isinstance(text, str)]
    for what, text in wanted.items():
        if (count := given.count(text)) != 1:
            return Wrong(f"{what} once", f"{count} times", where, "only the order may change")
    if len(texts) != len(wanted):
        came = f"{len(texts)} texts"
        return Wrong(f"{len(wanted)} texts", came, where, "only the order may change")
    return None


def _apart(run: Run) -> Wrong | None:
    for name, found in zip(NAMES, run.found, strict=True):
        if found:
            index, event = found
            came, place = f"{len(event.blocks)} found by {name}", f"apart, {name} reads"
            hint = "look at the text of the pinned block: what do all contexts begin with?"
            pin = (run.pool_id, event.blocks[0])
            return Wrong("no block that is shared", came, place, hint, run.log, index + 1, pin)
    return None


def _together(run: Run, hits: Any) -> Wrong | None:
    for name, found, (index, event) in zip(NAMES, run.found, run.computed, strict=True):
        count = len(found[1].blocks) if found else 0
        if name != NAMES[0] and count < MOST:
            came, place = f"{count} found by {name}", f"together, {name} reads"
            hint = "the pinned block is the first that it computes: what is in it, what behind it?"
            pin = (run.pool_id, event.blocks[0])
            return Wrong("more blocks shared", came, place, hint, run.log, index + 1, pin)
    assert run.found[-1]
    index, last = run.found[-1]
    number = whole(hits)
    if number is None:
        said, hint = "a whole number of blocks", "a block is found whole or not at all"
    elif number == len(last.blocks):
        return None
    else:
        said, hint = f"as many as {NAMES[-1]} shares by this event", _hint(number)
    pin = (run.pool_id, last.blocks[-1])
    return Wrong(said, shown(hits), "hits", hint, run.log, index + 1, pin)


def _hint(hits: int) -> str:
    """What a wrong number of hits may come from."""
    if hits == 2 * MOST:
        return "that is what two agents find together"
    if hits == COMMON // BLOCK_SIZE:
        return "RULES and TOOLS are not all that is alike: read the pinned block to its end"
    if hits == MOST + 1:
        return "a block is found only if all of its letters are the same"
    return f"count the letters that all contexts begin with; a block has {BLOCK_SIZE}"


def run(texts: Mapping[str, Sequence[str]]) -> Run:
    """Agents, one after the other, each with its texts in its order."""
    found: list[tuple[int, Shared] | None] = []
    computed: list[tuple[int, Allocated]] = []
    with letter_lab(BLOCK_SIZE, mode="global") as lab:
        for name, parts in texts.items():
            begun, agent = len(lab.log), lab.agent(name)
            agent.read("".join(parts)).result()
            events = list(enumerate(lab.log.events[begun:], begun))
            found.append(next(((i, e) for i, e in events if isinstance(e, Shared)), None))
            computed.append(next((i, e) for i, e in events if isinstance(e, Allocated)))
        (pool_id,) = lab.engine.ledger.pools
    return Run(lab.log, tuple(found), tuple(computed), pool_id)
