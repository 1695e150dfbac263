"""Finds zeros, and other placeholders, that stand for missing values, where tables were filled with them. Pure."""

from itertools import pairwise
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

NOTHING: Final = 0.02
HALF: Final = 0.5
"""Shares of the median rate of a source: up to the first one it does nothing; what is below the second one, and no
placeholder, is part of a tick in which it stopped or began."""

PARTIAL: Final = 1 / 8
"""Such rows for every run of placeholders at most: a source that stops has one of them in a run on average."""

MOST_SHARE: Final = 0.2
"""Share of the rows of a source that are placeholders, at most."""

FEWEST_RUNS: Final = 8
PARTS: Final = 3
"""Runs of placeholders of a source at least, and parts of its history that have a third of their share each."""

CHANCE: Final = 3.0
"""Standard deviations by which more placeholders follow one another than by chance where they are no stops."""


def placeholders(source: Ints, value: Floats) -> Bools:
    """Which rows of single sources have no value but a placeholder: the same number that means nothing, again and
    again from the first part of the history to the last, as often after itself as after other values, and hardly
    anything between it and half of the usual rate.

    Work that stops and begins does so within ticks, which have a part of it then, and a fault begins at some time.
    Rows are sorted by source and time.
    """
    found = np.zeros(len(value), np.bool_)
    edges = np.flatnonzero(np.diff(source, prepend=-1, append=-1))
    for start, stop in pairwise(edges.tolist()):
        own = value[start:stop]
        known = own[np.isfinite(own)]
        if not len(known) or (least := known.min()) > NOTHING * (usual := float(np.median(known))):
            continue
        here = own == least
        begins = np.flatnonzero(here & ~np.concatenate(([False], here[:-1])))
        partial = np.count_nonzero((own > least) & (own < HALF * usual))
        if len(begins) < FEWEST_RUNS or partial > PARTIAL * len(begins):
            continue
        often = np.bincount(PARTS * begins // len(own), minlength=PARTS)
        many = int(here.sum())
        share = many / len(own)
        by_chance = many * share + CHANCE * np.sqrt(many * share * (1 - share)) + 1
        if share <= MOST_SHARE and often.min() >= len(begins) / PARTS**2 and many - len(begins) <= by_chance:
            found[start:stop] = here
    return found


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
