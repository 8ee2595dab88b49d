"""A version on its way to another process: plain data, and its memories as open files."""

from __future__ import annotations

from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

from inms_lab.errors import NotEnoughMemory
from inms_lab.parameters.region import Memory, Piece
from inms_lab.parameters.versions import Version


def packed(version: Version) -> tuple[dict[str, Any], list[int]]:
    """What is sent, and the files that follow it, in order."""
    memories = list(dict.fromkeys(piece.memory for piece in version.pieces))
    number = {memory: at for at, memory in enumerate(memories)}
    rows = [(p.start, p.num_bytes, number[p.memory], p.offset) for p in version.pieces]
    about = {"number": version.number, "digest": version.digest, "origin": version.origin}
    return about | {"rows": rows, "num_memories": len(memories)}, [m.fd for m in memories]


def unpacked(about: dict[str, Any], line: Connection) -> Version:
    """The version again; its files are taken from the line, all of them in any case. Raises
    `NotEnoughMemory`."""
    memories: list[Memory] = []
    failed: NotEnoughMemory | None = None
    for _ in range(about["num_memories"]):
        try:
            memories.append(Memory(file_from(line)))
        except NotEnoughMemory as error:
            failed = error
    if failed is not None:
        raise failed
    pieces = tuple(Piece(start, n, memories[m], at) for start, n, m, at in about["rows"])
    return Version(about["number"], pieces, about["digest"], about["origin"])


def file_from(line: Connection) -> int:
    """The next open file of a line. Raises `NotEnoughMemory` if there can be no more here."""
    try:
        return reduction.recv_handle(line)
    except RuntimeError as error:  # it came without what it was to bring
        raise NotEnoughMemory(
            "no more files can be open in this process: raise the limit (`ulimit -n`)"
        ) from error
