"""A version of the weights in this process, to be changed: privately, page by page.

open        its module may be trained; `delta` says what differs by now
discarded   its changes are gone, and the module has the version's weights again
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from inms_lab.errors import BadInput
from inms_lab.parameters.layout import Layout
from inms_lab.parameters.region import PAGE
from inms_lab.parameters.versions import Delta, Version, delta
from inms_lab.parameters.weights import module_on


class Branch:
    """Made by `SharedParameters.branch`. `module` lies on it; any torch code may change it."""

    def __init__(
        self, name: str, base: Version, layout: Layout, make: Callable[[], torch.nn.Module]
    ) -> None:
        if not isinstance(name, str) or not name:
            raise BadInput(f"a branch has a name, not {name!r}")
        self.name, self.base, self.layout = name, base, layout
        self.view = base.view(layout.num_bytes)
        self.module = module_on(make, self.view, layout)

    def __repr__(self) -> str:
        return f"<branch {self.name} of version {self.base.number}>"

    def delta(self) -> Delta:
        """The pages that differ from its version, sealed as they are now."""
        return delta(self.view, self.base)

    def diff(self) -> Diff:
        """What differs, by tensor."""
        return Diff(self.delta(), self.layout)

    def discard(self) -> None:
        """Take all changes back: its module has the version's weights again, and its pages are
        free."""
        self.view.lay(self.base.pieces)


class Diff:
    """Touched pages by tensor: [(name, pages that differ, all its pages)]."""

    def __init__(self, delta: Delta, layout: Layout) -> None:
        self.num_bytes, self.written_bytes = delta.num_bytes, delta.written * PAGE
        self.rows = [
            (name, count, (layout.spots[name].stop - layout.spots[name].start) // PAGE)
            for name, count in delta.by_name(layout).items()
        ]

    def __repr__(self) -> str:
        if not self.rows:
            return "nothing differs"
        width = max(len(name) for name, _, _ in self.rows)
        lines = [f"{name:{width}}  {n:6} of {of:6} pages" for name, n, of in self.rows]
        return "\n".join([*lines, f"{self.num_bytes / 2**20:.2f} MiB differ"])
