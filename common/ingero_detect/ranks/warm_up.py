"""First steps in which a job warms up: they say nothing about later ones, and are not judged. Pure.

Programs compile kernels, fill caches and start workers in their first steps, on each rank for a different time. In a
recording of few steps one such step is most of what ranks vary by, and hides who is late in all the others.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from ingero_detect.ranks.idle_together import idle_seconds
from ingero_detect.ranks.last_arrival import median_by_step
from ingero_detect.ranks.timeline import FEWEST_PROVEN, Timeline, sum_by_rank_and_step

LONGER: Final = 2.0
"""How many times as long as usual most ranks are busy in a step of the warm-up."""

USUAL: Final = 2
MOST: Final = 0.25
"""Steps that a warm-up may have in any recording, and share of all steps that it has at most in longer ones."""

MORE: Final = 1.5
"""How many times as many operations as usual a step of the warm-up has at most; with more it has other ones, as the
first layer of a step has where layers count as steps."""


def warm_up_steps(line: Timeline) -> int:
    """How many of the first steps are a warm-up: most ranks compute, or do nothing, far longer than usual.

    None where fewer steps than prove something would be left. A step that is longer because others wait for a few
    ranks is none.
    """
    busy = np.nan_to_num(sum_by_rank_and_step(line, ~line.collective, line.duration))
    busy += np.nan_to_num(idle_seconds(line))
    length = median_by_step(busy)
    usual = float(np.median(length))
    every = np.ones(len(line.rank))
    count = median_by_step(np.nan_to_num(sum_by_rank_and_step(line, every > 0, every)))
    most = max(min(max(USUAL, int(MOST * line.steps)), line.steps - FEWEST_PROVEN), 0)
    longer = (length[:most] > LONGER * usual) & (count[:most] <= MORE * np.median(count))
    return int(longer.argmin()) if not longer.all() else len(longer)


def without_first_steps(line: Timeline, count: int) -> Timeline:
    """The timeline from a step on, which becomes the first one."""
    if not count:
        return line
    kept = line.step >= count
    optional = {
        name: values[kept]
        for name in ("work", "group", "sends", "chores", "routed")
        if (values := getattr(line, name)) is not None
    }
    rows = {
        name: getattr(line, name)[kept]
        for name in ("rank", "op", "collective", "start", "duration", "instance", "stage", "data_parallel")
    }
    return replace(line, steps=line.steps - count, step=line.step[kept] - count, **rows, **optional)
