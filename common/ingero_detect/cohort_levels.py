"""The common level and spread of a cohort, and the jobs that lost speed as a whole."""

from typing import Final

import numpy as np

from ingero_detect.calibration import OFFSET_TICKS
from ingero_detect.codes import is_accused
from ingero_detect.column_store import ColumnStore
from ingero_detect.grouped import Singles
from ingero_detect.observation import JobSlow
from ingero_detect.parameters import Parameters
from ingero_detect.reference import Reference
from ingero_detect.sequential_tests import NOTHING, Residuals
from ingero_detect.threshold import MAD_TO_SIGMA

_LATE_PHASE_COUNT: Final = 10
"""Samples that a baseline is worth once the job has entered a new phase."""


def follow_offsets(memory: ColumnStore, ticks: int, absolute: Singles, nodes: Residuals) -> None:
    """Update how far active nodes of a cohort lie apart: a standard deviation, drawn towards 4 % if they are few."""
    column = memory.group("offsets")
    count = nodes.reference.count
    if ticks % OFFSET_TICKS and np.isfinite(column[count > 0]).all():
        return
    deviation = nodes.median(np.abs(absolute))
    spread = np.nan_to_num(deviation, nan=0.0) * MAD_TO_SIGMA
    current = np.sqrt((count * spread**2 + 8 * 0.04**2) / (count + 8))
    rests = (count == 0) | (nodes.median(np.isfinite(nodes.logs).astype(np.float32)) < 0.5)
    column[:] = np.where(rests, column, np.where(np.isnan(column), current, column + 0.1 * (current - column)))


def follow_levels(memory: ColumnStore, parameters: Parameters, reference: Reference, now: float) -> None:
    """Update the scale and the common level; a level that lasts is a new phase of the job."""
    level, scale, ticks = memory.group("level"), memory.group("scale"), memory.group("ticks")
    if len(reference.count) < len(level):
        return
    some = reference.count > 0
    steady = some & ~reference.common
    usual = steady & ~reference.partial & (reference.count >= 2)
    gain = np.maximum(1.0 / (parameters.warmup + ticks + 1), 1 / 60)
    scale[usual] = scale[usual] + gain[usual] * (reference.spread[usual] - scale[usual])
    ticks[usual] += 1
    level[steady] += 0.05 * reference.level[steady]
    moved = memory.group("moved")
    moved[:] = np.where(some & reference.common, moved + 1, np.where(some, 0, moved))
    shift, slow_since = memory.group("shift"), memory.group("slow_since")
    shift *= 1 - min(1.0, parameters.tick_hours)
    nothing = reference.level <= -NOTHING + 0.01  # a job that does nothing pauses; only if that lasts it is a phase
    settled = moved >= np.where(nothing, parameters.warmup, parameters.settle_ticks)
    if settled.any():
        level[settled] += reference.level[settled]
        shift[settled] += reference.level[settled]
        moved[settled] = 0
        accused = is_accused(memory.node("state"))
        calm = settled[memory.node("group")] & (memory.node("group") >= 0) & ~accused
        memory.node("count")[calm] = np.minimum(memory.node("count")[calm], _LATE_PHASE_COUNT)
        memory.node("relearn")[calm] = parameters.warmup
    slow = shift < -0.1
    started = now - parameters.settle_ticks * parameters.tick_seconds
    slow_since[:] = np.where(slow, np.where(slow_since > 0, slow_since, max(started, 1e-9)), 0.0)


def slow_jobs(memory: ColumnStore) -> list[JobSlow]:
    """Groups whose level is lower than it was."""
    found = np.flatnonzero(memory.group("slow_since") > 0).tolist()
    return [
        JobSlow(
            memory.groups[number],
            float(memory.group("slow_since")[number]),
            float(1 - np.exp(memory.group("shift")[number])),
        )
        for number in found
    ]
