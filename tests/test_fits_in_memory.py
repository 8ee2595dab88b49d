"""One million block transitions of real tokens, with their log and token table, fit in 200 MB.

Run as a script, this file does the work and prints what it took; the test does so in a process of
its own, where nothing else grows. A transition is one block in one event: handed out, shared,
published, let go, or evicted.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[1]
TRANSITIONS = 1_000_000
LIMIT = 200e6  # bytes
KINDS = ("Allocated", "Shared", "Published", "Freed", "Evicted")


class NoTensors:
    """A store without tensors (and without torch)."""

    bytes_per_token = 0

    def open(self, pool_id: str, num_slots: int) -> None: ...

    def clear(self, pool_id: str, blocks: Sequence[int], block_size: int) -> None: ...

    def copy(self, source: tuple[str, int], target: tuple[str, int], num_slots: int) -> None: ...


def words() -> list[int]:
    """The package's own texts, one token id for each different word."""
    texts = sorted((ROOT / "inms_lab" / "texts").glob("*.md"))
    ids: dict[str, int] = {}
    return [ids.setdefault(w, len(ids)) for t in texts for w in t.read_text("utf-8").split(" ")]


def churn(num_transitions: int) -> dict[str, float]:
    """Agents read a common prompt and a text of their own, answer, and end; eight live at a time.

    Everything goes through the real plans and the real door. Mode `global`: what an agent leaves
    behind stays findable until it is evicted, so that every kind of transition happens.
    """
    from inms_lab.books.events import PoolOpened, Registered
    from inms_lab.books.fingerprint import Namespace
    from inms_lab.decisions.completion import Done, completed
    from inms_lab.decisions.outcome import Plan
    from inms_lab.decisions.plan import plan_extend
    from inms_lab.decisions.policy import DEFAULT, MODES
    from inms_lab.serving.cache import KVCache
    from inms_lab.serving.commands import entry
    from inms_lab.serving.request import Request

    policy, root, book = MODES["global"], Namespace(model="m").root(), words()
    cache = KVCache(NoTensors())
    books, log = cache.ledger, cache.log
    counts: Counter[str] = Counter()
    num_seen = 0

    def enter(request: Request) -> None:
        plan = entry(books, log, policy, request, 1 << 20)
        assert cache.commit(plan) is None

    def compute(seq_id: int) -> None:
        seq = books.sequences[seq_id]
        while seq.has_work:
            plan = plan_extend(books, len(log), seq_id, 512)
            assert isinstance(plan, Plan)
            cache.commit(plan)
            if plan.chunk is None:
                continue
            samples = seq.to_generate > 0 and plan.chunk.stop == seq.num_tokens
            done = Done(plan.chunk, int(samples), samples and seq.to_generate == 1)
            offset, _ = log.add_tokens(book[len(log) % len(book)] for _ in range(samples))
            for event in completed(books, offset, [done]):
                cache.record(event)

    def register(number: int) -> int:
        cache.record(Registered(number, "agent", f"agent {number}", DEFAULT, (), root))
        return number

    memory = psutil.Process().memory_info
    before = peak = memory().rss
    for pool_id, tier, label in policy.pools(()):
        cache.record(PoolOpened(pool_id, tier, DEFAULT, 16, 2048, label))
    system = book[:1024]
    offset, _ = log.add_tokens(system)
    live: deque[int] = deque()
    number = 0
    while sum(counts.values()) < num_transitions:
        agent, first = register(number), number * 977 % len(book)
        enter(Request(agent, "append", system, offset=offset, seal=True))
        enter(Request(agent, "write", (book[first:] + book)[: 800 + number % 400], count=8))
        compute(agent)
        live.append(agent)
        if len(live) > 8:
            enter(Request(live.popleft(), "close"))
        for event in log.events[num_seen:]:
            counts[type(event).__name__] += len(getattr(event, "blocks", ()))
        num_seen, number = len(log), number + 1
        peak = max(peak, memory().rss)
    return {
        **{kind: counts[kind] for kind in KINDS},
        "transitions": sum(counts.values()),
        "tokens": len(log.tokens),
        "log_bytes": log.num_bytes(),
        "grown_bytes": peak - before,
    }


@pytest.mark.slow
def test_a_million_transitions_fit_in_200_mb() -> None:
    done = subprocess.run(
        [sys.executable, __file__, str(TRANSITIONS)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    took = json.loads(done.stdout)
    assert took["transitions"] >= TRANSITIONS
    assert all(took[kind] > TRANSITIONS / 50 for kind in KINDS), took
    assert took["tokens"] > TRANSITIONS
    assert took["log_bytes"] < took["grown_bytes"] < LIMIT, took


def test_the_log_grows_in_proportion_to_what_happens() -> None:
    """Twice the transitions take about twice the bytes."""
    small, large = (churn(count)["log_bytes"] / count for count in (20_000, 40_000))
    assert large < 1.2 * small


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    print(json.dumps(churn(int(sys.argv[1]))))
