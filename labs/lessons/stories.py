"""More decisions that `decide` is checked against: small runs in which the cases lie at the edge.

Each is a lab of its own; what comes of it is what the engine decides, written down nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache

from inms_lab.errors import InmsError
from inms_lab.logs.log import Log
from inms_lab.notebook.agent import Agent
from inms_lab.notebook.lab import Lab
from inms_lab.serving.request import Request

from .small_labs import word_lab

TEXT = "one two three four five six seven eight nine ten"
SHORT = "red green blue"


@cache
def stories() -> tuple[Log, ...]:
    """The logs of all runs; they are made once."""
    return tuple(_log_of(story) for story in STORIES)


def _log_of(story: Callable[[Lab], None]) -> Log:
    with word_lab(num_blocks=8, token_budget=64) as lab:
        story(lab)
        return lab.log.copy()


def _words(count: int, first: int = 0) -> str:
    return " ".join(f"word-{n}" for n in range(first, first + count))


def _forge(lab: Lab, agent: Agent, text: str, group: str = "team") -> None:
    """An agent's program asks for a write into the group's pool."""
    tokens = lab.text.encode(text)
    forged = lab.submit(Request(agent.seq_id, "append", tokens, "group", group, seal=True))
    with suppress(InmsError):  # what came of it is in the log
        lab.run_to()
        forged.future.exception()


def _new_weights(lab: Lab, name: str, group: str) -> Agent:
    old = lab.engine.namespace
    lab.engine.namespace = replace(old, weight_version=1)
    try:
        return lab.agent(name, groups=[group])
    finally:
        lab.engine.namespace = old


# the runs ---------------------------------------------------------------------------------------


def exact(lab: Lab) -> None:
    """The last block that can be had is taken, and then nothing can be had."""
    ada, ben = lab.group("team").agents("ada", "ben")
    fork = ada.fork().result()
    ben.read(_words(28)).result()
    asked = ada.read("the very last block"), fork.read("the very last block")
    for one in asked:  # one block is free: it is written for both
        one.result()
    ben.rollback(16).result()
    ada.read(_words(16, 40)).result()  # and once more as many as there are


def no_room(lab: Lab) -> None:
    """What may not be written is refused, whether there is room or not."""
    ada, ben = lab.group("team").agents("ada", "ben")
    lab.group("team").publish(SHORT, by=ben)
    ben.read(_words(16)).result()
    _forge(lab, ada, _words(16))
    lab.group("team").publish(_words(9, 50), by=ben)
    (hal,) = lab.group("team").agents("hal")
    _forge(lab, hal, "a b c d")


def foreign(lab: Lab) -> None:
    """Another team, other weights, another beginning, half a block: some of it at once."""
    (ada,) = lab.group("team").agents("ada")
    (eve,) = lab.group("others").agents("eve")
    fork = ada.fork().result()
    ada.read("one two three four").result()
    ada.read(SHORT).result()
    fork.read("other words before it").result()
    fork.read(SHORT).result()
    dora, zoe = _new_weights(lab, "dora", "others"), _new_weights(lab, "zoe", "team")
    dora.read("one two three four").result()
    dora.read("one two three four").result()
    for one in (fork, dora):
        one.close().result()
    eve.read(SHORT).result()
    zoe.read(SHORT).result()


def tiers(lab: Lab) -> None:
    """The same words globally, in the team and privately."""
    lab.preload(TEXT, progress=False)
    ada, ben = lab.group("team").agents("ada", "ben")
    fork = ada.fork().result()
    ada.read("all of it is the same").result()
    _forge(lab, fork, "all of it is the same")
    lab.group("team").publish(SHORT, by=ben)
    ben.attach(lab.group("team")).result()
    ben.read(TEXT).result()
    ada.read(SHORT).result()


def together(lab: Lab) -> None:
    """A record is attached while it is being written."""
    ada, ben = lab.group("team").agents("ada", "ben")
    team = lab.group("team")
    tokens = lab.text.encode(TEXT)
    lab.driver.call(lambda: team.offer(tokens, ada))
    _forge(lab, ben, TEXT)


STORIES = (exact, no_room, foreign, tiers, together)
