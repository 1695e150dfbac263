"""Tests whether one rank is late more often than chance allows, and whether that matters. Pure.

The collectives that count are the fewest that contain most of the loss: they are chosen by how much time each lost,
not by which rank was last. If all ranks are alike, each is equally likely to arrive last, so the number of last
arrivals is binomial(n, 1/ranks). A step with fifty collectives, of which only the first shows who is late, is thus
judged by its first. A rank is accused when its last arrivals are beyond chance at the allowed error, over all ranks
at once, and the time lost to it is at least the configured share: being last by a tiny margin is no accusation. Nor
is a pause added to such a habit, as of a rank that writes a checkpoint: of each loss counts at most as much as eight
of the rank's losses reach.

`ingero_detect.ranks.diagnosis` averages lags over the steps of a whole timeline instead. A window here has no steps,
and may hold too few collectives to estimate the error of an average, while a count of last arrivals is exact from the
eighth on.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from ingero_detect.ranks.last_arrival import at_most_repeated

LOSS_SHARES: Final = (0.4, 0.7, 1.0)
"""Shares of the total loss that the counted collectives contain; all are tried, and chance is corrected for that."""


@dataclass(frozen=True, kw_only=True)
class AttributionConfig:
    """`error`: chance of accusing any rank in a window of a healthy communicator; `share`: least share of time lost;

    `fewest`: below this number of collectives no rank is accused, and so many of its losses must be as large as what
    counts of one.
    """

    error: float = 1e-6
    share: float = 0.003
    fewest: int = 8

    def __post_init__(self) -> None:
        if not 0 < self.error < 1 or not 0 <= self.share < 1 or self.fewest < 1:
            raise ValueError("error and share must lie between 0 and 1, fewest must be at least 1")


@dataclass(frozen=True, kw_only=True)
class LateRankFinding:
    """The rank that was last most often. `share` is the part of the window's time that was lost to it alone.

    It arrived last in `last_arrivals` of the `collectives` that counted. `chance` is the probability of so many for
    any rank if all are alike. `repeated_share` is `share` without what single losses exceed the others by. `why_not`
    is empty when the rank is accused; `unknown`: whether it may be late.
    """

    rank: int
    last_arrivals: int
    collectives: int
    chance: float
    share: float
    repeated_share: float = 0.0
    lost_ms: float
    why_not: str = ""
    unknown: bool = False

    @property
    def accused(self) -> bool:
        """Whether the rank is late beyond chance, and it matters."""
        return not self.why_not


def find_late_rank(
    last: npt.NDArray[np.int64],
    lost: npt.NDArray[np.float64],
    elapsed_ms: float,
    ranks: int,
    config: AttributionConfig,
) -> LateRankFinding | None:
    """Judge a window: the rank that came last in each collective, the milliseconds lost to it; `None` if empty."""
    if not len(last) or ranks < 2:
        return None
    order = np.argsort(-lost, kind="stable")
    waiting = np.cumsum(lost[order])
    sizes = {
        min(len(order), max(config.fewest, int(np.searchsorted(waiting, level * float(waiting[-1]))) + 1))
        for level in LOSS_SHARES
    }
    found = [_judge(order[:size], last, lost, elapsed_ms, ranks, config.fewest) for size in sorted(sizes)]
    best = min(found, key=lambda item: (item.chance, -item.lost_ms))
    why_not = ""
    if best.collectives < config.fewest:
        why_not = f"only {best.collectives} collectives were seen, {config.fewest} are needed"
    elif best.chance > config.error:
        why_not = f"last in {best.last_arrivals} of {best.collectives}, which chance explains"
    elif best.share < config.share:
        why_not = f"only {100 * best.share:.2f} % of the time was lost to it"
    elif best.repeated_share < config.share:
        why_not = f"only {100 * best.repeated_share:.2f} % of the time was lost to it, apart from single pauses"
    return replace(best, why_not=why_not)


def _judge(
    counted: npt.NDArray[np.int64],
    last: npt.NDArray[np.int64],
    lost: npt.NDArray[np.float64],
    elapsed_ms: float,
    ranks: int,
    repeats: int,
) -> LateRankFinding:
    """The rank to which the most time was lost in the counted collectives."""
    last_arrivals = np.bincount(last[counted], minlength=ranks)
    losses = np.bincount(last[counted], weights=lost[counted], minlength=ranks)
    rank = int(np.argmax(losses))
    tail = binomial_tail(len(counted), 1.0 / ranks, int(last_arrivals[rank]))
    own = lost[counted][last[counted] == rank]
    usual = at_most_repeated(own, repeats)
    share, repeated = (float(time.sum()) / elapsed_ms if elapsed_ms > 0 else 0.0 for time in (own, usual))
    return LateRankFinding(
        rank=rank,
        last_arrivals=int(last_arrivals[rank]),
        collectives=len(counted),
        chance=min(1.0, len(LOSS_SHARES) * ranks * tail),
        share=min(share, 1.0),
        repeated_share=min(repeated, 1.0),
        lost_ms=float(losses[rank]),
    )


def binomial_tail(trials: int, probability: float, successes: int) -> float:
    """The chance of at least so many successes."""
    if successes <= 0:
        return 1.0
    if successes > trials:
        return 0.0
    logs = [
        math.lgamma(trials + 1) - math.lgamma(count + 1) - math.lgamma(trials - count + 1)
        + count * math.log(probability) + (trials - count) * math.log1p(-probability)
        for count in range(successes, trials + 1)
    ]  # fmt: skip
    return min(1.0, math.fsum(math.exp(log) for log in logs))
