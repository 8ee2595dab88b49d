"""One copy of the weights for many processes: nobody sees another's writes, and only what is
written is copied (symptom 32: ray#12317, #59084, sglang#37822, livekit/agents#7117)."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import time
import weakref
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from shared_models import (
    is_gone,
    linux,
    llama,
    mlp,
    others,
    same,
    shared,
    soon,
    spoil,
    train,
    values,
)

from inms_lab.errors import (
    AgentClosed,
    AgentDied,
    BadInput,
    BranchRefused,
    MergeRefused,
    ModelCorrupted,
    ParametersClosed,
)
from inms_lab.parameters import SharedParameters
from inms_lab.parameters.kernel import PRIVATE, SHARED, holders
from inms_lab.parameters.region import PAGE, Memory, Piece, View, laid_over

pytestmark = linux
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}


def twice(model: torch.nn.Module) -> tuple[int, int]:
    """The size of an answer that is as large as the weights, made in the agent."""
    return len(values(model)), os.getpid()


# --- isolation --------------------------------------------------------------------------------


def test_a_write_in_one_agent_is_invisible_to_all_others_and_to_the_weights() -> None:
    with shared() as params:
        before = values(mlp().eval())
        writer, reader = params.agent("writer"), params.agent("reader")
        assert same(writer.run(values), before)
        writer.run(spoil)
        assert not same(writer.run(values), before)
        for other in (reader, params.agent("later")):
            assert same(other.run(values), before)
        assert same(values(params.module()), before)


def test_twenty_steps_of_training_are_those_of_an_independent_process(tmp_path: Path) -> None:
    """Optimizer included, batch statistics too."""
    code = (
        "import torch; from shared_models import mlp, train, values; torch.set_num_threads(1)\n"
        "module = mlp(); torch.save((train(module), values(module)), 'result')"
    )
    start = {"cwd": tmp_path, "env": ENVIRONMENT, "check": True}
    subprocess.run([sys.executable, "-c", code], **start)  # type: ignore[call-overload]
    losses, trained = torch.load(tmp_path / "result")
    with shared() as params, params.agent() as agent, params.agent() as bystander:
        assert agent.run(train) == losses
        assert same(agent.run(values), trained)
        assert same(bystander.run(values), values(mlp()))
    assert losses[-1] < losses[0] / 2


def test_a_language_model_writes_the_same_in_every_process_and_tied_weights_stay_tied() -> None:
    def tokens(model: torch.nn.Module) -> list[int]:
        with torch.inference_mode():
            start = torch.arange(3, 19)[None]
            return model.generate(start, max_new_tokens=12, do_sample=False)[0].tolist()  # type: ignore[operator]

    def tied(model: torch.nn.Module) -> bool:
        return model.get_output_embeddings().weight is model.get_input_embeddings().weight  # type: ignore[operator]

    model = llama()
    with shared(model) as params:
        agents = [params.agent() for _ in range(3)]
        assert all(agent.run(tokens) == tokens(model.eval()) for agent in agents)
        assert all(agent.run(tied) for agent in agents)
        assert tied(params.module())
        names = {"lm_head.weight", "model.embed_tokens.weight"}
        assert len(names & params.layout.spots.keys()) == 1


def test_the_shared_copy_cannot_be_written_even_by_who_holds_its_file() -> None:
    with shared() as params:
        (piece,) = params.version.pieces
        with pytest.raises(PermissionError):
            os.pwrite(piece.memory.fd, b"x", 0)


# --- pages ------------------------------------------------------------------------------------


def test_only_pages_that_are_written_become_private() -> None:
    def one_value(model: torch.nn.Module) -> None:
        with torch.no_grad():
            model[0].weight[0, 0] = 9.0  # type: ignore[index]

    with shared(mlp(512)) as params, params.agent() as agent:
        agent.run(values)  # reads all
        assert params.pages(agent).count(PRIVATE) == 0
        assert params.pages(agent).count(SHARED) == params.num_bytes
        agent.run(one_value)
        pages = params.pages(agent)
        assert pages.count(PRIVATE) == PAGE
        changed = pages.by_name().query("private > 0")
        assert [*changed.index] == ["0.weight"]
        assert agent.delta().by_name(params.layout) == {"0.weight": 1}


def collect(model: torch.nn.Module) -> int:
    """Read all, and look for garbage everywhere."""
    return len(values(model)) + gc.collect()


def test_the_collector_copies_no_weights() -> None:
    with shared(mlp(512)) as params, params.agent() as agent:
        agent.run(collect)
        assert params.pages(agent).count(PRIVATE) == 0


def test_many_processes_have_one_copy() -> None:
    with shared(mlp(1024)) as params:
        agents = [params.agent() for _ in range(4)]
        for agent in agents:
            agent.run(lambda model: len(values(model)))
        pss = sum(params.pages(agent).weights.pss for agent in agents)
        assert 0.98 * params.num_bytes <= pss <= 1.02 * params.num_bytes


def test_what_unshares_is_seen() -> None:
    """Another element type and a copy take memory of the process' own, not pages of the weights."""
    with shared(mlp(1024)) as params, params.agent() as agent:
        agent.run(lambda model: len(values(model)))
        before = params.pages(agent)
        agent.run(lambda model: model.double() and None)
        after = params.pages(agent)
        assert after.count(PRIVATE) == 0
        assert after.whole.private - before.whole.private > 1.9 * params.layout.weight_bytes


# --- branches and versions --------------------------------------------------------------------


def test_a_branch_is_private_until_it_is_merged_and_old_readers_keep_theirs() -> None:
    with shared() as params:
        reader = params.agent()
        before = reader.run(values)
        task = params.branch("task")
        train(task.module, 3)
        trained = values(task.module)
        assert same(values(params.module()), before)
        first = params.version
        version = params.merge(task)
        assert (version.number, params.version) == (1, version)
        assert version.digest != first.digest
        assert same(values(params.module()), trained)
        assert same(reader.run(values), before)  # it has not moved
        reader.move(version)
        assert same(reader.run(values), trained)
        assert same(params.agent().run(values), trained)
        reader.move(first)
        assert same(reader.run(values), before)


def test_a_branch_can_be_thrown_away_and_used_again() -> None:
    with shared() as params:
        task = params.branch("task")
        before = values(task.module)
        spoil(task.module)
        assert len(task.delta().pages) > 0
        assert "0.weight" in repr(task.diff())
        task.discard()
        assert same(values(task.module), before)
        assert repr(task.diff()) == "nothing differs"


def test_a_version_takes_memory_for_the_pages_that_changed_only() -> None:
    with shared(mlp(512)) as params:
        task = params.branch("task")
        with torch.no_grad():
            task.module[0].weight[0].add_(1.0)  # type: ignore[index]
        version = params.merge(task)
        mine = {piece.memory for piece in version.pieces}
        assert sum(memory.num_bytes for memory in mine) == params.num_bytes + PAGE


def test_validation_runs_on_the_merged_weights_and_a_bad_branch_never_reaches_main() -> None:
    with shared() as params:
        good, bad = params.branch("good"), params.branch("bad")
        spoil(bad.module)
        seen = []

        def unspoilt(model: torch.nn.Module) -> bool:
            seen.append(values(model))
            return bool(model[0].weight.abs().max() < 1)  # type: ignore[index]

        with pytest.raises(MergeRefused, match="validation gave False"):
            params.merge(bad, validate=unspoilt)
        assert same(seen[0], values(bad.module))  # it judged what would have been
        with pytest.raises(MergeRefused, match="division by zero"):
            params.merge(bad, validate=lambda model: 1 / 0)
        assert params.version.number == 0
        assert same(params.agent().run(values), values(mlp()))
        assert params.merge(good, validate=unspoilt).number == 1


def test_a_branch_of_an_old_version_and_a_second_merge_at_once_are_refused() -> None:
    with shared() as params:
        first, second = params.branch("first"), params.branch("second")
        spoil(first.module)

        def greedy(model: torch.nn.Module) -> bool:
            with pytest.raises(MergeRefused, match="another merge is going on"):
                params.merge(second)
            return True

        params.merge(first, validate=greedy)
        with pytest.raises(MergeRefused, match=r"from version 0, and the newest is 1: branch anew"):
            params.merge(second)
        assert params.version.number == 1


def test_an_agent_with_changes_moves_only_when_they_may_be_lost() -> None:
    with shared() as params:
        agent, first = params.agent(), params.version
        agent.run(spoil)
        with pytest.raises(BranchRefused, match="merge or discard that first"):
            agent.move(first)
        agent.move(first, discard=True)
        assert same(agent.run(values), values(mlp()))


def test_what_several_agents_changed_is_averaged_by_weight() -> None:
    with shared() as params:
        agents = [params.agent() for _ in range(3)]
        for agent, by in zip(agents, (1.0, 2.0, 4.0), strict=True):
            agent.run(spoil, by)
        theirs = [agent.run(values) for agent in agents]
        merged = values(params.branch("x").module) and params.merge(agents, weights=[2, 1, 1])
        now = values(params.module())
        for name, value in now.items():
            parts = [t[name] for t in theirs]
            if value.is_floating_point():
                wanted = parts[0] * 0.5 + parts[1] * 0.25 + parts[2] * 0.25
                assert torch.allclose(value, wanted, rtol=1e-6, atol=1e-6)
            else:
                assert torch.equal(value, parts[0])
        assert merged.number == 1


# --- deaths -----------------------------------------------------------------------------------


def test_a_killed_agent_is_told_of_and_changes_nothing_for_others() -> None:
    with shared() as params:
        doomed, other = params.agent("doomed"), params.agent("other")
        answer = doomed.start(lambda model: time.sleep(1000))
        os.kill(doomed.pid, signal.SIGKILL)
        with pytest.raises(AgentDied, match="killed by signal 9"):
            answer.result()
        assert same(other.run(values), values(mlp()))
        rows = {row.holder[0]: row for row in params.leases()}  # type: ignore[index]
        assert (rows["doomed"].state, rows["doomed"].cause) == ("ended", "killed by signal 9")
        assert rows["other"].state == "live"


@pytest.mark.parametrize("recovers", [True, False])
def test_a_frozen_agent_is_ended_when_its_lease_has_run_out(recovers: bool) -> None:
    with shared(heartbeat_interval=0.1, auto_recovery=recovers) as params:
        agent = params.agent()
        os.kill(agent.pid, signal.SIGSTOP)
        if not recovers:
            soon(lambda: params.leases()[0].state == "overdue")
            assert not is_gone(agent.pid)
            assert params.recover() == [agent.name]
        soon(lambda: params.leases()[0].state == "ended")
        assert params.leases()[0].cause == "its lease ran out"
        assert is_gone(agent.pid)


def test_the_creator_may_die_and_agents_finish_what_they_do(tmp_path: Path) -> None:
    code = (
        "import os, time, sys, shared_models\n"
        "from inms_lab.parameters import SharedParameters\n"
        "params = SharedParameters(shared_models.mlp())\n"
        "def work(model):\n"
        "    open('started', 'w').close(); time.sleep(0.5)\n"
        "    open('half', 'w').write(str(len(model.state_dict()))); os.rename('half', 'done')\n"
        "agents = [params.agent(), params.agent()]\n"
        "agents[0].start(work)\n"
        "print(os.getpid(), params._nursery.process.pid, *[a.pid for a in agents], flush=True)\n"
        "time.sleep(1000)\n"
    )
    start = {"cwd": tmp_path, "env": ENVIRONMENT, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **start) as creator:  # type: ignore[call-overload]
        pids = [int(word) for word in creator.stdout.readline().split()]
        soon(lambda: (tmp_path / "started").exists())
        os.kill(pids[0], signal.SIGKILL)
        soon(lambda: (tmp_path / "done").exists())
        assert (tmp_path / "done").read_text() == "11"
        soon(lambda: all(is_gone(pid) for pid in pids))
        assert not holders(f"inms-weights-{pids[0]}")


def test_when_the_process_that_forks_dies_agents_go_on_and_the_next_starts_another() -> None:
    with shared() as params:
        old = params.agent()
        assert params._nursery is not None
        os.kill(params._nursery.process.pid, signal.SIGKILL)
        params._nursery.process.wait()
        assert same(old.run(values), values(mlp()))
        assert same(params.agent().run(values), values(mlp()))
        assert same(old.run(values), values(mlp()))
        old_pid = old.pid
    soon(lambda: is_gone(old_pid))


def test_after_the_end_nothing_is_left() -> None:
    with shared() as params:
        agent = params.agent()
        task = params.branch("task")
        spoil(task.module)
        params.merge(task)
        pids = [agent.pid, *others()]
    soon(lambda: all(is_gone(pid) for pid in pids))
    soon(lambda: not others())
    with pytest.raises(AgentClosed):
        agent.run(values)
    with pytest.raises(ParametersClosed):
        params.agent()


# --- errors, there and here -------------------------------------------------------------------


def test_what_an_agent_raises_comes_back_and_it_goes_on() -> None:
    def wrong(model: torch.nn.Module) -> None:
        raise KeyError("nothing of that name")

    with shared() as params, params.agent("ada") as agent:
        with pytest.raises(KeyError, match="nothing of that name") as caught:
            agent.run(wrong)
        assert "in agent ada" in caught.value.__notes__[0]
        with pytest.raises(RuntimeError, match="called exit"):
            agent.run(lambda model: sys.exit(3))
        assert agent.run(twice)[1] == agent.pid


def test_an_agent_can_be_interrupted() -> None:
    with shared() as params, params.agent() as agent:
        answer = agent.start(lambda model: time.sleep(1000))
        time.sleep(0.3)
        agent.interrupt()
        with pytest.raises(KeyboardInterrupt):
            answer.result(60)
        assert agent.run(twice)[1] == agent.pid


def test_files_that_are_none_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    good = tmp_path / "good.safetensors"
    save_file(values(mlp()), good)
    raw = good.read_bytes()
    for name, content in {"cut": raw[:-100], "empty": b"", "noise": bytes(range(256)) * 8}.items():
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(content)
        with pytest.raises(ModelCorrupted, match="copy or download it again"):
            SharedParameters(path, make=mlp)
    soon(lambda: not others())
    with SharedParameters(good, make=mlp) as params:
        assert same(values(params.module()), values(mlp()))


def test_weights_of_another_module_are_refused() -> None:
    for module in (mlp(32), torch.nn.Linear(4, 4)):
        params = SharedParameters(values(module), make=mlp)
        with pytest.raises(ModelCorrupted, match="not those of a Sequential"):
            params.module()
        with pytest.raises(ModelCorrupted, match="not those of a Sequential"):
            params.agent()
        params.close()


def test_bad_input_is_refused_by_name() -> None:
    for wrong in ({"shm_chunk_size": 10}, {"heartbeat_interval": 0}, {"prefetch_degree": -1}):
        with pytest.raises(BadInput, match=next(iter(wrong))):
            SharedParameters(mlp(), **wrong)
    with pytest.raises(BadInput, match="names of modules"):
        SharedParameters(mlp(), preload="torch")
    with shared(preload=("no_such_module",)) as params, pytest.raises(BadInput, match="preload"):
        params.agent()
    with pytest.raises(BadInput, match="settings are shm_chunk_size"):
        SharedParameters(mlp(), chunk=3)
    with pytest.raises(BadInput, match="tensors by name"):
        SharedParameters({"x": 3})  # type: ignore[dict-item]
    with SharedParameters(values(mlp())) as params, pytest.raises(BadInput, match="pass make="):
        params.agent()
    with shared() as params:
        agent = params.agent("ada")
        with pytest.raises(BadInput, match="already"):
            params.agent("ada")
        with pytest.raises(BadInput, match="threads"):
            params.agent(threads=0)
        agent.close()
        params.agent("ada").run(twice)


def test_weights_may_lie_in_many_chunks() -> None:
    with shared(mlp(256), shm_chunk_size=64 << 10) as params, params.agent() as agent:
        assert len(params.version.pieces) > 8
        assert same(agent.run(values), values(mlp(256)))
        agent.run(spoil)
        params.merge(agent)
        assert same(values(params.module()), agent.run(values))


def test_whoever_leaves_in_the_middle_is_not_held_up_and_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import shared_models, time\n"
        "from inms_lab.parameters import SharedParameters\n"
        "params = SharedParameters(shared_models.mlp())\n"
        "agent = params.agent()\n"
        "agent.start(lambda model: time.sleep(3))\n"
        "print(agent.pid, flush=True)\n"
    )
    start = {"cwd": tmp_path, "env": ENVIRONMENT, "capture_output": True, "text": True}
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], timeout=60, **start)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    soon(lambda: is_gone(int(done.stdout)))
    assert time.monotonic() - began > 3  # it finished what it did


def test_an_agent_that_would_never_end_can_be_killed() -> None:
    with shared() as params:
        agent = params.agent()
        answer = agent.start(lambda model: time.sleep(1000))
        agent.kill()
        with pytest.raises(AgentDied):
            answer.result(60)
        soon(lambda: is_gone(agent.pid))


def test_the_name_of_a_dead_agent_is_free_again() -> None:
    with shared() as params:
        first = params.agent("ada")
        first.kill()
        soon(lambda: not first.lives)
        second = params.agent("ada")
        assert second.pid != first.pid
        assert params.agents == [second]


def test_an_interrupt_between_two_requests_disturbs_neither() -> None:
    with shared() as params, params.agent() as agent:
        for _ in range(20):
            agent.interrupt()
            assert agent.run(twice)[1] == agent.pid


def test_the_module_that_was_copied_is_not_kept() -> None:
    module = mlp()
    weight = weakref.ref(module[0].weight)
    with SharedParameters(module) as params:
        del module
        gc.collect()
        assert weight() is None
        with pytest.raises(BadInput, match="were copied into shared memory"):
            params.source.tensors()


@pytest.mark.parametrize("seed", range(60))
def test_what_lies_above_hides_what_lies_below_page_by_page(seed: int) -> None:
    rng = random.Random(seed)
    num_pages = rng.randint(1, 40)
    memories = [Memory.create(50 * PAGE) for _ in range(2)]

    def drawn(memory: Memory) -> list[Piece]:
        found, at = [], 0
        while at < num_pages:
            count = min(rng.randint(1, 5), num_pages - at)
            if rng.random() < 0.6:
                found.append(Piece(at * PAGE, count * PAGE, memory, rng.randint(0, 9) * PAGE))
            at += count
        return found

    def by_page(pieces: list[Piece]) -> dict[int, tuple[int, int]]:
        pages = [
            (piece.start + at, (piece.memory.fd, piece.offset + at))
            for piece in pieces
            for at in range(0, piece.num_bytes, PAGE)
        ]
        return dict(pages)

    below, above = map(drawn, memories)
    rng.shuffle(above)
    laid = laid_over(below, above)
    assert by_page(laid) == by_page(below) | by_page(above)
    assert all(one.stop <= other.start for one, other in pairwise(laid))


def test_an_agent_is_not_sent_to_an_agent() -> None:
    refused = pytest.raises(BadInput, match="ada is a process and cannot be sent")
    with shared() as params, params.agent("ada") as ada, refused:
        ada.run(lambda model: ada.name)


def test_a_sealed_memory_is_laid_privately_only() -> None:
    memory = Memory.create(PAGE)
    memory.seal()
    with pytest.raises(BadInput, match="lay it privately"):
        View(PAGE).lay([Piece(0, PAGE, memory)], shared=True)
