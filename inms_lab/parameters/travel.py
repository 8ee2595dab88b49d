"""A version on its way to another process: plain data, and its memories as open files."""

from __future__ import annotations

from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

from inms_lab.parameters.region import Memory, Piece
from inms_lab.parameters.versions import Version


def packed(version: Version) -> tuple[dict[str, Any], list[int]]:
    """What is sent, and the files that follow it, in order."""
    memories = list(dict.fromkeys(piece.memory for piece in version.pieces))
    number = {memory: at for at, memory in enumerate(memories)}
    rows = [(p.start, p.num_bytes, number[p.memory], p.offset) for p in version.pieces]
    about = {"number": version.number, "digest": version.digest, "rows": rows}
    return about | {"num_memories": len(memories)}, [memory.fd for memory in memories]


def unpacked(about: dict[str, Any], line: Connection) -> Version:
    """The version again; its files are taken from the line."""
    memories = [Memory(reduction.recv_handle(line)) for _ in range(about["num_memories"])]
    pieces = tuple(Piece(start, n, memories[m], at) for start, n, m, at in about["rows"])
    return Version(about["number"], pieces, about["digest"])
