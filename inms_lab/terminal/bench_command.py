"""`inms-lab bench NAME`: a measurement on this machine, with what decides its figures.

One function a measurement: its options, then the call of the module in bench/ that measures. The
options `--json`, `--seed` and `--repeat` are everybody's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inms_lab.bench.options import numbers
from inms_lab.terminal.bench_options import (
    DEFAULT,
    Agents,
    AsJson,
    Compiled,
    Model,
    Own,
    Quick,
    Repeat,
    Seed,
    Shared,
    at_least,
    show,
)

if TYPE_CHECKING:
    from inms_lab.model.runner import Runner

app = typer.Typer(help="Measure this machine: one command a question.", no_args_is_help=True)


@app.command()
def bookkeeping(
    trace: Annotated[Path, typer.Option(help="a trace of block ids, as replay takes it")],
    capacity: Annotated[int, typer.Option(help="blocks that stay between requests")] = 10_000,
    share_tools: Annotated[
        bool, typer.Option(help="take equally long tool definitions of all sessions for equal")
    ] = False,
    as_json: AsJson = False,
    seed: Seed = 0,
    repeat: Repeat = 5,
) -> None:
    """What the books cost per block of a trace, log on, and what they find."""
    from inms_lab.bench.bookkeeping import measure

    def measured() -> dict[str, Any]:
        return measure(trace, capacity, repeat, share_tools)

    show("bookkeeping", measured, (as_json, seed, repeat))


@app.command()
def decode(
    shared: Shared = 4096,
    own: Own = 1024,
    agents: Agents = 8,
    tokens: Annotated[int, typer.Option(help="tokens that each agent writes in a round")] = 32,
    compile: Compiled = True,
    quick: Quick = False,
    model: Model = DEFAULT,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...")] = None,
    as_json: AsJson = False,
    seed: Seed = 0,
    repeat: Repeat = 3,
) -> None:
    """How fast agents write at once behind a shared prefix, and what a step reads."""

    def measured() -> dict[str, Any]:
        from inms_lab.bench.contexts import Work
        from inms_lab.bench.decode import measure

        at_least(1, own=own, agents=agents, tokens=tokens)
        at_least(0, shared=shared)
        work = Work(shared, own, agents, seed=seed, drawn=quick)
        return measure(_runner(model, compile, device), work, tokens, repeat)

    show("decode", measured, (as_json, seed, repeat))


@app.command()
def ttft(
    shared: Shared = 1024,
    own: Own = 256,
    compile: Compiled = True,
    model: Model = DEFAULT,
    as_json: AsJson = False,
    seed: Seed = 0,
    repeat: Repeat = 3,
) -> None:
    """Time to first token: the first agent, the next, and one with the shared text elsewhere."""

    def measured() -> dict[str, Any]:
        from inms_lab.bench.contexts import Work
        from inms_lab.bench.ttft import measure

        at_least(1, shared=shared, own=own)
        return measure(_runner(model, compile), Work(shared, own, 1, seed=seed), repeat)

    show("ttft", measured, (as_json, seed, repeat))


@app.command()
def growth(
    shared: Shared = 4096,
    own: Own = 256,
    agents: Annotated[str, typer.Option(help="numbers of agents")] = "1,2,4,8,16,32,64",
    contexts: Annotated[str, typer.Option(help="lengths, of 8 agents")] = "1k,2k,4k,8k",
    compile: Compiled = True,
    model: Model = DEFAULT,
    as_json: AsJson = False,
    seed: Seed = 0,
    repeat: Repeat = 3,
) -> None:
    """What one agent more costs: step time, bytes, and the process' memory; contexts are drawn."""

    def measured() -> dict[str, Any]:
        from inms_lab.bench.contexts import Work, room_for
        from inms_lab.bench.growth import STEPS, measure

        at_least(1, own=own)
        at_least(0, shared=shared)
        sizes = numbers("agents", agents), numbers("contexts", contexts)
        at_least(own + room_for(STEPS), contexts=min(sizes[1]))
        work = Work(shared, own, 8, seed=seed)
        return measure(_runner(model, compile), work, *sizes, repeat)

    show("growth", measured, (as_json, seed, repeat))


@app.command()
def crossover(
    shared: Annotated[str, typer.Option(help="shared lengths")] = "64,256,1k,4k",
    own: Own = 256,
    agents: Annotated[str, typer.Option(help="numbers of agents")] = "2,4,8",
    compile: Compiled = True,
    model: Model = DEFAULT,
    as_json: AsJson = False,
    seed: Seed = 0,
    repeat: Repeat = 3,
) -> None:
    """From where on reading shared tiles together is faster than each on its own."""

    def measured() -> dict[str, Any]:
        from inms_lab.bench.contexts import Work
        from inms_lab.bench.crossover import measure

        at_least(1, own=own)
        lengths, counts = numbers("shared", shared), numbers("agents", agents)
        work = Work(lengths[-1], own, counts[-1], seed=seed)
        return measure(_runner(model, compile), work, lengths, counts, repeat)

    show("crossover", measured, (as_json, seed, repeat))


@app.command()
def gap(
    shared: Shared = 1024,
    own: Own = 256,
    agents: Annotated[int, typer.Option(help="agents that write")] = 7,
    read: Annotated[int, typer.Option(help="tokens that one more agent reads")] = 4096,
    budgets: Annotated[str, typer.Option(help="prefill budgets of a step")] = "512,128,32",
    compile: Compiled = True,
    model: Model = DEFAULT,
    as_json: AsJson = False,
    seed: Seed = 0,
    repeat: Repeat = 1,
) -> None:
    """How long writers wait between two tokens while one agent more reads a long text."""

    def measured() -> dict[str, Any]:
        from inms_lab.bench.contexts import Work
        from inms_lab.bench.gap import measure

        at_least(1, own=own, agents=agents, read=read)
        at_least(0, shared=shared)
        work, sizes = Work(shared, own, agents, seed=seed), numbers("budgets", budgets)
        return measure(_runner(model, compile), work, read, sizes, repeat)

    show("gap", measured, (as_json, seed, repeat))


@app.command()
def placement(
    agents: Agents = 8,
    tokens: Annotated[int, typer.Option(help="tokens of each context")] = 1024,
    block: Annotated[int, typer.Option(help="tokens of a block")] = 16,
    as_json: AsJson = False,
    seed: Seed = 0,
    repeat: Repeat = 5,
) -> None:
    """What it costs that a context's blocks do not lie together."""

    def measured() -> dict[str, Any]:
        from inms_lab.bench.placement import measure

        return measure(agents, tokens, block, seed, repeat)

    show("placement", measured, (as_json, seed, repeat))


@app.command()
def fragmentation(
    apart: Annotated[bool, typer.Option(help="a tenant's regions need not lie together")] = False,
    order: Annotated[str, typer.Option(help="free blocks: queue or lowest")] = "queue",
    operations: Annotated[int, typer.Option(help="of the churn")] = 2000,
    as_json: AsJson = False,
    seed: Seed = 0,
    repeat: Repeat = 9,
) -> None:
    """Which of three pool policies runs out of memory with memory free; what isolation costs."""
    from inms_lab.bench.fragmentation import measure
    from inms_lab.studies.churn import Churn

    churn = Churn(operations=operations, together=not apart)
    show("fragmentation", lambda: measure(churn, seed, repeat, order), (as_json, seed, repeat))


def _runner(model: str, compile: bool, device: str | None = None) -> Runner:
    from inms_lab.model import load

    return load(model, compile=compile, device=device)
