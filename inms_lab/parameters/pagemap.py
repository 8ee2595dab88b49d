"""A process' pages of the weights by parameter name, from the kernel's figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from inms_lab.parameters import kernel
from inms_lab.parameters.kernel import Figures, States
from inms_lab.parameters.layout import Layout
from inms_lab.parameters.region import PAGE

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class PageMap:
    """`states` [pages]: a code of `kernel.WORDS` each, None where the kernel does not tell single
    pages; `weights`: its figures of these mappings; `whole`: of the whole process."""

    layout: Layout
    states: States | None
    weights: Figures
    whole: Figures

    def __repr__(self) -> str:
        told = (f"{word} {self.count(n) / 2**20:.1f} MiB" for n, word in enumerate(kernel.WORDS))
        return f"<pages of weights: {', '.join(told)}>"

    def count(self, state: int) -> int:
        """Bytes of pages in a state."""
        return 0 if self.states is None else int((self.states == state).sum()) * PAGE

    def by_name(self) -> pd.DataFrame:
        """Pages of each tensor: a row a name, a column a state, in the order in which they lie."""
        import pandas as pd

        rows = {}
        for name, spot in self.layout.spots.items():
            first, stop = spot.start // PAGE, spot.stop // PAGE
            states = np.empty(0, np.uint8) if self.states is None else self.states[first:stop]
            rows[name] = np.bincount(states, minlength=len(kernel.WORDS))
        return pd.DataFrame.from_dict(rows, orient="index", columns=list(kernel.WORDS))


def page_map(pid: int | str, address: int, layout: Layout) -> PageMap:
    """The map of a process. Raises `ProcessUnreadable`."""
    return PageMap(
        layout,
        kernel.page_states(pid, address, layout.num_bytes),
        kernel.between(pid, address, address + layout.num_bytes),
        kernel.whole(pid),
    )
