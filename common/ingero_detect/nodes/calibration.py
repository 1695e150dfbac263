"""Measures what healthy nodes do by chance and sets the alarm levels; the mathematics is in `false_alarm_budget`.

It keeps histograms of the peaks and steps of the evidence by group and side (`slow` and its mirror `fast`), of
large losses that ended by themselves, and the node-hours behind them. They decay with a half-life of two days.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from ingero_detect.grouped import Bools, Floats, Ints, Singles, clipped, filled, singles
from ingero_detect.nodes import false_alarm_budget
from ingero_detect.nodes.autocorrelation import autocorrelation
from ingero_detect.nodes.column_store import NO_STEPS, RUNS, STEP_BITS, STEPS_KEPT, ColumnStore
from ingero_detect.nodes.parameters import Parameters
from ingero_detect.nodes.residuals import Residuals
from ingero_detect.nodes.sequential_tests import LONGEST_PAUSE, Bounds, CollapseTest, OwnTest

OFFSET_TICKS: Final = 12
"""Ticks between two measurements of the spread of a cohort's nodes, and at least between two calibrations."""

_CALIBRATED: Final = 64
"""Groups that a tick recalibrates in a large fleet; in a small one each group is due every `OFFSET_TICKS` ticks."""

_SAMPLE: Final = 8192
"""Nodes whose steps are counted in one tick."""

SHORT_RUN: Final = 12
"""Ticks. An accusation that ends by itself within this time counts as chance."""

_NO_STEP: Final = (1 << STEP_BITS) - 1
_SHIFTS: Final = STEP_BITS * np.arange(STEPS_KEPT, dtype=np.uint32)
"""The value of an empty place in `last_steps`, and where each place begins."""

_STEEP_TICKS: Final = 100.0
"""Ticks over which the share is averaged that large losses take."""

_HALF_LIFE_HOURS: Final = 48.0

_ADAPTS: Final = (2000.0, 400.0)
"""Node-ticks, and at least ticks, in which a level adapts to more noise."""

_STEADY_TICKS: Final = 2000.0
"""Ticks in which the memory that the noise of a group has grown fades to a third."""

_YOUNG_TICKS: Final = 100
"""Ticks in which a group's usual noise is still being learnt."""

_ALIKE: Final = 1.15
_UNLIKE: Final = 1.4
"""How much wider the band was, in standard deviations: up to where a level learnt then counts, and from where not."""


def alarm_levels(memory: ColumnStore, parameters: Parameters, ticks: int, nodes: Residuals) -> tuple[Floats, Singles]:
    """The alarm level of every group, and of every node; each tick recalibrates some groups.

    A node that is noisier than the cohort was while its level was learnt has a higher one.
    """
    wanted = 1 / (parameters.budget * parameters.tick_hours)
    first = false_alarm_budget.initial_levels(wanted, nodes.drift, parameters.largest_step)
    _note_growth(memory, nodes)
    alarm = memory.group("alarm")
    alarm[np.isnan(alarm)] = first[np.isnan(alarm)]
    period = max(OFFSET_TICKS, len(alarm) // _CALIBRATED)
    part = slice(ticks % period, None, period)
    hours = memory.group("hours")[part]
    if len(hours):
        peaks, steps = (
            [memory.group(f"{table}_{side}")[part] for side in ("slow", "fast")] for table in ("peaks", "steps")
        )
        twice = ([each, each] for each in (hours, nodes.past.left[part], _steady(memory)[part]))
        of_both, unseen, steady = (np.concatenate(each) for each in twice)
        fitted = false_alarm_budget.fit_tail(
            np.concatenate(peaks), np.concatenate(steps), of_both, unseen, parameters.budget, steady
        )
        judged = hours / parameters.tick_hours
        alarm[part] = false_alarm_budget.calibrated_levels(fitted.parts(2), judged, parameters.budget, first[part])
        runs, by_chance = memory.group("runs")[part], memory.group("chance_runs")[part]
        allowed = parameters.budget * hours
        memory.group("confirm")[part] = false_alarm_budget.confirming_ticks(runs, by_chance, allowed)
        fade = 0.5 ** (period * parameters.tick_hours / _HALF_LIFE_HOURS)
        for table in (*peaks, *steps, runs, by_chance, hours):
            table *= fade
    missing = np.maximum(first - alarm, 0.0)
    of_groups, of_nodes = _learnt_in_less_noise(memory, parameters, nodes)
    group = nodes.group
    return alarm + of_groups * missing, singles(alarm)[group] + of_nodes * singles(missing)[group]


def _note_growth(memory: ColumnStore, nodes: Residuals) -> None:
    """Note the groups whose noise has grown at once: what is seen of it between two such times says little."""
    growth = memory.group("growth")
    grown = nodes.grown & (memory.group("ticks") > _YOUNG_TICKS)
    growth[:] = np.where(grown, np.float32(1.0), growth * np.float32(1 - 1 / _STEADY_TICKS))


def _steady(memory: ColumnStore) -> Bools:
    """By group: whether its noise has not grown for about five times `_STEADY_TICKS`."""
    steady: Bools = memory.group("growth") < false_alarm_budget.FORGOTTEN
    return steady


def _learnt_in_less_noise(memory: ColumnStore, parameters: Parameters, nodes: Residuals) -> tuple[Floats, Singles]:
    """By group and by node, from 0 to 1, how much of the alarm level was learnt while the band was wider, in standard
    deviations.

    A level for noise that the band mostly covers is low, and too low when the noise of the group grows. Until such
    ticks have been seen, the level is at least that of a group without data.
    """
    count, lenience = nodes.reference.count, memory.group("lenience")
    now = np.maximum(nodes.drift, parameters.own_band / nodes.usual)
    node_ticks, least_ticks = _ADAPTS
    gain = np.minimum(1 / least_ticks, count / node_ticks)
    lenience[:] = np.where(np.isnan(lenience), now, lenience + gain * (now - lenience))
    own = np.maximum(singles(nodes.drift)[nodes.group], np.float32(parameters.own_band) / nodes.scale)
    of_groups, of_nodes = (
        clipped((before / band - _ALIKE) / (_UNLIKE - _ALIKE), 0.0, 1.0)
        for before, band in ((lenience, now), (singles(lenience)[nodes.group], own))
    )
    return of_groups, np.maximum(of_nodes, singles(of_groups)[nodes.group])


def record_tick(
    memory: ColumnStore, parameters: Parameters, ticks: int, nodes: Residuals, bounds: Bounds, own: OwnTest,
    collapse: CollapseTest,
) -> None:  # fmt: skip
    """Add a tick to the histograms; call it before the tick's evidence is stored."""
    free = ~nodes.accused & nodes.ready & nodes.eligible
    for side, evidence in (("slow", own.slow), ("fast", own.fast)):
        _record_peaks(memory, side, nodes, free, evidence)
    _record_steps(memory, ticks, nodes, free, bounds)
    lasted = collapse.steep_before
    ended = (lasted > 0) & (collapse.steep == 0) & (lasted <= LONGEST_PAUSE) & ~nodes.accused
    if ended.any():
        _record_runs(memory, parameters, nodes.group[ended], lasted[ended])
    judged = np.bincount(nodes.group[~nodes.accused & nodes.fresh], minlength=len(nodes.level))
    memory.group("hours")[:] += judged * parameters.tick_hours
    memory.group("chance_runs")[:] += _lasting_by_chance(memory, judged)
    memory.group("steep_share")[:] *= 1 - 1 / _STEEP_TICKS


def record_warmup(memory: ColumnStore, parameters: Parameters, rows: Ints, deviation: Floats, scale: Floats) -> None:
    """Count the large losses of the warm-up that ended by themselves. `deviation`: (rows, ticks), log units."""
    steep = np.zeros((len(rows), deviation.shape[1] + 2), np.int8)
    steep[:, 1:-1] = -deviation > (1 + parameters.largest_step) * scale[:, None]
    change = np.diff(steep, axis=1)
    row, begin = np.nonzero(change == 1)
    end = np.nonzero(change == -1)[1]
    ticks, group = end - begin, memory.node("group")[rows[row]].astype(np.int64)
    short = (ticks <= LONGEST_PAUSE) & (end < deviation.shape[1])
    if short.any():
        _record_runs(memory, parameters, group[short], ticks[short], deviation.shape[1])
        seen = np.bincount(memory.node("group")[rows], minlength=len(memory.groups)) * deviation.shape[1]
        memory.group("chance_runs")[:] += _lasting_by_chance(memory, seen)


def _count(histograms: npt.NDArray[np.float32], group: Ints, bins: Ints) -> None:
    """Add one to these bins of these groups."""
    cells = histograms.reshape(-1)
    np.add.at(cells, group * histograms.shape[1] + bins, np.float32(1))


def _record_runs(
    memory: ColumnStore, parameters: Parameters, group: Ints, ticks: Ints, of: float = _STEEP_TICKS
) -> None:
    """Count large losses that ended by themselves after so many `ticks`, `of` which their share is taken."""
    runs = memory.group("runs")
    _count(runs, group, np.minimum(ticks, RUNS - 1))
    lasted = np.bincount(group, ticks, len(runs))
    memory.group("steep_share")[:] += lasted / (of * np.maximum(memory.group("size"), 1))
    allowed = parameters.budget * memory.group("hours")[group]
    by_chance = memory.group("chance_runs")[group]
    memory.group("confirm")[group] = false_alarm_budget.confirming_ticks(runs[group], by_chance, allowed)


def _lasting_by_chance(memory: ColumnStore, judged: Ints) -> Floats:
    """By group and length, of so many `judged` ticks of nodes, how many begin such a large loss if each is chance."""
    lasting: Floats = judged[:, None] * memory.group("steep_share")[:, None] ** np.arange(RUNS)
    return lasting


def _record_peaks(memory: ColumnStore, side: str, nodes: Residuals, free: Bools, evidence: Singles) -> None:
    """Count the peak of evidence that has returned to zero."""
    column = memory.node(f"{side}_peak")
    peak = column[nodes.index]
    ended = (memory.node(side)[nodes.index] > 0) & (evidence <= 0) & free
    if ended.any():
        _count(
            memory.group(f"peaks_{side}"),
            nodes.group[ended],
            false_alarm_budget.bins_of(peak[ended].astype(np.float64)),
        )
    column[nodes.index] = np.maximum(peak, evidence) * (evidence > 0)


def _record_steps(memory: ColumnStore, ticks: int, nodes: Residuals, free: Bools, bounds: Bounds) -> None:
    """Count what the tick added on both sides, of a sample of nodes; a few thousand are enough for a large fleet."""
    rows = np.flatnonzero(free)
    stride = 1 + len(rows) // _SAMPLE
    rows = rows[ticks % stride :: stride]
    group, cap = nodes.group[rows], bounds.cap[rows]
    slow, fast = (false_alarm_budget.step_bins_of(np.minimum(bounds.steps.later[side][rows], cap)) for side in (0, 1))
    _count(memory.group("steps_slow"), group, slow)
    _count(memory.group("steps_fast"), group, fast)
    latest = np.full(len(nodes.group), _NO_STEP, np.uint32)
    latest[rows] = slow
    kept, at = memory.node("last_steps"), nodes.index
    kept[at] = np.where(free, (kept[at] << STEP_BITS | latest) & NO_STEPS, kept[at])


def _bins(last: npt.NDArray[np.uint32]) -> Ints:
    """The bins in `last_steps`, latest first, (nodes, `STEPS_KEPT`)."""
    return (last[:, None] >> _SHIFTS & _NO_STEP).astype(np.int64)


def _recount(memory: ColumnStore, rows: Ints, bins: Ints, times: float) -> None:
    """Count steps of these nodes again, or no longer. `bins`: (nodes, `STEPS_KEPT`)."""
    steps, group = memory.group("steps_slow"), memory.node("group")[rows].astype(np.int64)
    node, place = np.nonzero(bins < steps.shape[1])
    np.add.at(steps, (group[node], bins[node, place]), np.float32(times))
    np.maximum(steps, 0.0, out=steps)  # they have faded since they were counted


def discount_steps(memory: ColumnStore, rows: Ints) -> None:
    """What nodes that are now accused added since the onset, in the last five ticks at most, was no chance."""
    since = np.maximum(memory.node("spell")[rows], memory.node("run")[rows])
    bins = _bins(memory.node("last_steps")[rows])
    bins[np.arange(STEPS_KEPT) >= since[:, None]] = _NO_STEP
    _recount(memory, rows, bins, -1.0)
    memory.node("last_steps")[rows] = (bins.astype(np.uint32) << _SHIFTS).sum(axis=1)


def record_short_losses(memory: ColumnStore, parameters: Parameters, rows: Ints) -> None:
    """Count pauses that accused a node, once they have ended."""
    steep = memory.node("steep")
    lasted = np.rint((memory.node("well_since")[rows] - memory.node("since")[rows]) / parameters.tick_seconds)
    short = (steep[rows] > 0) & (lasted <= LONGEST_PAUSE)
    steep[rows] = 0
    if short.any():
        ticks = np.maximum(lasted[short].astype(np.int64), 1)
        _record_runs(memory, parameters, memory.node("group")[rows[short]].astype(np.int64), ticks)


def record_idle_pauses(memory: ColumnStore, parameters: Parameters, rows: Ints, ticks: Ints) -> None:
    """Count the pauses of nodes that were idle alone for so many `ticks` (by slot), and no longer are."""
    rows = rows[ticks[rows] <= LONGEST_PAUSE]
    if len(rows):
        _record_runs(memory, parameters, memory.node("group")[rows].astype(np.int64), ticks[rows].astype(np.int64))


def record_short_alarms(memory: ColumnStore, parameters: Parameters, rows: Ints) -> None:
    """Count accusations that ended by themselves within a minute as chance: their peaks count against the budget.

    So do the steps that led to them.
    """
    lasted = (memory.node("well_since")[rows] - memory.node("since")[rows]) / parameters.tick_seconds
    chance = rows[lasted <= SHORT_RUN]
    _recount(memory, chance, _bins(memory.node("last_steps")[chance]), 1.0)
    memory.node("last_steps")[rows] = NO_STEPS
    chance = chance[memory.node("reached")[chance] > 0]
    bins = false_alarm_budget.bins_of(memory.node("reached")[chance].astype(np.float64))
    _count(memory.group("peaks_slow"), memory.node("group")[chance], bins)


def estimates(memory: ColumnStore, budget: float, theory: float) -> dict[str, float]:
    """Estimated false alarms per node-hour at the present levels, from the test and from the mirrored test."""
    hours, alarm = memory.group("hours"), filled(memory.group("alarm"), theory)
    total, unseen, steady = float(hours.sum()), autocorrelation(memory).left, _steady(memory)
    found = {}
    for name, side in (("own_tail", "slow"), ("mirror", "fast")):
        found[name] = 0.0
        if total > 0:
            peaks, steps = memory.group(f"peaks_{side}"), memory.group(f"steps_{side}")
            tail = false_alarm_budget.fit_tail(peaks, steps, hours, unseen, budget, steady)
            found[name] = float((tail.rate(alarm) * hours).sum() / total)
    return found
