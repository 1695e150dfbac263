"""Sees while a history streams by whether nodes report irregularly, so that it is read as a whole. Pure."""

from typing import Final

import numpy as np

from ingero_analyze.replay.numbering import longer
from ingero_analyze.replay.stuck_values import filled_in
from ingero_analyze.replay.unit_changes import FAR
from ingero_analyze.replay.zero_runs import FEWEST_RUNS, SEVERAL
from ingero_detect.grouped import Floats, Ints

LONG_GAP: Final = 4
"""Ticks from one report to the next after which a node counts as silent in between."""

SEVERAL_GAPS: Final = 8
"""Such gaps of a node that are no chance."""

REPEATS: Final = 15
"""Equal values of a node in a row that may be those of an exporter that hangs."""

JUMPS: Final = 5
"""Ticks with values that may be of two units, after one another of a node or beside one another."""

CHANGES: Final = 0.1
"""Share of reports with another value than before, of nodes whose values change."""


class Irregularities:
    """Counts by node reports after long gaps and values that repeat."""

    def __init__(self) -> None:
        self._tick, self._value = np.zeros(0, np.int64), np.zeros(0)
        self._gaps, self._repeats, self._changes, self._returns, self._same = (
            np.zeros(0, np.int64) for _ in range(5)
        )
        self._least, self._sum = np.zeros(0), np.zeros(0)
        self._reports = self._all_changes = self._jumps = 0
        self._stuck = False

    def note(self, tick: int, node: Ints, value: Floats) -> None:
        """Add a tick: the numbers of its nodes and their values."""
        many = max(int(node.max(initial=-1)) + 1, len(self._tick))
        if many > len(self._tick):
            self._tick, self._value = longer(self._tick, many, tick), longer(self._value, many, np.nan)
            self._least, self._sum = longer(self._least, many, np.inf), longer(self._sum, many, 0.0)
            self._gaps, self._repeats, self._changes, self._returns, self._same = (
                longer(each, many, 0)
                for each in (self._gaps, self._repeats, self._changes, self._returns, self._same)
            )
        self._gaps[node] += tick - self._tick[node] >= LONG_GAP
        before = self._value[node]
        same = value == before
        self._repeats[node] = np.where(same & (value > 0), self._repeats[node] + 1, 0)
        self._changes[node] += ~same
        self._same[node] += same & (value > 0)
        change = np.nan_to_num(np.abs(value - before))
        self._sum[node] += change
        self._least[node] = np.where(change > 0, np.minimum(self._least[node], change), self._least[node])
        self._returns[node] += (before == 0) & (value > 0)
        self._reports, self._all_changes = self._reports + len(node), self._all_changes + int(np.sum(~same))
        self._jumps += _far_apart(value, before)
        self._tick[node], self._value[node] = tick, value
        long = self._repeats[node] >= REPEATS
        if long.any() and not self._stuck:
            changing = self._all_changes > CHANGES * self._reports
            self._stuck = bool(changing and (self._changes[node][long] >= REPEATS).any())

    def found(self, counted: bool) -> bool:
        """Whether a node reported at long intervals several times, or repeated values that usually change, or
        values may be of several units, or nodes were at zero again and again: most, one whose work is `counted`, or
        one many times."""
        zeros = int(np.count_nonzero(self._returns >= SEVERAL)) > (0 if counted else len(self._returns) / 2)
        zeros |= bool((self._returns >= FEWEST_RUNS).any())
        rows = self._changes + self._same
        filled = filled_in(self._same, rows, self._least, self._sum / np.maximum(self._changes, 1))
        return (
            self._stuck
            or bool(filled.any())
            or zeros
            or self._jumps >= JUMPS
            or bool((self._gaps >= SEVERAL_GAPS).any())
        )


def _far_apart(value: Floats, before: Floats) -> bool:
    """Whether values above 0 differ by as much as two units do, from one another or from what they were before."""
    working = value > 0
    if not working.any():
        return False
    logs, earlier = np.log(value[working]), before[working]
    moved = np.abs(logs[earlier > 0] - np.log(earlier[earlier > 0]))
    return bool(np.ptp(logs) > FAR or moved.max(initial=0) > FAR)
