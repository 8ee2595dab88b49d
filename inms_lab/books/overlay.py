"""Overlays: a dict seen through a sheet of changes, so that a plan can be tried on real books.

`Layered` is one mapping over another; nothing written through it reaches the base, and the order of
iteration is the base's (without what was removed), then the additions. `Touched` holds owners
(pools, sequences) and replaces each by its own overlay when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from itertools import chain
from typing import Any, Generic, Protocol, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Layered(MutableMapping[K, V]):
    """A mapping over `base` whose writes stay in the overlay."""

    def __init__(self, base: Mapping[K, V]) -> None:
        self._base = base
        self._removed: set[K] = set()
        self._changed: dict[K, V] = {}  # keys of the base that stay in their place
        self._added: dict[K, V] = {}

    def __getitem__(self, key: K) -> V:
        if key in self._added:
            return self._added[key]
        if key in self._changed:
            return self._changed[key]
        if key in self._removed:
            raise KeyError(key)
        return self._base[key]

    def get(self, key: Any, default: Any = None) -> Any:
        """As of any mapping, without an exception for what is not there."""
        if key not in self:
            return default
        return self[key]

    def __setitem__(self, key: K, value: V) -> None:
        stays = key in self._base and key not in self._removed
        (self._changed if stays else self._added)[key] = value

    def __delitem__(self, key: K) -> None:
        if key in self._added:
            del self._added[key]
        elif key in self._removed or key not in self._base:
            raise KeyError(key)
        else:
            self._removed.add(key)
            self._changed.pop(key, None)

    def __contains__(self, key: object) -> bool:
        return key in self._added or (key not in self._removed and key in self._base)

    def __iter__(self) -> Iterator[K]:
        if not self._removed and not self._added:
            return iter(self._base)
        return chain((k for k in self._base if k not in self._removed), self._added)

    def __len__(self) -> int:
        return len(self._base) - len(self._removed) + len(self._added)


class Sheets:
    """An owner whose overlay has `below`, what it lies over, instead of the owner's mappings: each
    is layered when it is first asked for."""

    below: Any

    def __getattr__(self, name: str) -> Any:
        if "below" not in self.__dict__:
            raise AttributeError(name)
        value = self.__dict__[name] = Layered(getattr(self.__dict__["below"], name))
        return value


class Overlaid(Protocol):
    """An owner that can make an overlay of itself."""

    def overlay(self) -> Any:
        """A copy whose changes do not reach the original."""


Owner = TypeVar("Owner", bound=Overlaid)


class Touched(dict[Any, Owner], Generic[Owner]):
    """A dict of owners over `base`; each is overlaid on first use."""

    def __init__(self, base: Mapping[Any, Owner]) -> None:
        super().__init__()
        self._base = base

    def __missing__(self, key: Any) -> Owner:
        value: Owner = self._base[key].overlay()
        self[key] = value
        return value

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or key in self._base

    def get(self, key: Any, default: Any = None) -> Any:
        """As of any mapping: dict's own would not look into the base."""
        try:
            return self[key]
        except KeyError:
            return default
