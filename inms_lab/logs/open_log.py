"""Opens a file that holds a log: saved, a journal, or vLLM's KV events."""

from __future__ import annotations

from pathlib import Path

from inms_lab.logs.log import Log
from inms_lab.logs.vllm_log import read_vllm


def open_log(path: str | Path) -> Log:
    """A saved log, a journal, or vLLM's KV events (JSON lines), by what the file begins with."""
    with Path(path).open("rb") as file:
        start = file.read(1024).lstrip()
    return read_vllm(path) if start[:1] in (b"{", b"[") else Log.load(path)
