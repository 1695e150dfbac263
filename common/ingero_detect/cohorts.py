"""Cohorts: nodes that are compared with each other. Cohorts too small for statistics are merged. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

CohortKey = tuple[str, ...]
"""Cluster, then the labels that nodes of the cohort share."""

ANY: Final = "*"
"""Stands for a part of a key that was dropped."""


def widened(key: CohortKey, dropped: Iterable[int]) -> CohortKey:
    """The key with `ANY` at these positions."""
    places = frozenset(dropped)
    return tuple(ANY if place in places else part for place, part in enumerate(key))


def drop_orders(mergeable: Sequence[int]) -> list[tuple[int, ...]]:
    """Which positions are dropped at each level of merging: none, then one more at a time, last first."""
    ordered = sorted(mergeable, reverse=True)
    return [tuple(ordered[:depth]) for depth in range(len(ordered) + 1)]


def merge(sizes: Mapping[CohortKey, int], mergeable: Sequence[int], minimum: int) -> dict[CohortKey, CohortKey]:
    """The group of every cohort: its least widened key with `minimum` nodes, otherwise the cohort itself."""
    groups = {key: key for key in sizes}
    open_keys = [key for key, size in sizes.items() if size < minimum]
    for dropped in drop_orders(mergeable)[1:]:
        if not open_keys:
            break
        totals: dict[CohortKey, int] = {}
        for key, size in sizes.items():
            wide = widened(key, dropped)
            totals[wide] = totals.get(wide, 0) + size
        still = []
        for key in open_keys:
            wide = widened(key, dropped)
            if totals[wide] >= minimum:
                groups[key] = wide
            else:
                still.append(key)
        open_keys = still
    return groups
