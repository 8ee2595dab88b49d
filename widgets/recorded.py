"""A recorded run: pictures of a few moments and what the agents wrote, shown without any model.

The file is written by `tools/record_run.py`; what it holds are snapshots, drawn here by the
same code as a live view.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from .picture import image
from .snapshot import AgentRow, Block, PoolRow, Snapshot

FILE = Path(__file__).parent / "recorded_run.json"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Recording:
    """`moments` are (what happened, snapshot); `texts` what each agent wrote."""

    model: str
    setting: str
    moments: tuple[tuple[str, Snapshot], ...]
    texts: Mapping[str, str]

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": f"a recorded run of {self.model}", "text/html": self._html()}

    def _html(self) -> str:
        (begun, first), *later = self.moments  # open is only what tells no prediction's outcome
        steps = "".join(
            f"<details><summary>{number}. {escape(caption)}</summary>{image(shot)}</details>"
            for number, (caption, shot) in enumerate(later, 2)
        )
        rows = "".join(
            f"<tr><td><b>{escape(name)}</b></td><td>{escape(text)}</td></tr>"
            for name, text in self.texts.items()
        )
        return (
            f"<p><b>A recorded run</b>, not a live one: {escape(self.model)}, "
            f"{escape(self.setting)}. Predict first, then open a line to see that moment.</p>"
            f"<p>1. {escape(begun)}</p>{image(first)}{steps}"
            f"<table><tr><th>agent</th><th>wrote</th></tr>{rows}</table>"
        )


def show_recorded(path: Path = FILE) -> Recording:
    """The run that came with the package; as a cell's last line it draws itself."""
    return from_json(json.loads(path.read_text("utf-8")))


def from_json(data: dict[str, Any]) -> Recording:
    """A recording from its `to_json`."""
    if data.get("version") != VERSION:
        raise ValueError(f"a recording of version {data.get('version')}, not {VERSION}")
    moments = tuple((m["caption"], _snapshot(m["snapshot"])) for m in data["moments"])
    return Recording(data["model"], data["setting"], moments, data["texts"])


def to_json(recording: Recording) -> dict[str, Any]:
    """A recording as plain data; equal neighbouring blocks as [how many, state, holders], and
    their shifts where there are any."""
    moments = [
        {"caption": caption, "snapshot": _plain(shot)} for caption, shot in recording.moments
    ]
    head = {"version": VERSION, "model": recording.model, "setting": recording.setting}
    return {**head, "moments": moments, "texts": dict(recording.texts)}


def _plain(shot: Snapshot) -> dict[str, Any]:
    data = asdict(replace(shot, pools=()))
    for pool in shot.pools:
        row = asdict(replace(pool, blocks=()))
        runs = groupby(pool.blocks, key=_kind)
        row["blocks"] = [
            [len(list(same)), state, *map(list, rest)] for (state, *rest), same in runs
        ]
        data["pools"] = [*data["pools"], row]
    return data


def _kind(block: Block) -> tuple[Any, ...]:
    return block.state, block.holders, *((block.shifts,) if block.shifts else ())


def _snapshot(data: dict[str, Any]) -> Snapshot:
    agents = tuple(AgentRow(**agent) for agent in data["agents"])
    pools = tuple(PoolRow(**{**p, "blocks": _blocks(p["blocks"])}) for p in data["pools"])
    return Snapshot(**{**data, "agents": agents, "pools": pools})


def _blocks(runs: list[list[Any]]) -> tuple[Block, ...]:
    kinds = ((state, *map(tuple, rest)) for count, state, *rest in runs for _ in range(count))
    return tuple(Block(number, *kind) for number, kind in enumerate(kinds))
