"""Tells by the noise that nodes share whether those that lost together work for one job that no column tells. Pure.

The steps of a synchronised job take as long for all of its nodes, so what each does from tick to tick is partly what
all of them do; nodes that work alone vary alone. That shows in ordinary ticks: so it needs no second loss, and large
changes, which nodes of a rack may share, do not count.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np

from ingero_analyze.replay.numbering import NodeNumbers, longer
from ingero_contract.identifiers import NodeKey
from ingero_detect.grouped import Floats, Ints, grouped_median, row_medians
from ingero_detect.nodes.column_store import ColumnStore
from ingero_detect.threshold import MAD_TO_SIGMA

SCALES: Final = (1, 3, 9)
"""Ticks of which means are compared: of more of them these show what nodes share slowly, under noise of their own."""

BUFFER: Final = 14 * SCALES[-1]
"""Ticks that are added at once."""

LARGE: Final = 3.0
"""Changes beyond so many robust standard deviations do not count, and neither do those before and after them: they
are no noise, and a fall may be shared by two neighbouring means."""

SURE: Final = 2.8
"""Standard deviations by which nodes that lost together share more noise than by chance, which comes to that in one
of 100 cases (one of 390 on each scale, and on all together)."""

OF_MEDIAN: Final = 0.5
"""Of the correlation of independent nodes, which is negative where the median of a cohort is taken from each, this
share of what it is for the mean (one over the number of nodes) is made good."""

RECENT: Final = 16
FEWEST: Final = 6
"""Last changes of a node that tell, beside those that are added, what is large, and how many do."""

OWN: Final = 1.0
"""Standard deviations of what one of these shares with the others, at least."""

MEMORY: Final = 1.5
"""Factor by which the variance of a correlation is larger for differences of independent values than for these
(Bartlett 1946: the sum of the squared autocorrelations, 1 + 2 / 4)."""

MOST_NODES: Final = 1_000
"""Nodes up to which pairs are counted, 48 bytes each."""


class _Correlations:
    """Sums of the products of the changes of two nodes, and of each with that of its cohort; how many there are."""

    def __init__(self) -> None:
        self._last, self._recent = np.zeros(0), np.zeros((0, 0))
        self._product, self._many = np.zeros((0, 0)), np.zeros((0, 0))
        self._with_common, self._common = np.zeros(0), np.zeros(0)

    def add(self, values: Floats, cohort: Ints, largest: Floats) -> Floats:
        """Add values by tick and node, NaN where there is none. `largest`: by node the largest change that counts;
        returns the same for these values, which are no more."""
        self._enlarge(values.shape[1])
        change = np.diff(np.vstack((self._last, values)), axis=0)
        self._last = values[-1]
        common = _common(change, cohort)
        change -= common
        recent = np.vstack((self._recent, change))
        self._recent = recent[-RECENT:]
        largest = np.minimum(_largest(np.abs(recent)), largest)
        change = _ordinary(change, largest)
        known = np.isfinite(change)
        change, counted = np.where(known, change, 0.0), known.astype(np.float64)
        self._product += change.T @ change
        self._many += counted.T @ counted
        self._with_common += (change * common).sum(axis=0)
        self._common += (counted * common**2).sum(axis=0)
        return largest

    def scores(self, nodes: Ints, size: int) -> Floats:
        """How far the changes of every two of some nodes are correlated, apart from what they share with all of their
        cohort, in standard deviations (Fisher 1915). `size`: how many nodes that has."""
        both = np.ix_(nodes, nodes)
        common, with_common = self._common[nodes], self._with_common[nodes]
        with np.errstate(invalid="ignore", divide="ignore"):
            follows = np.where(common > 0, with_common / common, 0.0)
            left = self._product[both] - np.outer(follows, follows) * np.minimum.outer(common, common)
            alike = left / np.sqrt(np.outer(np.diag(left), np.diag(left)))
        sure = np.sqrt(np.maximum(0.0, self._many[both] / MEMORY - 3))
        scores: Floats = np.arctanh(np.clip(np.nan_to_num(alike) + OF_MEDIAN / size, -0.999, 0.999)) * sure
        return scores

    def _enlarge(self, nodes: int) -> None:
        more = nodes - len(self._last)
        if more:
            self._last = np.append(self._last, np.full(more, np.nan))
            self._recent = longer(self._recent, nodes, np.nan)
            self._product, self._many = (np.pad(each, (0, more)) for each in (self._product, self._many))
            self._with_common, self._common = (np.pad(each, (0, more)) for each in (self._with_common, self._common))


class SharedNoise:
    """The rates of a history, log units, and how much two nodes share of what they do from tick to tick, beyond what
    each does of what all of its cohort do: nodes do not follow a common load alike."""

    def __init__(self) -> None:
        self._numbers = NodeNumbers()
        self._cohort = np.zeros(0, np.int64)
        self._waiting: list[tuple[Ints, Floats]] = []
        self._scales = [_Correlations() for _ in SCALES]

    def note(self, memory: ColumnStore) -> None:
        """Add a tick that the detector has judged."""
        if len(memory.names) > MOST_NODES:
            return
        place, group = self._numbers.of(memory.roster()), memory.node("group")
        judged = memory.node("learned") & (memory.node("absent") == 0) & (group >= 0) & (memory.node("grace") <= 0)
        judged &= memory.node("value") > 0
        rows = np.flatnonzero(judged & (memory.group("moved") == 0)[group])
        self._cohort = longer(self._cohort, len(self._numbers), -1)
        self._cohort[place[rows]] = group[rows]
        self._waiting.append((place[rows], np.log(memory.node("value")[rows], dtype=np.float64)))
        if len(self._waiting) == BUFFER:
            self._add()

    def shared(self, node: NodeKey, others: Iterable[NodeKey]) -> bool:
        """Whether nodes share more of their noise than chance brings about, and this one has a part in that."""
        if self._waiting:
            self._add()
        names = list(dict.fromkeys([node, *others]))
        if len(names) < 2 or not all(name in self._numbers for name in names):
            return False
        places = np.array([self._numbers[name] for name in names], np.int64)
        first, second = np.triu_indices(len(places), 1)
        size = int(np.count_nonzero(self._cohort == self._cohort[places[0]]))
        scores = np.array([scale.scores(places, size)[first, second] for scale in self._scales])
        scores = np.vstack((scores, scores.sum(axis=0) / np.sqrt(len(SCALES))))
        of_all, own = (each.sum(axis=1) / np.sqrt(each.shape[1]) for each in (scores, scores[:, first == 0]))
        return bool(((of_all >= SURE) & (own >= OWN)).any())

    def _add(self) -> None:
        values = np.full((len(self._waiting), len(self._numbers)), np.nan)
        for row, (place, logs) in enumerate(self._waiting):
            values[row, place] = logs
        self._waiting = []
        largest = np.full(len(self._numbers), np.inf)
        for ticks, scale in zip(SCALES, self._scales, strict=True):
            means = values[: len(values) // ticks * ticks].reshape(-1, ticks, values.shape[1]).mean(axis=1)
            if len(means):
                largest = scale.add(means, self._cohort, largest)


def _largest(sizes: Floats) -> Floats:
    """By node the largest change that counts among these sizes; 0 where they are few."""
    some = np.isfinite(sizes).sum(axis=0) >= FEWEST
    most = np.zeros(sizes.shape[1])
    most[some] = LARGE * MAD_TO_SIGMA * row_medians(sizes[:, some].T)
    return most


def _ordinary(change: Floats, largest: Floats) -> Floats:
    """Changes by tick and node; NaN for those that are too large, and beside these."""
    large = ~(np.abs(change) <= largest)
    beside = large.copy()
    beside[1:] |= large[:-1]
    beside[:-1] |= large[1:]
    return np.where(beside, np.nan, change)


def _common(change: Floats, cohort: Ints) -> Floats:
    """By tick and node the median change of its cohort; 0 where there is none."""
    tick, node = np.nonzero(np.isfinite(change) & (cohort >= 0))
    cohorts = max(1, int(cohort.max(initial=-1)) + 1)
    middle = grouped_median(change[tick, node], tick * cohorts + cohort[node], len(change) * cohorts)[1]
    found: Floats = np.nan_to_num(middle).reshape(len(change), cohorts)[:, np.maximum(cohort, 0)]
    return found
