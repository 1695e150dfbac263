"""Turns counters, which rise all the time, into rates, and sees where values seem to be of counters. Pure."""

from typing import Final

import numpy as np
import numpy.typing as npt

FEWEST_RISES: Final = 20
"""Rises of a node that tell a counter from chance."""

MOST_FALLS: Final = 0.05
"""Falls of a counter, as a share of its rises: its process starts again."""

MOST_OTHERS: Final = 0.1
"""Share of nodes with enough values that are no counters."""

CATCHES_UP: Final = 1.5
"""How many times its usual rate a counter rises at once where it had stood still without being read."""

SEVERAL: Final = 3
"""Times that a source has repeated its counter, so that it may do so at the end."""

USUAL_ROWS: Final = 30
"""Rises before that tell its usual rate, at most."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Increases:
    """The increase of each source's counter per second, from one of its rows to the next."""

    def __init__(self) -> None:
        self._time, self._value = np.zeros(0), np.zeros(0)

    def rates(self, source: Ints, time: Floats, value: Floats) -> tuple[Floats, Bools]:
        """The rates of rows, and which have one: not the first of a source, nor the first of a counter that fell.

        Rows without a value are as they were.
        """
        more = int(source.max(initial=-1)) + 1 - len(self._time)
        if more > 0:
            unknown = np.full(more, np.nan)
            self._time, self._value = np.append(self._time, unknown), np.append(self._value, unknown)
        counted = np.flatnonzero(np.isfinite(value))
        order = counted[np.lexsort((time[counted], source[counted]))]
        of = source[order]
        begins = np.diff(of, prepend=-1) != 0
        times, values = time[order], value[order]
        before = np.where(begins, self._time[of], np.roll(times, 1))
        least = np.where(begins, self._value[of], np.roll(values, 1))
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = (values - least) / (times - before)
        known = (times > before) & (rate >= 0)
        ends = np.append(begins[1:], True)[: len(of)]
        self._time[of[ends]], self._value[of[ends]] = times[ends], values[ends]
        found, kept = value.copy(), np.ones(len(value), np.bool_)
        found[order], kept[order] = rate, known
        return found, kept


def evened(time: Floats, source: Ints, rate: Floats) -> tuple[Floats, Bools]:
    """The rates of counters, evened out where one stood still and then made up for it: its exporter has repeated it.
    And which rows count: not the last ones of a source that did so several times, if it stands still for no longer.

    What works again after it has stopped does not work faster than usual, so one rate holds from the row before the
    counter stood still to the row in which it rose. Rows are sorted by source and time.
    """
    found, kept = rate.copy(), np.ones(len(rate), np.bool_)
    lengths: dict[int, list[int]] = {}
    edges = np.flatnonzero(np.diff((rate == 0).astype(np.int8), prepend=0, append=0))
    for start, stop in edges.reshape(-1, 2).tolist():
        number = int(source[start])
        begins, goes_on = start > 0 and source[start - 1] == number, stop < len(rate) and source[stop] == number
        repeated = lengths.setdefault(number, [])
        if begins and goes_on and rate[stop] > CATCHES_UP * _usual(rate, source, start):
            done = rate[stop] * (time[stop] - time[stop - 1])
            found[start : stop + 1] = done / (time[stop] - time[start - 1])
            repeated.append(stop - start)
        elif not goes_on and len(repeated) >= SEVERAL and stop - start <= max(repeated):
            kept[start:stop] = False
    return found, kept


def _usual(rate: Floats, source: Ints, before: int) -> float:
    """The median rate above 0 of a source in its last rows; infinite without one."""
    earlier = slice(max(0, before - USUAL_ROWS), before)
    own = rate[earlier][(source[earlier] == source[before]) & (rate[earlier] > 0)]
    return float(np.median(own)) if len(own) else np.inf


class RisesAndFalls:
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

    def seem_counted(self) -> bool:
        """Whether the values of nearly all nodes hardly ever fall."""
        enough = self._rises + self._falls >= FEWEST_RISES
        others = self._falls > MOST_FALLS * self._rises
        return bool(enough.any() and np.count_nonzero(others[enough]) <= MOST_OTHERS * np.count_nonzero(enough))
