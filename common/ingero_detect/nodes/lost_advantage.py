"""Finds nodes that lost no more than what they were faster than all their like: they are no stragglers.

A node that had more load than its peers for hours has learnt it as its baseline. When it is back at their rate, its
own history speaks against it, and its peers do not.
"""

from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, filled, singles
from ingero_detect.nodes.calibration import discount_steps
from ingero_detect.nodes.column_store import ColumnStore
from ingero_detect.nodes.parameters import Parameters
from ingero_detect.nodes.residuals import Residuals
from ingero_detect.nodes.sequential_tests import Bounds, CollapseTest, OwnTest
from ingero_detect.threshold import MAD_TO_SIGMA

_AHEAD: Final = 4.0
"""Standard deviations of the baselines of a cohort by which a node was ahead, and at least twice the band: more than
chips of one kind differ."""

_ERRORS: Final = 2.0
"""Standard errors by which the loss may be smaller than it was on average: evidence is strongest after bad ticks."""


def forgive_lost_advantage(
    memory: ColumnStore,
    parameters: Parameters,
    nodes: Residuals,
    bounds: Bounds,
    own: OwnTest,
    collapse: CollapseTest,
) -> None:
    """Give nodes that are back among their peers the baseline of these, and drop the evidence against them.

    Such a node was alone ahead of its cohort; several of them are another kind of hardware, or a role. What it lost
    since the onset of the evidence leaves it within the band below its peers.
    """
    alarmed = ((own.slow > bounds.top) | (collapse.run >= collapse.confirm)) & ~nodes.accused & ~nodes.new
    alarmed &= nodes.eligible & ~nodes.reference.common[nodes.group]
    if not alarmed.any():
        return
    group = nodes.group
    ahead = nodes.baseline - filled(nodes.median(nodes.baseline), 0.0)[group]
    spread = filled(nodes.median(np.abs(ahead)), np.inf) * MAD_TO_SIGMA
    far = ahead > np.maximum(2 * parameters.own_band, _AHEAD * spread)[group]
    alone = np.bincount(group[far], minlength=len(spread)) == 1
    spell = np.maximum(own.spell, 1)
    least = own.shortfall / spell - _ERRORS * nodes.usual[group] / np.sqrt(spell)
    back: Bools = alarmed & far & alone[group] & (least < ahead + parameters.own_band)
    if not back.any():
        return
    rows = np.arange(len(memory.names))[nodes.index][back]
    discount_steps(memory, rows)
    for name in ("slow", "slow_peak", "steep"):
        memory.node(name)[rows] = 0
    nodes.baseline[back] -= ahead[back]
    nodes.gap[back] += singles(ahead[back])
    for values in (
        own.slow,
        own.onset,
        own.shortfall,
        own.spell,
        collapse.run,
        collapse.steep_before,
        collapse.steep,
    ):
        values[back] = 0
    collapse.falling[back] = False
