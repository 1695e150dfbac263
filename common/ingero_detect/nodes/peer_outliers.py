"""Finds nodes whose usual rate is too low for a healthy node of their cohort. Pure.

The test against peers says that a node is low. Here its baseline is compared with those of its cohort: whether chips
of one kind can differ so much, and whether it is alone there. Several nodes at one level are a kind of hardware or a
role that no label tells, not a fault.
"""

from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints
from ingero_detect.healthy_spread import OF_AVERAGES, normal_deviate, normal_upper_tail, outlier_chances
from ingero_detect.nodes.codes import AXES
from ingero_detect.nodes.column_store import ColumnStore
from ingero_detect.nodes.verdicts import Axis

MOST_FALSE: Final = 0.02
"""Chance that a node of a healthy cohort is found, for the whole cohort."""

LEAST_SPREAD: Final = 0.03
"""Standard deviation, log units, that healthy nodes of one kind are assumed to have at least."""

MOST_SHARE: Final = 0.125
"""Share of a cohort beyond which low nodes are no faults; one is always allowed."""

_SAME_LEVEL: Final = 4.0
"""Spreads of a cohort within which two nodes are at one level."""

_AGAIN_TICKS: Final = 16
"""Ticks after which nodes that are still low are examined again."""

_GROUPS_A_TICK: Final = 32
"""Groups examined in one tick, to limit its time."""


def groups_to_examine(ticks: int, group: Ints, low: Bools, unexamined: Bools) -> list[int]:
    """The groups whose `low` nodes are examined in this tick.

    `unexamined`, by group: a node began to be low there since the last look. They come first, the others in turn.
    """
    waiting = np.unique(group[low])
    first = waiting[unexamined[waiting]]
    if not len(first) and ticks % _AGAIN_TICKS == 0 and len(waiting):
        first = np.roll(waiting, -(ticks // _AGAIN_TICKS * _GROUPS_A_TICK % len(waiting)))
    return [int(number) for number in first[:_GROUPS_A_TICK]]


def lone_outliers(
    memory: ColumnStore, own_band: float, rows: Ints, baseline: Floats, low: Bools, accused: Bools, spread: float
) -> Bools:
    """Which `low` nodes of one group are below all healthy ones, and alone there.

    All arrays are by node of the group; `rows` are their slots. `spread` is the standard deviation of the group's
    nodes, log units.
    """
    found = np.zeros(len(rows), np.bool_)
    if len(rows) < 3:
        return found
    found[low] = _chances_of_healthy(baseline, low) * len(rows) <= MOST_FALSE
    known = accused & (memory.node("axis")[rows] == AXES.index(Axis.PEERS))
    if np.count_nonzero(found | known) > max(1, MOST_SHARE * len(rows)):
        return np.zeros_like(found)
    tolerance = max(own_band, _SAME_LEVEL * spread)
    loss = np.median(baseline) - baseline
    for place in np.flatnonzero(found).tolist():
        alike = (np.abs(loss - loss[place]) <= tolerance) & (loss > 0.5 * loss[place])
        found[place] = np.count_nonzero(alike) == 1
    return found


def _chances_of_healthy(baseline: Floats, low: Bools) -> Floats:
    """For every `low` node of a group, the chance that a healthy one is as low.

    As the baselines of the group show how its nodes differ, and not less than if they differed by the least spread,
    known from as many nodes: a fit of that spread takes nodes that are more alike for the peak of a heavy tail.
    """
    deviates = normal_deviate((np.median(baseline) - baseline[low]) / LEAST_SPREAD, np.array(len(baseline) - 1.0))
    as_they_differ = outlier_chances(-baseline, 0.0, OF_AVERAGES, -baseline[low])
    found: Floats = np.maximum(as_they_differ, normal_upper_tail(deviates))
    return found
