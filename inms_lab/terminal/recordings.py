"""Real texts for the main job, read from a data folder: a policy, tool schemas, recorded runs.

Airline support, as three agents would do it: the policy is everybody's, cases that were solved are
the team's, and the case that an agent works on is its own. Only reads and renders; the scenario
decides what is cut where.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inms_lab.errors import BadInput
from inms_lab.studies.messages import unpacked

FILES = (
    "tools/tau_airline_policy_and_tools.json",
    "tools/github_mcp_tools.json",
    "transcripts/tau_airline.jsonl.gz",
)
# Tasks whose first run is longer than any own context, one for each agent; and tasks that were
# solved, whose shortest solved run is the case that the team may read.
OPEN_CASES = (0, 3, 6)
CLOSED_CASES = (12, 21, 18)


@dataclass(frozen=True, slots=True)
class Recordings:
    """Texts as recorded; the schemas (`functions`, `tools`) as compact JSON."""

    policy: str
    functions: str
    tools: str
    open_cases: tuple[str, ...]
    closed_cases: tuple[str, ...]


def read(folder: Path) -> Recordings:
    """Read the recordings; `BadInput` names a file that is missing, damaged or of another shape."""
    if absent := [name for name in FILES if not (folder / name).is_file()]:
        raise BadInput(
            f"{folder} lacks {', '.join(absent)}; pass the folder that holds tools/ and"
            " transcripts/, or no folder to use the package's own texts"
        )
    airline, tools, runs = (_value(folder / name) for name in FILES)
    try:
        opened = [next(run for run in runs if run["task_id"] == task) for task in OPEN_CASES]
        solved = [run for run in runs if run["reward"] == 1.0]
        closed = [
            min((run for run in solved if run["task_id"] == task), key=lambda run: len(run["traj"]))
            for task in CLOSED_CASES
        ]
        return Recordings(
            policy=airline["policy"],
            functions=_compact(airline["tools"]),
            tools=_compact(tools),
            open_cases=tuple(_transcript(run, "Open case") for run in opened),
            closed_cases=tuple(_transcript(run, "Closed case") for run in closed),
        )
    except (LookupError, StopIteration, TypeError, ValueError, AttributeError) as error:
        raise BadInput(
            f"{' or '.join((FILES[0], FILES[2]))} in {folder} has not the expected content"
            f" ({error!r:.200}); fetch the data again"
        ) from error


def _value(path: Path) -> Any:
    """The JSON value of a file; a list of one value a line where the name says `jsonl`."""
    try:
        text = unpacked(path).decode("utf-8")
        if ".jsonl" in path.suffixes:
            # Not splitlines(): JSON strings may hold other line separators unescaped.
            return [json.loads(line) for line in text.split("\n") if line]
        return json.loads(text)
    except BadInput:
        raise
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise BadInput(f"{path} cannot be read ({error!s:.200}); fetch the data again") from error


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _transcript(run: dict[str, Any], title: str) -> str:
    """A run without its system prompt, which is the policy that everybody has already."""
    lines = [f"# {title} {run['task_id']}"]
    for message in run["traj"]:
        if message["role"] == "system":
            continue
        for call in message.get("tool_calls") or ():
            lines.append(f"call: {call['function']['name']} {call['function']['arguments']}")
        if message["content"]:
            lines.append(f"{message['role']}: {message['content']}")
    return "\n\n".join(lines) + "\n"
