"""Measurements in another unit than most, as of one log that has milliseconds where the others have seconds. Pure."""

from typing import Final

import numpy as np

from ingero_analyze.replay.unit_changes import FAR, OTHERS, TIMES
from ingero_detect.audit.audit_tiers import FEWEST_UNITS, robust_spread
from ingero_detect.grouped import Floats

DEVIATIONS: Final = 3.0
NEAREST, FURTHEST = 0.05, 0.3
"""How far from a factor (log units) a measurement in another unit may be: standard deviations of the others, within
limits."""


def in_usual_unit(slowness: Floats, of_times: bool) -> tuple[Floats, int]:
    """The slowness (log units) of measurements, as if all were in the unit of most, and how many were not.

    A chip that is 1,000 times slower than all others, to within what these differ by, is no slow one: its values are
    in another unit.
    """
    distance = slowness - np.median(slowness)
    usual = np.abs(distance) <= FAR / 2
    if usual.all() or np.count_nonzero(usual) < max(FEWEST_UNITS, len(slowness) / 2):
        return slowness, 0
    limit = min(max(DEVIATIONS * robust_spread(distance[usual]), NEAREST), FURTHEST)
    factors = TIMES if of_times else OTHERS
    factors = np.concatenate((-factors, factors))
    nearest = factors[np.argmin(np.abs(distance[:, None] - factors), axis=1)]
    odd = ~usual & (np.abs(distance - nearest) <= limit)
    return np.where(odd, slowness - nearest, slowness), int(np.count_nonzero(odd))
