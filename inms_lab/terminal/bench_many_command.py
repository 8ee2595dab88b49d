"""`inms-lab bench locks` and `inms-lab bench tenants`: many threads, and neighbours."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from inms_lab.bench.options import numbers
from inms_lab.terminal.bench_command import app
from inms_lab.terminal.bench_options import Agents, AsJson, Repeat, Results, Seed, at_least, show

__all__ = ["app"]  # with all measurements on it


@app.command()
def locks(
    agents: Agents = 8,
    layers: Annotated[str, typer.Option(help="layers' products of a forward")] = "1,30",
    seconds: Annotated[float, typer.Option(help="of each run")] = 1.0,
    results: Results = None,
    as_json: AsJson = False,
    seed: Seed = 0,
    repeat: Repeat = 12,
) -> None:
    """One lock for lookup, hash, copy and write, against short critical sections; without a forward
    too."""

    def measured() -> dict[str, Any]:
        from inms_lab.bench.locks import measure
        from inms_lab.bench.threads import Load

        at_least(1, agents=agents)
        at_least(0.01, seconds=seconds)
        return measure(Load(agents, seed=seed), [0, *numbers("layers", layers)], seconds, repeat)

    show("locks", measured, (as_json, seed, repeat), results)


@app.command()
def tenants(
    probes: Annotated[int, typer.Option(help="half of them of a text that is held")] = 200,
    tokens: Annotated[int, typer.Option(help="of each text")] = 256,
    model: Annotated[str, typer.Option(help="name, folder or hub id; none: drawn")] = "",
    results: Results = None,
    as_json: AsJson = False,
    seed: Seed = 0,
    repeat: Repeat = 1,
) -> None:
    """Whether a tenant's times tell what its neighbour holds: in tenants, and in one pool."""

    def measured() -> dict[str, Any]:
        from inms_lab.bench.tenants import Attack, drawn, measure
        from inms_lab.model import load

        at_least(4, probes=probes)
        at_least(1, tokens=tokens)
        attack = Attack(probes * repeat, tokens, seed)
        runner: Any = load(model) if model else drawn(seed)
        return measure(runner, attack)

    show("tenants", measured, (as_json, seed, repeat), results)
