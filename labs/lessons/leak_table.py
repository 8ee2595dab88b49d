"""What is known of held blocks, as a table: for lab 11's pictures of a run with a leak."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .leaking import Held

MOST = 2  # holders of a block that the table names


def rows_of(found: Iterable[Held]) -> list[list[Held]]:
    """The blocks of each row: those of a pool that have the same holders."""
    rows: dict[tuple[Any, ...], list[Held]] = {}
    for held in found:
        rows.setdefault((held.pool, held.refcount, held.holders), []).append(held)
    return list(rows.values())


def table(found: Iterable[Held]) -> Any:
    """A pandas DataFrame: blocks with the same holders in one row. Of several ages the least and
    the greatest are told."""
    import pandas as pd

    lines = []
    for blocks in rows_of(found):
        pool, count, holders = blocks[0].pool, blocks[0].refcount, blocks[0].holders
        names = ", ".join(holder.name for holder in holders[:MOST])
        names += f" and {len(holders) - MOST} more" * (len(holders) > MOST)
        kinds = ", ".join(dict.fromkeys(holder.kind for holder in holders))
        works = any(holder.has_work for holder in holders)
        idle = "one is at work" if works else _ages(holder.idle for holder in holders)
        unmoved = _ages(held.unmoved for held in blocks)
        lines.append((pool, len(blocks), count, unmoved, names, kinds, idle))
    columns = ["pool", "blocks", "refcount", "unmoved", "holders", "kinds", "idle"]
    return pd.DataFrame(lines, columns=columns)


def _ages(ages: Iterable[int]) -> str:
    least, *_, greatest = sorted([*ages] * 2)
    return f"{least} to {greatest}" if least < greatest else f"{least}"
