"""What is audited: populations with the names of their chips and nodes, and kinds of nodes that no column tells."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from ingero_analyze.audit.chips import Coded
from ingero_analyze.audit.labels import in_common
from ingero_analyze.terminal import listed
from ingero_detect.audit.audit_results import Population
from ingero_detect.grouped import Floats, Ints

NEAR_UNIT: Final = 0.03
"""How near to a power of 1000 the ratio of two kinds is if it is one of units, as a share of the exponent."""

MOST_NAMES: Final = 20
"""Most names in a note."""


@dataclass(frozen=True)
class AuditInput:
    """One population, the names of its chips, nodes, groups and runs, and medians of physical values by chip.

    `seen`: by chip the nodes and places in them where it was, the last one last. `lower`: smaller values are better.
    `only_day`: by chip the day, or else the run, of all of its rows; "" if these are several. `labels`: by column
    that says nothing else, the values of chips.
    """

    population: Population
    chips: Sequence[str]
    nodes: Sequence[str]
    groups: Sequence[str]
    physical: Mapping[str, Floats]
    by: str
    seen: Sequence[Sequence[tuple[str, str]]]
    lower: bool
    only_day: Sequence[str]
    labels: Mapping[str, Coded]
    notes: tuple[str, ...] = ()
    runs: Sequence[str] = ()


def members_of(parent: Ints, parents: int) -> list[Ints]:
    """By parent its chips. `parent`: by chip, -1 for none."""
    order = np.argsort(parent, kind="stable")
    edges = np.searchsorted(parent[order], np.arange(parents + 1))
    return [order[first:last] for first, last in pairwise(edges.tolist())]


def _of_unit(distance: float) -> bool:
    """Whether a logarithmic distance is that of two units, such as seconds and milliseconds."""
    steps = abs(distance) / math.log(1000)
    return round(steps) > 0 and abs(steps - round(steps)) < NEAR_UNIT


def told_apart(parts: Sequence[AuditInput], slower: Sequence[float]) -> list[AuditInput]:
    """Kinds of nodes of one population, with their names and notes. `slower`: by kind, than the largest one (log)."""
    nodes = sum(len(part.nodes) for part in parts)
    labels = {
        name: Coded(np.concatenate([part.labels[name].codes for part in parts]), column.names)
        for name, column in parts[0].labels.items()
        if name != "group"
    }
    first = np.cumsum([0, *(len(part.chips) for part in parts)])
    by_part = [
        [members + first[place] for members in members_of(part.population.node, len(part.nodes))]
        for place, part in enumerate(parts)
    ]
    found = []
    for number, (part, distance) in enumerate(zip(parts, slower, strict=True), 1):
        name = ", ".join(filter(None, (part.population.name, f"kind {number} of {len(parts)}")))
        notes = part.notes
        if distance:
            how, faults = ("slower", "faults, or ") if distance > 0 else ("faster", "")
            share = abs(100 * math.expm1(-distance))
            others = {group for one in parts if one is not part for group in one.groups}
            whole = len(part.groups) and others.isdisjoint(part.groups) and (part.population.group >= 0).all()
            where = part.groups if whole else part.nodes
            names = f"{'all of ' if whole else ''}{listed(where[:MOST_NAMES], len(where))}"
            rest = [members for place, its in enumerate(by_part) if place != number - 1 for members in its]
            common = ", ".join(map(str, in_common(by_part[number - 1], rest, labels)))
            names += f"; they have in common: {common}" if common else ""
            names += "; a factor of 1000: values of another unit?" if _of_unit(distance) else ""
            notes += (
                f"{len(part.nodes)} of {nodes} nodes are {share:.1f} % {how} than those of "
                f"kind {slower.index(0.0) + 1}, and like each other: {faults}of another kind that no column tells, "
                f"and judged apart (--column model=COLUMN): {names}",
            )
        found.append(replace(part, population=replace(part.population, name=name), notes=notes))
    return found
