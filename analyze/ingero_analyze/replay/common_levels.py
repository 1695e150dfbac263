"""Tells losses of whole cohorts from a common load that varies from tick to tick. Pure.

The detector takes six low ticks in a row for a new phase, and live they cannot be told from one. Where the steps of
all nodes are long or short by chance, as with sequences of all lengths, that happens again and again; a history shows
what came before and after.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import Final

import numpy as np

from ingero_detect.grouped import Floats, Ints, grouped_median
from ingero_detect.nodes.cohorts import CohortKey
from ingero_detect.nodes.column_store import ColumnStore
from ingero_detect.nodes.observation import JobSlow
from ingero_detect.threshold import MAD_TO_SIGMA

WINDOWS: Final = (60, 20)
"""Ticks before and after a change that are compared, at most: a phase may be over soon."""

LEAST: Final = 0.05
ERRORS: Final = 4.0
"""What a cohort lost, log units, and in standard errors, at least."""

LONGEST_MEMORY: Final = 0.8
"""Memory of a load from tick to tick, at most: one that wanders on has levels of its own."""

SHORTEST: Final = 20
"""Ticks of a history that tell how much its load varies."""

ROUNDING: Final = 0.01
"""What a mean may be wrong by anyway, log units."""

MOST_LEVELS: Final = 4_000_000
"""Cohorts times ticks up to which levels are kept, 4 bytes each."""


def above_baselines(memory: ColumnStore) -> tuple[Floats, Ints]:
    """How far nodes that report and are learnt are above their baselines, log units, and their groups."""
    working = memory.node("learned") & (memory.node("absent") == 0) & (memory.node("group") >= 0)
    with np.errstate(divide="ignore"):
        logs = np.log(memory.node("value")[working]) - memory.node("baseline")[working]
    return logs, memory.node("group")[working]


class CommonLevels:
    """The level of every cohort in every tick, log units, as nodes are above their baselines.

    `settle_ticks`: after so many ticks the detector takes a move for a new phase.
    """

    def __init__(self, settle_ticks: int) -> None:
        self._settle_ticks = settle_ticks
        self._times: list[float] = []
        self._levels: list[np.ndarray[tuple[int], np.dtype[np.float32]]] = []
        self._kept = 0
        self._cohorts: list[CohortKey] = []

    def note(self, now: float, memory: ColumnStore) -> None:
        """Add a tick that the detector has judged."""
        if (groups := len(memory.groups)) + self._kept > MOST_LEVELS:
            return
        logs, group = above_baselines(memory)
        works = np.isfinite(logs)
        _, level = grouped_median(logs[works].astype(np.float64), group[works], groups)
        self._times.append(now)
        self._levels.append(level.astype(np.float32))
        self._kept += groups
        self._cohorts = list(memory.groups)

    def proven(self, jobs: Iterable[JobSlow]) -> list[JobSlow]:
        """Those that lost more than their load varies by from one tick to the next, with what they lost, and once."""
        times, found = np.array(self._times), list[JobSlow]()
        numbers = {cohort: number for number, cohort in enumerate(self._cohorts)}
        last, deviation = dict[CohortKey, int](), dict[CohortKey, float]()
        for job in jobs:
            number, at = numbers.get(job.cohort), int(np.searchsorted(times, job.since))
            if number is None:
                found.append(job)
                continue
            if job.cohort not in deviation:
                deviation[job.cohort] = _long_run_deviation(self._some(number, 0, len(self._levels)))
            lost = self._lost(job, number, last.get(job.cohort, 0), at, deviation[job.cohort])
            if lost is not None:
                found.append(replace(job, severity=1 - float(np.exp(-lost))))
                last[job.cohort] = at
        return found

    def _lost(self, job: JobSlow, number: int, first: int, at: int, deviation: float) -> float | None:
        """What a cohort lost at a tick, log units, since another one; `None` if that is chance."""
        losses, told = list[tuple[float, float]](), False
        for earlier, later in product(WINDOWS, WINDOWS):
            before = self._some(number, max(first, at - earlier), at - 1)
            after = self._some(number, at + 1, at + later)
            if not (len(before) and len(after)):
                continue
            told = True
            error = deviation * np.sqrt(1 / len(before) + 1 / len(after))
            lost = float(before.mean() - after.mean())
            if lost >= max(LEAST, ERRORS * error):
                losses.append((lost / (error + ROUNDING), lost))
        if not told:
            # What it lost is told by the ticks after which it counts as a new phase.
            lost = -float(np.log1p(-min(job.severity, 0.99)))
            return lost if lost >= ERRORS * deviation / np.sqrt(self._settle_ticks) else None
        return max(losses)[1] if losses else None

    def _some(self, number: int, first: int, last: int) -> Floats:
        """The levels of a cohort in some ticks, without those in which it had none."""
        levels = [level[number] for level in self._levels[max(first, 0) : last] if number < len(level)]
        found = np.array(levels, np.float64)
        return found[np.isfinite(found)]


def _long_run_deviation(levels: Floats) -> float:
    """The standard deviation of a load around a level that seldom changes, with its memory from tick to tick: of a
    mean of many ticks, times the root of their number.

    From the median changes in one tick and in two: in an autoregressive load of order one their squares are as one to
    one and the memory. Single changes of level do not count.
    """
    if len(levels) < SHORTEST:
        return 0.0
    one, two = (MAD_TO_SIGMA * float(np.median(np.abs(levels[lag:] - levels[:-lag]))) for lag in (1, 2))
    memory = min(max((two / max(one, 1e-12)) ** 2 - 1, 0.0), LONGEST_MEMORY)
    return float(one / np.sqrt(2 * (1 - memory)) * np.sqrt((1 + memory) / (1 - memory)))
