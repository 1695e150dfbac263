"""Nodes that come up after a restart: from a large loss they rise, tick by tick, towards their usual rate."""

from typing import Final

import numpy as np

from ingero_detect.grouped import singles
from ingero_detect.nodes.cohort_assignment import RESUME_TICKS
from ingero_detect.nodes.column_store import ColumnStore
from ingero_detect.nodes.parameters import Parameters
from ingero_detect.nodes.residuals import Residuals

_SHARE: Final = np.float32(0.2)
"""Share of its loss, log units, that a node which comes up makes good in a tick at least."""

_LEFT: Final = np.float32(0.5)
"""Share of its mean loss since the onset that is left at most where that cannot be told from one tick to the next."""

_CERTAIN: Final = np.float32(4.0 * 2**0.5)
"""Standard deviations that it rises at least: four of the difference of two ticks, which noise hardly does."""


def wait_for_rising(memory: ColumnStore, parameters: Parameters, now: float, nodes: Residuals) -> None:
    """Take no evidence from nodes that rise from a large loss that began a few ticks ago.

    What evidence there is shrinks as their loss does. A fault that stays what it is does not rise, so it waits for
    nothing. One that comes and goes has its evidence from the ticks in which it falls again.
    """
    at, gap = nodes.index, nodes.gap
    onset, spell = memory.node("onset")[at], memory.node("spell")[at] + 1
    low = (onset > 0) & (now - onset < (RESUME_TICKS - 0.5) * parameters.tick_seconds)
    low &= (gap < -parameters.own_band) & nodes.eligible & ~nodes.accused
    if not low.any():
        return
    before, mean = memory.node("residual")[at], singles((gap - memory.node("shortfall")[at]) / spell)
    large, certain = -(1 + parameters.largest_step) * nodes.scale, _CERTAIN * nodes.sigma
    rising = (before < large) & (gap - before > np.maximum(-_SHARE * before, certain))
    risen = (mean < large) & (gap - mean > np.maximum(-_LEFT * mean, certain))
    waits = low & (rising | risen)
    if not waits.any():
        return
    nodes.eligible[waits] = False
    rows = np.arange(len(memory.names))[at][waits]
    memory.node("slow")[rows] *= gap[waits] / np.minimum(before, gap)[waits]
    memory.node("shortfall")[rows] -= gap[waits]
    memory.node("spell")[rows] = spell[waits]
