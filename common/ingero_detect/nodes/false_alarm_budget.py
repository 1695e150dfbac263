"""Computes the level at which the sequential test alarms from a budget of false alarms.

It starts from theory (Siegmund 1985, average run length of a one-sided CUSUM) and then measures the fleet itself: the
peaks of the evidence between two returns to zero on nodes that are not accused, and the peaks of the mirrored test,
which can only alarm by chance because no straggler is too fast (target-decoy competition; Barber and Candes 2015 for
the idea).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingero_detect.grouped import Bools, Floats, Ints, clipped

BIN: Final = 0.25
BINS: Final = 160
"""Histogram of peaks: bins of a quarter standard deviation; the last one holds everything higher."""

Histogram = npt.NDArray[np.floating[Any]]

EDGES: Final = np.arange(BINS) * BIN

SAFETY_FACTOR: Final = 1.5
"""Factor on the theoretical level while a cohort has too few ticks of its own to estimate from."""

TWO_STEPS: Final = 1.8
"""Upper limit of that level, in largest steps: two very bad ticks accuse a node in however young a cohort.

It is below 2 because the level that is fitted to the first few hundred ticks is pessimistic too and needs room.
"""

PRIOR_TICKS: Final = 300.0
"""Node-ticks at which the cohort's own data and theory have the same weight, where the data allow a lower level.

They are few, and the weight of theory falls with their square, because the fit is itself cautious while there are few
data.
"""

PRIOR_TICKS_ABOVE: Final = 1000.0
"""The same where the data ask for a higher level: a young cohort still accuses after two very bad ticks."""

STEP_BIN: Final = 0.25
STEP_BINS: Final = 48
LOWEST_STEP: Final = -7.0
"""Histogram of what one tick adds to the evidence, from -7 to 5 standard deviations."""

UNSEEN_BEYOND: Final = int(2.0 / STEP_BIN)
"""Bins between the largest step that was seen and the one that counts as possible although it was not."""

LEAST_UNSEEN: Final = int((1.0 - LOWEST_STEP) / STEP_BIN) - 1
"""The lowest bin of that step: one standard deviation above the reference value."""

FORGOTTEN: Final = 0.01
"""A bin whose faded count is below this counts as empty."""

STEPS: Final = LOWEST_STEP + STEP_BIN * (np.arange(STEP_BINS) + 0.5)

TAIL_DEPTHS: Final = (30.0, 100.0, 500.0)
"""Numbers of highest peaks to which an exponential tail is fitted; the most pessimistic fit counts."""

PLAIN_DEPTH: Final = TAIL_DEPTHS[0]
"""The only one of them for plain noise (see `is_plain`), whose tail the highest peaks describe best."""

HIGHEST_STEPS: Final = 20.0
"""Number of largest steps of plain noise whose mean excess tells how far beyond the largest one the next may be."""

NEAR: Final = 0.75
"""Share of the level from which a single step is large: no more may be added at once."""

FEW_NEAR: Final = 2e-5
"""Share of steps that may be large in plain noise."""

DIFFUSION_DEPTH: Final = 5.0
"""Number of highest peaks beyond which evidence is taken to decay as that of a walk with the same autocorrelation."""

CORRELATED: Final = 1.5
"""Variance in the long run over that of single steps, from which the steps do not count as independent."""

LOWEST_LEVEL: Final = 1.5
HIGHEST_LEVEL: Final = 30.0

_OVERSHOOT: Final = 1.166
"""Siegmund's correction for the overshoot over both barriers."""


def average_run_length(level: float, drift: float) -> float:
    """Mean ticks between false alarms of a CUSUM on independent standard normal values (Siegmund 1985, eq. 2.57)."""
    exponent = 2 * drift * (level + _OVERSHOOT)
    return (math.exp(exponent) - exponent - 1) / (2 * drift * drift)


def theoretical_level(ticks: float, drift: float) -> float:
    """The level whose mean run length is `ticks`, by bisection to 1e-9."""
    low, high = 0.0, 60.0
    while high - low > 1e-9:
        middle = 0.5 * (low + high)
        if average_run_length(middle, drift) < ticks:
            low = middle
        else:
            high = middle
    return high


def initial_level(theory: float, largest_step: float) -> float:
    """The level of a cohort without data: the theoretical level times `SAFETY_FACTOR`, with an upper limit."""
    return min(max(theory, min(SAFETY_FACTOR * theory, TWO_STEPS * largest_step)), HIGHEST_LEVEL)


def bins_of(peaks: Floats) -> Ints:
    """The bin of every peak."""
    return np.minimum((peaks / BIN).astype(np.int64), BINS - 1)


def step_bins_of(steps: Floats) -> Ints:
    """The bin of every step: what a tick added to a node's evidence."""
    return clipped(((steps - LOWEST_STEP) / STEP_BIN).astype(np.int64), 0, STEP_BINS - 1)


def _largest(steps: Histogram) -> Ints:
    """The bin of the largest step that was seen, by cohort."""
    largest: Ints = np.where(steps >= FORGOTTEN, np.arange(STEP_BINS), 0).max(axis=1)
    return largest


def _from_each_bin(values: Histogram) -> Floats:
    """The sum of what is in each bin and the higher ones, by row."""
    summed: Floats = values[:, ::-1].cumsum(axis=1)[:, ::-1]
    return summed


def _highest(histogram: Histogram, above: Floats, *numbers: Floats | float) -> list[tuple[Ints, Floats]]:
    """The highest bin from which on there are so many, and by how many bins these exceed it in all, by row.

    One pair for each number. `above`: how many there are from each bin on. Bin -1 where there are fewer.
    """
    summed = _from_each_bin(histogram * (np.arange(histogram.shape[1]) + 0.5))
    rows, found = np.arange(len(histogram)), []
    for number in numbers:
        chosen: Ints = (above >= number).sum(axis=1) - 1
        start = np.maximum(chosen, 0)
        found.append((chosen, summed[rows, start] - above[rows, start] * start))
    return found


def _mean_excess(steps: Histogram) -> Floats:
    """By how many bins the `HIGHEST_STEPS` exceed the least of them, in the mean, by cohort."""
    above = _from_each_bin(steps.astype(np.float64))
    ((chosen, excess),) = _highest(steps, above, np.minimum(HIGHEST_STEPS, above[:, :1]))
    mean: Floats = excess / np.maximum(above[np.arange(len(steps)), np.maximum(chosen, 0)], FORGOTTEN)
    return mean


def tail_exponent(steps: Histogram, unseen: Floats | float = 1.0, plain: Bools | bool = False) -> Floats:
    """The rate at which the chance of high evidence decays, by cohort, from histograms (cohorts, STEP_BINS) of steps.

    It is the positive root of E[exp(theta step)] = 1 (the Cramer-Lundberg equation of a reflected random walk). An
    event that was not seen in n independent ticks may still happen once in n, so a step of two standard deviations
    more than the largest is added: as often as `unseen` says, the number of ticks that tell as much as one
    independent sample. In `plain` noise that step is larger by as much as the largest steps exceed each other, which
    is the expected distance of a record from the one before where a tail is exponential. The function is convex and
    Newton's method starts to the right of the root; the result is limited to 0.05 to 20.
    """
    counts = steps.astype(np.float64)
    beyond = np.where(plain, np.rint(_mean_excess(steps)).astype(np.int64), UNSEEN_BEYOND)
    place = clipped(_largest(steps) + beyond, LEAST_UNSEEN, STEP_BINS - 1)
    counts[np.arange(len(counts)), place] += unseen
    share = counts / counts.sum(axis=1, keepdims=True)
    up = STEPS > 0
    with np.errstate(divide="ignore"):
        bounds = np.where(share[:, up] > 0, -np.log(share[:, up]) / STEPS[up], np.inf)
    theta = np.minimum(bounds.min(axis=1), 20.0)
    for _ in range(12):
        grown = share * np.exp(theta[:, None] * STEPS)
        slope = (grown * STEPS).sum(axis=1)
        theta = np.where(slope > 1e-9, theta - (grown.sum(axis=1) - 1) / np.maximum(slope, 1e-9), theta)
    return clipped(theta, 0.05, 20.0)


def diffusion_exponent(steps: Histogram, ratio: Floats | float) -> Floats:
    """The same rate for steps that are not independent: a walk with this mean and long-run variance decays so.

    `ratio` is the variance in the long run over that of single steps.
    """
    share = steps / np.maximum(steps.sum(axis=1, keepdims=True), 1e-9)
    mean = share @ STEPS
    variance = np.maximum(share @ STEPS**2 - mean**2, 1e-9)
    return clipped(-2 * mean / (variance * ratio), 0.05, 20.0)


@dataclass(frozen=True)
class Tail:
    """How often evidence exceeds a level by chance, by cohort: exp(`log_rate` - `exponent` x level) per node-hour.

    There are two estimates, and the more pessimistic one counts: from steps taken as independent, and from the peaks
    and the autocorrelation of the steps.
    """

    log_rate: Floats
    exponent: Floats
    seen_log_rate: Floats
    seen_exponent: Floats

    def parts(self, number: int) -> "list[Tail]":
        """So many tails, each of as many cohorts."""
        return [Tail(*part) for part in zip(*(np.split(each, number) for each in vars(self).values()), strict=True)]

    def level_for(self, budget: float) -> Floats:
        """The level that chance exceeds `budget` times per node-hour."""
        wanted = math.log(budget)
        return np.maximum(
            (self.log_rate - wanted) / self.exponent, (self.seen_log_rate - wanted) / self.seen_exponent
        )

    def rate(self, levels: Floats) -> Floats:
        """False alarms per node-hour at `levels`."""
        rate: Floats = np.exp(
            np.maximum(self.log_rate - self.exponent * levels, self.seen_log_rate - self.seen_exponent * levels)
        )
        return rate


def is_plain(steps: Histogram, unseen: Floats | float, level: Floats) -> Bools:
    """Whether the noise of a cohort is plain: its steps are independent, and hardly any of them came near to `level`.

    What one tick may add is limited, so that steps near the level say little about larger ones.
    """
    near = np.where(NEAR * level[:, None] <= STEPS, steps, 0.0).sum(axis=1)
    few = near <= np.maximum(FEW_NEAR * steps.sum(axis=1), FORGOTTEN)
    plain: Bools = (unseen <= CORRELATED) & few & (steps[:, -1] < FORGOTTEN)
    return plain


def fit_tail(
    peaks: Histogram, steps: Histogram, hours: Floats, unseen: Floats | float = 1.0, budget: float = 0.0,
    steady: Bools | bool = True,
) -> Tail:  # fmt: skip
    """Describe the tail of every cohort from its histograms of peaks and steps and its node-hours.

    Where noise is plain at the level for `budget`, the fit is to the largest steps and highest peaks alone, and takes
    their mean excess as it is; other noise adds its standard error. Noise that is not `steady` is not plain.
    """
    count, unseen = len(peaks), np.broadcast_to(unseen, len(peaks))
    if not budget:
        return _fit_tail(peaks, steps, hours, unseen, np.zeros(count, np.bool_))
    twice = np.arange(2 * count) % count
    both = _fit_tail(peaks[twice], steps[twice], hours[twice], unseen[twice], np.arange(2 * count) >= count)
    cautious, close = both.parts(2)
    plain = is_plain(steps, unseen, close.level_for(budget)) & steady
    pairs = zip(vars(close).values(), vars(cautious).values(), strict=True)
    return Tail(*(np.where(plain, one, other) for one, other in pairs))


def _fit_tail(peaks: Histogram, steps: Histogram, hours: Floats, unseen: Floats, plain: Bools) -> Tail:
    exponent = tail_exponent(steps, unseen, plain)
    above = _from_each_bin(peaks).astype(np.float64)
    total = above[:, 0]
    with np.errstate(divide="ignore"):
        rates = np.log(above) - np.log(np.maximum(hours, 1e-9))[:, None]
    solid = above >= np.minimum(TAIL_DEPTHS[0], np.maximum(total, 1.0))[:, None]
    envelope = np.where(solid, rates + exponent[:, None] * EDGES, -np.inf).max(axis=1)
    log_rate = np.where(total > 0, envelope, -np.inf)

    rows = np.arange(len(peaks))
    seen_rate, seen_exponent = log_rate.copy(), exponent.copy()
    probe = EDGES[-1] / 4
    prior = np.where(plain, TAIL_DEPTHS[0], 10.0)
    for depth, (chosen, bins) in zip(TAIL_DEPTHS, _highest(peaks, above, *TAIL_DEPTHS), strict=True):
        usable = (chosen >= 0) & (~plain | (depth == PLAIN_DEPTH))
        chosen = np.maximum(chosen, 0)
        count, start, excess = above[rows, chosen], EDGES[chosen], BIN * bins
        caution = np.where(plain, 0.0, 1 / np.sqrt(count + prior))
        mean = (excess + prior / exponent) / (count + prior) * (1 + caution)
        rate = rates[rows, chosen] + start / mean
        worse = usable & (rate - probe / mean > seen_rate - probe * seen_exponent)
        seen_rate, seen_exponent = np.where(worse, rate, seen_rate), np.where(worse, 1 / mean, seen_exponent)
    chosen = (above >= DIFFUSION_DEPTH).sum(axis=1) - 1
    slow = diffusion_exponent(steps, unseen)
    rate = rates[rows, np.maximum(chosen, 0)] + slow * EDGES[np.maximum(chosen, 0)]
    worse = (chosen >= 0) & (unseen > CORRELATED) & (rate - probe * slow > seen_rate - probe * seen_exponent)
    seen_rate, seen_exponent = np.where(worse, rate, seen_rate), np.where(worse, slow, seen_exponent)
    return Tail(log_rate, exponent, seen_rate, seen_exponent)


def calibrated_levels(tails: Sequence[Tail], ticks: Floats, budget: float, first: Floats) -> Floats:
    """The alarm level of every cohort: the larger of test and mirrored test, mixed with `first` at the beginning."""
    fitted = np.max([tail.level_for(budget) for tail in tails], axis=0)
    above = ticks / (ticks + PRIOR_TICKS_ABOVE)
    weight = np.where(fitted > first, above, ticks**2 / (ticks**2 + PRIOR_TICKS**2))
    levels = weight * clipped(fitted, 0.0, HIGHEST_LEVEL) + (1 - weight) * first
    return clipped(levels, LOWEST_LEVEL, HIGHEST_LEVEL)


def initial_levels(ticks: float, drift: Floats, largest_step: float) -> Floats:
    """The level of every cohort without data, from its reference value."""
    return np.array([_initial_level(ticks, round(one, 2), largest_step) for one in drift.tolist()], np.float64)


@cache
def _initial_level(ticks: float, drift: float, largest_step: float) -> float:
    return initial_level(theoretical_level(ticks, drift), largest_step)


def confirming_ticks(runs: Histogram, by_chance: Histogram, allowed: Floats) -> Ints:
    """How many ticks a large loss must last before it accuses, by cohort, at least 2.

    `runs`: histograms (cohorts, ticks) of the lengths of large losses that ended by themselves. Of p losses
    that lasted n - 1 ticks, of which q lasted longer, p (q + 1/2) / (p + 1) are expected to last n (Jeffreys).
    `by_chance`: how many were expected to last so long or longer if every tick had been chance, which is the least.
    The answer is the first n of which no more than `allowed`, or one half and by chance a tenth, are expected.
    """
    lasting = runs[:, ::-1].cumsum(axis=1)[:, ::-1].astype(np.float64)
    expected = lasting[:, 1:-1] * (lasting[:, 2:] + 0.5) / (lasting[:, 1:-1] + 1)
    tolerable = expected <= np.maximum(0.5, allowed)[:, None]
    tolerable &= by_chance[:, 2:] <= np.maximum(0.1, allowed)[:, None]
    tolerable[:, -1] = True
    ticks: Ints = tolerable.argmax(axis=1) + 2
    return ticks
