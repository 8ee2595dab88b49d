"""Where the lab keeps what it made: the cache's folder in the user's own, or where told."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_ENV = "INMS_LAB_CACHE"


def cache_root(cache_dir: Path | None = None) -> Path:
    """Return the cache's folder; touches nothing.

    It is `cache_dir`, else the environment variable INMS_LAB_CACHE, else the user's own.
    """
    from platformdirs import user_cache_dir

    root = cache_dir or os.environ.get(CACHE_ENV) or user_cache_dir("inms-lab", appauthor=False)
    return Path(root).expanduser()
