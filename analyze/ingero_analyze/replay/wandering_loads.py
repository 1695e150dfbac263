"""Tells a loss to which a node wandered, as its peers wander, from one that came at once or went too far. Pure.

A load that wanders takes nodes as far from their usual rates as a fault does, but no faster than it takes the others.
So what a node lost at its onset, between means over so many ticks before and after it, is compared with how much such
means of its peers change at other times: on one scale at least a fault is far beyond that.
"""

from statistics import NormalDist
from typing import Final

import numpy as np

from ingero_detect.grouped import Floats, row_medians
from ingero_detect.threshold import MAD_TO_SIGMA

FEWEST_PEERS: Final = 3
MOST_FALSE: Final = 0.001
"""Chance that a node of a fleet that wanders changes so much on one scale in the whole history."""

FEWEST_CHANGES: Final = 30
"""Independent changes of the peers that tell how much they wander."""

FURTHEST: Final = 5.0

LONG: Final = 32
"""Ticks over which a loss is compared at least, unless it was shorter: in fewer ticks alone it may hide in noise."""


def wandered(own: Floats, peers: Floats, onset: int, stop: int) -> bool:
    """Whether chance brings about on every scale what a node lost from the tick `onset` to `stop`.

    `own`, by tick, and `peers`, by tick and node: log rates from those of the others, NaN where there is none.
    """
    ticks, nodes = peers.shape
    length, compared = 1, 0
    while length <= min(stop - onset, onset) and nodes >= FEWEST_PEERS:
        others, lost = _changes(peers, length), _changes(own[:, None], length)[:, 0]
        known = np.isfinite(others)
        independent = np.count_nonzero(known) / length
        near = lost[max(onset - 2 * length, 0) : onset + 1]
        near = near[np.isfinite(near)]
        if independent < FEWEST_CHANGES or not len(near):
            break
        spread = _spread(others[known])
        if near.min() < NormalDist().inv_cdf(MOST_FALSE * length / (ticks * (nodes + 1))) * spread:
            return False
        compared, length = length, 2 * length
    return compared > 0 and 2 * compared >= min(stop - onset, LONG)


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
