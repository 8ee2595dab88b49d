"""Scripted runs with fragments, for the folds, the pictures and the words: what must occur occurs.

`team_run`   readers of one record at two shifts and in place; a part computed afresh; a cut into a
             fragment; a fork; a version that takes the record's place; a text that another mounts
`gone_run`   in mode global a fragment's source ends and its KV is evicted while its reader is
             preempted: the rest of the fragment becomes the reader's own
"""

from __future__ import annotations

from typing import Any

from toy import Toy, ToyModel

from inms_lab.books.events import Shared
from inms_lab.books.gate import OPEN, Calibration, Gate
from inms_lab.logs.log import Log
from inms_lab.publishing.records import Prompt, Record, publish

# Made up, so that the gate has numbers to tell.
MEASURED = Gate(
    calibration=Calibration("toy", 0.02, (0.01, 0.03), 0.94, (0.92, 0.96), 50, 1.5, 0.01)
)
PROMPT, TEXT, NEWER = [1, 1, 2, 2, 3, 3], [1, 2, 3, 4, 0, 1, 2, 3, 4, 1], [2, 2, 0, 0, 1, 1, 3]


def team_run(gate: Gate | None = OPEN, unsafe: str = "") -> Toy:
    """In mode inms; a block has 4 tokens, so the record has 3 blocks, the last of them partial.

    `unsafe`: why the model's KV cannot be used at another position.
    """
    model = ToyModel()
    model.unsafe = unsafe
    toy = Toy("inms", gate=gate, blocks=(8, 16, 24), model=model)
    toy.prompt(PROMPT)
    one = _publish(toy, TEXT)
    backend, frontend, exact = (toy.agent(name) for name in ("backend", "frontend", "exact"))
    for agent, own in ((backend, 5), (frontend, 9), (exact, 0)):
        toy.ask(agent, "append", PROMPT, tier="global", seal=True)
        if own:
            toy.ask(agent, "append", [4] * own)
    toy.ask(backend, "append", one.tokens, **_record(one))
    toy.ask(frontend, "append", one.tokens, **_record(one), afresh=(1,))
    toy.ask(exact, "append", one.tokens, **_record(one))
    toy.do(backend, "write", [3], count=2)
    child = toy.do(backend, "fork")
    toy.do(child, "append", [0, 0, 0])
    toy.do(backend, "rollback", count=len(PROMPT) + 5 + 6)  # inside the fragment's second block
    toy.do(backend, "append", [2, 2])
    two = _publish(toy, NEWER, replaces=one)
    toy.do(backend, "append", two.tokens, **_record(two))
    toy.do(frontend, "append", [0, 3, 0, 3, 1], seal=True)
    toy.do(child, "close")
    toy.do(frontend, "rollback", count=3)
    for agent in (exact, backend):
        toy.do(agent, "close")
    toy.do(frontend, "append", [4])  # the record that nobody reads any longer is given up
    return toy


def gone_run(whole: bool) -> Toy:
    """`whole`: nothing of the fragment is left; else its first block is."""
    toy = Toy("global", gate=OPEN, blocks=(8, 8, 12))
    donor, reader, hungry = (toy.agent(name) for name in ("donor", "reader", "hungry"))
    toy.do(donor, "append", [4] * 5)
    toy.do(donor, "append", TEXT, seal=True)
    toy.do(reader, "append", [0] * 4)
    toy.do(reader, "append", TEXT, seal=True)
    toy.do(reader, "append", [3, 3, 3])
    toy.do(hungry, "append", [2] * (40 if whole else 36))
    toy.do(donor, "close")
    toy.do(hungry, "rollback", count=8)
    toy.do(reader, "append", [1])
    return toy


def logs() -> list[Log]:
    """Those of all runs."""
    return [team_run().log, gone_run(True).log, gone_run(False).log]


def shifted(log: Log) -> list[int]:
    """Indexes of the events that mounted blocks at a shift, as planning said it."""
    parts = ((made, part) for made in log.decisions for part in made.parts)
    return [
        index
        for made, part in parts
        if part.outcome == "shared at a shift"
        for index in range(made.at, made.stop)
        if isinstance(log.events[index], Shared) and log.events[index].segment == part.segment
    ]


def _record(record: Record) -> dict[str, Any]:
    where = {"tier": "group", "group": "team", "seal": True}
    return where | {"record": record.seq_id, "offset": record.offset}


def _publish(toy: Toy, text: list[int], replaces: Record | None = None) -> Record:
    """Behind the prompt, as a team's first record."""
    version = 1 if replaces is None else replaces.version + 1
    draft = Record("team/1", "author", tuple(text), -1, -1, "team", version)
    prompt = Prompt(tuple(PROMPT), toy.log.tokens.index(PROMPT[0]))
    record, last = publish(toy.engine, toy.engine.submit, draft, [prompt], (), replaces)
    toy.run()
    last.future.result(timeout=0)
    return record
