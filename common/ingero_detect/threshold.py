"""The published rule, vectorised over cohorts: median - max(k x 1.4826 x MAD, minimum band), smoothed and clamped.

Agents of the published protocol understand this rule. What acts on nodes relies on the sequential detector instead.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ingero_detect.grouped import Floats, Ints, grouped_median

MAD_TO_SIGMA: Final = 1.4826
"""Median absolute deviation to standard deviation for a normal distribution (Rousseeuw and Croux 1993)."""

MEDIAN_ERROR: Final = 1.2533
"""Standard error of the median of n normal values, in standard deviations, times the root of n."""

HYSTERESIS: Final = 0.02
"""How far above the threshold a straggler must come to recover; the published agents use the same."""

LOWEST: Final = 0.1
HIGHEST: Final = 0.99
"""Range in which agents accept a threshold."""


@dataclass(frozen=True)
class CohortStatistics:
    """Arrays by cohort: number of scores, their median and their median absolute deviation (NaN when empty)."""

    count: Ints
    median: Floats
    mad: Floats


def cohort_statistics(scores: Floats, cohorts: npt.NDArray[np.integer], m: int) -> CohortStatistics:
    """Median and MAD of `scores` (any shape (n,)) by cohort number 0 to m-1."""
    groups = np.asarray(cohorts, np.int64)
    values = np.asarray(scores, np.float64)
    count, median = grouped_median(values, groups, m)
    _, mad = grouped_median(np.abs(values - median[groups]), groups, m)
    return CohortStatistics(count, median, mad)


def raw_threshold(statistics: CohortStatistics, k: float, min_band: float) -> Floats:
    """The threshold from this tick alone; NaN for an empty cohort."""
    return statistics.median - np.maximum(k * MAD_TO_SIGMA * statistics.mad, min_band)


def smooth(previous: Floats, raw: Floats, alpha: float) -> Floats:
    """Exponential moving average, clamped to the accepted range.

    NaN in `previous` starts anew; NaN in `raw` (no node reported) keeps the previous value.
    """
    mixed = np.where(np.isfinite(previous), alpha * raw + (1 - alpha) * previous, raw)
    return np.clip(np.where(np.isfinite(raw), mixed, previous), LOWEST, HIGHEST)
