"""Attributes waiting to ranks: how much less each blocks than its peers, and which only pass a delay on. Pure."""

from dataclasses import dataclass

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints, grouped_median
from ingero_detect.timeline import Timeline, sum_by_rank_and_step, well_covered_steps


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

    A step in which a rank took part in more or fewer collectives than ranks with the same work is unknown.
    """
    chosen = line.collective & (line.instance >= 0)
    if not chosen.any():
        return None
    count = sum_by_rank_and_step(line, chosen, np.ones(len(line.rank)))
    usual = np.zeros(line.ranks)
    for kind in np.unique(alike).tolist():
        known = count[alike == kind]
        usual[alike == kind] = np.median(known[np.isfinite(known)]) if np.isfinite(known).any() else np.nan
    total = np.where(count == usual[:, None], sum_by_rank_and_step(line, chosen, line.duration), np.nan)
    steps = well_covered_steps(total)
    return total[:, steps] if steps.any() else None
