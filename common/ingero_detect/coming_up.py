"""Nodes that come up after a restart: from a large loss they rise, tick by tick, towards their usual rate."""

from typing import Final

import numpy as np

from ingero_detect.cohort_assignment import RESUME_TICKS
from ingero_detect.column_store import ColumnStore
from ingero_detect.grouped import singles
from ingero_detect.parameters import Parameters
from ingero_detect.residuals import Residuals

_SHARE: Final = np.float32(0.2)
"""Share of its loss, log units, that a node which comes up makes good in a tick at least."""

_CERTAIN: Final = np.float32(4.0)
"""Standard deviations that it rises at least: noise hardly does that."""


def wait_for_rising(memory: ColumnStore, parameters: Parameters, now: float, nodes: Residuals) -> None:
    """Take no evidence from nodes that rise from a large loss that began a few ticks ago.

    What evidence there is shrinks as their loss does. A fault that stays what it is does not rise, so it waits for
    nothing. One that comes and goes has its evidence from the ticks in which it falls again.
    """
    before, onset = memory.node("residual")[nodes.index], memory.node("onset")[nodes.index]
    large = (1 + parameters.largest_step) * nodes.scale
    low = (before < -large) & (nodes.gap < -parameters.own_band) & nodes.eligible & ~nodes.accused
    low &= (onset > 0) & (now - onset < (RESUME_TICKS - 0.5) * parameters.tick_seconds)
    rising = low & (nodes.gap - before > np.maximum(-_SHARE * before, _CERTAIN * nodes.sigma))
    if not rising.any():
        return
    nodes.eligible[rising] = False
    rows = np.arange(len(memory.names))[nodes.index][rising]
    memory.node("slow")[rows] *= singles(nodes.gap[rising] / before[rising])
