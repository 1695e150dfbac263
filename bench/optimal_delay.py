"""Computes the least mean delay that any sequential test can have, when it knows the noise and the loss.

Observations are independent and normal, and lose `shift` standard deviations at an unknown time, long after the
start. Of all tests with the same mean time to a false alarm, the Shiryaev-Roberts procedure, repeated after each
false alarm, has the least mean delay (Pollak and Tartakovsky 2009). Both times follow from linear equations over a
grid of its statistic `R <- (1 + R) * likelihood ratio`.
"""

import math
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CELLS: Final = 200
"""Cells of the grid; twice as many change the delay by less than 0.01 ticks."""

STEPS: Final = 14
"""Steps of the search for the alarm level."""

_normal = np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2)), otypes=[np.float64])


def _transitions(shift: float, top: float, mean: float) -> Floats:
    """Chances to move between cells of log(1 + R) below `top`, for observations of this mean; row 0 is R = 0."""
    edges = np.linspace(0, top, CELLS + 1)
    starts = np.concatenate([[0.0], 0.5 * (edges[1:] + edges[:-1])])
    with np.errstate(divide="ignore"):
        likelihoods = np.log(np.expm1(edges))[None, :] - starts[:, None]
    below = _normal((likelihoods + shift**2 / 2) / shift - mean)
    moves = np.zeros((CELLS + 1, CELLS + 1))
    moves[:, 1:] = np.diff(below, axis=1)
    return moves


def _run_length_and_delay(shift: float, top: float) -> tuple[float, float]:
    """Mean observations to a false alarm, and mean delay, of the procedure that alarms when log(1 + R) > `top`."""
    one = np.eye(CELLS + 1)
    before = one - _transitions(shift, top, 0.0)
    delays = np.linalg.solve(one - _transitions(shift, top, shift), np.ones(CELLS + 1))
    lengths, summed = np.linalg.solve(before, np.column_stack([np.ones(CELLS + 1), delays])).T
    return float(lengths[0]), float(summed[0] / lengths[0])


@cache
def optimal_delay(shift: float, run_length: float) -> float:
    """Least mean delay in observations, 1 if the first one suffices, at a mean time to a false alarm of `run_length`.

    The mean time grows with the alarm level, which bisection finds.
    """
    low, high = 0.0, math.log1p(run_length)
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        enough = _run_length_and_delay(shift, middle)[0] >= run_length
        low, high = (low, middle) if enough else (middle, high)
    return _run_length_and_delay(shift, high)[1]
