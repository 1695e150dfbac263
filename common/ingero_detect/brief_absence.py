"""Nodes that missed a few reports and come back with a large loss: they have restarted, and need time to come up."""

import numpy as np

from ingero_detect.cohort_assignment import JUST_BACK, begin_anew
from ingero_detect.column_store import ColumnStore
from ingero_detect.parameters import Parameters
from ingero_detect.residuals import Residuals


def give_time_to_come_up(memory: ColumnStore, parameters: Parameters, nodes: Residuals) -> None:
    """Take no evidence for a while from nodes that are just back, do much less than usual, and did not before."""
    at = nodes.index
    back = (memory.node("grace")[at] == JUST_BACK) & ~nodes.accused
    if not back.any():
        return
    far = np.maximum(parameters.absolute_band, (1 + parameters.largest_step) * nodes.scale)
    restarted = back & (nodes.gap < -far) & ~(memory.node("residual")[at] < -0.5 * far)
    if restarted.any():
        rows = np.zeros(len(memory.names), np.bool_)
        rows[np.arange(len(rows))[at][restarted]] = True
        begin_anew(memory, parameters, rows)
        nodes.ready[restarted] = False
