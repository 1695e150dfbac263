"""Finds where ranks can be compared although their data makes their compute differ from step to step. Pure.

Experts get different numbers of tokens, replicas sequences of different length. Other operations of the same ranks
are steady, and so is what ranks that share their data compute in the same step.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints, connected
from ingero_detect.ranks.last_arrival import residuals_by_step
from ingero_detect.ranks.operation_excess import USUAL, USUAL_SHARE
from ingero_detect.ranks.shared_data import DataGroups
from ingero_detect.ranks.timeline import Timeline, places_of_compute, sum_by_rank_and_step
from ingero_detect.threshold import MAD_TO_SIGMA

CALMER: Final = 0.5
"""Relative deviations of what is compared, over those of all compute, below which it is compared by itself."""

SMALLEST_PART: Final = 0.05
"""Share of compute below which an operation does not count."""

NEARLY: Final = 2.0
"""Deviations of a place in the order of a step over those of the steadiest one, up to which it is steady too."""

KNOWN: Final = 0.8
"""Share of the ranks whose value must be known in each step."""

FEWEST_OPERATIONS: Final = 2
FEWEST_PEERS: Final = 2
MOST_OPERATIONS: Final = 256
MOST_PATTERNS: Final = 16


def steady_compute(line: Timeline, steps: Bools, alike: Ints) -> list[Floats]:
    """Seconds by (rank, step) of what differs far less than all compute; nothing if that is little.

    Each table is that of an operation. Where all have one name, it is that of half of the steady places in the order
    of a step.
    """
    computes = ~line.collective
    total = sum_by_rank_and_step(line, computes, line.duration)[:, steps]
    whole, most = float(np.nanmedian(total)), CALMER * _deviation(total, alike)
    tables = [table for table in _by_kind(line, line.op, steps) if _is_known(table)]
    if len(tables) > 1:
        steady = [
            table for table in tables
            if np.nanmedian(table) >= SMALLEST_PART * whole and _deviation(table, alike) < most
        ]  # fmt: skip
    else:
        steady = _halves_of_steady_places(line, steps, alike, most)
    enough = sum(float(np.nanmedian(table)) for table in steady) >= USUAL_SHARE * whole
    return steady if len(steady) >= FEWEST_OPERATIONS and enough else []


def _by_kind(line: Timeline, kind: Ints, steps: Bools) -> list[Floats]:
    """Seconds of compute of each kind by (rank, step); nothing where kinds are too many."""
    computes = ~line.collective
    kinds = np.unique(kind[computes])
    if len(kinds) > MOST_OPERATIONS:
        return []
    return [
        sum_by_rank_and_step(line, computes & (kind == one), line.duration)[:, steps] for one in kinds.tolist()
    ]  # fmt: skip


def _is_known(table: Floats) -> bool:
    return bool((np.isfinite(table).mean(axis=0) >= KNOWN).all() and np.isfinite(table).any(axis=1).all())


def _halves_of_steady_places(line: Timeline, steps: Bools, alike: Ints, most: float) -> list[Floats]:
    """The compute at those places in the order of a step that differ little, as two halves that differ by less."""
    tables = _by_kind(line, places_of_compute(line), steps)
    if len(tables) < FEWEST_OPERATIONS or not all(map(_is_known, tables)):
        return []
    deviations = np.array([_deviation(table, alike) for table in tables])
    chosen = np.flatnonzero(deviations <= NEARLY * deviations.min()).tolist()
    steady = [np.sum([tables[one] for one in half], axis=0) for half in (chosen[::2], chosen[1::2]) if half]
    return steady if steady and _deviation(np.sum(steady, axis=0), alike) < most else []


def slower_in_all(tables: list[Floats], alike: Ints) -> Bools:
    """Ranks that are slower than their peers in each of these operations, as a slow chip is."""
    apart = [residuals_by_step(table, alike) for table in tables]
    own = np.array([
        np.nanmean(excess, axis=1) / np.nanmedian(table) for excess, table in zip(apart, tables, strict=True)
    ])  # fmt: skip
    whole = np.nanmean(sum(apart), axis=1) / sum(float(np.nanmedian(table)) for table in tables)
    return np.asarray((own >= USUAL * whole).all(axis=0))


def _deviation(table: Floats, alike: Ints) -> float:
    """The usual deviation of a value from like ranks in its step, relative to the usual value."""
    apart = np.abs(residuals_by_step(table, alike))
    return MAD_TO_SIGMA * float(np.nanmedian(apart)) / max(float(np.nanmedian(table)), 1e-12)


def _variation(table: Floats, alike: Ints) -> float:
    """The usual deviation from step to step of what a rank is above like ranks, in the unit of the table."""
    apart = residuals_by_step(table, alike)
    return float(np.nanmedian(np.abs(apart - np.nanmedian(apart, axis=1, keepdims=True))))


def data_peers(shared: DataGroups, values: Floats, alike: Ints) -> Ints | None:
    """Finer kinds of ranks, those that also share data, where these vary together; `None` where none do.

    What lastingly differs between them, such as the parts of a sequence under a causal mask, is no variation.
    """
    best, least = None, CALMER * _variation(values, alike)
    for kinds in kinds_of_groups(shared, alike):
        if len(np.unique(kinds)) == len(np.unique(alike)):
            continue
        found = _variation(values, kinds)
        if found < least:
            best, least = kinds, found
    return best


def kinds_of_groups(shared: DataGroups, alike: Ints) -> Iterator[Ints]:
    """Finer kinds of ranks: those that like groups connect; each kind has two ranks or more."""
    for chosen in _alike_groups(shared.groups):
        kinds = _connected(shared.groups[chosen], alike)
        if np.bincount(kinds)[kinds].min() >= FEWEST_PEERS:
            yield kinds


def _alike_groups(groups: Bools) -> list[list[int]]:
    """Sets of groups: those of one size, and those of one pattern, such as neighbours, where a size has several."""
    sizes: dict[int, list[int]] = {}
    patterns: dict[tuple[int, ...], list[int]] = {}
    for number, members in enumerate(groups):
        ranks = np.flatnonzero(members)
        sizes.setdefault(len(ranks), []).append(number)
        patterns.setdefault(tuple(np.diff(ranks).tolist()), []).append(number)
    several = [own for own in sorted(patterns.values(), key=len, reverse=True)[:MOST_PATTERNS] if len(own) > 1]
    return [*sizes.values(), *several]


def _connected(groups: Bools, alike: Ints) -> Ints:
    """Number the sets of like ranks that these groups connect."""
    group, rank = np.nonzero(groups)
    _, part = np.unique(group * (int(alike.max()) + 1) + alike[rank], return_inverse=True)
    label = connected(np.stack([part, rank]), len(alike))
    return np.unique(label, return_inverse=True)[1].astype(np.int64)
