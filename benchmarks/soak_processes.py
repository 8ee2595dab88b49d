"""Agent processes that start, work and die at random: what they held must come back, each time.

One lab (a tiny model without weights), a few client processes at a time, drawn by a seed:

    close       the agents are closed, one by one      exit     the program ends
    raise       it ends by an exception                leave    `os._exit`: no goodbye
    kill        SIGKILL, idle or in the middle of a write; or before it is let in
    term        SIGTERM, the same
    stop        SIGSTOP until its lease has run out, then SIGKILL
    orphan      SIGKILL while a forked child of it lives on

Prints one JSON line: how many died how, seconds, the longest time from a death until its blocks
were back (against one lease plus one tick), by way of dying, and what was left at the end, which
must be nothing. Ends with status 1 if blocks leaked, came back late by more than `--slack` seconds,
or somebody hung.

    python benchmarks/soak_processes.py --processes 1000
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any

import psutil
from tqdm import tqdm

from inms_lab import Lab
from inms_lab.config import Config
from inms_lab.leases import BEATS
from inms_lab.model.forward import DryModel

WAYS = ("close", "exit", "raise", "leave", "kill", "term", "stop", "orphan")
WEIGHTS = (3, 3, 2, 2, 4, 2, 1, 1)
WATCHDOG = 60.0  # seconds in which nothing may stand still

CLIENT = """
import os, random, sys, time
from inms_lab import connect
from inms_lab.errors import InmsError
where, name, way, seed = sys.argv[1:]
rng = random.Random(int(seed))
lab = connect(where)
me = lab.agent(name, groups=["team"])
mine = [me]
me.read([rng.randrange(99) for _ in range(rng.randint(1, 60))])
for _ in range(rng.randint(0, 4)):
    one = rng.choice(mine)
    turn = rng.randrange(5)
    if turn == 0:
        one.write(rng.randint(1, 8))
    elif turn == 1:
        one.read([rng.randrange(99) for _ in range(rng.randint(1, 40))])
    elif turn == 2:
        mine.append(one.fork())
    elif turn == 3:
        one.attach("team")
    else:
        one.rollback(1)
if way == "orphan" and not os.fork():
    time.sleep(1)
    os._exit(0)
print("ready", flush=True)
if way == "close":
    for one in mine:
        one.close()
elif way == "raise":
    raise RuntimeError("out")
elif way == "leave":
    os._exit(0)
elif way in ("kill", "term", "stop", "orphan"):
    while True:
        if rng.random() < 0.5:
            me.write(400)
        time.sleep(0.05)
"""


class Soak:
    """The lab, its processes, and what was seen of them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.rng = args, random.Random(args.seed)
        config = Config(16, 0, 256, 1024, 1 << 20, 1 << 24, 1 << 24)
        beat = args.heartbeat
        model = DryModel(100, 1024, 64)
        self.lab = Lab(model, config=config, heartbeat_interval=beat, gate=None)
        self.lab.preload(list(range(40)), progress=False)
        author = self.lab.agent("author", groups=[self.lab.group("team").name])
        self.lab.groups["team"].publish(list(range(50, 90)), by=author)
        self.where = self.lab.serve().address
        self.clean = self.held()
        self.due = BEATS * beat + beat  # one lease plus one tick, seconds
        self.lock = threading.Lock()
        self.died: Counter[str] = Counter()
        self.longest = dict[str, float]()  # seconds from a death until the blocks were back
        self.late, self.failures = 0, list[str]()

    def held(self) -> dict[str, int]:
        """Blocks that somebody holds, by pool."""
        pools = self.lab.engine.ledger.pools
        return self.lab.look(lambda: {name: pool.num_held for name, pool in pools.items()})

    def live(self, name: str) -> bool:
        """Whether the agent, or a fork of it, has not ended."""
        books = self.lab.engine.ledger
        return self.lab.look(lambda: any(s.is_live and s.name == name for s in books.holders()))

    def one(self, number: int, way: str, seed: int, early: float | None, wait: float) -> None:
        """One process, from its start until what it held is back. `early`: killed so many seconds
        after its start, wherever it is by then; else `wait` seconds after its first work."""
        name = f"p{number}"
        args = [sys.executable, "-c", CLIENT, self.where, name, way, str(seed)]
        process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            if early is not None:
                way = "early"
                time.sleep(early)
                process.kill()
            else:
                self.end(process, way, wait)
            died = time.monotonic()
            while self.live(name):
                if time.monotonic() - died > WATCHDOG:
                    raise TimeoutError(f"{name} ({way}) is still live")
                time.sleep(0.01)
            self.saw(way, time.monotonic() - died)
        finally:
            process.kill()
            process.communicate()

    def end(self, process: subprocess.Popen[bytes], way: str, wait: float) -> None:
        """Let it work, then end it; returns at the moment from which its end is counted."""
        assert process.stdout is not None
        assert process.stderr is not None
        if process.stdout.readline() != b"ready\n":
            raise RuntimeError(process.stderr.read().decode()[-2000:])
        if way in ("close", "exit", "raise", "leave"):
            process.wait(WATCHDOG)
            return
        time.sleep(wait)
        signals = {"term": signal.SIGTERM, "stop": signal.SIGSTOP}
        process.send_signal(signals.get(way, signal.SIGKILL))

    def saw(self, way: str, took: float) -> None:
        """One more is gone, and all that it held is back."""
        with self.lock:
            self.died[way] += 1
            self.longest[way] = round(max(self.longest.get(way, 0.0), took), 3)
            self.late += took > self.due + self.args.slack

    def run(self) -> None:
        """All processes, `--at-once` of them at a time."""
        plan = [self.draw(number) for number in range(self.args.processes)]
        quiet = {"disable": not sys.stderr.isatty()} if not self.args.progress else {}
        with tqdm(total=len(plan), unit="process", **quiet) as bar:

            def work() -> None:
                while True:
                    with self.lock:
                        if not plan:
                            return
                        task = plan.pop()
                    try:
                        self.one(*task)
                    except Exception as error:
                        with self.lock:
                            self.failures.append(f"{task}: {type(error).__name__}: {error}")
                    with self.lock:
                        bar.update()

            threads = [threading.Thread(target=work) for _ in range(self.args.at_once)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def draw(self, number: int) -> tuple[int, str, int, float | None, float]:
        """What becomes of one process."""
        rng = self.rng
        (way,) = rng.choices(WAYS, WEIGHTS)
        early = rng.uniform(0, 0.3) if rng.random() < 0.1 else None
        return number, way, rng.randrange(1 << 30), early, rng.uniform(0, 0.2)

    def report(self, seconds: float, before: dict[str, int]) -> dict[str, Any]:
        """The result, after the lab has come to rest."""
        until = time.monotonic() + self.due + 5
        while self.held() != self.clean and time.monotonic() < until:
            time.sleep(0.05)
        self.lab.check()
        left = {name: count - self.clean[name] for name, count in self.held().items()}
        process = psutil.Process()
        return {
            "processes": self.args.processes,
            "seed": self.args.seed,
            "died": dict(sorted(self.died.items())),
            "seconds": round(seconds, 1),
            "longest_until_back": max(self.longest.values(), default=0.0),
            "longest_by_way": dict(sorted(self.longest.items())),
            "lease_plus_tick": self.due,
            "late": self.late,
            "blocks_left": {name: count for name, count in left.items() if count},
            "live_leases": self.lab.keeper.leases.num_live,
            "clients_left": len(self.lab.serve()._sessions),
            "events": len(self.lab.log),
            "threads": [before["threads"], process.num_threads()],
            "open_files": [before["files"], process.num_fds()],
            "memory_mib": [before["memory"], process.memory_info().rss >> 20],
            "failures": self.failures[:5],
        }


def main() -> int:
    """Parse, soak, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--processes", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--heartbeat", type=float, default=0.5, help="seconds")
    parser.add_argument("--slack", type=float, default=2.0, help="seconds of a busy machine")
    parser.add_argument("--progress", action="store_true", help="a bar also where no terminal is")
    args = parser.parse_args()
    soak = Soak(args)
    process = psutil.Process()
    before = {"threads": process.num_threads(), "files": process.num_fds()}
    before["memory"] = process.memory_info().rss >> 20
    faulthandler.dump_traceback_later(WATCHDOG + args.processes * 3.0, exit=True)  # nothing hangs
    started = time.monotonic()
    soak.run()
    found = soak.report(time.monotonic() - started, before)
    soak.lab.close()
    faulthandler.cancel_dump_traceback_later()
    held = {name: pool.num_held for name, pool in soak.lab.engine.ledger.pools.items()}
    found["held_after_close"] = sum(held.values())
    print(json.dumps(found))
    bad = ("late", "blocks_left", "live_leases", "clients_left", "failures", "held_after_close")
    wrong = any(found[name] for name in bad) or sum(soak.died.values()) != args.processes
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
