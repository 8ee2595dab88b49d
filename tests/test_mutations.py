"""The mutation check: labs turn red on a broken engine, and stay green on a sound one.

nbval#108, #147: green tests that test nothing.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell
from notebooks import LABS, ROOT, kernel

pytestmark = [pytest.mark.slow, pytest.mark.model]

# What is broken: the file, the text, what it becomes (the text must be there exactly once), and the
# lab that turns red. A lab is run with its solutions, so that its checks look at the engine too.
MUTATIONS = {
    "every lookup misses": (
        "books/checks.py",
        "return pool.index.get(key, ()) if key else ()",
        "return ()",
        "01",
    ),
    "an edit of a shared block copies nothing": (
        "serving/commands.py",
        "return (*events, Copied(seq.seq_id, number, 0, *there))",
        "return events",
        "00",
    ),
    "a write into a shared block does not copy it": (
        "decisions/plan.py",
        "copies = partial is not None and pool.refs[partial] > 1",
        "copies = False",
        "02",
    ),
    "a block that is written in place can be found by its old text": (
        "decisions/plan.py",
        "elif partial is not None and partial in pool.keys:",
        "elif False:",
        "02",
    ),
    "a fork shares nothing": (
        "serving/commands.py",
        "        if s.blocks\n    )\n    return (Registered(child",
        "        if False\n    )\n    return (Registered(child",
        "02",
    ),
    "who copies a block still counts as a holder of the old one": (
        "books/ledger.py",
        "            self.pools[e.src_pool].release((e.src,))\n",
        "",
        "02",
    ),
    "sharing is not counted": (
        "books/pool.py",
        "refs[block] += 1",
        "refs[block] = 1",
        "02",
    ),
    "what is let go is forgotten at once": (
        "books/pool.py",
        "if block in keys and not forget:",
        "if False:",
        "03",
    ),
    "a block can be found before it is written": (
        "decisions/lookup.py",
        'return pool.pending.get(key) if "pending" in seq.off else None',
        "return pool.pending.get(key)",
        "03",
    ),
    "labels are not looked at": (
        "books/checks.py",
        'return "label" in seq.off or may_hold(label, seq.clearance)',
        "return True",
        "03",
    ),
    "tokens are not compared": (
        "books/checks.py",
        'return "tokens" in seq.off or held == segment.texts(index, len(blocks))',
        "return True",
        "03",
    ),
    "anybody may write any tier": (
        "books/checks.py",
        "return WRITER.get(tier, seq.kind) == seq.kind",
        "return True",
        "03",
    ),
    "a plan may be stale": (
        "serving/cache.py",
        "if plan.at != len(self.log):",
        "if False:",
        "03",
    ),
    "grouped queries save nothing": (
        "studies/geometry.py",
        'kv_heads = _count(c, "num_key_value_heads", heads)',
        "kv_heads = heads",
        "01",
    ),
    "a replay is one event late": (
        "logs/log.py",
        "iter(self.events[: stop - self.first])",
        "iter(self.events[: stop - self.first + 1])",
        "04",
    ),
    "everybody is cleared for everything": (
        "books/label.py",
        "return clearance.issuperset(label)",
        "return True",
        "05",
    ),
    "a label forgets what stood before": (
        "books/label.py",
        "return frozenset().union(*labels)",
        "return frozenset(labels[-1])",
        "05",
    ),
    "a text is found whoever has encoded it": (
        "decisions/reuse.py",
        "allowed = there and shared and clears(seq, segment.label)",
        "allowed = there",
        "05",
    ),
    "queries are turned the wrong way": (
        "attention/turns.py",
        "factors(rotation, -shift)",
        "factors(rotation, shift)",
        "06",
    ),
    "a shift has the wrong sign": (
        "books/segment.py",
        "return self.first_position - self.encoded",
        "return self.encoded - self.first_position",
        "06",
    ),
    "the gate looks at the favourable end": (
        "books/gate.py",
        "known.kl_interval[1] <= self.max_kl",
        "known.kl_interval[0] <= self.max_kl",
        "07",
    ),
    "all but one block is computed afresh": (
        "notebook/attaching.py",
        "return tuple(range(ceil(recompute * count)))",
        "return tuple(range(ceil(recompute * count) - 1))",
        "07",
    ),
    "a reused text is measured at the wrong shift": (
        "interference/contexts.py",
        "shift = part.sense * (first + offset - part.first)",
        "shift = -part.sense * (first + offset - part.first)",
        "07",
    ),
    "pooled contexts hold nobody else's text": (
        "experiment/reading.py",
        "range(self.num_agents if self.pooled else 0)",
        "range(0)",
        "08",
    ),
    "blocks that are named are not computed afresh": (
        "notebook/attaching.py",
        "return tuple(sorted(set(recompute)))",
        "return ()",
        "08",
    ),
    "the likeliest option is not the one that is chosen": (
        "experiment/score.py",
        "Answer(max(range(len(scores))",
        "Answer(min(range(len(scores))",
        "08",
    ),
    "a shared tile is read for each reader": (
        "attention/reads.py",
        "if first >= tile.first + tile.length - 1:",
        "if False:",
        "09",
    ),
    "two empty states give no number": (
        "attention/tiles.py",
        "top = torch.maximum(lse_a, lse_b).clamp_min(LOWEST)",
        "top = torch.maximum(lse_a, lse_b)",
        "09",
    ),
    "a merge weighs one piece by the other": (
        "attention/tiles.py",
        "a, b = torch.exp(lse_a - top), torch.exp(lse_b - top)",
        "b, a = torch.exp(lse_a - top), torch.exp(lse_b - top)",
        "09",
    ),
    "a storm copies as much as it likes": (
        "decisions/plan.py",
        "if copies > self.copies:",
        "if False:",
        "10",
    ),
    "no block is ever moved": (
        "decisions/compact.py",
        "        if dst < move.src\n",
        "        if False\n",
        "10",
    ),
    "a late beat revives a lease": (
        "leases.py",
        "        return entry if entry.state == LIVE else None\n",
        "        return entry\n",
        "11",
    ),
    "who ran out keeps its blocks": (
        "notebook/keeper.py",
        "            engine.end(seq_id, verb, cause)\n",
        "            pass\n",
        "11",
    ),
    "a floor keeps nothing": (
        "serving/planning.py",
        "plan_preempt(self.books, *where, busy, force, share.floor, missing)",
        "plan_preempt(self.books, *where, busy, force, 0, missing)",
        "12",
    ),
    "all tenants have one pool": (
        "decisions/policy.py",
        'return pool_id if own else f"{tenant}/{pool_id}"',
        "return pool_id",
        "12",
    ),
    "memory that somebody still reads is used again": (
        "parameters/postbox.py",
        "if n not in sent and not sheet.in_use]",
        "if not sheet.in_use]",
        "15",
    ),
    "layers behind are never let go": (
        "parameters/prefetch.py",
        "if self.kept < count:",
        "if False:",
        "15",
    ),
    "agents are placed in order of arrival": (
        "parameters/grouping.py",
        "return min((_improved(start, rooms, near) for start in starts),",
        "return min(starts[1:],",
        "15",
    ),
    "replicas outlive a write": (
        "parameters/replicas.py",
        "            block.replicas.clear()\n",
        "",
        "15",
    ),
    "a page that was written is called shared": (
        "parameters/kernel.py",
        "own = (words & _OF_A_FILE) == 0",
        "own = words == 0",
        "13",
    ),
    "what was there before the fork is looked through for garbage": (
        "parameters/nursery.py",
        "        gc.freeze()\n",
        "",
        "13",
    ),
    "who discards its changes keeps them": (
        "parameters/child.py",
        '"""Take its changes back."""\n    _lay(me, me.base)\n',
        '"""Take its changes back."""\n',
        "13",
    ),
    "validation looks at the weights that there are": (
        "parameters/shared.py",
        "judge(module_on(self._make(), view, self.layout), validate)",
        "judge(self.module(), validate)",
        "14",
    ),
    "what validation says does not count": (
        "parameters/shared.py",
        "            if validate is not None:\n",
        "            if False:\n",
        "14",
    ),
    "all branches weigh alike": (
        "parameters/averaging.py",
        "return [w / sum(given) for w in given]",
        "return [1 / len(given) for _ in given]",
        "14",
    ),
    "a version has the digest of the one before": (
        "parameters/versions.py",
        "Version(base.number + 1, pieces, hashed.hexdigest(), base.origin, deltas)",
        "Version(base.number + 1, pieces, base.digest, base.origin, deltas)",
        "14",
    ),
}


def broken(what: str, folder: Path) -> Path:
    """A copy of the engine with this mutation."""
    name, text, instead, _ = MUTATIONS[what]
    package = folder / "inms_lab"
    shutil.copytree(ROOT / "inms_lab", package, ignore=shutil.ignore_patterns("__pycache__"))
    source = (package / name).read_text("utf-8")
    assert source.count(text) == 1, f"{name} has changed: say anew how to break it"
    (package / name).write_text(source.replace(text, instead), "utf-8")
    return package


def compared(cell: NotebookNode) -> str:
    """What nbval compares of a cell: the texts that it prints and shows, unless it is marked."""
    if cell.cell_type != "code" or cell.source.startswith("# NBVAL_IGNORE_OUTPUT"):
        return ""
    parts = (o.get("text") or o.get("data", {}).get("text/plain", "") for o in cell.outputs)
    return "".join(parts)


def red(number: str, package: Path) -> str:
    """Why the lab with this number is red when it is run on this engine, as soon as it is; "": it
    is green."""
    (path,) = (LABS / "solutions").glob(f"{number}_*.ipynb")
    notebook = nbformat.read(path, as_version=4)
    committed = [compared(cell) for cell in notebook.cells]
    probe = "import inms_lab, pathlib; print(pathlib.Path(inms_lab.__file__).parent)"
    notebook.cells.append(new_code_cell(probe))
    with kernel(notebook, PYTHONPATH=str(package.parent)) as client:
        last = len(notebook.cells) - 1
        client.execute_cell(notebook.cells[last], last)
        assert Path(notebook.cells[last].outputs[0].text.strip()) == package, "another engine"
        for at, old in enumerate(committed):
            try:
                client.execute_cell(notebook.cells[at], at)
            except CellExecutionError as error:
                return str(error)
            if (new := compared(notebook.cells[at])) != old:
                return f"{new!r} instead of {old!r}"
    return ""


@pytest.mark.parametrize("what", MUTATIONS)
def test_a_lab_turns_red_on_a_broken_engine(what: str, tmp_path: Path) -> None:
    why = red(MUTATIONS[what][-1], broken(what, tmp_path))
    print(f"\n{what}: {why[-300:]}")
    assert why, "it is green"


@pytest.mark.parametrize("number", ["01", "05", "09"])
def test_a_lab_stays_green_on_a_copy_that_is_sound(number: str, tmp_path: Path) -> None:
    """So that what turns red above does so for the mutation's sake: without a model, with one, and
    with kernels that are compiled. (All labs are green on the engine itself: nbval.)"""
    package = tmp_path / "inms_lab"
    shutil.copytree(ROOT / "inms_lab", package, ignore=shutil.ignore_patterns("__pycache__"))
    assert not red(number, package)


def test_there_are_enough_mutations_and_every_lab_has_one() -> None:
    assert len(MUTATIONS) >= 10
    assert len({(name, text) for name, text, _, _ in MUTATIONS.values()}) == len(MUTATIONS)
    assert {lab for *_, lab in MUTATIONS.values()} == {
        path.name[:2] for path in LABS.glob("[0-9]*.ipynb")
    }
