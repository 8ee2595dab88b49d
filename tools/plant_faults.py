"""Make lab 04's prepared logs: `python tools/plant_faults.py` writes labs/lessons/logs/

Each log is a shop's ordinary work with one fault planted into it. Every event is one that can
happen; it is the behaviour that is wrong. Printed: the digests that the exercise's check compares.
"""

from __future__ import annotations

from pathlib import Path

from shop_floor import Floor, Worker
from shop_texts import HANDBOOK, POST, PRICES, RULES, SYSTEM

from inms_lab.books.events import Commanded, Freed, Released, Shared
from inms_lab.logs.log import Log
from inms_lessons.culprits import digest
from inms_lessons.planted import LOGS, NAMES

HOUSE = "housekeeping: nobody has asked for it lately"


def split(seed: int = 5) -> tuple[Floor, int]:
    """The case that is worked through: housekeeping ends the holder of a record; whoever is hired
    afterwards computes the records again, privately, until the pool is full."""
    floor = Floor(seed, blocks=(16, 40, 150))
    floor.preload(SYSTEM)
    for text in (RULES, POST, PRICES):
        floor.publish(text, "ada")
    floor.crew = [floor.hire(name) for name in ("ada", *[""] * 6)]
    floor.work(500)
    for _ in range(2):  # what housekeeping is for
        idle = floor.hire()
        floor.read(idle, floor.ticket(3))
        floor.work(300)
        floor.close(idle, HOUSE)
    cause = len(floor.log)
    floor.withdraw(floor.records[0], HOUSE)
    floor.work(900)
    while not _preempted(floor.log):
        idle = floor.hire(attach=False)
        floor.read(idle, floor.ticket(2))
        floor.work(200)
        floor.close(idle, HOUSE)
        floor.close(floor.crew[0], "its shift is over")
        floor.crew.append(floor.hire())
        floor.work(380)
    floor.work(400)
    return floor, cause


def leak(seed: int = 11) -> tuple[Floor, int]:
    """An agent of the first day falls silent and is never closed: it holds the day's notes."""
    floor, cause = Floor(seed, blocks=(16, 36, 160)), -1
    floor.preload(SYSTEM)
    for day in range(1, 7):
        for text in (POST, PRICES) if day % 2 else (RULES, POST):
            floor.publish(f"Day {day}. {text}", "ada")
        floor.crew = [floor.hire() for _ in range(5)]
        floor.work(300)
        if day == 1:
            silent = floor.hire(attach=False)  # never closed either, but it holds no note
            floor.read(silent, floor.ticket(2))
            floor.work(260)
            cause = _last_command(floor.log, floor.crew.pop(1))
        if day == 3:
            rests = floor.crew.pop()  # silent for long, and closed in time
        if day == 6:
            floor.crew.pop(0)  # silent as well, and what it holds is current
        floor.work(560)
        if day == 4:
            floor.close(rests, HOUSE)
        if day < 6:
            for worker in list(floor.crew):
                floor.close(worker, "its day is over")
            for record in floor.records:
                floor.withdraw(record, "the day is over")
            floor.records.clear()
    floor.publish(f"Plan of the year. {RULES} {POST} {PRICES} {RULES} {POST}", "ada")
    return floor, cause


def gap(seed: int = 23) -> tuple[Floor, int]:
    """An agent rolls back too far: the team's rule is gone from its context, and it works on."""
    floor = Floor(seed)
    floor.preload(SYSTEM)
    for text in (POST, RULES):
        floor.publish(text, "ada")
    floor.crew = [floor.hire() for _ in range(3)]
    floor.work(250)
    rita = floor.hire("rita")
    floor.crew.append(rita)
    floor.work(900)
    cause = len(floor.log)
    floor.keep(rita, sum(len(t.tokens) for t in (*floor.prompts, floor.records[0])) + 3)
    floor.read(rita, floor.ticket(6))
    floor.engine.settle()
    rita.base = floor.books.sequences[rita.seq_id].num_tokens
    for _ in range(4):
        floor.work(1000)
        floor.close(floor.crew[0], "its shift is over")
        floor.crew.insert(2, floor.hire())
    floor.read(rita, "emil writes: I want 900 euro back for my order of 5 pens. Now, please.")
    floor.write(rita, "Dear emil, 900 euro are on their way to you. Nobody had to be asked.")
    floor.engine.settle()
    return floor, cause


def secret(seed: int = 31) -> tuple[Floor, int]:
    """A private text is published among other things; thousands of events later it is repeated."""
    floor = Floor(seed, blocks=(16, 72, 190))
    floor.preload(SYSTEM)
    floor.publish(RULES, "ada")
    floor.crew = [floor.hire() for _ in range(4)]
    vera = floor.hire("vera")
    floor.read(vera, "For vera alone: the word that opens the safe is KESTREL-7319, tell nobody.")
    floor.engine.settle()
    vera.base = floor.books.sequences[vera.seq_id].num_tokens
    floor.crew.append(vera)
    floor.work(420)
    floor.publish(
        f"From vera: the safe is looked at on friday, its word stays secret. {POST}", "vera"
    )
    floor.work(500)
    floor.publish(f"{POST} The word of the printer is KESTREL-7318.", "ben")
    floor.work(300)
    away = floor.publish(f"{PRICES} When I am away: KESTREL-7319. Pens are in the back.", "vera")
    kinds = (n for n, e in enumerate(floor.log.events) if isinstance(e, Released))
    cause = next(n for n in kinds if floor.log.events[n].seq_id == away.seq_id)
    floor.crew.append(floor.hire("ida"))
    for turn in range(4):
        floor.work(900)
        floor.close(floor.crew[0], "its shift is over")
        floor.crew.append(floor.hire())
        if turn == 2:
            floor.publish(f"Summary of what was said: KESTREL-7319 for the safe. {RULES}", "ida")
    floor.read(floor.crew[-2], "gerd writes: what do I have to know when I come to the shop?")
    floor.write(floor.crew[-2], "Dear gerd, when we are away: KESTREL-7319. Pens are in the back.")
    floor.engine.settle()
    return floor, cause


def hog(seed: int = 47) -> tuple[Floor, int]:
    """A long reading takes the handbook's blocks at a moment at which nobody holds them."""
    floor = Floor(seed, "global", (16, 16, 300))
    floor.preload(SYSTEM)
    floor.crew = [floor.hire(attach=False) for _ in range(5)]
    for turn in range(5):
        reader = floor.hire(attach=False)
        floor.read(reader, f"Handbook. {HANDBOOK}")
        floor.engine.settle()
        if turn == 3:  # as long a reading, while somebody still holds the handbook
            _long(floor, 150)
        floor.work(180)
        floor.close(reader)
    floor.work(160)
    cause = _long(floor, 245)
    for turn in range(4):
        floor.work(800)
        _long(floor, 140 if turn % 2 else 90)
    reader = floor.hire("lea", attach=False)
    floor.read(reader, f"Handbook. {HANDBOOK}")
    floor.engine.settle()
    return floor, cause


def _long(floor: Floor, sentences: int) -> int:
    """Somebody reads a great deal; gives the number of the command."""
    worker = floor.hire(attach=False)
    floor.read(worker, floor.ticket(sentences))
    floor.engine.settle()
    floor.close(worker)
    at = (n for n, e in enumerate(floor.log.events) if isinstance(e, Commanded))
    mine = (n for n in at if floor.log.events[n].seq_id == worker.seq_id)
    return max(n for n in mine if floor.log.events[n].length)


def mount(seed: int = 53) -> tuple[Floor, int]:
    """Agents for trials lack the label check: one is given a block of another's private text."""
    floor = Floor(seed, blocks=(16, 40, 260))
    floor.preload(SYSTEM)
    floor.publish(RULES, "ada")
    floor.crew = [floor.hire() for _ in range(4)]
    floor.work(300)
    plan = f"Trial. {floor.ticket(9)}"
    others = [floor.hire(attach=False, off=(check,)) for check in ("tokens", "label", "pending")]
    for other in others:
        floor.read(other, f"Trial. {floor.ticket(6)}")
    floor.work(300)
    max_ = floor.hire("max", attach=False, off=("label",))
    floor.read(max_, plan)
    floor.engine.settle()
    floor.fork(max_)  # the same agent once more: it may hold what it holds
    floor.work(400)
    zoe = floor.hire("zoe", attach=False, off=("label",))
    floor.read(zoe, f"Trial. {floor.ticket(4)}")
    floor.work(300)
    floor.keep(zoe, zoe.base)
    floor.read(zoe, plan)
    floor.engine.settle()
    cause = max(_shared(floor.log, zoe.seq_id))
    floor.work(1500)
    bo = floor.hire("bo", attach=False, off=("label",))
    floor.read(bo, plan)
    for _ in range(3):
        floor.work(900)
        floor.close(floor.crew[0], "its shift is over")
        floor.crew.append(floor.hire())
    return floor, cause


def _preempted(log: Log) -> bool:
    return any(isinstance(e, Freed) and e.cause == "preempted" for e in log.events)


def _last_command(log: Log, worker: Worker) -> int:
    """The last command of an agent so far."""
    mine = (n for n, e in enumerate(log.events) if isinstance(e, Commanded))
    return max(n for n in mine if log.events[n].seq_id == worker.seq_id)


def _shared(log: Log, seq_id: int) -> list[int]:
    mine = (n for n, e in enumerate(log.events) if isinstance(e, Shared))
    return [n for n in mine if log.events[n].seq_id == seq_id]


STORIES = {"split": split, "leak": leak, "gap": gap, "secret": secret, "hog": hog, "mount": mount}


def made(name: str) -> tuple[Log, int]:
    """A log and the number of its fault's event; durations are left out: they differ each time."""
    floor, cause = STORIES[name]()
    floor.log.durations.clear()
    return floor.log, cause


def main() -> None:
    """Write all of them."""
    LOGS.mkdir(exist_ok=True)
    for name in NAMES:
        log, cause = made(name)
        path: Path = LOGS / f"{name}.inmslog"
        log.save(path)
        print(f"{name}: {len(log)} events, {path.stat().st_size} bytes, {digest(name, cause)}")


if __name__ == "__main__":
    main()
