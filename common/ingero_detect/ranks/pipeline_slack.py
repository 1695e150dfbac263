"""What a late rank costs a pipeline, whose bubbles take up a part of its delay. Pure.

A rank that needs longer waits less for other stages, so it comes less late to what it does together with ranks of its
own stage, such as the exchange of gradients; only by that do all go on later.
"""

from dataclasses import replace

import numpy as np

from ingero_detect.grouped import Bools, Ints
from ingero_detect.ranks.imbalance import Cause, Diagnosis
from ingero_detect.ranks.timeline import Timeline
from ingero_detect.ranks.wait_attribution import blocked_seconds


def with_slack(item: Diagnosis, line: Timeline, alike: Ints) -> Diagnosis:
    """The finding with at most the time that others wait longer than late ranks, together with these.

    `alike`: the stage of each rank. It stays as it is where there is one stage, or where late ranks do nothing
    together with others of their stage: then nothing shows what bubbles take up.
    """
    if item.cause is not Cause.NODE or len(np.unique(alike)) < 2:
        return item
    together = _with_peers(line, alike)
    blocked = blocked_seconds(replace(line, instance=np.where(together, line.instance, -1)), alike)
    if blocked is None:
        return item
    late = np.isin(np.arange(line.ranks), item.ranks)
    waited = np.full(blocked.shape[1], np.nan)
    for stage in np.unique(alike[late]).tolist():
        own, others = (alike == stage) & late, (alike == stage) & ~late
        if not others.any() or not np.isin(np.flatnonzero(own), line.rank[together]).all():
            return item
        waited = np.fmax(waited, np.fmin.reduce(blocked[others]) - np.fmin.reduce(blocked[own]))
    if not np.isfinite(waited).any():
        return item
    most = float(np.nanmean(np.maximum(waited, 0.0)))
    return replace(item, seconds_lost_per_step=min(item.seconds_lost_per_step, most))


def _with_peers(line: Timeline, alike: Ints) -> Bools:
    """Rows of operations that two or more ranks of the same stage do together."""
    found = line.collective & (line.instance >= 0)
    if line.sends is not None:
        found &= ~line.sends
    rows = np.flatnonzero(found)
    cells = np.stack((line.instance[rows], alike[line.rank[rows]]))
    _, cell, count = np.unique(cells, axis=1, return_inverse=True, return_counts=True)
    found[rows] = count[cell.ravel()] >= 2
    return found
