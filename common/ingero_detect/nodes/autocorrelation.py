"""Measures how residuals depend on earlier ones, and what a tick adds to the evidence then.

Two facts by group tell it: the correlation of one tick with the next, and the variance of sums over blocks of ticks,
which also knows noise that wanders for longer (batch means; Conway 1963). Innovations, what a residual differs from
what the last one let expect, are nearly independent. A loss is whole in the first of them, and the later ones hold
only the share of it that is new at every tick.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints, Singles, clipped, filled, grouped_median, singles
from ingero_detect.nodes.column_store import ColumnStore
from ingero_detect.nodes.false_alarm_budget import CORRELATED
from ingero_detect.threshold import MAD_TO_SIGMA

BLOCK: Final = 12
"""Ticks of a block."""

_REMEMBERED: Final = 125.0
"""Blocks of a node, twenty hours of minutes or two of five seconds, that count."""

_FURTHEST: Final = 3.0
"""Standard deviations at which what two blocks differ is limited."""

_ERRORS: Final = 3.0
"""By how many relative standard errors (of a variance from n blocks) blocks must contradict the first correlation."""

_FEW: Final = 1.75
"""The square of the median of n normal deviations exceeds that of many by this over n."""

_BY_MEDIAN: Final = 1.64
"""How much larger the standard error of a median of deviations is than that of their variance."""

_CORRELATED: Final = (CORRELATED - 1) / (CORRELATED + 1)
"""Coefficient from which ticks do not count as independent."""

_COEFFICIENTS: Final = np.array([1e-6, 0.3, 0.5, 0.65, 0.75, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99])
"""Coefficients for which differences of blocks are known; the last one is the longest memory that is found."""


def _covariance(blocks: int) -> Floats:
    """The covariance of two sums so many blocks apart, by tick, for each coefficient."""
    ticks = np.arange(BLOCK)
    apart = np.abs(blocks * BLOCK + ticks[:, None] - ticks)
    found: Floats = (_COEFFICIENTS[:, None, None] ** apart).sum(axis=(1, 2)) / BLOCK
    return found


_SPREAD: Final = _covariance(0)
_NEAR: Final = _SPREAD - _covariance(1)
_FAR: Final = _SPREAD - _covariance(2)

_LEAST_SHARE: Final = 0.2
"""Share of the variance that a memory must explain: below it, what blocks differ by chance looks like a long one."""

_UNTOLD: Final = 1.6
"""Variance ratio of innovations, at least: the coefficient is learnt from ticks without evidence, and so too low."""

_TUNED: Final = 1.5
_LEAST_DRIFT: Final = 0.3
"""Half of the loss that the test is tuned for: in standard deviations from tick to tick, and at least in those of the
long run. A loss smaller than it adds no evidence."""

_MOST: Final = np.float32(3.0)
"""Largest innovation that counts within a loss: a larger one is no noise, but the beginning of something."""

_BEYOND: Final = np.float32(3.0)
"""Standard deviations from tick to tick, beyond what adds no evidence, that noise does not bring a node to."""


@dataclass(frozen=True)
class Autocorrelation:
    """By group: correlation `lag_one` of successive ticks; `ratio`: the variance in the long run over that of ticks;
    `coefficient`: what of a residual the next one is expected to keep; `left`: `ratio` of the innovations."""

    lag_one: Floats
    ratio: Floats
    coefficient: Floats
    left: Floats

    def drift(self, most: float) -> Floats:
        """The reference value of the sequential test, standard deviations of the long run, `most` at most."""
        drift: Floats = clipped(_TUNED / np.sqrt(self.ratio), min(_LEAST_DRIFT, most), most)
        return drift


def autocorrelation(memory: ColumnStore) -> Autocorrelation:
    """What the last hours say of every group."""
    lag_one = clipped(memory.group("lagged") / np.maximum(memory.group("squares"), 1e-12), 0.0, 0.95)
    of_lag = (1 + lag_one) / (1 - lag_one)
    count, near, far, spread = (memory.group(f"block_{name}") for name in ("count", "near", "far", "spread"))
    weight, error = np.maximum(count, 1e-12), _ERRORS * np.sqrt(2 / np.maximum(count, 1.0))
    by_near, by_spread = _extrapolated(lag_one, far / np.maximum(near, 1e-12))
    moved = np.log(np.maximum(near / weight * by_near, 1.0) / of_lag)
    away = np.log(np.maximum(spread / weight * by_spread, 1.0) / of_lag)
    more = np.maximum(np.maximum(moved - error, away - _BY_MEDIAN * error), 0.0)
    certain = np.where(more > 0, more, np.minimum(moved + error, 0.0))
    ratio = of_lag * np.exp(np.where(count > 0, certain, 0.0))
    least = np.minimum(of_lag, ratio)
    coefficient = (least - 1) / (least + 1)
    left = np.maximum(ratio / of_lag, np.where(coefficient > _CORRELATED, _UNTOLD, 1.0))
    return Autocorrelation(lag_one, ratio, coefficient, left)


def _extrapolated(lag_one: Floats, growth: Floats) -> tuple[Floats, Floats]:
    """By group, by what the variance ratio exceeds `near` and `spread`, if `far` is `growth` times `near`.

    For independent noise and an autoregressive part, whose share of the variance follows from `lag_one`.
    """
    share = np.minimum(lag_one[:, None] / _COEFFICIENTS, 1.0)
    near, far, spread = (share * parts + 1 - share for parts in (_NEAR, _FAR, _SPREAD))
    ratio = share * (1 + _COEFFICIENTS) / (1 - _COEFFICIENTS) + 1 - share
    model, known = np.maximum.accumulate(far / near, axis=1), share >= _LEAST_SHARE
    place = clipped((known & (model <= growth[:, None])).sum(axis=1) - 1, 0, len(_COEFFICIENTS) - 2)
    rows = np.arange(len(lag_one))
    low, high = model[rows, place], model[rows, place + 1]
    between = clipped((growth - low) / np.maximum(high - low, 1e-9), 0.0, 1.0) * known[rows, place + 1]
    by_near, by_spread = (
        excess[rows, place] + between * (excess[rows, place + 1] - excess[rows, place])
        for excess in (ratio / near, ratio / spread)
    )
    return by_near, by_spread


def follow_blocks(
    memory: ColumnStore, ticks: int, index: slice | Ints, group: Ints, counts: Bools, deviation: Singles
) -> None:
    """Add this tick's deviations (standard deviations) to the blocks; a node that does not count spoils its block.

    Blocks are compared with the last one and the one before: what they differ tells how long the noise remembers,
    whatever a node that is away from its baseline for long, slow or ahead, adds to them. Their median tells how far
    nodes are away from their baselines.
    """
    block = memory.node("block")
    added = np.full(len(block), np.nan, np.float32)
    added[index] = np.where(counts, clipped(deviation, -3, 3), np.float32(np.nan))
    block += added
    if ticks % BLOCK:
        return
    own = memory.node("group").astype(np.int64)
    now, last, before = (memory.node(name).astype(np.float64) for name in ("block", "last_block", "block_before"))
    used = np.isfinite(now + last + before) & (own >= 0)
    group, furthest = own[used], _FURTHEST * np.sqrt(2 * BLOCK * autocorrelation(memory).ratio)
    found = [np.ones(len(group))]
    for other in (last, before):
        found.append(np.minimum(np.abs((now - other)[used]), furthest[group]) ** 2 / (2 * BLOCK))
    size, middle = grouped_median(np.abs(now[used]), group, len(memory.groups))
    square = (MAD_TO_SIGMA * filled(middle, 0.0)) ** 2 / (BLOCK * (1 + _FEW / np.maximum(size, 1)))
    summed = [np.bincount(group, values, len(size)) for values in found]
    for name, values in zip(("count", "near", "far", "spread"), [*summed, size * square], strict=True):
        column = memory.group(f"block_{name}")
        column *= 1 - 1 / _REMEMBERED
        column += values
    memory.node("block_before")[:] = last
    memory.node("last_block")[:] = now
    block[:] = 0.0


@dataclass(frozen=True)
class Steps:
    """What a tick adds to the evidence, by node: `later` within a loss and a gain, `first` as the first tick of one.

    `first` is None where noise is independent: then it is never more than `later`.
    """

    later: tuple[Singles, Singles]
    first: tuple[Singles, Singles] | None = None


def steps_of(
    memory: ColumnStore, found: Autocorrelation, index: slice | Ints, group: Ints, follows: Bools, sigma: Singles,
    scale: Singles, z: Singles, allowance: Singles,
) -> Steps:  # fmt: skip
    """The log likelihood ratio of a loss of twice the allowance, in units of it (Basseville and Nikiforov 1993, 7.2).

    `follows`: nodes whose last residual tells what to expect of this one. `z`: the loss in standard deviations of the
    long run, `scale`; `allowance`: what of it adds nothing; `sigma`: the standard deviation from tick to tick.
    Innovations have the same mean in a lasting loss. Where the loss itself makes the node restless they tell little:
    a node that is further away than noise brings it has not recovered because it is less so than a tick before.
    """
    correlated = found.coefficient > _CORRELATED
    if not correlated.any():
        return Steps((z - allowance, -z - allowance))
    kept = np.where(correlated, found.coefficient, 0.0)
    spread = np.sqrt((1 + kept**2 - 2 * kept * found.lag_one) / found.ratio)
    new, spread = singles(1 - kept)[group], singles(spread)[group]
    innovation = z + (1 - new) * memory.node("residual")[index] / scale
    known = follows & correlated[group] & np.isfinite(innovation)
    innovation = np.where(known, innovation, np.float32(0))
    first = [(way - allowance) / spread**2 for way in (innovation, -innovation)]
    beyond = allowance + _BEYOND * sigma / scale
    later = [
        np.where(known, np.minimum(way / new, _MOST), one) - allowance
        for way, one in ((innovation, z), (-innovation, -z))
    ]
    for step, one in zip(later, (z, -z), strict=True):
        np.maximum(step, np.float32(0), out=step, where=one > beyond)
    return Steps((later[0], later[1]), (first[0], first[1]))
