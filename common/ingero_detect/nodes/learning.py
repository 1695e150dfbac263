"""Learns what is normal for a node: its baseline in the warm-up, then changes of baseline and noise."""

from typing import Final

import numpy as np
import numpy.typing as npt

from ingero_detect.grouped import Bools, Floats, Ints, clipped, grouped_median, singles
from ingero_detect.nodes.autocorrelation import follow_blocks
from ingero_detect.nodes.calibration import record_warmup
from ingero_detect.nodes.codes import HEALTHY, LEARNING
from ingero_detect.nodes.column_store import ColumnStore
from ingero_detect.nodes.parameters import Parameters
from ingero_detect.nodes.residuals import RISE_TICKS, Residuals
from ingero_detect.reference import Reference
from ingero_detect.threshold import MAD_TO_SIGMA

_LEAKS: Final = 30
"""Ticks below the baseline, minus three for each tick above it. Beyond this a node's deviation is a loss, not noise.
A slow loss that is learnt as noise would hide itself."""

_HIGHEST_RISE: Final = 4.0
"""Standard deviations that a rise counts as at most: a single one says little about the noise."""

_AT_ONCE: Final = 8192
"""Nodes whose warm-up is processed at once, to limit memory."""


def learn_warmup(memory: ColumnStore, parameters: Parameters, rows: Ints, logs: Floats, reference: Reference) -> None:
    """Collect a node's rate relative to its cohort; after the warm-up the median is its baseline.

    While no node of a cohort has a baseline yet, the common change is estimated from the earlier rates of each node,
    so that it does not matter which nodes report in which tick.
    """
    if not len(rows):
        return
    group = memory.node("group")[rows].astype(np.int64)
    level = memory.group("level")
    m = len(memory.groups)
    _, middle = grouped_median(logs[rows], group, m)
    fresh = ~np.isfinite(level) & np.isfinite(middle)
    level[fresh] = middle[fresh]
    window, filled, sofar = memory.window(), memory.node("filled"), memory.node("sofar")
    above = logs[rows] - level[group]
    known = filled[rows] > 0
    _, moved = grouped_median((above - sofar[rows])[known], group[known], m)
    alone = np.where(np.isfinite(moved), moved, 0.0)
    common = np.where(reference.count == 0, alone, reference.level)
    above = above - common[group]
    window[rows, filled[rows]] = above
    filled[rows] += 1
    sofar[rows] += (above - sofar[rows]) / filled[rows]
    done = rows[filled[rows] == parameters.warmup]
    if len(done):
        _finish_warmup(memory, parameters, done)


def _finish_warmup(memory: ColumnStore, parameters: Parameters, done: Ints) -> None:
    """Set baseline and noise from a full window; a node that is as slow as its reported verdict keeps its loss."""
    middle, spread, lagged, squares = _summarise(memory.window(), done)
    echo = memory.node("echo")[done].astype(np.float64)
    ill = np.isfinite(echo) & (middle < -parameters.absolute_band)
    memory.node("baseline")[done] = middle + np.where(ill, echo, 0.0)
    memory.node("own")[done] = spread
    memory.node("learned")[done] = True
    memory.node("count")[done] = parameters.warmup
    state = memory.node("state")
    state[done[state[done] == LEARNING]] = HEALTHY
    group = memory.node("group")[done].astype(np.int64)
    m = len(memory.groups)
    _, typical = grouped_median(spread, group, m)
    scale = memory.group("scale")
    unknown = np.isnan(scale) & np.isfinite(typical)
    scale[unknown] = typical[unknown]
    _note_large_losses(memory, parameters, done, middle)
    memory.group("lagged")[:] += np.bincount(group, lagged, m)
    memory.group("squares")[:] += np.bincount(group, squares, m)
    if not (memory.node("used") & ~memory.node("learned")).any():
        memory.end_of_learning()


def _note_large_losses(memory: ColumnStore, parameters: Parameters, done: Ints, middle: Floats) -> None:
    """Count the large losses within the warm-up of these nodes: of noise with a long tail they tell at once."""
    scale = np.maximum(memory.group("scale")[memory.node("group")[done]], 0.5 * parameters.own_band)
    for start in range(0, len(done), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        deviation = memory.window()[done[part]] - middle[part, None]
        record_warmup(memory, parameters, done[part], deviation, scale[part])


def _summarise(window: npt.NDArray[np.float16], rows: Ints) -> tuple[Floats, Floats, Floats, Floats]:
    """Median, spread and the two sums of the lag-one correlation of every row's warm-up; in parts, to save memory."""
    middle, spread, lagged, squares = (np.empty(len(rows)) for _ in range(4))
    for start in range(0, len(rows), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        values = window[rows[part]].astype(np.float64)
        middle[part] = np.median(values, axis=1)
        centred = values - middle[part, None]
        spread[part] = np.median(np.abs(centred), axis=1) * MAD_TO_SIGMA
        bounded = clipped(centred / np.maximum(spread[part], 1e-12)[:, None], -3, 3)
        lagged[part] = (bounded[:, 1:] * bounded[:, :-1]).sum(axis=1)
        squares[part] = (bounded[:, 1:] ** 2).sum(axis=1)
    return middle, spread, lagged, squares


def update_baselines(memory: ColumnStore, parameters: Parameters, ticks: int, nodes: Residuals, calm: Bools) -> None:
    """Update baseline, noise and autocorrelation of nodes without evidence against them (`calm`, by judged node)."""
    at = nodes.index
    _follow_node(memory, parameters, nodes, calm)
    memory.node("count")[at] += calm
    for name in ("relearn", "grace"):
        left = memory.node(name)
        left[at] = np.maximum(left[at] - nodes.fresh, 0)
    _follow_lag(memory, nodes, calm)
    _follow_rises(memory, nodes)
    counts = ~nodes.accused & nodes.ready & nodes.eligible & ~nodes.reference.common[nodes.group]
    follow_blocks(memory, ticks, at, nodes.group, counts, nodes.gap / nodes.sigma)


def _follow_node(memory: ColumnStore, parameters: Parameters, nodes: Residuals, calm: Bools) -> None:
    """Update baseline and mean deviation of every calm node."""
    at, gap, sigma = nodes.index, nodes.gap, nodes.sigma
    newest = 1.0 / singles(np.maximum(nodes.known, 1))
    furthest = 2 * sigma
    step = np.maximum(newest, 1.0 / parameters.baseline_ticks) * np.minimum(np.maximum(gap, -furthest), furthest)
    baseline = nodes.baseline + step * calm
    if nodes.new.any():
        baseline = _without_new_phase(memory, nodes, baseline)
        filled = memory.node("filled")
        filled[at] = np.minimum(filled[at] + (nodes.new & calm), parameters.warmup)
    memory.node("baseline")[at] = baseline
    own = memory.node("own")[at]
    deviation = np.minimum(np.abs(gap), 4 * np.maximum(sigma, 0.2 * nodes.scale))
    change = (1.2533 * deviation - own) * calm
    lower = memory.node("lower")[at] + np.where(gap < 0, np.int16(1), np.int16(-3))
    memory.node("lower")[at] = lower = clipped(lower, 0, 2 * _LEAKS)
    change = np.where((lower > _LEAKS) & (gap < 0), np.minimum(change, 0), change)
    gain = np.where(nodes.restless, np.float32(1 / (2 * RISE_TICKS)), np.float32(1 / 300))
    memory.node("own")[at] = own + np.maximum(newest, gain) * change


def _follow_rises(memory: ColumnStore, nodes: Residuals) -> None:
    """Average by what nodes rise above their baselines, and above what they were at in the tick before."""
    at, before = nodes.index, memory.node("residual")[nodes.index]
    steady = nodes.ready & nodes.fresh & ~nodes.new & ~nodes.reference.common[nodes.group] & np.isfinite(before)
    rise = np.maximum(np.minimum(nodes.gap, _HIGHEST_RISE * nodes.sigma) - np.maximum(before, 0), 0)
    column = memory.node("rise")
    column[at] += np.where(steady, (rise - column[at]) / np.float32(RISE_TICKS), np.float32(0))


def _without_new_phase(memory: ColumnStore, nodes: Residuals, baseline: Floats) -> Floats:
    """The baselines without what a new phase adds to them, which is kept apart until it has lasted."""
    at, new = nodes.index, nodes.new
    before, sofar, count = (memory.node(name)[at] for name in ("baseline", "sofar", "count"))
    lasted = new & (memory.node("relearn")[at] == 1) & nodes.fresh
    memory.node("sofar")[at] = np.where(new, baseline - before, sofar)
    memory.node("count")[at] = np.where(lasted, nodes.known, count)
    return np.where(new & ~lasted, before, baseline)


def _follow_lag(memory: ColumnStore, nodes: Residuals, calm: Bools) -> None:
    """Update the two sums of every group whose ratio is its lag-one autocorrelation."""
    previous = memory.node("previous")[nodes.index]
    current = np.where(calm, np.minimum(np.maximum(nodes.gap / nodes.sigma, -3), 3), np.float32(np.nan))
    both = np.isfinite(current) & np.isfinite(previous)
    for name, other in (("lagged", previous), ("squares", current)):
        column = memory.group(name)
        column *= 1 - 1 / 500
        column += np.bincount(nodes.group, np.where(both, current * other, np.float32(0)), len(column))
    memory.node("previous")[nodes.index] = np.where(nodes.fresh, current, previous)
