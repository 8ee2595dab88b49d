"""A log as a page that opens without the lab. The one place here that knows the widgets."""

from __future__ import annotations

from pathlib import Path

from inms_lab.logs.log import Log


def write_page(log: Log, path: Path, title: str) -> str:
    """Write a log as an offline page; gives what was done, in words."""
    from inms_widgets.export import export_html

    written = export_html(log, path, title=title)
    return f"{written}: {written.stat().st_size / 2**20:.2f} MiB, private text masked"
