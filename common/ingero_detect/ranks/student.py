"""Quantiles of Student's distribution, for errors that are estimated from few steps or few ranks. Pure."""

from statistics import NormalDist

import numpy as np

from ingero_detect.grouped import Floats


def upper_quantile(chance: float, steps: float) -> float:
    """The normal quantile of an upper tail, widened for few steps."""
    return float(upper_quantiles(chance, np.array(freedom_of(steps))))


def freedom_of(steps: float) -> float:
    """Degrees of freedom of an error that is estimated from `steps` steps."""
    return max(4.0, 0.8 * steps - 1)


def upper_quantiles(chance: float, freedom: Floats) -> Floats:
    """Upper-tail quantile of Student's distribution (Wallace 1959), also accurate for few degrees of freedom."""
    z = -NormalDist().inv_cdf(chance) * (8 * freedom + 3) / (8 * freedom + 1)
    found: Floats = np.sqrt(freedom * np.expm1(z * z / freedom))
    return found
