"""`inms-lab bench parameters`, `messages`, ...: what sharing weights costs and brings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from inms_lab.bench.options import numbers
from inms_lab.errors import BadInput
from inms_lab.terminal.bench_many_command import app
from inms_lab.terminal.bench_options import (
    DEFAULT,
    AsJson,
    Model,
    Repeat,
    Results,
    Seed,
    at_least,
    show,
)

__all__ = ["app"]  # with all measurements on it
Disk = Annotated[Path | None, typer.Option(help="a folder on the disk that is measured")]
SPREAD = "tensors,pages,scattered"


@app.command()
def parameters(
    agents: Annotated[str, typer.Option(help="numbers of agents, rising: 1,2,8")] = "10",
    changed: Annotated[float, typer.Option(help="share of the weights that each changes")] = 0.15,
    pattern: Annotated[str, typer.Option(help=f"of {SPREAD}; several with commas")] = SPREAD,
    bert: Annotated[bool, typer.Option(help="BERT-base, drawn, in the model's place")] = False,
    model: Model = DEFAULT,
    results: Results = None,
    as_json: AsJson = False,
    seed: Seed = 0,
    repeat: Repeat = 1,
) -> None:
    """Memory of agent processes that share weights, against as many that load their own."""

    def measured() -> dict[str, Any]:
        from inms_lab.bench.own_weights import bert_base
        from inms_lab.bench.parameters import Trial, measure, ten_agents

        patterns = tuple(pattern.split(","))
        trial = Trial(tuple(numbers("agents", agents)), changed, patterns, seed=seed)
        if bert:
            return measure(bert_base(), trial)
        bill = ten_agents(changed)
        claims = {"claims": bill.pop("claims")}
        return measure(model, trial) | {"ten_agents_of_7b": bill} | claims

    show("parameters", measured, (as_json, seed, repeat), results)


@app.command()
def messages(
    sizes: Annotated[str, typer.Option(help="bytes, whole pages; none: 4 KiB to 256 MiB")] = "",
    results: Results = None,
    as_json: AsJson = False,
    seed: Seed = 0,
    repeat: Repeat = 20,
) -> None:
    """Messages between processes: by reference, through a pipe, through a third buffer."""

    def measured() -> dict[str, Any]:
        from inms_lab.bench.messages import SIZES, measure

        return measure(numbers("sizes", sizes) if sizes else SIZES, repeat, show=True)

    show("messages", measured, (as_json, seed, repeat), results)


@app.command()
def prefetch(
    degrees: Annotated[str, typer.Option(help="layers asked for ahead; the first is the base")] = (
        "0,1,2,4,8"
    ),
    tokens: Annotated[int, typer.Option(help="of the text that is read")] = 64,
    budget: Annotated[int, typer.Option(help="MiB of layers that may stay; 0: all")] = 0,
    folder: Disk = None,
    model: Model = DEFAULT,
    results: Results = None,
    as_json: AsJson = False,
    seed: Seed = 0,
    repeat: Repeat = 10,
) -> None:
    """A cold start from disk, with layers asked for ahead and without."""

    def measured() -> dict[str, Any]:
        from inms_lab.bench.prefetch import measure
        from inms_lab.parameters.sources import source_of

        at_least(1, tokens=tokens)
        at_least(0, budget=budget)
        if not all(part.strip().isdecimal() for part in degrees.split(",")):
            raise BadInput(f"--degrees {degrees!r} is no list of numbers: write for example 0,4")
        layers, kept = [int(part) for part in degrees.split(",")], budget << 20 or None
        return measure(source_of(model), layers, tokens, repeat, kept, folder)

    show("prefetch", measured, (as_json, seed, repeat), results)


@app.command()
def locality(
    folder: Disk = None,
    model: Model = DEFAULT,
    results: Results = None,
    as_json: AsJson = False,
    seed: Seed = 0,
    repeat: Repeat = 7,
) -> None:
    """Agents that talk much placed together, hot weights apart from cold ones: what it brings."""

    def measured() -> dict[str, Any]:
        from inms_lab.bench.locality import Load, measure
        from inms_lab.parameters import SharedParameters

        with SharedParameters(model) as params:
            return measure(params, Load(seed=seed), repeat, folder)

    show("locality", measured, (as_json, seed, repeat), results)


@app.command()
def replicas(
    skew: Annotated[float, typer.Option(help="exponent of the reads' Zipf distribution")] = 1.1,
    writes: Annotated[float, typer.Option(help="share of calls that replace a block")] = 0.01,
    results: Results = None,
    as_json: AsJson = False,
    seed: Seed = 0,
    repeat: Repeat = 5,
) -> None:
    """Reads of hot blocks over several regions, with replicas and without."""

    def measured() -> dict[str, Any]:
        from inms_lab.bench.replicas import Load, measure

        return measure(Load(skew=skew, writes=writes, seed=seed), repeat)

    show("replicas", measured, (as_json, seed, repeat), results)


@app.command()
def crossmodel(
    model: Model = DEFAULT,
    results: Results = None,
    as_json: AsJson = False,
    seed: Seed = 0,
    repeat: Repeat = 3,
) -> None:
    """Two models of which equal pages are stored once; embeddings between two kinds of models."""

    def measured() -> dict[str, Any]:
        from inms_lab.bench.crossmodel import Trial, measure

        return measure(model, Trial(repeat=repeat, seed=seed))

    show("crossmodel", measured, (as_json, seed, repeat), results)


@app.command()
def federated(
    clients: Annotated[int, typer.Option(help="agents that train")] = 4,
    results: Results = None,
    as_json: AsJson = False,
    seed: Seed = 0,
    repeat: Repeat = 5,
) -> None:
    """Rounds of federated learning: touched pages against full copies."""

    def measured() -> dict[str, Any]:
        from inms_lab.bench.federated import PARTS, Load, measure

        at_least(1, clients=clients)
        return measure(Load(clients=clients, seed=seed), PARTS, repeat)

    show("federated", measured, (as_json, seed, repeat), results)


@app.command()
def software(
    changed: Annotated[float, typer.Option(help="share of the weights that is written")] = 0.15,
    model: Model = DEFAULT,
    results: Results = None,
    as_json: AsJson = False,
    seed: Seed = 0,
    repeat: Repeat = 5,
) -> None:
    """Copy-on-write in software, as on devices without page faults, against the system's pages."""

    def measured() -> dict[str, Any]:
        from inms_lab.bench.software import Load, measure

        return measure(model, Load(changed, seed=seed), repeat=repeat, progress=True)

    show("software", measured, (as_json, seed, repeat), results)


@app.command()
def settings(
    results: Results = None, as_json: AsJson = False, seed: Seed = 0, repeat: Repeat = 5
) -> None:
    """What each setting of shared parameters does: a sweep of its values."""

    def measured() -> dict[str, Any]:
        from inms_lab.bench.settings import Sweep, measure

        return measure(Sweep(repeat=repeat))

    show("settings", measured, (as_json, seed, repeat), results)
