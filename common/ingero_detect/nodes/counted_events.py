"""Rates that are small numbers of events, such as the requests of a replica at night. Pure.

Numbers of events vary as Poisson's: by their root, and in some ticks there is none. On a logarithmic scale the less
there is to do, the more that looks like work that stopped. So where the rates of a cohort are whole multiples of one
unit, and differ by as much as chance alone would bring about, residuals are taken on the scale of square roots, on
which the noise of counts is even (Anscombe 1948), and no node is expected to vary less than its count does.
"""

from typing import Final

import numpy as np

from ingero_detect.grouped import Floats, Ints, Singles, singles
from ingero_detect.nodes.column_store import ColumnStore
from ingero_detect.threshold import MAD_TO_SIGMA

MOST_EVENTS: Final = 150.0
"""Events a tick beyond which a count is a rate like any other."""

FEWEST_EVENTS: Final = 3.0
"""Events a tick below which nothing is learnt about units and noise."""

_LEAST_SPREAD: Final = 0.7 / MOST_EVENTS**0.5
"""Spread of a cohort below which its rates are no small counts."""

_LEAST_DISPERSION: Final = 0.35
"""Robust variance of the counts of a tick, and that of a node's counts around what is expected of it, relative to
their mean (about 1 for Poisson's) below which they do not look like chance. That of steps which every node does alike
is far less, and so may be that of whole percents, though nodes with different work differ by more."""

_ANSCOMBE: Final = 0.375

_GAIN: Final = 1 / 16
_AT_ONCE: Final = 32
"""Cohorts looked at in one tick."""

_TOLERANCE: Final = (0.05, 0.004)
"""Distance from a whole number of units that counts as rounding, and what each unit adds to it."""


def follow_units(memory: ColumnStore, ticks: int, group: Ints, logs: Floats) -> None:
    """Learn in which cohorts rates are small counts, and of which unit, from a tick's log rates by node."""
    spread = np.fmax(memory.group("scale"), memory.group("recent"))
    wide = np.flatnonzero((spread > _LEAST_SPREAD) | (memory.group("counted") > 0))
    if not len(wide):
        return
    unit, counted = memory.group("unit"), memory.group("counted")
    for number in np.roll(wide, -(ticks * _AT_ONCE % len(wide)))[:_AT_ONCE].tolist():
        values = np.exp(logs[group == number])
        known = counted[number] > 0.5
        own = float(unit[number]) if known else smallest_unit(values)
        mean = float(values.mean()) / own if own > 0 and len(values) >= 3 else 0.0
        if not FEWEST_EVENTS <= mean <= MOST_EVENTS:
            continue
        by_chance = mean * float(spread[number]) ** 2 >= _LEAST_DISPERSION
        by_chance &= known or dispersion(values / own) >= _LEAST_DISPERSION
        fits = by_chance and whole_multiples(values, own)
        counted[number] += np.float32(_GAIN) * (fits - counted[number])
        if fits and not known:
            unit[number] = own if counted[number] <= 2 * _GAIN else min(own, float(unit[number]))


def smallest_unit(values: Floats) -> float:
    """The unit that rates are multiples of, if they are: about the smallest distance of two, or from one to zero.

    0 if there is none. As rates are rounded, it is drawn from the smallest distances first, then from the distances
    from the lowest rate, and then from the rates.
    """
    known = np.unique(np.append(values, 0.0))
    apart = np.diff(known)
    apart = apart[apart > 1e-3 * known[-1]]
    if not len(apart):
        return 0.0
    unit = float(apart[apart < 1.5 * apart.min()].mean())
    for lengths in (known[1:] - known[1], known):
        times = np.rint(lengths / unit)
        unit = float(lengths.sum() / times.sum()) if times.sum() > 0 else unit
    return unit


def whole_multiples(values: Floats, unit: float) -> bool:
    """Whether all rates are whole multiples of a unit, as far as they are written."""
    times = values / unit
    least, more = _TOLERANCE
    return bool((np.abs(times - np.rint(times)) <= np.minimum(least + more * times, 0.25)).all())


def dispersion(counts: Floats) -> float:
    """Robust variance of counts relative to their median."""
    middle = float(np.median(counts))
    spread = MAD_TO_SIGMA * float(np.median(np.abs(counts - middle)))
    return spread**2 / max(middle, 1.0)


def share_of_unit(memory: ColumnStore, group: Ints, expected: Floats) -> Floats | None:
    """By node: one event as a share of those expected if they are few, otherwise 0; None if no cohort counts events.

    `expected`: log rates.
    """
    counts = memory.group("counted") > 0.5
    if not counts.any():
        return None
    unit = np.where(counts, memory.group("unit"), 0.0)
    share = np.minimum(unit[group] * np.exp(-np.maximum(expected, -500.0)), 1e4)
    return np.where(share > 1 / MOST_EVENTS, share, 0.0)


def on_root_scale(residual: Singles, share: Floats) -> Singles:
    """Log residuals as twice the difference of the roots of counts, relative to the expected one; small ones stay.

    `share`: one event as a share of the expected ones.
    """
    ratio, least = np.exp(np.minimum(residual.astype(np.float64), 30.0)), _ANSCOMBE * share
    return singles(2 * (np.sqrt((ratio + least) / (1 + least)) - 1))


def noise_of_counts(share: Floats) -> Singles:
    """Standard deviation of such a residual if the counts are Poisson's."""
    return singles(np.sqrt(share / (1 + _ANSCOMBE * share)))
