"""Sorts groups of ranks into families: partitions of the ranks, such as all tensor groups or all data groups. Pure.

Two groups that share a rank belong to different families, even if their operation and size are the same.
"""

from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Final

import numpy as np

from ingero_detect.grouped import Floats

Members = tuple[int, ...]

ALIKE: Final = 0.02
"""Relative difference of usual durations up to which families are compared with each other."""


def families(members: Sequence[Members], levels: Floats) -> list[list[int]]:
    """Places of groups of one operation and size, by family. `levels`: their usual durations, logarithmic.

    Groups that meet nowhere are one family. Otherwise those that share ranks are set apart. Between groups that no
    rank connects, the distances of their ranks decide, or else the durations. Families that usually take equally
    long can be compared, so they are joined.
    """
    neighbours = _neighbours(members)
    if not any(neighbours):
        return [list(range(len(members)))]
    patterns = [tuple(rank - ranks[0] for rank in ranks) for ranks in members]
    found: list[list[int]] = []
    for component in sorted(_components(neighbours), key=lambda places: (-len(places), places)):
        classes = _coloured(component, neighbours, patterns)
        _join(found, classes, patterns, levels)
    # The faster ones of each, because most of a small family may be slow.
    usual = [float(np.quantile(levels[places], 0.25)) for places in found]
    joined: list[list[int]] = []
    lowest = -np.inf
    for number in np.argsort(usual, kind="stable").tolist():
        if usual[number] - lowest <= ALIKE:
            joined[-1] += found[number]
        else:
            joined.append(list(found[number]))
            lowest = usual[number]
    return [sorted(places) for places in joined]


def _neighbours(members: Sequence[Members]) -> list[set[int]]:
    """By group the others that share a rank with it."""
    of_rank: dict[int, list[int]] = {}
    for place, ranks in enumerate(members):
        for rank in ranks:
            of_rank.setdefault(rank, []).append(place)
    found: list[set[int]] = [set() for _ in members]
    for places in of_rank.values():
        for place in places:
            found[place].update(places)
    for place, others in enumerate(found):
        others.discard(place)
    return found


def _components(neighbours: Sequence[set[int]]) -> list[list[int]]:
    found, seen = [], set[int]()
    for first in range(len(neighbours)):
        if first in seen:
            continue
        waiting, component = [first], list[int]()
        seen.add(first)
        while waiting:
            place = waiting.pop()
            component.append(place)
            fresh = neighbours[place] - seen
            seen |= fresh
            waiting += fresh
        found.append(sorted(component))
    return found


def _coloured(
    component: Sequence[int], neighbours: Sequence[set[int]], patterns: Sequence[Members]
) -> list[list[int]]:
    """Classes of groups without a common rank (Brelaz 1979: the group with the fewest classes left comes next)."""
    classes: list[list[int]] = []
    shapes: list[Counter[Members]] = []
    class_of: dict[int, int] = {}
    taken: dict[int, set[int]] = {place: set() for place in component}
    waiting = [(0, place) for place in component]
    heapify(waiting)
    while waiting:
        barred, place = heappop(waiting)
        if place in class_of or -barred != len(taken[place]):
            continue
        free = [number for number in range(len(classes)) if number not in taken[place]]
        if free:
            # Not by duration: that would gather the slow ones in a class of their own.
            best = min(free, key=lambda number: (not shapes[number][patterns[place]], number))
        else:
            best = len(classes)
            classes.append([])
            shapes.append(Counter())
        class_of[place] = best
        classes[best].append(place)
        shapes[best][patterns[place]] += 1
        for other in neighbours[place]:
            if other not in class_of and best not in taken[other]:
                taken[other].add(best)
                heappush(waiting, (-len(taken[other]), other))
    return classes


def _join(found: list[list[int]], classes: Sequence[list[int]], patterns: Sequence[Members], levels: Floats) -> None:
    """Add classes of a component to the families that they resemble most, each to another one."""
    shapes = [Counter(patterns[place] for place in places).most_common(1)[0][0] for places in (*found, *classes)]
    pairs = sorted(
        (shapes[family] != shapes[len(found) + own], abs(_level(found[family], levels) - _level(places, levels)),
         family, own)
        for family in range(len(found)) for own, places in enumerate(classes)
    )  # fmt: skip
    family_of: dict[int, int] = {}
    for _, _, family, own in pairs:
        if own not in family_of and family not in family_of.values():
            family_of[own] = family
    for own, places in enumerate(classes):
        if own in family_of:
            found[family_of[own]] += places
        else:
            found.append(places)


def _level(places: Sequence[int], levels: Floats) -> float:
    return float(np.median(levels[list(places)]))
