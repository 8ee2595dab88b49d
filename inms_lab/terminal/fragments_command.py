"""`inms-lab fragments`: message lists in, a table of what was seen before out."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inms_lab.errors import BadInput

if TYPE_CHECKING:
    from inms_lab.studies.fragments_table import Encode, Report


def fragments(
    data: Annotated[list[Path], typer.Argument(help="files of message lists, or folders")],
    model: Annotated[str, typer.Option(help="whose tokens: name, folder or hub id")] = (
        "smollm2-135m"
    ),
    limit_tokens: Annotated[
        int | None, typer.Option(help="look at the first tokens of a request only")
    ] = None,
    sessions: Annotated[int | None, typer.Option(help="the first sessions of a file only")] = None,
    answers: Annotated[
        bool, typer.Option(help="whether what an agent wrote counts as seen")
    ] = True,
    quality: Annotated[
        int | None, typer.Option(help="measure the reuse of so many messages of each file")
    ] = None,
    seed: Annotated[int, typer.Option(help="which messages are drawn for --quality")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """How much text of real logs was seen before: as a prefix, as messages, anywhere.

    A file holds a request a line: {"session", "agent", "messages": [{"role", "content"}, ...]}, in
    .jsonl, .jsonl.gz or .json; some formats of public logs are read as they are (messages.py).
    """
    from inms_lab.model.progress import bar
    from inms_lab.studies import fragments_table as table
    from inms_lab.studies.messages import files_in

    paths = [path for given in data for path in files_in(given)]
    cuts = table.Cuts(limit_tokens, sessions, answers)
    encode, size = tokenizer_of(model)
    reports: list[Report] = []
    with bar(0, "reading", unit=" requests") as progress:
        for path in paths:
            progress.set_description(path.name)
            reports.append(table.examine(path, encode, cuts, progress.update))
    if quality is not None:
        from inms_lab.interference.found import quality_of
        from inms_lab.model import load

        runner = load(model)
        for report in reports:
            found = report.seen.fragments
            report.quality = quality_of(runner, report.requests, found, quality, seed)
    if as_json:
        print(json.dumps(_result(reports, model, size, cuts), indent=1))
    else:
        table.render(reports, model, size, cuts)


def tokenizer_of(model: str) -> tuple[Encode, int]:
    """From text to token ids, control tokens spelt out; and the KV bytes of a token in float32."""
    from inms_lab.model.loader import load_tokenizer
    from inms_lab.model.source import resolve
    from inms_lab.studies.geometry import from_config

    folder = resolve(model)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    try:
        tokenizer = load_tokenizer(folder)
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(f"{folder} has no tokenizer that can be read ({error})") from None
    options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
    size = from_config(config, "float32").kv_bytes_per_token
    return lambda text: tokenizer(text, **options)["input_ids"], size


def _result(reports: list[Report], model: str, size: int, cuts: Any) -> dict[str, Any]:
    from dataclasses import asdict

    cpu = platform.processor() or platform.machine()
    return {
        "command": " ".join(["inms-lab", *sys.argv[1:]]),
        "machine": f"{cpu}, {os.cpu_count()} cores",
        "model": model,
        "kv_bytes_per_token": size,
        "cuts": {**asdict(cuts), "text": cuts.text},
        "files": [report.as_dict(size) for report in reports],
    }
