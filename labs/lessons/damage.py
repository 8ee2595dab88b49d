"""Labs that are damaged on purpose: one check is off, and what breaks is found in the log.

Each run is small, and such that it needs the check. What is looked for is read from the books
and the shadow index as they were at each event; which run shows what is written down nowhere.
"""

from __future__ import annotations

import io
from array import array
from collections.abc import Iterator
from contextlib import redirect_stdout

from inms_lab.books import segment
from inms_lab.books.events import Event, Shared, Stepped
from inms_lab.books.fingerprint import Namespace, block_key, block_keys, digest
from inms_lab.books.label import may_hold
from inms_lab.books.sequence import READ_ONLY
from inms_lab.decisions.policy import MODES, Inms
from inms_lab.hindsight.explain import Explainer
from inms_lab.hindsight.shadow import Before, Site
from inms_lab.logs import audit
from inms_lab.logs.log import Log
from inms_lab.notebook.agent import Agent
from inms_lab.notebook.lab import Lab

from .small_labs import word_lab

CONSEQUENCES = {
    "A": "slots are read before they were written",
    "B": "a refcount is wrong",
    "C": "another agent's private text is mounted",
    "D": "KV that was computed behind another beginning is reused",
    "E": "a sealed text is changed",
    "F": "KV of other tokens is served",
}
RULE, NOTE = "every customer pays once, nobody pays twice", "the sale starts monday"
OTHER, SECRET = "cash is not accepted", "the bank is closing"
WEAK = Namespace(model="weak fingerprints")


def damaged_log(switch: str, policy: Inms | None = None) -> Log:
    """The log of a small run in which the check `switch` is needed, and is off (unless another
    `policy` is given), as it is when everybody has read."""
    inms = MODES["inms"]
    assert isinstance(inms, Inms)
    with redirect_stdout(io.StringIO()):  # a lab without a check says so
        budget = 3 if switch == "pending" else 64
        lab = word_lab(policy or inms.without(switch), num_blocks=8, token_budget=budget)
        try:
            ada, ben = lab.group("checkout").agents("ada", "ben")
            lab.group("checkout").publish(RULE, by=ada)
            _RUNS[switch](lab, ada, ben)
            return lab.log.copy()
        finally:
            lab.close()


def _label(lab: Lab, ada: Agent, ben: Agent) -> None:
    """ben reads what ada has read, at the same place."""
    ada.read(NOTE).result()
    ben.read(NOTE).result()


def _position(lab: Lab, ada: Agent, ben: Agent) -> None:
    """ada reads a note behind something else; her fork reads it at the very beginning."""
    fork = ada.fork().result()
    ada.read(f"{SECRET} {NOTE}").result()
    fork.read(NOTE).result()


def _tokens(lab: Lab, ada: Agent, ben: Agent) -> None:
    """Two texts whose fingerprints are equal."""
    weaken()
    lab.engine.namespace = WEAK
    one = lab.group("checkout").agents("eve")[0]
    fork = one.fork().result()
    one.read(OTHER).result()
    fork.read(NOTE).result()


def _pending(lab: Lab, ada: Agent, ben: Agent) -> None:
    """ada's fork has written three slots of four, and ada comes first in the next step."""
    late = ada.fork().result().read(NOTE)
    lab.driver.call(lab.engine.step)
    ada.read(f"{NOTE} {OTHER}").result()
    late.result()


_RUNS = {"label": _label, "position": _position, "tokens": _tokens, "pending": _pending}


def weaken() -> None:
    """Let the fingerprints of one made-up model miss the tokens of a first block from now on: a
    collision that can be had. It stays, so that logs of that model replay; no other is touched."""
    root = WEAK.root()

    def weak(parent: bytes, label: bytes, position: int, tokens: array[int]) -> bytes:
        if parent == root:
            return digest(label, b"%d:%d" % (position, len(tokens)))
        return block_key(parent, label, position, tokens)

    def weak_run(
        parent: bytes, label: bytes, position: int, tokens: array[int], size: int
    ) -> list[bytes]:
        first = weak(parent, label, position, tokens[:size])
        return [first, *block_keys(first, label, position + size, tokens[size:], size)]

    vars(segment).update(block_key=weak, block_keys=weak_run)


def damage(log: Log) -> dict[str, tuple[int, Site]]:
    """Letter -> (moment, block) of what the log shows of `CONSEQUENCES`, the first time."""
    watch, out = Explainer(log), dict[str, tuple[int, Site]]()
    sealed: dict[Site, bytes] = {}
    for index, event in enumerate(log.events, log.first):
        watch.move(index)
        found = [(letter, site, index + 1) for letter, site in _mounted(watch, event)]
        watch.move(index + 1)
        if isinstance(event, Stepped):
            found += _unwritten(watch, event, log)
        if audit.faults(watch.books):
            found.append(("B", ("", 0), index + 1))
        for pool_id, pool in watch.books.pools.items():
            for block, tokens in pool.tokens.items() if pool.spec.tier in READ_ONLY else ():
                if sealed.setdefault((pool_id, block), tokens) != tokens:
                    found.append(("E", (pool_id, block), index + 1))
        for letter, site, moment in found:
            out.setdefault(letter, (moment, site))
    return out


def _mounted(watch: Explainer, event: Event) -> Iterator[tuple[str, Site]]:
    """What is the matter with blocks that are about to be mounted: C, D, F."""
    if not isinstance(event, Shared) or event.cause != "hit":
        return
    seq, pool = watch.books.sequences[event.seq_id], watch.books.pools[event.pool_id]
    part = seq.segments[event.segment]
    for index, block in enumerate(event.blocks, len(part.blocks)):
        site = (event.pool_id, block)
        if not may_hold(pool.labels[block], seq.clearance):
            yield "C", site
        if block in pool.tokens and pool.tokens[block] != part.block_tokens(index):
            yield "F", site
        facts, at = watch.shadow.facts.get(site), part.first_position + index * part.block_size
        if facts is not None and facts.before != Before(seq)(at):
            yield "D", site


def _unwritten(watch: Explainer, event: Stepped, log: Log) -> Iterator[tuple[str, Site, int]]:
    """Blocks that a step has read beyond what was written of them, with the moment of the mount."""
    for seq_id, *_ in event.items:
        for part in watch.books.sequences[seq_id].segments:
            for index, block in enumerate(part.blocks):
                site = (part.pool_id, block)
                read = min(part.block_size, part.computed - index * part.block_size)
                if len(watch.shadow.tokens.get(site, b"")) < read * part.tokens.itemsize:
                    earlier = enumerate(log.until(watch.at), log.first + 1)
                    mounts = (n for n, e in earlier if _mounts(e, seq_id, site))
                    yield "A", site, max(mounts)


def _mounts(event: Event, seq_id: int, site: Site) -> bool:
    if not isinstance(event, Shared) or event.seq_id != seq_id:
        return False
    return event.pool_id == site[0] and site[1] in event.blocks
