"""The same decode work on other engines, beside this one, in one run. Prints tables.

    make peers
    .venv/bin/python benchmarks/peers.py [--shared 4096 --own 1024 --agents 8 --tokens 16]
        [--rounds 5] [--firsts 3] [--workers inms,vllm,...] [--ours-args=--compile] [--json FILE]
    .venv/bin/python benchmarks/peers.py --show benchmarks/results/peers_1024.json

Every engine is a worker in an environment of its own (`peer_workers/`), which fills its contexts
once and stays. In a round each takes its turn: all agents write `tokens` tokens at once, and the
median step counts. The order is turned round every time. Who is not at work is stopped (SIGSTOP),
so that no waiting thread takes a core; all get the same number of threads. Then, `--firsts` times,
the time to the first token of one more agent behind the cached prefix (its own text has `own`
tokens), and of a reader with `own` tokens before the shared text. A ratio is one of a round: ours
through theirs; printed are its median, least and most. `others used` says how many cores everybody
else took during a round: with more than a few hundredths its times are worth little. Ctrl-C ends
the measuring, and the rounds that are complete are reported.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import platform
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = Path(__file__).resolve().parent / "peer_workers"
PEERS = ROOT / ".peers"
OURS = "inms"


@dataclass(frozen=True)
class Kind:
    """How a worker is started: `environment` is a folder of .peers, or "" for the lab's own."""

    script: str
    environment: str = ""
    arguments: tuple[str, ...] = ()

    def python(self, peers: Path = PEERS) -> Path:
        """Its interpreter. Ends the program where its environment was not made."""
        if not self.environment:
            return Path(sys.executable)
        path = peers / self.environment / "bin" / "python"
        if not path.exists():
            raise SystemExit(
                f"the environment of {self.environment} was not made: run `make peers`, or leave "
                "it out with --workers"
            )
        return path


KINDS = {
    "inms": Kind("run_inms.py"),
    "inms-compiled": Kind("run_inms.py", "", ("--compile",)),
    "vllm": Kind("run_vllm.py", "vllm"),
    "vllm-eager": Kind("run_vllm.py", "vllm", ("--eager",)),
    "llamacpp-f32": Kind("run_llamacpp.py", "llamacpp", ("--weights", "f32")),
    "llamacpp-q4_1": Kind("run_llamacpp.py", "llamacpp", ("--weights", "q4_1")),
    "transformers": Kind("run_transformers.py"),
}
DEFAULT = "inms,inms-compiled,vllm,llamacpp-f32,llamacpp-q4_1,transformers"


# arithmetic ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """A median with the least and the most."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    def __format__(self, spec: str) -> str:
        return f"{self.median:{spec}} ({self.least:{spec}} - {self.most:{spec}})"


def tokens_per_s(agents: int, steps: Sequence[float]) -> float:
    """Of a round in which `agents` tokens are written a step: by its median step."""
    return agents / statistics.median(steps)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Of each round, ours through theirs."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


# workers ------------------------------------------------------------------------------------


@dataclass
class Worker:
    """A process that is stopped whenever it is not asked. Times of its rounds are kept here."""

    name: str
    process: subprocess.Popen[str]
    log: Path
    ready: dict[str, Any] = field(default_factory=dict)
    steps: list[list[float]] = field(default_factory=list)  # seconds, by round
    firsts: dict[str, list[float]] = field(default_factory=dict)  # seconds, by kind
    others: list[float] = field(default_factory=list)  # cores that others used, by round
    peak_bytes: int = 0

    @classmethod
    def start(cls, name: str, command: Sequence[str], threads: int, logs: Path) -> Worker:
        """Start it and wait until its contexts are filled; then it is stopped."""
        logs.mkdir(parents=True, exist_ok=True)
        log = logs / f"{name}.log"
        environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
        environment |= {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
        with log.open("w") as errors:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # so that a signal reaches its children too
            )
        out = cls(name, process, log)
        out.ready = out._answer()
        out._signal(signal.SIGSTOP)
        return out

    def ask(self, order: str) -> dict[str, Any]:
        """Let it do one thing; nobody else runs meanwhile."""
        assert self.process.stdin is not None
        before = cpu_seconds(self.process.pid)
        self._signal(signal.SIGCONT)
        try:
            self.process.stdin.write(order + "\n")
            self.process.stdin.flush()
            answer = self._answer()
            now, all_cores, own = (
                b - a for a, b in zip(before, cpu_seconds(self.process.pid), strict=True)
            )
            return answer | {"others": max(0.0, (all_cores - own) / now)}
        except BrokenPipeError:
            raise SystemExit(self._why()) from None
        finally:
            self._signal(signal.SIGSTOP)

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(self._why())
        answer: dict[str, Any] = json.loads(line)
        self.peak_bytes = answer["peak_bytes"]
        return answer

    def _why(self) -> str:
        last = self.log.read_text(errors="replace").strip().splitlines()[-5:]
        return "\n".join((f"{self.name} ended; the end of {self.log}:", *last))

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def end(self) -> None:
        """End it and its children."""
        self._signal(signal.SIGKILL)
        self.process.wait()


def cpu_seconds(pid: int) -> tuple[float, float, float]:
    """Now; seconds of work of all cores since the start of the machine; those of one process."""
    tick = os.sysconf("SC_CLK_TCK")
    user, nice, system = map(int, Path("/proc/stat").read_text().split()[1:4])
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = int(fields[11]) + int(fields[12])  # utime and stime
    return time.perf_counter(), (user + nice + system) / tick, own / tick


@contextlib.contextmanager
def alone(path: Path | None) -> Iterator[None]:
    """Hold the lock file `path`, if one is given: others that measure here take it too."""
    if path is None:
        yield
        return
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def measure(workers: list[Worker], rounds: int, firsts: int, lock: Path | None) -> None:
    """Rounds of decoding, then of first tokens; every worker once in each."""
    for number in range(rounds):
        with alone(lock):
            for worker in workers[:: -1 if number % 2 else 1]:
                answer = worker.ask("decode")
                worker.steps.append(answer["steps_s"])
                worker.others.append(answer["others"])
                step = statistics.median(answer["steps_s"])
                say(
                    f"round {number + 1}: {worker.name}, step {step:.3f} s, "
                    f"others used {answer['others']:.2f} cores"
                )
    for number in range(firsts):
        for kind in ("next", "fragment"):
            with alone(lock):
                for worker in workers[:: -1 if number % 2 else 1]:
                    worker.firsts.setdefault(kind, []).append(worker.ask(kind)["seconds"])
                    say(f"{kind} {number + 1}: {worker.name}, {worker.firsts[kind][-1]:.2f} s")


def whole_rounds(workers: list[Worker]) -> None:
    """Forget what only some of the workers did. Ends the program where nothing is left."""
    rounds = min(len(worker.steps) for worker in workers)
    if not rounds:
        raise SystemExit("interrupted before the first round was complete")
    kinds = set.intersection(*(set(worker.firsts) for worker in workers))
    for worker in workers:
        del worker.steps[rounds:], worker.others[rounds:]
        worker.firsts = {kind: worker.firsts[kind] for kind in sorted(kinds)}
    for kind in kinds:
        count = min(len(worker.firsts[kind]) for worker in workers)
        for worker in workers:
            del worker.firsts[kind][count:]


# report -------------------------------------------------------------------------------------


def say(line: str) -> None:
    """What is being done, for whoever waits."""
    print(line, file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """This machine in words."""
    names = [
        line.split(":")[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    cores, system = os.cpu_count(), platform.platform()
    return {"cpu": names[0] if names else platform.machine(), "cores": cores, "system": system}


def summary(workers: list[Worker], agents: int) -> dict[str, Any]:
    """What a reader wants to know, and every round."""
    out: dict[str, Any] = {"workers": {}, "ratios": {}}
    speeds = {w.name: [tokens_per_s(agents, steps) for steps in w.steps] for w in workers}
    for worker in workers:
        out["workers"][worker.name] = {
            "about": worker.ready["about"],
            "setup_s": round(worker.ready["setup_s"], 1),
            "tokens_per_s": [round(value, 2) for value in speeds[worker.name]],
            "step_ms": [round(1e3 * statistics.median(s), 2) for s in worker.steps],
            "first_token_s": {k: [round(s, 3) for s in v] for k, v in worker.firsts.items()},
            "others_cores": [round(value, 2) for value in worker.others],
            "peak_bytes": worker.peak_bytes,
        }
    ours = [w for w in workers if w.name.startswith(OURS)]
    theirs = [w for w in workers if not w.name.startswith(OURS)]
    for our in ours:
        rows = out["ratios"][our.name] = {}
        for peer in theirs:
            found = {"tokens_per_s": ratios(speeds[our.name], speeds[peer.name])}
            for kind, seconds in our.firsts.items():
                found[f"{kind}_s"] = ratios(seconds, peer.firsts[kind])
            rows[peer.name] = {
                k: {
                    "median": round(s.median, 3),
                    "least": round(s.least, 3),
                    "most": round(s.most, 3),
                }
                for k, s in ((k, Spread.of(v)) for k, v in found.items() if v)
            }
    return out


def render(found: dict[str, Any]) -> None:
    """Two tables: medians with their spread, and ratios."""
    print(f"{'':15}{'tokens/s':>24}{'step ms':>24}{'next s':>8}{'fragment s':>11}{'peak MiB':>9}")
    for name, row in found["workers"].items():
        cells = [f"{Spread.of(row[k]):.1f}" if row[k] else "" for k in ("tokens_per_s", "step_ms")]
        times = [row["first_token_s"].get(kind) for kind in ("next", "fragment")]
        first = [f"{statistics.median(values):.2f}" if values else "" for values in times]
        peak = row["peak_bytes"] >> 20
        print(f"{name:15}{cells[0]:>24}{cells[1]:>24}{first[0]:>8}{first[1]:>11}{peak:>9}")
    for our, rows in found["ratios"].items():
        print(f"\n{our}, ratio to: median over rounds (least - most)")
        for peer, kinds in rows.items():
            cells = [
                f"{k} {Spread(v['median'], v['least'], v['most']):.2f}" for k, v in kinds.items()
            ]
            print(f"  {peer:15}{'   '.join(cells)}")


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, value in (("shared", 4096), ("own", 1024), ("agents", 8), ("tokens", 16)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--firsts", type=int, default=3, help="rounds of first tokens; 0: none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workers", default=DEFAULT, help=f"of {', '.join(KINDS)}")
    parser.add_argument("--ours-args", default="", help="for this lab's worker, e.g. --compile")
    parser.add_argument("--lock", type=Path, default=None, help="a file to lock during a round")
    parser.add_argument("--json", type=Path, default=None, help="write everything into this file")
    parser.add_argument(
        "--show", type=Path, help="print the tables of such a file, measure nothing"
    )
    return parser.parse_args(arguments)


def commands(options: argparse.Namespace, model: Path, peers: Path = PEERS) -> dict[str, list[str]]:
    """The command of each worker. Ends the program for one that is unknown or was not made."""
    out = {}
    for name in options.workers.split(","):
        if name not in KINDS:
            raise SystemExit(f"there is no worker {name!r}: choose of {', '.join(KINDS)}")
        kind = KINDS[name]
        words = ("shared", "own", "agents", "tokens", "seed", "threads")
        sizes = [part for word in words for part in (f"--{word}", str(getattr(options, word)))]
        own = shlex.split(options.ours_args) if name.startswith(OURS) else []
        command = [str(kind.python(peers)), str(SCRIPTS / kind.script), "--model", str(model)]
        out[name] = [*command, *sizes, *kind.arguments, *own]
    return out


def main() -> None:
    """Command line."""
    from inms_lab.model.source import resolve

    options = options_of()
    if options.show is not None:
        render(json.loads(options.show.read_text(encoding="utf-8")))
        return
    starts = commands(options, resolve())
    workers: list[Worker] = []
    try:
        for name, command in starts.items():
            say(f"{name}: loading, filling {options.agents} contexts")
            workers.append(Worker.start(name, command, options.threads, PEERS / "logs"))
        try:
            measure(workers, options.rounds, options.firsts, options.lock)
        except KeyboardInterrupt:
            whole_rounds(workers)
        found = summary(workers, options.agents)
    finally:
        for worker in workers:
            worker.end()
    render(found)
    if options.json is not None:
        asked = {k: v for k, v in vars(options).items() if k not in ("json", "lock", "show")}
        words = (f"--{k.replace('_', '-')}={v}" for k, v in asked.items() if v != "")
        command = shlex.join(("python", "benchmarks/peers.py", *words))
        result = {"command": command, "machine": machine(), "work": asked}
        options.json.write_text(json.dumps(result | found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
