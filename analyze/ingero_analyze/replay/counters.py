"""Sees whether values are those of counters, which rise all the time, instead of rates. Pure."""

from typing import Final

import numpy as np
import numpy.typing as npt

FEWEST_RISES: Final = 20
"""Rises of a node that tell a counter from chance."""

MOST_FALLS: Final = 0.05
"""Falls of a counter, as a share of its rises: its process starts again."""

MOST_OTHERS: Final = 0.1
"""Share of nodes with enough values that are no counters."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Counters:
    """Counts how often the value of every node rises and falls from tick to tick."""

    def __init__(self) -> None:
        self._last, self._rises, self._falls = np.zeros(0), np.zeros(0), np.zeros(0)

    def note(self, node: Ints, value: Floats) -> None:
        """Add a tick: the numbers of its nodes and their values."""
        more = int(node.max(initial=-1)) + 1 - len(self._last)
        if more > 0:
            self._last = np.append(self._last, np.full(more, np.nan))
            self._rises, self._falls = (np.append(each, np.zeros(more)) for each in (self._rises, self._falls))
        self._rises[node] += value > self._last[node]
        self._falls[node] += value < self._last[node]
        self._last[node] = value

    def seem_so(self) -> bool:
        """Whether the values of nearly all nodes hardly ever fall."""
        enough = self._rises + self._falls >= FEWEST_RISES
        others = self._falls > MOST_FALLS * self._rises
        return bool(enough.any() and np.count_nonzero(others[enough]) <= MOST_OTHERS * np.count_nonzero(enough))
