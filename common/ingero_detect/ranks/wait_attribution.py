"""Attributes waiting to ranks: how much less each blocks than its peers, and which only pass a delay on. Pure."""

from dataclasses import dataclass, replace

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints, grouped_median
from ingero_detect.ranks.last_arrival import median_by_step
from ingero_detect.ranks.timeline import Timeline, sum_by_rank_and_step, well_covered_steps


@dataclass(frozen=True)
class WaitAttribution:
    """Time lost to the last rank alone, by the groups of ranks that take part in the same collectives.

    A pair is a rank in a group. `pair`, `step` and `gap` (seconds) are by collective.
    """

    ranks: int
    rank_of: Ints
    group_of: Ints
    pair: Ints
    step: Ints
    gap: Floats

    def gaps(self, part: slice) -> Floats:
        """Time lost by pair in a part of the steps."""
        inside = (self.step >= part.start) & (self.step < part.stop)
        return np.bincount(self.pair[inside], self.gap[inside], len(self.rank_of)).astype(np.float64)

    def victims(self, part: slice) -> Bools:
        """Ranks that are late in one group because another group delayed them at least half as long."""
        gaps = self.gaps(part)
        order = np.lexsort((-gaps, self.group_of))
        firsts = np.flatnonzero(np.diff(self.group_of[order], prepend=-1))
        first, second = order[firsts], order[np.minimum(firsts + 1, len(order) - 1)]
        worst = np.where(first[self.group_of] == np.arange(len(gaps)), gaps[second][self.group_of],
                         gaps[first][self.group_of])  # fmt: skip
        elsewhere = np.bincount(self.rank_of, gaps, self.ranks)[self.rank_of] - gaps
        held_up = (elsewhere > 0) & (worst >= 0.5 * elsewhere) & (gaps < 0.5 * worst)
        found = np.zeros(self.ranks, np.bool_)
        found[self.rank_of[held_up]] = True
        return found


def _attribute_waits(line: Timeline, rows: Ints, instance: Ints, known: Bools) -> WaitAttribution | None:
    """The last rank of every collective and the time lost to it; `None` if all ranks are in one group."""
    order = np.lexsort((line.duration[rows], instance))
    rows, instance = rows[order], instance[order]
    starts = np.flatnonzero(np.diff(instance, prepend=-1))
    # A number for the members of a collective that does not depend on their order.
    marks = np.random.default_rng(0).integers(1, 2**63, line.ranks, dtype=np.uint64)
    _, group = np.unique(np.add.reduceat(marks[line.rank[rows]], starts), return_inverse=True)
    if group.max() == 0:
        return None
    sizes = np.diff(np.append(starts, len(rows)))
    keys, pair = np.unique(np.repeat(group, sizes) * line.ranks + line.rank[rows], return_inverse=True)
    counted = known[line.step[rows[starts]]]
    column = np.cumsum(known) - 1
    gap = line.duration[rows[np.minimum(starts + 1, len(rows) - 1)]] - line.duration[rows[starts]]
    return WaitAttribution(
        line.ranks, keys % line.ranks, keys // line.ranks, pair[starts][counted].astype(np.int64),
        column[line.step[rows[starts]]][counted], gap[counted],
    )  # fmt: skip


def with_exposed_waits(line: Timeline) -> Timeline:
    """The timeline with the duration of each collective reduced to the time in which its rank does nothing else.

    A rank that computes meanwhile is not blocked. Without this, a delay would count once in each of several
    collectives under way. Of collectives at the same time the one that began last counts: that is what the rank waits
    for. Timelines in which computing hides all collectives stay as they are.
    """
    duration = line.duration.copy()
    order = np.argsort(line.rank, kind="stable")
    for rows in np.split(order, np.searchsorted(line.rank[order], np.arange(1, line.ranks))):
        waits = rows[line.collective[rows]]
        waits = waits[np.argsort(line.start[waits], kind="stable")]
        computes = rows[~line.collective[rows]]
        duration[waits] = _exposed(line.start[waits], duration[waits], line.start[computes], duration[computes])
    if not duration[line.collective].any():
        return line
    return replace(line, duration=duration)


def _exposed(start: Floats, duration: Floats, computes: Floats, lasts: Floats) -> Floats:
    """Seconds of waits of one rank, ordered by start, that are covered by no later wait and by no computing."""
    if not len(start):
        return duration
    end = start + duration
    following = np.append(start[1:], np.inf)
    latest = np.maximum.accumulate(end)
    # The wait before which no other ends later; it goes on where a wait that began later has ended.
    longest = np.maximum.accumulate(np.where(end >= latest, np.arange(len(end)), 0))
    found = _idle(start, np.minimum(end, following), computes, lasts)
    rest = _idle(np.minimum(end, following), np.maximum(np.minimum(latest, following), np.minimum(end, following)),
                 computes, lasts)  # fmt: skip
    return np.asarray(found + np.bincount(longest, rest, len(start)))


def _idle(begin: Floats, end: Floats, computes: Floats, lasts: Floats) -> Floats:
    """Seconds of each interval in which nothing is computed."""
    if not len(computes):
        return np.asarray(end - begin)
    order = np.argsort(computes, kind="stable")
    start = computes[order]
    until = np.maximum.accumulate(start + lasts[order])
    start = np.maximum(start, np.append(-np.inf, until[:-1]))
    length = np.maximum(until - start, 0.0)
    before = np.cumsum(length) - length

    def computed(moment: Floats) -> Floats:
        place = np.searchsorted(start, moment, side="right") - 1
        at = np.maximum(place, 0)
        return np.where(place < 0, 0.0, before[at] + np.minimum(moment - start[at], length[at]))

    return np.maximum(end - begin - (computed(end) - computed(begin)), 0.0)


def compute_lags(line: Timeline) -> tuple[Floats, WaitAttribution | None] | None:
    """How much less than the median of its collective each rank blocked, summed by (rank, step).

    Also returns the attribution of waits if the ranks are in several groups.
    """
    chosen = line.collective & (line.instance >= 0)
    if not chosen.any():
        return None
    _, instance = np.unique(line.instance[chosen], return_inverse=True)
    m = int(instance.max()) + 1
    count, middle = grouped_median(line.duration[chosen], instance.astype(np.int64), m)
    several = count[instance] >= 2
    if not several.any():
        return None
    rows = np.flatnonzero(chosen)[several]
    lag, met = np.zeros(len(chosen)), np.zeros(len(chosen), np.bool_)
    lag[chosen], met[rows] = middle[instance] - line.duration[chosen], True
    table = sum_by_rank_and_step(line, met, lag)
    known = well_covered_steps(table)
    if not known.any():
        return None
    return table[:, known], _attribute_waits(line, rows, instance[several].astype(np.int64), known)


def blocked_seconds(line: Timeline, alike: Ints) -> Floats | None:
    """Seconds that each rank was blocked in all its collectives, by (rank, step); `None` where too few are known.

    A step in which a rank took part in more or fewer collectives than ranks with the same work did is unknown.
    """
    chosen = line.collective & (line.instance >= 0)
    if not chosen.any():
        return None
    count = sum_by_rank_and_step(line, chosen, np.ones(len(line.rank)))
    usual = np.full(count.shape, np.nan)
    for kind in np.unique(alike).tolist():
        usual[alike == kind] = median_by_step(count[alike == kind])
    total = np.where(count == usual, sum_by_rank_and_step(line, chosen, line.duration), np.nan)
    steps = well_covered_steps(total)
    return total[:, steps] if steps.any() else None
