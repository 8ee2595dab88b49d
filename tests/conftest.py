"""The order of the suite: `make test` hands its files, one by one, to two processes.

A file stays whole, on one process (`--dist loadfile`): its fixtures are made once, and its tests
keep their order. Files with the most long tests begin first, so that no process is left with one of
them in the end.

`--dist loadgroup` would be finer; under pytest 9.2, xdist 3.8 groups nothing (pytest-xdist#1386).
"""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort files by how many of their tests are slow or drive a browser; within a file nothing
    changes."""
    num_long = Counter(
        item.path
        for item in items
        if item.get_closest_marker("slow") or item.get_closest_marker("browser")
    )
    items.sort(key=lambda item: -num_long[item.path])
