"""Cohorts: nodes that are compared with each other. Cohorts too small for statistics are merged. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

CohortKey = tuple[str, ...]
"""Cluster, then the labels that nodes of the cohort share."""

ANY: Final = "*"
"""Stands for a part of a key that was dropped."""


def cohort_name(key: CohortKey) -> str:
    """A cohort within its cluster as verdicts name it: the labels that its nodes have."""
    return "/".join(filter(None, key[1:]))


def widened(key: CohortKey, dropped: Iterable[int]) -> CohortKey:
    """The key with `ANY` at these positions."""
    places = frozenset(dropped)
    return tuple(ANY if place in places else part for place, part in enumerate(key))


def drop_orders(mergeable: Sequence[int]) -> list[tuple[int, ...]]:
    """Which positions are dropped at each level of merging: none, then one more at a time, last first."""
    ordered = sorted(mergeable, reverse=True)
    return [tuple(ordered[:depth]) for depth in range(len(ordered) + 1)]


def merge(sizes: Mapping[CohortKey, int], mergeable: Sequence[int], minimum: int) -> dict[CohortKey, CohortKey]:
    """The group of every cohort: itself with `minimum` nodes, else the least widened key under which it finds them.

    Small cohorts that are alike under such a key form a group. If they remain too few, they join the largest cohort
    that is alike, whose own nodes stay as they are.
    """
    groups = {key: key for key in sizes}
    open_keys = [key for key, size in sizes.items() if size < minimum]
    for dropped in drop_orders(mergeable)[1:]:
        if not open_keys:
            break
        largest: dict[CohortKey, CohortKey] = {}
        for key in sorted(sizes):
            wide = widened(key, dropped)
            if sizes[key] >= max(minimum, sizes.get(largest.get(wide, ()), 0) + 1):
                largest[wide] = key
        totals: dict[CohortKey, int] = {}
        for key in open_keys:
            wide = widened(key, dropped)
            totals[wide] = totals.get(wide, 0) + sizes[key]
        still = []
        for key in open_keys:
            wide = widened(key, dropped)
            if totals[wide] >= minimum:
                groups[key] = wide
            elif wide in largest:
                groups[key] = largest[wide]
            else:
                still.append(key)
        open_keys = still
    return groups


def is_guest(home: CohortKey, group: CohortKey) -> bool:
    """Whether a cohort has joined a larger one, whose nodes are of another kind."""
    return home != group and ANY not in group
