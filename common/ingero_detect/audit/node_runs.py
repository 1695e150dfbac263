"""What all chips of a node lose in single runs, such as by a job beside the test: no chip's own loss. Pure."""

from typing import Final

import numpy as np

from ingero_detect.audit.audit_tiers import FEWEST_SIBLINGS, SMALLEST_SPREAD, robust_spread
from ingero_detect.audit.chip_effects import RunValues
from ingero_detect.grouped import Floats, Ints, grouped_median

EVIDENT: Final = 5.0
"""Spreads of the runs of nodes from which one is slow: chance makes one in a million."""

NOISE: Final = float(np.sqrt(np.pi))
"""Standard deviation of the median of differences of two values, times the root of their number, by their noise."""


def lost_in_runs(found: RunValues, node: Ints, noise: float) -> Floats:
    """By value, by how much the run of its node is slower than most of the node's runs; 0 where it is not evidently.

    A value is compared with the lower median of its chip, so nothing is taken from a node that is slow in most runs.
    Nodes tell with four chips or more that have several values. `node`: by chip, -1 where it is not known; `noise`:
    of a value, NaN if that is not known.
    """
    none = np.zeros(len(found.values))
    telling = (found.run >= 0) & (node[found.of] >= 0) & (found.count[found.of] > 1)
    if not telling.any():
        return none
    away = found.values - _lower_median(found)[found.of]
    nodes = int(node.max()) + 1
    pair = found.run * nodes + node[found.of]
    present, place = np.unique(pair[telling], return_inverse=True)
    count, lost = grouped_median(away[telling], place, len(present))
    lost = lost - float(np.median(lost))
    enough = count >= FEWEST_SIBLINGS
    if not enough.any():
        return none
    deviate = lost * np.sqrt(count)
    spread = max(robust_spread(deviate[enough]), NOISE * float(np.nan_to_num(noise)), SMALLEST_SPREAD)
    evident = enough & (deviate > EVIDENT * spread)
    at = np.minimum(np.searchsorted(present, pair), len(present) - 1)
    known = (present[at] == pair) & (found.run >= 0) & (node[found.of] >= 0)
    return np.where(known & evident[at], lost[at], none)


def _lower_median(found: RunValues) -> Floats:
    """By chip the median of its values; of an even number, the smaller one of the two in the middle."""
    order = np.lexsort((found.values, found.of))
    place = np.cumsum(found.count) - found.count + np.maximum(found.count - 1, 0) // 2
    return np.where(found.count > 0, found.values[order][np.minimum(place, len(order) - 1)], np.nan)
