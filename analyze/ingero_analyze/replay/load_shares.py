"""Finds nodes that follow the common load of their cohort by a share of their own, in all of its moves. Pure.

Nodes to which a load is not spread evenly, or that have work of their own beside it, rise and fall by more or less
than most. What a fault takes is not in proportion to the load, and a phase that suits a node badly is a single move.
So the share is told from many moves, and must be the same from the first ones to the last.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ingero_contract.identifiers import NodeKey
from ingero_detect.grouped import Bools, Floats, row_medians
from ingero_detect.nodes.cohorts import CohortKey
from ingero_detect.nodes.observation import ACTIVE, Observation
from ingero_detect.threshold import MAD_TO_SIGMA, MEDIAN_ERROR

FEWEST_NODES: Final = 3
"""Nodes whose median is a common load."""

LEAST: Final = 0.1
"""Share by which a node follows more or less than most, at least; the detector allows for less."""

ERRORS: Final = 5.0
LIKELY: Final = 2.5
"""Standard errors of a share that it differs by from that of most: of one node at least, and of each one beside it,
which half of that share is enough for."""

FEWEST_MOVES: Final = 8.0
"""Moves of the common load that tell shares, at least: the effective number of changes, by their squares (Kish)."""

PARTS: Final = 3
ALIKE: Final = 0.5
"""Parts of a history with equal changes, in each of which a node follows otherwise than most by this share of what it
does on the whole, at least, less the standard error of that."""

LEFT: Final = 0.7
"""Most that is left of how much its changes differ from those of most."""

LARGEST: Final = float(np.log(2.0))
"""A larger change is a restart, and no load, log units."""


@dataclass(frozen=True)
class Share:
    """How a node follows the common load: its log rate where that is usual, and its share in what that is below and
    above it, less one."""

    usual: float
    below: float = 0.0
    above: float = 0.0


@dataclass(frozen=True)
class LoadShares:
    """The shares of the nodes of a cohort, and the least and the greatest common load, log units, that shows them."""

    nodes: Mapping[NodeKey, Share]
    lowest: float
    highest: float

    def without(self, seen: Observation, rows: Sequence[int], logs: Floats) -> Floats:
        """The log rates of some rows of a tick without what each node follows otherwise than most."""
        shares = np.array([_numbers(self.nodes.get(seen.names[row])) for row in rows])
        known = np.isfinite(logs) & np.isfinite(shares[:, 0])
        if not known.any():
            return logs
        load = min(max(float(np.median((logs - shares[:, 0])[known])), self.lowest), self.highest)
        part = shares[:, 1] * min(load, 0.0) + shares[:, 2] * max(load, 0.0)
        return np.where(known, logs - part, logs)


def _numbers(share: Share | None) -> tuple[float, float, float]:
    return (share.usual, share.below, share.above) if share else (np.nan, 0.0, 0.0)


def even(seen: Observation, shares: Mapping[CohortKey, LoadShares]) -> Observation:
    """A tick in which every node follows the common load as most do."""
    value = np.array(seen.value, np.float64)
    working = (np.asarray(seen.state) == ACTIVE) & (value > 0)
    for number, key in enumerate(seen.cohorts):
        if (of := shares.get(key)) is not None and len(rows := np.flatnonzero(working & (seen.cohort == number))):
            value[rows] = np.exp(of.without(seen, rows.tolist(), np.log(value[rows])))
    return replace(seen, value=value)


def load_shares(levels: Floats, names: Sequence[NodeKey]) -> LoadShares | None:
    """The shares of nodes in the load of their cohort, from `levels` by block and node, log units, NaN where there is
    none; `None` if all follow it alike, or that is not known."""
    often = 2 * np.isfinite(levels).sum(axis=0) >= max(len(levels), 1)
    if np.count_nonzero(often) < FEWEST_NODES:
        return None
    levels, names = levels[:, often], [name for name, there in zip(names, often, strict=True) if there]
    usual = row_medians(levels.T)
    for _ in range(2):
        load = row_medians(levels - usual)
        usual = row_medians((levels - load[:, None]).T)
    changes = _clearest(load, levels - usual)
    if changes is None:
        return None
    if not changes.own_share(LEAST, ERRORS).any():
        return None
    follows = changes.own_share(LEAST / 2, LIKELY)
    below, above = (np.where(follows, part.slopes() - 1, 0.0) for part in changes.halves())
    known = load[np.isfinite(load)]
    nodes = {
        name: Share(*of) for name, *of in zip(names, usual.tolist(), below.tolist(), above.tolist(), strict=True)
    }  # fmt: skip
    return LoadShares(nodes, float(known.min()), float(known.max()))


@dataclass(frozen=True)
class _LoadChanges:
    """Changes from one time to the next: of the common load, and by node; and what the load was between them."""

    common: Floats
    own: Floats
    load: Floats

    def moves(self) -> float:
        """The effective number of moves."""
        return float(np.sum(self.common**2) ** 2 / max(np.sum(self.common**4), 1e-300))

    def slopes(self) -> Floats:
        """By node the share of the common changes that it follows: the least absolute deviations."""
        return np.array([_weighted_median(own / self.common, np.abs(self.common)) for own in self.own.T])

    def errors(self, slopes: Floats) -> Floats:
        """Standard errors of these shares."""
        left = np.abs(self.own - slopes * self.common[:, None])
        spread = MAD_TO_SIGMA * row_medians(left.T)
        used = np.isfinite(self.own) * (self.common**2)[:, None]
        errors: Floats = MEDIAN_ERROR * spread / np.sqrt(np.maximum(used.sum(axis=0), 1e-300))
        return errors

    def own_share(self, least: float, deviations: float) -> Bools:
        """Which nodes follow otherwise than most, by so much and so many standard errors at least, and throughout."""
        slopes = self.slopes()
        other, errors = slopes - 1, self.errors(slopes)
        certain = np.abs(other) > np.maximum(least, deviations * errors)
        largest = 2 * np.abs(self.common[:, None])
        left = np.minimum(np.abs(self.own - slopes * self.common[:, None]), largest)
        before = np.minimum(np.abs(self.own - self.common[:, None]), largest)
        certain &= np.nansum(left, axis=0) <= LEFT * np.nansum(before, axis=0)
        until = np.cumsum(self.common**2) / np.sum(self.common**2)
        part = np.minimum((PARTS * until).astype(np.int64), PARTS - 1)
        lowest = ALIKE * np.abs(other) - errors * np.sqrt(PARTS)
        for number in range(PARTS):
            certain &= (self.some(part == number).slopes() - 1) * np.sign(other) >= lowest
        return certain

    def halves(self) -> tuple["_LoadChanges", "_LoadChanges"]:
        """The changes below the usual load, and those above it; all, where there are few."""
        below = self.load < 0
        parts = self.some(below), self.some(~below)
        least = FEWEST_MOVES / PARTS
        first, second = (part if len(part.common) and part.moves() >= least else self for part in parts)
        return first, second

    def some(self, which: Bools) -> "_LoadChanges":
        """Some of the changes."""
        return _LoadChanges(self.common[which], self.own[which], self.load[which])


def _clearest(load: Floats, own: Floats) -> _LoadChanges | None:
    """Changes over as many blocks as show shares best; `None` where there are too few moves."""
    best, least, length = None, np.inf, 1
    while len(load) // length >= FEWEST_MOVES:
        changes = _changes(load, own, length)
        if len(changes.common) and changes.moves() >= FEWEST_MOVES:
            error = float(np.median(changes.errors(changes.slopes())))
            if error < least:
                best, least = changes, error
        length *= 2
    return best


def _changes(load: Floats, own: Floats, length: int) -> _LoadChanges:
    """Changes between means of so many blocks."""
    many = len(load) // length
    both = np.column_stack((load, own))[: many * length].reshape(many, length, -1)
    known = np.isfinite(both)
    count = known.sum(axis=1)
    means = np.where(2 * count >= length, np.where(known, both, 0.0).sum(axis=1) / np.maximum(count, 1), np.nan)
    change = np.diff(means, axis=0)
    between = (means[1:, 0] + means[:-1, 0]) / 2
    some = (np.abs(change[:, 0]) <= LARGEST) & (change[:, 0] != 0)
    return _LoadChanges(change[some, 0], change[some, 1:], between[some])


def _weighted_median(values: Floats, weights: Floats) -> float:
    """Half of the weight lies on either side of it; 1 if there is no value."""
    known = np.isfinite(values)
    if not known.any():
        return 1.0
    return float(np.quantile(values[known], 0.5, weights=weights[known], method="inverted_cdf"))
