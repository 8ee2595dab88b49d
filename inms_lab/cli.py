"""The command line: `inms-lab demo | lab | bill | claims | refs | fragments | calibrate | ...`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inms_lab.errors import BadInput, InmsError, ModelNotFound
from inms_lab.terminal import bench_options, bench_parameters_command
from inms_lab.terminal.calibrate_command import calibrate
from inms_lab.terminal.diagnose_command import diagnose
from inms_lab.terminal.experiment_command import experiment
from inms_lab.terminal.fragments_command import fragments
from inms_lab.terminal.refs_command import refs
from inms_lab.terminal.replay_command import replay

if TYPE_CHECKING:
    from inms_lab.logs.log import Log

app = typer.Typer(
    help="INMS Lab: what may many LLM agents share in memory, and what must stay private?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
DEFAULT = "smollm2-135m"
SHARED_DATA = Path("..") / "shared" / "data"


@app.command()
def demo(
    scale: Annotated[
        float, typer.Option(help="1.0 is the full size: 8192 tokens an agent")
    ] = 0.125,
    model: Annotated[str, typer.Option(help="name, folder or hub id")] = DEFAULT,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16")] = None,
    block_size: Annotated[int | None, typer.Option(help="tokens per block")] = None,
    pool_bytes: Annotated[str | None, typer.Option(help="private pool, for example 2GiB")] = None,
    data: Annotated[Path | None, typer.Option(help="folder with real texts")] = None,
    own_texts: Annotated[bool, typer.Option(help="the package's texts, never a folder's")] = False,
    dry_run: Annotated[bool, typer.Option(help="decide on the books alone, no weights")] = False,
    html: Annotated[Path | None, typer.Option(help="write the inms run as an offline page")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """The main job: three agents in the modes independent, global and inms."""
    from rich.console import Console

    from inms_lab.config import Config, default_block_size
    from inms_lab.sizes import parse_bytes
    from inms_lab.terminal import scenario
    from inms_lab.terminal.demo import run_demo
    from inms_lab.terminal.demo_table import render

    if data is None and not own_texts and SHARED_DATA.is_dir():
        data = SHARED_DATA
    log = Console(stderr=True)
    runner, text = _model(model, device, dtype, dry_run)
    parts = scenario.load(lambda s: text.encode(s), lambda ids: text.decode(ids), scale, data)
    total = parts.budget.total
    if total > runner.max_context:
        raise BadInput(
            f"scale {scale} needs {total} tokens, the model takes {runner.max_context}: "
            "choose a smaller --scale or a model with a longer context"
        )
    config = Config(
        block_size=default_block_size(total) if block_size is None else block_size,
        context=runner.max_context,
        private_bytes=parse_bytes(pool_bytes) if pool_bytes else Config().private_bytes,
    )
    logs: dict[str, Log] = {}

    def say(line: str) -> None:
        log.print(f"[dim]{line}[/dim]", highlight=False)

    result = run_demo(runner, model, parts, config, say, logs)
    if html is not None:
        from inms_lab.terminal.page import write_page

        say(write_page(logs["inms"], html, f"INMS Lab: three agents on {model}"))
    if as_json:
        print(json.dumps(result.as_json()))
    else:
        render(result)
        for part, lacking in parts.missing().items():
            print(f"note: the text of {part} is {lacking} tokens short of its budget")


def _model(name: str, device: str | None, dtype: str | None, dry_run: bool):  # type: ignore[no-untyped-def]
    from inms_lab.notebook.text import Text

    if dry_run:
        from inms_lab.terminal.standin import dry_model

        return dry_model(name)
    from inms_lab.model import load

    runner = load(name, device=device, dtype=dtype)
    return runner, Text(runner.tokenizer, runner.stop_tokens)


@app.command()
def bill(
    config: Annotated[Path, typer.Option(help="a Hugging Face config.json")],
    agents: Annotated[int, typer.Option(help="number of agents")] = 8,
    tokens: Annotated[str, typer.Option(help="context of one agent, for example 16k")] = "16k",
    shared: Annotated[float, typer.Option(help="common share of a context, 0 to 1")] = 0.6,
    memory: Annotated[str | None, typer.Option(help="for example 24GiB")] = None,
    weights: Annotated[str | None, typer.Option(help="weights, instead of the estimate")] = None,
    dtype: Annotated[str | None, typer.Option(help="element type, instead of the config's")] = None,
    block_size: Annotated[int | None, typer.Option(help="also count whole blocks")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """How much memory agents take, with and without sharing, and how many fit; without weights."""
    from inms_lab.sizes import parse_bytes, parse_tokens
    from inms_lab.studies import bill_table, geometry

    try:
        values = json.loads(config.read_text())
    except FileNotFoundError:
        raise ModelNotFound(f"there is no {config}: give the path of a config.json") from None
    except ValueError as error:
        raise BadInput(f"{config} is not JSON ({error}): give a Hugging Face config.json") from None
    question = bill_table.Question(
        geometry=geometry.from_config(values, dtype),
        agents=agents,
        tokens=parse_tokens(tokens),
        shared=shared,
        memory=parse_bytes(memory) if memory else None,
        weights=parse_bytes(weights) if weights else None,
        block_size=block_size,
    )
    if as_json:
        print(json.dumps(bill_table.as_dict(question)))
    else:
        bill_table.render(question)


@app.command()
def claims(
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    readme: Annotated[Path | None, typer.Option(help="write the table into this file")] = None,
) -> None:
    """The claims of two write-ups, each beside what was measured."""
    from inms_lab.studies import claims as registry

    if readme is not None:
        print("table updated" if registry.update_readme(readme) else "table was up to date")
    else:
        registry.print_claims(as_json)


@app.command()
def model(
    name: Annotated[str, typer.Argument(help="name, folder or hub id")] = DEFAULT,
    refresh: Annotated[bool, typer.Option(help="fetch and convert again")] = False,
    report: Annotated[bool, typer.Option(help="load it and show the admission report")] = False,
) -> None:
    """Fetch and convert a model once; afterwards this only checks that it is there."""
    from inms_lab.model.source import resolve

    print(resolve(name, refresh=refresh))
    if report:
        from inms_lab.model import load

        print(load(name).report())


@app.command()
def doctor(name: Annotated[str, typer.Argument(help="the model to look for")] = DEFAULT) -> None:
    """Versions, device, memory; what is missing, and how to get it."""
    from inms_lab.terminal.doctor import print_report

    raise typer.Exit(print_report(name))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def lab(context: typer.Context) -> None:
    """Fetch the model if needed and open JupyterLab on the first lab; options are passed on."""
    from inms_lab.terminal.launch import open_lab

    raise typer.Exit(open_lab(context.args))


@app.command()
def labs(
    student: Annotated[
        Path | None, typer.Option(help="write a copy without solutions into this folder")
    ] = None,
) -> None:
    """The labs, their questions and minutes; or a copy of them for students."""
    from inms_lab.terminal.launch import find_labs
    from inms_lessons.copies import for_students, listed

    print(listed(find_labs()) if student is None else for_students(find_labs(), student))


@bench_parameters_command.app.command("view")
def bench_view(
    tokens: Annotated[int, typer.Option(help="tokens that each agent writes")] = 1000,
    as_json: bench_options.AsJson = False,
    seed: bench_options.Seed = 0,
    repeat: bench_options.Repeat = 5,
) -> None:
    """What the log and a live view cost a run, without weights and without a browser."""
    from inms_lab.bench.view import measure
    from inms_widgets import View

    bench_options.at_least(1, tokens=tokens)
    bench_options.show("view", lambda: measure(View, tokens, repeat), (as_json, seed, repeat))


app.command()(refs)
app.command()(diagnose)
app.command()(fragments)
app.command()(calibrate)
app.command()(experiment)
app.command()(replay)
app.add_typer(bench_parameters_command.app, name="bench")


def main() -> None:
    """Entry point: named errors become one line and exit code 2."""
    started = time.perf_counter()
    try:
        app()
    except (InmsError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print(f"stopped after {time.perf_counter() - started:.1f} s", file=sys.stderr)
        raise SystemExit(130) from None
