"""Tells nodes that warm up after a restart that cost few reports, or none, from slow ones: they are slowest at first,
and rise to their usual rate. Pure."""

from typing import Final

import numpy as np

from ingero_detect.grouped import Floats

FEWEST_TICKS: Final = 4
"""Ticks of a loss that show how it goes on."""

LARGE: Final = 0.3
"""Mean loss in the first third of a warm-up, log units, at least."""

MIDDLE: Final = 0.8
LAST: Final = 0.5
"""Shares of that which are left in its second and last third, at most. A line leaves 0.6 and 0.2."""


def warms_up(lost: Floats, band: float) -> int | None:
    """The ticks that a node took from its onset until it was no more than a `band` behind, if it rose all the time;
    else `None`. `lost`: its losses by tick from the onset, log units, NaN where it did not report."""
    well = np.flatnonzero(lost <= band)
    if not len(well):
        return None
    losses = lost[: well[0]][np.isfinite(lost[: well[0]])]
    if len(losses) < FEWEST_TICKS:
        return None
    first, middle, last = (float(np.mean(part)) for part in np.array_split(losses, 3))
    rises = first >= LARGE and middle <= MIDDLE * first and last <= LAST * first
    return int(well[0]) if rises else None
