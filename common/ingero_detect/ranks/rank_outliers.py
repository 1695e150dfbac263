"""Finds ranks that stand out, given the error of their excess, the number of ranks and their usual spread. Pure."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints, row_medians
from ingero_detect.ranks.last_arrival import (
    frequently_among_last,
    frequently_far,
    frequently_last,
    residuals_by_step,
    variance_inflation,
)
from ingero_detect.ranks.slow_since import slow_since
from ingero_detect.ranks.slow_spells import lasting_or_rare, slow_spells
from ingero_detect.ranks.student import freedom_of, upper_quantiles
from ingero_detect.ranks.timeline import FEWEST_PROVEN, FEWEST_STEPS
from ingero_detect.ranks.wait_attribution import WaitAttribution
from ingero_detect.ranks.wandering import beyond_wander
from ingero_detect.reference import small_sample_factor
from ingero_detect.threshold import MAD_TO_SIGMA

SIGNIFICANCE: Final = 1e-6
"""Chance that some rank of a healthy job is named."""

SMALLEST_EFFECT: Final = 0.02
"""Share of a step below which an excess is ignored."""

MIN_SPREADS: Final = 4.0
"""How far a rank's excess must exceed the usual spread between ranks, standard deviations."""

CHIP_SPREAD: Final = 0.012
CHIP_VALUES: Final = 4
"""Usual deviation between the computing of healthy chips, and how many values it is worth beside those of ranks: a
few that happen to be alike do not show that chips differ by nothing."""

TAIL: Final = 1 / 3
FEWEST_OF_TAIL: Final = 3
"""Share of ranks that shows how far the slowest of them may be, and how many of them are at least taken."""

FURTHER: Final = 5.0
FURTHER_IN_FEW_STEPS: Final = 15.0
"""By how many mean excesses of these over the next one the slowest healthy rank is further out at most.

Of exponential values it is further in 5 % of cases, if three are taken (0.5 % by fifteen excesses), and in 1 %, if
twenty are (0.001 %)."""

TRIM: Final = 0.1
"""Share of steps left out at either end of a mean."""

LOG_VARIANCE: Final = 3.5
"""Variance of the logarithm of an estimated variance, times steps, for normal noise that is equal on all ranks."""

MAD_NOISE: Final = 2.33
"""Relative standard deviation of a squared MAD of normal values, times the root of their number."""

CHANCE_IN_FEW_STEPS: Final = 1e-5
"""Chance that some rank of a healthy job is named in fewer than `FEWEST_STEPS` steps, however slowly ranks vary."""

CHANCE_OF_POSSIBLE: Final = 1e-3
"""Chance that some rank of a healthy job is called possible for being last too often."""

FEWEST_WANDERERS: Final = 8
"""Ranks that show how much ranks wander: of fewer, one that becomes slow moves the median."""

MEDIAN_NOISE: Final = 3.1
"""Relative variance of a median of estimated variances, times their number and degrees of freedom."""

OF_FEW: Final = {2: 0.71, 3: 2.17, 4: 1.39}
"""Factors by which the MAD of distances from the median is too small over many sets of 3 or 4 normal values; of 2: of
distances from the lower one."""

FEWEST_OF_FEW: Final = 4
"""Ranks in sets of three or four, or pairs, from which these show how much ranks usually differ."""

MAX_STRAGGLER_SHARE: Final = 0.25
"""Share of ranks above which slow ranks are not called stragglers."""


@dataclass(frozen=True)
class _Excess:
    """Excess of every rank as a share of the step, its standard error, and the spread between like ranks.

    `freedom`: degrees of freedom of the errors; `usual`: the most that healthy chips differ by.
    """

    share: Floats
    error: Floats
    freedom: Floats
    spread: float
    usual: float

    def standing_out(self) -> Bools:
        """Ranks whose excess is significant, outstanding and large enough to matter."""
        needed = upper_quantiles(SIGNIFICANCE / max(1, len(self.share)), self.freedom)
        z = self.share / np.maximum(self.error, 1e-9)
        found: Bools = (z > needed) & (self.share > max(SMALLEST_EFFECT, self.usual))
        return found


def _centred(values: Floats) -> tuple[Floats, Floats]:
    """Values minus the median of their row, 0 where a value is missing, and the robust spread of each row."""
    apart = values - row_medians(values)[:, None]
    return np.where(np.isfinite(apart), apart, 0.0), MAD_TO_SIGMA * row_medians(np.abs(apart))


def _lag_products(values: Floats) -> tuple[Floats, Floats]:
    """By row, the sum of products of neighbouring values and that of squares, both clipped and about the median."""
    centred, sigma = _centred(values)
    bounded = np.clip(centred, -3 * sigma[:, None], 3 * sigma[:, None])
    return (bounded[:, 1:] * bounded[:, :-1]).sum(axis=1), (bounded**2).sum(axis=1)


def variance_inflation_of(values: Floats) -> float:
    """Variance of a sum of steps relative to independent steps, from the lag-1 autocorrelation of clipped rows."""
    product, power = _lag_products(values)
    return variance_inflation(float(product.sum()), float(power.sum()), values.shape[1])


def variance_inflation_of_others(values: Floats) -> Floats:
    """The same by row from all other rows, so that a rank that drifts does not make its own drift the usual noise.

    With fewer than four rows, from all of them.
    """
    if len(values) < 4:
        return np.full(len(values), variance_inflation_of(values))
    product, power = _lag_products(values)
    return np.array([
        variance_inflation(others, squares, values.shape[1])
        for others, squares in zip((product.sum() - product).tolist(), (power.sum() - power).tolist(), strict=True)
    ])  # fmt: skip


def trimmed_mean(values: Floats) -> tuple[Floats, Floats]:
    """Trimmed mean by row and its standard error.

    The error is based on the plain standard deviation, so that rare large values are not taken for a lasting excess.
    A row that seems to have no deviation gets half of the typical one. Autocorrelation increases the error.
    """
    quantiles = np.nanquantile if np.isnan(values).any() else np.quantile
    low, high = quantiles(values, (TRIM, 1 - TRIM), axis=1)
    mean = np.nanmean(np.clip(values, low[:, None], high[:, None]), axis=1)
    count = np.isfinite(values).sum(axis=1)
    pooled = np.sqrt(np.nanmean(_centred(values)[1] ** 2))
    spread = np.maximum(np.nanstd(values, axis=1, ddof=1), 0.5 * pooled)
    return mean, np.sqrt(variance_inflation_of(values) / np.maximum(count, 1)) * spread


def wander_of_means(values: Floats, length: int) -> float:
    """How much means over so many steps in a row differ from one another on the median rank, a standard deviation.

    Ranks that wander slowly differ by more than the steps of one such stretch show. 0 if that is no more than their
    errors explain, or if there are few ranks. What exceeds that counts by as much as it does, so that independent
    steps, which seem to wander in one recording of ten, are judged nearly as such. A mean over most steps is that of
    half of them, which varies half as much if steps are independent, and as much if ranks wander without end.
    """
    steps = values.shape[1]
    if len(values) < FEWEST_WANDERERS or steps < 2 * FEWEST_STEPS:
        return 0.0
    if length > steps // 2:
        half = wander_of_means(values, steps // 2)
        quarter = wander_of_means(values, steps // 4) if steps >= 4 * FEWEST_STEPS else 0.0
        return half * float(np.sqrt(np.clip((half / quarter) ** 2, 0.5, 1.0) if quarter else 0.5))
    found = [trimmed_mean(values[:, begin : begin + length]) for begin in range(0, steps - length + 1, length)]
    means, errors = (np.stack([pair[place] for pair in found]) for place in (0, 1))
    freedom = len(found) - 1
    # The median of a variance with few degrees of freedom is below its mean (Wilson and Hilferty 1931).
    between = float(np.nanmedian(np.nanvar(means, axis=0, ddof=1))) / (1 - 2 / (9 * freedom)) ** 3
    chance = 1 + 2 * np.sqrt(MEDIAN_NOISE / (freedom * len(values)))
    explained = float(np.nanmedian(errors**2, axis=1).mean())
    return float(np.sqrt(between - (chance - 1) * explained)) if between > chance * explained else 0.0


def moderated_errors(error: Floats, steps: int) -> tuple[Floats, Floats]:
    """Errors drawn towards the typical error, and their degrees of freedom (moderated variances, Smyth 2004).

    The more alike the errors are, the more they are drawn together. A rank whose error is larger than chance explains
    keeps its own.
    """
    freedom = np.full(len(error), freedom_of(steps))
    logs = 2 * np.log(np.maximum(error, 1e-12))
    typical = float(np.median(logs))
    spread = MAD_TO_SIGMA * float(np.median(np.abs(logs - typical)))
    spread *= float(small_sample_factor(np.array([len(error)]))[0])
    most = (len(error) - 1) * freedom[0]
    excess = spread**2 - LOG_VARIANCE / steps
    weight = most if excess <= 0 else min(most, 2 / excess)
    ordinary = logs <= typical + 2.5 * np.sqrt(LOG_VARIANCE / steps)
    joined = np.sqrt((weight * np.exp(typical) + freedom * error**2) / (weight + freedom))
    return np.where(ordinary, joined, error), np.where(ordinary, freedom + weight, freedom)


def _excess_over_peers(
    values: Floats, error: Floats, alike: Ints, steps: int, chips: float = 0.0, wander: float = 0.0,
    tail: bool = True,
) -> _Excess:  # fmt: skip
    """Excess of ranks over the median of those with the same work; with only two of them, over the lower one.

    `chips`: by which share of the step healthy chips usually differ; 0 where the values are no computing.
    `wander`: by how much such values of a rank differ over time; `tail`: whether healthy chips may have a long tail.
    """
    share, spreads, small = np.zeros(len(values)), [], []
    for kind in np.unique(alike).tolist():
        members = np.flatnonzero(alike == kind)
        own = values[members]
        middle = np.median(own) if len(members) >= 3 else own.min()
        share[members] = own - middle
        if len(members) >= 5:
            spreads += (own - middle).tolist()
        elif len(members) in OF_FEW:
            apart = own - middle if len(members) > 2 else own.max(keepdims=True) - middle
            small += (OF_FEW[len(members)] * apart).tolist()
    if len(small) >= FEWEST_OF_FEW:
        spreads += small
    error, freedom = moderated_errors(error, steps)
    error = np.maximum(error, wander)
    spread = MAD_TO_SIGMA * float(np.median(np.abs(spreads))) if spreads else 0.0
    typical = float(np.median(error))
    chance = 1 + 2 * MAD_NOISE / np.sqrt(max(len(spreads), 1))
    differ = spread**2 > chance * typical**2
    chips_differ = float(np.sqrt(1 - (typical / spread) ** 2)) if differ else 0.0
    spread = max(spread, wander) if differ else typical
    usual, count = spread, len(spreads)
    if chips:
        usual = max(usual, float(np.sqrt((count * spread**2 + CHIP_VALUES * chips**2) / (count + CHIP_VALUES))))
    most = MIN_SPREADS * usual
    if chips and tail:
        # What errors explain of the differences between ranks is no tail of chips.
        most = max(most, _end_of_tail(share[share <= most], FURTHER * chips_differ))
    return _Excess(share, error, freedom, spread, most)


def _end_of_tail(healthy: Floats, further: float = FURTHER) -> float:
    """The largest excess that ranks reach whose chips differ as healthy ones do; of six or fewer it is not known.

    Chips that differ in more than one way have a longer tail than normal values. It is taken for exponential, and
    known by the mean excess of the slowest third over the next one: the slowest of all may be `further` times that
    beyond the others.
    """
    ordered = np.sort(healthy)[::-1]
    count = max(FEWEST_OF_TAIL, int(TAIL * len(ordered)))
    if len(ordered) <= 2 * FEWEST_OF_TAIL:
        return -np.inf
    return float(ordered[0] + further * (ordered[:count].mean() - ordered[count]))


def time_segments(steps: int) -> list[slice]:
    """All steps, all but the first quarter, halves, quarters and eighths, if they have enough steps for a result."""
    found = []
    for parts in (1, 2, 4, 8):
        length = steps // parts
        if parts > 1 and length < FEWEST_STEPS:
            break
        found += [slice(part * length, (part + 1) * length) for part in range(parts)]
    if steps >= 2 * FEWEST_STEPS:
        found.insert(1, slice(steps // 4, steps))
    return found


def without_common_mode(values: Floats, alike: Ints) -> Floats:
    """Remove what ranks with the same work have in common in a step, if that reduces their noise."""
    own = residuals_by_step(values, alike, fewest=3)
    before, after = (np.nanmedian(np.nanstd(table, axis=1)) for table in (values, own))
    return own if after < 0.9 * before else values


def _late_in_all_steps(
    relative: Floats, alike: Ints, blame: WaitAttribution | None, chance: float, chips: float = 0.0,
    of_chips: float = SIGNIFICANCE, tail: bool = True,
) -> tuple[Bools, Floats]:  # fmt: skip
    """The rank that stands out in every step, and its excess over ranks with the same work.

    Few steps do not tell how much a rank varies over a longer time. But ranks that vary slowly differ from one
    another, so the smallest excess of any step is compared with how much the means of all other ranks differ, also
    taken together with what `chips` usually differ by, at the chance `of_chips`.
    """
    flagged, excess = np.zeros(len(relative), np.bool_), np.zeros(len(relative))
    own = residuals_by_step(relative, alike)
    mean = np.nanmean(own, axis=1)
    first = int(np.nanargmax(mean)) if np.isfinite(mean).any() else 0
    freedom = len(mean) - len(np.unique(alike)) - 1
    if freedom < 1 or not np.isfinite(own[first]).all():
        return flagged, excess
    if blame is not None and blame.victims(slice(0, relative.shape[1]))[first]:
        return flagged, excess
    others = np.arange(len(mean)) != first
    if np.count_nonzero(alike == alike[first]) == 2:
        others &= alike != alike[first]  # Of two, the other one is as far from the middle.
    squares, alone = float(np.nansum(mean[others] ** 2)), np.sqrt(1 + 1 / len(mean))
    needed = float(upper_quantiles(chance / len(mean), np.array(freedom))) * np.sqrt(squares / freedom)
    if chips:
        known = freedom + CHIP_VALUES
        usual = np.sqrt((squares + CHIP_VALUES * chips**2) / known)
        needed = min(needed, float(upper_quantiles(of_chips / len(mean), np.array(known))) * usual)
    needed *= alone
    if tail:
        rest = np.delete(mean, first)
        needed = max(needed, _end_of_tail(rest[np.isfinite(rest)], FURTHER_IN_FEW_STEPS))
    flagged[first] = own[first].min() > max(needed, 2 * SMALLEST_EFFECT)
    excess[first] = mean[first] * flagged[first]
    return flagged, excess


def usual_excess(relative: Floats, alike: Ints, chips: float) -> tuple[Floats, Bools]:
    """The excess of each rank over ranks with the same work, and whether healthy chips differ by as much."""
    mean, error = trimmed_mean(without_common_mode(relative, alike))
    found = _excess_over_peers(mean, error, alike, relative.shape[1], chips)
    return found.share, np.asarray(found.share <= found.usual)


def possible_stragglers(relative: Floats, alike: Ints, chips: float) -> tuple[Bools, Floats]:
    """Ranks that are last so often that it is hardly chance, and the mean cost of a step, if they cannot be proven.

    As of `straggler_ranks`, for few ranks in few steps: of four ranks one is last in all of eight by chance in one
    of 16,000 jobs. In fewer steps, the rank that is behind in all of them by what is hardly chance.
    """
    if relative.shape[1] < FEWEST_STEPS:
        return _late_in_all_steps(relative, alike, None, CHANCE_OF_POSSIBLE, chips, CHANCE_OF_POSSIBLE, tail=False)
    stretch = variance_inflation_of_others(relative)
    often, cost = frequently_last(relative, alike, CHANCE_OF_POSSIBLE / len(relative), stretch)
    _, usual = usual_excess(relative, alike, chips)
    often &= ~usual & (cost > 2 * SMALLEST_EFFECT)
    return (often, cost) if often.any() else _slow_to_the_end(relative, alike, None, CHANCE_OF_POSSIBLE)


def straggler_ranks(
    relative: Floats, alike: Ints, blame: WaitAttribution | None = None, chips: float = 0.0, sure: bool = True
) -> tuple[Bools, Floats]:  # fmt: skip
    """Ranks that stand out in all or in part of the steps, and their largest excess; victims are never included.

    `chips`: by which share of the step healthy chips usually differ, for values that are computing. Without `sure`,
    also ranks that may only have wandered so far, or may be the last of a long tail.
    """
    if relative.shape[1] < FEWEST_PROVEN:
        return np.zeros(len(relative), np.bool_), np.zeros(len(relative))
    if relative.shape[1] < FEWEST_STEPS:
        return _late_in_all_steps(relative, alike, blame, CHANCE_IN_FEW_STEPS, chips)
    flagged, counted = np.zeros((2, len(relative)), np.bool_)
    excess = np.zeros(len(relative))
    relative = without_common_mode(relative, alike)
    most = max(1, MAX_STRAGGLER_SHARE * len(relative))
    whole, wander = False, dict[int, float]()
    for number, part in enumerate(time_segments(relative.shape[1])):
        values = relative[:, part]
        if not (np.isfinite(values).sum(axis=1) >= FEWEST_STEPS // 2).all():
            continue
        mean, error = trimmed_mean(values)
        victims = blame.victims(part) if blame is not None else np.zeros(len(mean), np.bool_)
        mean = np.where(victims, np.minimum(mean, 0.0), mean)
        steps = values.shape[1]
        if steps not in wander:
            wander[steps] = wander_of_means(relative, steps)
        found = _excess_over_peers(mean, error, alike, steps, chips, wander[steps], tail=sure)
        smallest = 2 * SMALLEST_EFFECT if number else SMALLEST_EFFECT
        standing = found.standing_out() & ~victims & (found.share > smallest)
        share = found.share
        if blame is None:
            often, cost = _often_late(values, alike, whole=not number)
            often &= (cost > smallest) & (np.nanmean(residuals_by_step(values, alike), axis=1) > found.usual)
            share = np.where(often, np.maximum(share, cost), share)
            standing |= often
            counted |= often & (number == 0)
        if sure and standing.any():
            standing = beyond_wander(standing, relative, part, alike)
        # Beside ranks that the whole time shows, the first steps may hide others that are as slow.
        if standing.sum() > most or (whole and (flagged | standing).sum() > most):
            continue
        excess = np.maximum(excess, np.where(standing & ~(flagged & whole), share, 0.0))
        flagged |= standing
        whole |= not number and bool(standing.any())
    if sure and (flagged & ~counted).any():
        flagged &= counted | lasting_or_rare(relative, alike, excess, flagged)
    if not flagged.any():
        flagged, excess = _slow_for_a_while(relative, alike, blame)
    if not flagged.any():
        # A rank whose lateness varies is known little from few steps, but it may be late in every one.
        flagged, excess = _late_in_all_steps(relative, alike, blame, SIGNIFICANCE)
    if flagged.sum() > most:
        flagged[:] = False
    return flagged, excess


def _often_late(values: Floats, alike: Ints, whole: bool) -> tuple[Bools, Floats]:
    """Ranks that are last, or of a `whole` timeline among the last, more often than chance allows, and its cost."""
    chance, stretch = SIGNIFICANCE / len(values), variance_inflation_of_others(values)
    often, cost = frequently_last(values, alike, chance, stretch, whole)
    if whole:
        for together, lost in (
            frequently_far(values, alike, chance),
            frequently_among_last(values, alike, MAX_STRAGGLER_SHARE, chance, stretch),
        ):
            often, cost = often | together, np.where(together, np.maximum(cost, lost), cost)
    return often, cost


def _slow_to_the_end(
    relative: Floats, alike: Ints, blame: WaitAttribution | None, chance: float = SIGNIFICANCE
) -> tuple[Bools, Floats]:
    """Ranks that are slow from some step on, and by how much."""
    flagged, excess, begin = slow_since(relative, alike, chance, 2 * SMALLEST_EFFECT, MAX_STRAGGLER_SHARE)
    if blame is not None and flagged.any():
        flagged &= ~blame.victims(slice(int(begin[flagged][0]), relative.shape[1]))
    return flagged, np.where(flagged, excess, 0.0)


def _slow_for_a_while(relative: Floats, alike: Ints, blame: WaitAttribution | None) -> tuple[Bools, Floats]:
    """Ranks that are slow in nearly all steps of a stretch, wherever it begins, or to the end, and their excess."""
    spells = slow_spells(relative, alike)
    if spells is None:
        return _slow_to_the_end(relative, alike, blame)
    needed = float(upper_quantiles(SIGNIFICANCE / len(relative) / spells.lengths, np.array(len(relative) - 1.0)))
    flagged = spells.rare_elsewhere((spells.deviations > needed) & (spells.level > 2 * SMALLEST_EFFECT))
    if blame is not None:
        for rank in np.flatnonzero(flagged).tolist():
            flagged[rank] = not blame.victims(slice(int(spells.begin[rank]), int(spells.end[rank])))[rank]
    if not flagged.any():
        return _slow_to_the_end(relative, alike, blame)
    return flagged, np.where(flagged, spells.level, 0.0)
