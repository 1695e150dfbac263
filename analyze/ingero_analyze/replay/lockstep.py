"""Sees where the values of all nodes move as one, as steps of a synchronised job do. Pure."""

from typing import Final

import numpy as np

from ingero_detect.grouped import Floats, Ints

FEWEST_TICKS: Final = 30
"""Ticks that tell this from chance."""

FEWEST_NODES: Final = 3
"""Nodes of a cohort that can move as one."""

LARGEST: Final = 0.1
"""A larger change from tick to tick counts as this one, log units."""

ALIKE: Final = 0.01
"""Most that nodes differ by in their changes, log units."""

LEAST: Final = 0.002
"""How much nodes change from tick to tick on average, log units: rare phases of equal nodes say nothing."""

MUCH_LESS: Final = 0.2
"""How much smaller these differences are than the changes themselves."""


class Lockstep:
    """Compares how much nodes change together from tick to tick, and how much they differ in that."""

    def __init__(self) -> None:
        self._last = np.zeros(0)
        self._ticks, self._together, self._apart = 0, 0.0, 0.0

    def note(self, node: Ints, cohort: Ints, value: Floats) -> None:
        """Add a tick: the numbers of its nodes and cohorts, and their values."""
        more = int(node.max(initial=-1)) + 1 - len(self._last)
        if more > 0:
            self._last = np.append(self._last, np.full(more, np.nan))
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(value)
            change = logs - self._last[node]
        self._last[node] = logs
        known = np.isfinite(change)
        change, cohort = change[known], cohort[known]
        count = np.bincount(cohort)
        if count.max(initial=0) < FEWEST_NODES:
            return
        enough = count[cohort] >= FEWEST_NODES
        change, cohort = change[enough], cohort[enough]
        mean = np.bincount(cohort, change, len(count))[cohort] / count[cohort]
        self._ticks += 1
        self._together += min(LARGEST, float(np.mean(np.abs(mean))))
        self._apart += min(LARGEST, float(np.mean(np.abs(change - mean))))

    def seen(self) -> bool:
        """Whether nodes moved as one."""
        alike = self._apart < ALIKE * self._ticks and self._apart < MUCH_LESS * self._together
        return self._ticks >= FEWEST_TICKS and alike and self._together > LEAST * self._ticks
