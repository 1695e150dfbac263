"""The common level and spread of a cohort, and the jobs that lost speed as a whole."""

from typing import Final

import numpy as np

from ingero_detect.grouped import Singles, filled
from ingero_detect.nodes.calibration import OFFSET_TICKS
from ingero_detect.nodes.codes import is_accused
from ingero_detect.nodes.cohort_assignment import learn_anew
from ingero_detect.nodes.column_store import ColumnStore
from ingero_detect.nodes.observation import JobSlow
from ingero_detect.nodes.parameters import Parameters
from ingero_detect.nodes.residuals import NOTHING, Residuals
from ingero_detect.reference import APART, Reference
from ingero_detect.threshold import MAD_TO_SIGMA

_REST_TICKS: Final = 360
"""Ticks after which a job whose nodes all work, and lost very different parts of their rates, counts as another job.
Until then it rests."""

_LEVEL_GAIN: Final = 0.2
_TREND_GAIN: Final = 0.01
"""Gains of the level and of its trend (Holt 1957), critically damped: a load that changes by a few per cent a tick,
as over a day, is followed, and one that changes at once is a common move."""


def follow_offsets(memory: ColumnStore, ticks: int, absolute: Singles, nodes: Residuals) -> None:
    """Update how far active nodes of a cohort lie apart: a standard deviation, drawn towards 4 % if they are few."""
    column = memory.group("offsets")
    count = nodes.reference.count
    if ticks % OFFSET_TICKS and np.isfinite(column[count > 0]).all():
        return
    deviation = nodes.median(np.abs(absolute))
    spread = filled(deviation, 0.0) * MAD_TO_SIGMA
    current = np.sqrt((count * spread**2 + 8 * 0.04**2) / (count + 8))
    rests = (count == 0) | (nodes.median(np.isfinite(nodes.logs).astype(np.float32)) < 0.5)
    column[:] = np.where(rests, column, np.where(np.isnan(column), current, column + 0.1 * (current - column)))


def _end_of_rest(memory: ColumnStore, number: int, *, long: bool) -> float | None:
    """The new level of a group that has rested, as a distance from the present one, log units, if its nodes agree.

    None if it goes on resting. If nodes that work have differed for `long`, each is learnt anew.
    """
    rows = np.flatnonzero((memory.node("group") == number) & memory.node("learned") & (memory.node("absent") == 0))
    with np.errstate(divide="ignore"):
        logs = np.log(memory.node("value")[rows]) - memory.node("baseline")[rows] - memory.group("level")[number]
    if not len(rows) or not np.isfinite(logs).all():
        return None
    middle = float(np.median(logs))
    if float(np.median(np.abs(logs - middle))) * MAD_TO_SIGMA <= APART:
        return middle
    if long:
        learn_anew(memory, rows)
    return None


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
    trend = memory.group("trend")
    level[steady] += trend[steady] + _LEVEL_GAIN * reference.level[steady]
    trend[steady] += _TREND_GAIN * reference.level[steady]
    trend[~some] = 0.0
    moved = memory.group("moved")
    rests = reference.common & (reference.apart | (reference.level <= -NOTHING + 0.01))
    step = np.where(rests, np.minimum(moved, 0) - 1, np.where(reference.common, np.maximum(moved, 0) + 1, 0))
    moved[:] = np.where(some, step, moved)
    shift, slow_since = memory.group("shift"), memory.group("slow_since")
    shift *= 1 - min(1.0, parameters.tick_hours)
    settled, change = moved >= parameters.settle_ticks, reference.level.copy()
    for number in np.flatnonzero((moved < 0) & (moved % parameters.warmup == 0)).tolist():
        new_level = _end_of_rest(memory, number, long=bool(moved[number] <= -_REST_TICKS))
        if new_level is not None:
            settled[number], change[number] = True, new_level
    if settled.any():
        level[settled] += change[settled]
        shift[settled] += change[settled]
        moved[settled] = 0
        accused = is_accused(memory.node("state"))
        calm = settled[memory.node("group")] & (memory.node("group") >= 0) & memory.node("learned") & ~accused
        memory.node("relearn")[calm] = parameters.warmup
        memory.node("sofar")[calm] = 0.0
        memory.node("filled")[calm] = 0
    _note_level_of_baselines(memory, parameters, reference)
    slow = shift < -0.1
    started = now - parameters.settle_ticks * parameters.tick_seconds
    slow_since[:] = np.where(slow, np.where(slow_since > 0, slow_since, max(started, 1e-9)), 0.0)


def _note_level_of_baselines(memory: ColumnStore, parameters: Parameters, reference: Reference) -> None:
    """Follow the level at which baselines were learnt, and whether the job is back at it after another phase."""
    level, learnt, group = memory.group("level"), memory.group("learnt"), memory.node("group")
    new = (memory.node("relearn") > 0) & (group >= 0)
    still = (np.bincount(group[new], minlength=len(level)) == 0) & (reference.count > 0) & ~reference.common
    learnt[still] = level[still]
    now = level + np.where(reference.common, reference.level, 0.0)
    memory.group("back")[:] = np.abs(now - learnt) <= parameters.own_band
    usual = memory.group("usual_level")
    followed = usual + (level - usual) / parameters.baseline_ticks
    usual[:] = np.where(still & np.isfinite(usual), followed, level)


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
