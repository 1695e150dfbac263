"""Finds zeros that stand for missing values, where tables were filled with them. Pure."""

from typing import Final

import numpy as np

from ingero_analyze.replay.report_intervals import RARE
from ingero_detect.grouped import Bools, Floats, Ints

SEVERAL: Final = 2
"""Times that a source was at zero and worked again, which most of its cohort have."""

MANY_MORE: Final = 2.0
MORE: Final = 6
"""A source that was at zero more often than this many times the median of its cohort, and six, has stopped itself."""

FEWEST_SOURCES: Final = 3

MOST_ROWS: Final = 40.0
"""Rows of a run that count as missing at most."""

ALL: Final = 0.9
"""Share of the cohort that is at zero in one tick where all pause together."""


def zeros_for_nothing(time: Floats, source: Ints, value: Floats, cohort: Ints, tick: float) -> Bools:
    """Which rows are zero because there was no value: short runs of zeros, such as most sources of the cohort have
    again and again, each at its own times. A loss that most have tells nothing about one of them.

    A run is short unless chance brings about one as long in a cohort less than once in a thousand times, where runs
    end as those of the cohort do. A source that stops for longer, or far more often than the others, has stopped.
    Rows are sorted by source and time; `cohort`: by source; `tick`: seconds.
    """
    of, found = cohort[source], np.zeros(len(value), np.bool_)
    if not (value == 0).any():
        return found
    at_zero = (value == 0) & ~_common(time, value, of, tick)
    edges = np.flatnonzero(
        np.diff(at_zero, prepend=False, append=False) | (np.diff(source, prepend=-1, append=-1) != 0)
    )
    edges = edges[edges < len(value)]
    runs = edges[at_zero[edges]]
    stops = np.append(edges, len(value))[np.searchsorted(edges, runs) + 1]
    lengths = stops - runs
    ends = (stops < len(value)) & (source[np.minimum(stops, len(value) - 1)] == source[runs])
    count = np.bincount(source[runs[ends]], minlength=len(cohort))
    present = np.unique(source)
    for number in np.unique(of[runs]).tolist():
        here = present[cohort[present] == number]
        if len(here) < FEWEST_SOURCES or np.mean(count[here] >= SEVERAL) <= 0.5:
            continue
        usual = count <= MANY_MORE * np.median(count[here]) + MORE
        shown = (of[runs] == number) & ends & usual[source[runs]]
        short = (of[runs] == number) & usual[source[runs]] & (lengths <= _longest(lengths[shown]))
        for start, stop in zip(runs[short].tolist(), stops[short].tolist(), strict=True):
            found[start:stop] = True
    return found


def _common(time: Floats, value: Floats, cohort: Ints, tick: float) -> Bools:
    """Which rows are of a tick in which the whole cohort is at zero."""
    ticks, moment = np.unique(np.floor(time / tick), return_inverse=True)
    of = np.unique(cohort * len(ticks) + moment, return_inverse=True)[1]
    return (np.bincount(of, weights=value == 0) >= ALL * np.bincount(of))[of]


def _longest(lengths: Ints) -> float:
    """Rows that the longest of so many runs, if they end by chance, exceeds once in a thousand times."""
    mean = float(lengths.mean())
    return min(MOST_ROWS, max(1.0, np.log(RARE / len(lengths)) / np.log1p(-1 / mean))) if mean > 1 else 1.0
