"""Groups points into collectives and measures which rank came last and how long the others waited. Pure, vectorised.

The late rank is the one that blocks least, whatever its clock says. If it had arrived second to last instead of last,
all ranks would have continued earlier by the gap between the shortest and the second shortest wait: that is what the
collective lost to its last rank alone.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

PeerLag = tuple[float, int, int, int]
"""Milliseconds later than the median rank; the communicator's number; the rank; the operation's number."""


@dataclass(frozen=True)
class Group:
    """Points sorted by collective. `starts` has one more entry than there are collectives."""

    order: Ints
    starts: Ints

    @property
    def sizes(self) -> Ints:
        """Points of each collective."""
        return np.diff(self.starts)


@dataclass(frozen=True)
class Lags:
    """By collective: the rank that came last, the time lost to it, and when; by point: the lag behind the median.

    Milliseconds, `time` in seconds; a lag above 0 means that the rank came late.
    """

    last: Ints
    lost: Floats
    time: Floats
    lag: Floats


def group_by(
    keys: tuple[npt.NDArray[Any], ...], rank: npt.NDArray[Any], received: npt.NDArray[Any]
) -> tuple[Group, Ints]:
    """Group points by keys; of several points of one rank the newest is kept.

    Returns the group, and in rows the index of each dropped point and of the point that replaced it.
    """
    order = np.lexsort((received, rank, *reversed(keys)))
    same = np.ones(len(order), bool)
    for key in keys:
        column = key[order]
        same[1:] &= column[1:] == column[:-1]
    if len(order):
        same[0] = False
    ranks = rank[order]
    again = np.zeros(len(order), bool)
    again[:-1] = same[1:] & (ranks[1:] == ranks[:-1])
    dropped = np.flatnonzero(again)
    replaced = np.stack([order[dropped], order[np.minimum(dropped + 1, len(order) - 1)]], 1)
    # A group begins where the key changes; its first point may be one that is dropped.
    number = np.cumsum(~same) - 1
    order, number = order[~again], number[~again]
    firsts = np.flatnonzero(np.diff(number, prepend=-1))
    return Group(order, np.append(firsts, len(order)).astype(np.int64)), replaced.astype(np.int64)


def measure(group: Group, rank: npt.NDArray[Any], blocked: npt.NDArray[Any], time: npt.NDArray[Any]) -> Lags:
    """Compare the ranks of each collective by how long they blocked. Every collective has at least two ranks."""
    sizes, starts = group.sizes, group.starts[:-1]
    collective = np.repeat(np.arange(len(sizes)), sizes)
    waited = blocked[group.order].astype(np.float64)
    inner = np.lexsort((waited, collective))
    ordered = waited[inner]
    middle = (ordered[starts + (sizes - 1) // 2] + ordered[starts + sizes // 2]) / 2
    lost = ordered[starts + 1] - ordered[starts]
    last = rank[group.order][inner][starts].astype(np.int64)
    moments = time[group.order]
    by_time = np.lexsort((moments, collective))
    when = moments[by_time][starts + sizes // 2]
    return Lags(last, lost, when, middle[collective] - waited)


def mean_lags(lag: Floats, rank: npt.NDArray[Any], number: int, op: int) -> list[PeerLag]:
    """The mean lag of every rank in the collectives of one operation of a communicator."""
    count = np.bincount(rank)
    total = np.bincount(rank, weights=lag)
    return [(float(total[place] / count[place]), number, place, op) for place in np.flatnonzero(count).tolist()]


def in_buckets(time: npt.NDArray[Any], rank: npt.NDArray[Any], tolerance_seconds: float) -> Ints:
    """Number the collectives of one operation without sequence numbers by time.

    In order of time, every point joins the oldest collective that has no point of its rank yet and began within the
    tolerance. Thus no fixed bucket edge separates ranks of one collective, and back-to-back collectives stay apart.
    """
    numbers = np.full(len(time), -1, np.int64)
    began: list[float] = []
    following: dict[int, int] = {}
    oldest = 0
    for place in np.argsort(time, kind="stable").tolist():
        moment, who = float(time[place]), int(rank[place])
        while oldest < len(began) and moment - began[oldest] > tolerance_seconds:
            oldest += 1
        number = max(following.get(who, 0), oldest)
        if number >= len(began):
            number = len(began)
            began.append(moment)
        numbers[place] = number
        following[who] = number + 1
    return numbers
