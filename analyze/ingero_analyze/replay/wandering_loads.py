"""Tells a loss to which a node wandered, as its peers wander, from one that came at once or went too far. Pure.

A load that wanders takes nodes as far from their usual rates as a fault does, but no faster than it takes the others.
So what a node lost at its onset, between means over so many ticks before and after it, is compared with how much such
means of its peers change at other times: on one scale at least a fault is far beyond that.
"""

from typing import Final

import numpy as np

from ingero_detect.grouped import Floats, row_medians
from ingero_detect.ranks.student import upper_quantile
from ingero_detect.threshold import MAD_TO_SIGMA

FEWEST_PEERS: Final = 3
MOST_FALSE: Final = 0.001
"""Chance that a node of a fleet that wanders changes so much on one scale in the whole history."""

FEWEST_CHANGES: Final = 30
"""Independent changes of the peers that tell how much they wander."""

SEEN: Final = 0.8
"""Share of the changes about its onset that are known at least: a node may have been away before it."""

FURTHEST: Final = 5.0

LONG: Final = 32
"""Ticks over which a loss is compared at least, unless it was shorter: in fewer ticks alone it may hide in noise."""


def beyond_wandering(own: Floats, peers: Floats, onset: int, stop: int) -> int | None:
    """The tick from which on a node that was accused from the tick `onset` to `stop` lost more than chance explains:
    the onset if that is near, or if it is not known; `None` if its peers wander as it did, on every scale.

    `own`, by tick, and `peers`, by tick and node: log rates from those of the others, NaN where there is none.
    """
    ticks, nodes = peers.shape
    length, compared, begins, worst = 1, 0, None, 0.0
    while length <= min(stop - onset, onset) and nodes >= FEWEST_PEERS:
        others, lost = _changes(peers, length), _changes(own[:, None], length)[:, 0]
        known = np.isfinite(others)
        first = max(onset - 2 * length, 0)
        lost, near = lost[first : stop - length], onset + 1 - first
        seen, independent = np.isfinite(lost[:near]), np.count_nonzero(known) / length
        if independent < FEWEST_CHANGES or np.count_nonzero(seen) < SEEN * near:
            break
        lost = np.nan_to_num(lost)
        deviations = upper_quantile(MOST_FALSE * length / (ticks * (nodes + 1)), independent)
        least = -deviations * max(_spread(others[known]), 1e-9)
        if lost[:near].min() < least:
            return onset
        if lost.min() < max(worst, 1.0) * least:
            begins, worst = first + int(lost.argmin()) + length, float(lost.min() / least)
        compared, length = length, 2 * length
    enough = compared > 0 and 2 * compared >= min(stop - onset, LONG)
    return begins if begins is not None or enough else onset


def _spread(changes: Floats) -> float:
    """Their root mean square, in which a rare event counts as `FURTHEST` robust standard deviations at most."""
    far = FURTHEST * MAD_TO_SIGMA * float(np.median(np.abs(changes)))
    return float(np.sqrt(np.mean(np.minimum(np.abs(changes), far) ** 2)))


def _changes(values: Floats, length: int) -> Floats:
    """By tick and node, the mean over so many ticks less that over as many before, from the first tick on where there
    are so many; NaN where a node has less than half of them."""
    known = np.isfinite(values)
    sums, count = (_over(each, length) for each in (np.where(known, values, 0.0), known.astype(float)))
    means = np.where(2 * count >= length, sums / np.maximum(count, 1.0), np.nan)
    return means[length:] - means[:-length]


def _over(values: Floats, length: int) -> Floats:
    """Sums over so many ticks, by the first of them."""
    total = np.vstack((np.zeros(values.shape[1]), np.cumsum(values, axis=0)))
    return total[length:] - total[:-length]


def from_others(logs: Floats, most: int) -> Floats:
    """By tick and node the log rate from the median of the other nodes, of all where there are more than `most`."""
    if logs.shape[1] > most:
        return logs - row_medians(logs)[:, None]
    others = [row_medians(np.delete(logs, node, axis=1)) for node in range(logs.shape[1])]
    return logs - np.column_stack(others)
