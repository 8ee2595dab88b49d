"""The order of the suite: `make test` hands its files, one by one, to two processes.

A file stays whole, on one process (`--dist loadfile`): its fixtures are made once, and its tests
keep their order. Files with the most long tests begin first, so that no process is left with one of
them in the end.

Triton's kernels are interpreted on the CPU, unless TRITON_INTERPRET says otherwise: the variable
must be set before anything imports Triton, as transformers does.

`--dist loadgroup` would be finer; under pytest 9.2, xdist 3.8 groups nothing (pytest-xdist#1386).
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort files by how many of their tests are slow or drive a browser; within a file nothing
    changes."""
    num_long = Counter(
        item.path
        for item in items
        if item.get_closest_marker("slow") or item.get_closest_marker("browser")
    )
    items.sort(key=lambda item: -num_long[item.path])
