"""Tells nodes whose values follow their cohort's late, averaged, or at a small part of them, or wander as those do,
from slow ones. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ingero_analyze.replay.numbering import NodeNumbers, longer
from ingero_analyze.replay.wandering_loads import beyond_wandering, from_others
from ingero_detect.grouped import Bools, Floats, Ints, row_medians
from ingero_detect.nodes.episodes import Episode
from ingero_detect.nodes.observation import ACTIVE, Observation
from ingero_detect.nodes.verdicts import Axis

LONGEST: Final = 3600.0
LEAST_TICKS: Final = 60
"""By how much values are late at most, either way: seconds, or ticks if these are longer."""

AVERAGED: Final = (1, 3, 5, 10, 20, 30, 60)
"""Ticks over which values may be averaged."""

FEWEST_PEERS: Final = 3
LARGE: Final = 20
"""Nodes of a cohort among which one hardly matters for their median."""

FEWEST_TICKS: Final = 100
LOG_CERTAIN: Final = 10.0
"""Log of how much more likely its other values have to be if they are late, beyond what the best of many tries is."""

LEFT: Final = 0.3
"""Share of a loss that is left at most where lateness explains it."""

BEFORE: Final = 30
"""Ticks before a loss that tell what is usual for its node."""

LIKE: Final = 0.05
FEWEST_LIKE: Final = 2
"""What the rates of nodes that do the same differ by at most, log units, and how many do it."""

PART: Final = 2 / 3
VARIES: Final = float(np.log(1.5))
FOLLOWS: Final = 0.3
BLOCK: Final = 20
"""Share of the rate of its peers that a node does less at least if it may be given a part of their load; how far that
varies at least (tenth to ninetieth percentile), log units; by how much the slope against it differs from one, and
which share of the variance it leaves, at most; ticks that are averaged before."""

MOST_CELLS: Final = 20_000_000
"""Values of nodes and ticks that are kept, 4 bytes each; of longer histories nothing is told."""


class LateValues:
    """The logs of the rates of all nodes in all ticks. `evened`: without shares of their own in the common load."""

    evened = False

    def __init__(self, tick_seconds: float) -> None:
        self._ticks = max(LEAST_TICKS, int(LONGEST / tick_seconds))
        self._numbers = NodeNumbers()
        self._cells = 0
        self._cohort = np.zeros(0, np.int64)
        self._of = _RatesOfCohort(-1, self._cohort, np.zeros((0, 0), np.float32), np.zeros(0))
        self._times, self._rows = list[float](), list[tuple[Ints, Floats]]()

    def note(self, now: float, seen: Observation) -> None:
        """Add a tick, `now` in seconds."""
        working = np.flatnonzero((np.asarray(seen.state) == ACTIVE) & (np.asarray(seen.value) > 0))
        places = self._numbers.of(seen.names)
        self._cohort = longer(self._cohort, len(self._numbers), -1)
        self._cohort[places] = seen.cohort
        self._cells += len(working)
        if self._cells > MOST_CELLS:
            self._times, self._rows = [], []
            return
        self._times.append(now)
        self._rows.append((places[working], np.log(np.asarray(seen.value)[working]).astype(np.float32)))

    def explains(self, episode: Episode, since: float | None) -> bool:
        """Whether the values of a node outside of an episode follow its cohort's at some distance of time, or are
        averaged, beyond chance, and what it lost is nothing else. `since`: when the node became slow, seconds."""
        times = np.array(self._times)
        if len(times) < FEWEST_TICKS or since is None or episode.node not in self._numbers:
            return False
        inside = (times >= since) & (times < (np.inf if episode.end is None else episode.end))
        own, common = self._own_and_common(self._numbers[episode.node])
        known = np.isfinite(own) & np.isfinite(common)
        if not (known & inside).any() or np.count_nonzero(known & ~inside) < FEWEST_TICKS:
            return False
        common = np.interp(np.arange(len(common)), np.flatnonzero(known), common[known])
        late = _late(np.where(known, own, 0.0), common, known & ~inside, min(self._ticks, len(own) // 2))
        if late is None:
            return False
        lost = np.mean((own - common)[known & inside])
        left = np.mean((own - late)[known & inside])
        return bool(lost < 0 and left >= LEFT * lost)

    def beyond_wandering(self, episode: Episode, episodes: Iterable[Episode]) -> float | None:
        """Since when a node lost more than its peers wander, outside of their own `episodes`, seconds: its onset, or
        later; `None` if it only wandered."""
        times, since = np.array(self._times), episode.first.since
        if not len(times) or since is None or episode.node not in self._numbers:
            return since or 0.0
        place = self._numbers[episode.node]
        rates = self._of_cohort(int(self._cohort[place]))
        logs, places = rates.logs.astype(float), rates.places
        own, peers = logs[:, places == place], np.delete(logs, np.flatnonzero(places == place), axis=1)
        if peers.shape[1] < FEWEST_PEERS:
            return since
        rest = places[places != place]
        for one in episodes:
            if one.node in self._numbers and one.first.since is not None:
                inside = (times >= one.first.since) & (times < (np.inf if one.end is None else one.end))
                peers[np.ix_(inside, rest == self._numbers[one.node])] = np.nan
        end = np.inf if episode.last.recovered is None else episode.last.recovered
        onset, stop = np.searchsorted(times, (since, end)).tolist()
        begins = beyond_wandering(own[:, 0] - row_medians(peers), from_others(peers, LARGE), onset, stop)
        return since if begins == onset else None if begins is None else float(times[begins])

    def does_a_part(self, episode: Episode) -> bool:
        """Whether a node that was far slower than its peers from the start follows their load, as one that is given a
        part of it: one that cannot do more does the same when there is more to do."""
        far = episode.first.axis is Axis.PEERS and episode.last.severity >= PART
        if self.evened or not far or episode.node not in self._numbers:
            return False
        own, common = self._own_and_common(self._numbers[episode.node])
        known = np.isfinite(own) & np.isfinite(common)
        if np.count_nonzero(known) < FEWEST_TICKS:
            return False
        low, high = np.quantile(common[known], (0.1, 0.9))
        slope, left = _followed(own[known], common[known])
        return bool(high - low >= VARIES and abs(slope - 1) <= FOLLOWS and left <= FOLLOWS)

    def losses(self, episode: Episode) -> tuple[Floats, Floats]:
        """Times since the onset of an episode, seconds, and what its node was then below the median of its peers,
        more than it had been before, log units; NaN where there is none."""
        times, since = np.array(self._times), episode.first.since
        if not len(times) or since is None or episode.node not in self._numbers:
            return np.zeros(0), np.zeros(0)
        own, common = self._own_and_common(self._numbers[episode.node])
        onset, usual = int(np.searchsorted(times, since)), own - common
        before = usual[max(onset - BEFORE, 0) : onset]
        known = before[np.isfinite(before)]
        return times[onset:], (np.median(known) if len(known) else 0.0) - usual[onset:]

    def like_another_cohort(self, episode: Episode) -> bool:
        """Whether a node did what nodes of other cohorts did, from its onset until it was accused."""
        times, since, detected = np.array(self._times), episode.first.since, episode.first.detected
        if not len(times) or since is None or detected is None or episode.node not in self._numbers:
            return False
        rows = self._rows[int(np.searchsorted(times, since)) : int(np.searchsorted(times, detected, side="right"))]
        logs = np.full((len(rows), len(self._cohort)), np.nan)
        for row, (seen, values) in zip(logs, rows, strict=True):
            row[seen] = values
        place = self._numbers[episode.node]
        off = np.abs(row_medians((logs - logs[:, [place]]).T))
        return bool(np.count_nonzero((off <= LIKE) & (self._cohort != self._cohort[place])) >= FEWEST_LIKE)

    def _of_cohort(self, cohort: int) -> "_RatesOfCohort":
        """The rates of a cohort; those of the latest one are kept."""
        if self._of.number != cohort:
            self._of = self._read(cohort)
        return self._of

    def _own_and_common(self, place: int) -> tuple[Floats, Floats]:
        """By tick the log of the rate of a node, and the median over its peers (over all of a large cohort), both
        from what is usual; NaN where there is none."""
        rates = self._of_cohort(int(self._cohort[place]))
        column = int(np.searchsorted(rates.places, place))
        own = rates.logs[:, column].astype(float)
        if len(rates.places) > LARGE:
            return own, rates.common
        return own, _median(np.delete(rates.logs, column, axis=1))

    def _read(self, cohort: int) -> "_RatesOfCohort":
        places = np.flatnonzero(self._cohort == cohort)
        column = np.full(len(self._cohort), -1)
        column[places] = np.arange(len(places))
        logs = np.full((len(self._rows), len(places)), np.nan, np.float32)
        for tick, (seen, values) in enumerate(self._rows):
            here = column[seen]
            logs[tick, here[here >= 0]] = values[here >= 0]
        some = np.isfinite(logs).any(axis=0)
        logs[:, some] -= np.nanmedian(logs[:, some], axis=0)
        return _RatesOfCohort(cohort, places, logs, _median(logs))


@dataclass(frozen=True)
class _RatesOfCohort:
    """The nodes of a cohort, the logs of their rates from what is usual for each, by tick and node, and the medians
    of these by tick."""

    number: int
    places: Ints
    logs: npt.NDArray[np.float32]
    common: Floats


def _median(logs: npt.NDArray[np.float32]) -> Floats:
    """By tick; NaN for ticks without any value and for too few nodes."""
    some, found = np.isfinite(logs).any(axis=1), np.full(len(logs), np.nan)
    if np.count_nonzero(np.isfinite(logs).any(axis=0)) >= FEWEST_PEERS:
        found[some] = np.nanmedian(logs[some], axis=1)
    return found


def _late(own: Floats, common: Floats, there: Bools, most: int) -> Floats | None:
    """The common values as late, and as averaged, as the own values show them in the ticks that are `there`; `None`
    where they are not certainly late."""
    best, least = common, np.inf
    lags = np.arange(-most, most + 1)
    for length in AVERAGED:
        averaged = _averaged(common, length)
        errors = _errors(own, averaged, there, lags)
        place = int(np.argmin(errors))
        if errors[place] < least:
            best, least = _shifted(averaged, int(lags[place])), float(errors[place])
    now, then = (_centred(own - each, there) for each in (common, best))
    spread = float(np.mean(then[there] ** 2))
    similar = min(max(float(np.mean(then[there][1:] * then[there][:-1])) / spread if spread else 0.0, 0.0), 0.95)
    gained = float(np.sum(now[there] ** 2 - then[there] ** 2))
    tries = np.log(len(lags) * len(AVERAGED))
    certain = gained > 2 * (LOG_CERTAIN + tries) * spread * (1 + similar) / (1 - similar)
    return own - then if certain else None


def _followed(own: Floats, common: Floats) -> tuple[float, float]:
    """The slope of own values against common ones, both averaged over blocks of ticks, and the share of the variance
    that it leaves."""
    blocks = len(own) // BLOCK
    mine, theirs = (each[: blocks * BLOCK].reshape(blocks, BLOCK).mean(axis=1) for each in (own, common))
    mine, theirs = mine - mine.mean(), theirs - theirs.mean()
    slope = float(mine @ theirs / max(float(theirs @ theirs), 1e-12))
    return slope, float(np.sum((mine - slope * theirs) ** 2) / max(float(mine @ mine), 1e-12))


def _errors(own: Floats, common: Floats, there: Bools, lags: Ints) -> Floats:
    """By lag the sum of squares of what the own values differ by from the common ones so many ticks before, but for a
    constant."""
    padded = np.pad(common, int(lags[-1]), mode="edge")
    mine, weights = own[there], there.astype(float)
    sums, squares, both = (
        _correlated(values, factors, len(lags))[::-1]
        for values, factors in ((padded, weights), (padded**2, weights), (padded, np.where(there, own, 0.0)))
    )
    constant = (float(mine.sum()) - sums) ** 2 / len(mine)
    return float(np.sum(mine**2)) - 2 * both + squares - constant


def _correlated(padded: Floats, weights: Floats, many: int) -> Floats:
    """Sums of the values times the weights, for each place of the weights among them."""
    size = 1 << int(len(padded) + len(weights)).bit_length()
    product = np.fft.irfft(np.fft.rfft(padded, size) * np.conj(np.fft.rfft(weights, size)), size)
    return product[:many]


def _averaged(values: Floats, length: int) -> Floats:
    """The mean of each value and so many before it, less one."""
    total = np.concatenate(([0.0], np.cumsum(np.concatenate((np.full(length - 1, values[0]), values)))))
    return (total[length:] - total[:-length]) / length


def _shifted(values: Floats, lag: int) -> Floats:
    """The values so many ticks later, the outermost ones repeated."""
    return values[np.clip(np.arange(len(values)) - lag, 0, len(values) - 1)]


def _centred(values: Floats, there: Bools) -> Floats:
    return values - np.mean(values[there])
