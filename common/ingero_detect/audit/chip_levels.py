"""Whether chips are at two levels, such as two bins of silicon, and by how much these differ. Pure.

Chips of a level of their own are no outliers, whichever they are: every chip is compared with its level.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ingero_detect.audit.audit_tiers import SMALLEST_SPREAD, UNIFORM, robust_spread
from ingero_detect.grouped import Bools, Floats, Ints

LEVEL_SHARE: Final = 0.15
LEVEL_CHIPS: Final = 6
"""Least share and number of chips at a level."""

SMALL_SHARE: Final = 0.08
SMALL_LEVEL: Final = 8
SMALL_DISTANCE: Final = 0.1
"""Least share and number of chips at a level that is hardly wider than the other and no further from it: so many
faults are seldom equal and as small as what versions of firmware differ by."""

SPLIT_SHARE: Final = 0.05
"""Least share of a part; as many of the slowest and the fastest chips are taken for as far as the next one."""

LEVELS_APART: Final = 4.5
FEW: Final = 1.5
"""Spreads within levels between them, for many chips (halves of normal values: 2.7, of exponential ones 3.8), and how
much more for few, by the root of their number."""

ALIKE: Final = 2.0
ALIKE_IF_SMALL: Final = 1.3
"""How much wider one level may be than the other; chips that are slow by different shares are none."""

CHANCE: Final = 3.0
"""Standard deviations by which whole nodes are more than chance makes."""

WHOLE_NODES: Final = 0.8
"""Share of the chips of a level that are on nodes of this level alone, from which it is one of nodes."""


@dataclass(frozen=True)
class Levels:
    """`offset` by chip: how much slower its level is than that of most chips. `away`: at the level of the fewer ones.

    `distance` is negative where the other level is the faster one, and 0 if there is one level only.
    """

    offset: Floats
    away: Bools
    distance: float = 0.0


def chip_levels(effect: Floats, usable: Bools, node: Ints, rounding: float) -> Levels:
    """The levels of the `usable` chips. Those of whole nodes are none: nodes are compared with nodes."""
    none = Levels(np.zeros(len(effect)), np.zeros(len(effect), np.bool_))
    chips = np.flatnonzero(usable)
    slower = two_levels(effect[chips], max(SMALLEST_SPREAD, UNIFORM * rounding))
    if not slower:
        return none
    order = chips[np.argsort(effect[chips], kind="stable")]
    fast, slow = order[:-slower], order[-slower:]
    distance = float(np.median(effect[slow]) - np.median(effect[fast]))
    few = slow if len(slow) <= len(fast) else fast
    away = np.zeros(len(effect), np.bool_)
    away[few] = True
    if _of_nodes(away, usable, node) or (len(few) < LEVEL_SHARE * len(chips) and _fill_nodes(away, usable, node)):
        return none
    distance = distance if few is slow else -distance
    return Levels(np.where(away, distance, 0.0), away, distance)


def two_levels(effects: Floats, smallest: float = SMALLEST_SPREAD) -> int:
    """How many are at the slower one of two levels; 0 if there is one level.

    Sorted effects are split where the squares within both parts are least (Fisher 1958).
    """
    n = len(effects)
    ends = max(2, int(np.ceil(SPLIT_SHARE * n)))
    if n < 2 * LEVEL_CHIPS:
        return 0
    ordered = np.sort(effects)
    inner = np.clip(ordered, ordered[ends - 1], ordered[n - ends])
    slower = np.arange(ends, n - ends + 1)
    sums, squares = np.cumsum(inner), np.cumsum(inner**2)
    faster = n - slower
    low, high = sums[faster - 1] / faster, (sums[-1] - sums[faster - 1]) / slower
    within = np.maximum(squares[-1] - faster * low**2 - slower * high**2, 0.0)
    best = int(within.argmin())
    count = int(slower[best])
    small = min(count, n - count) < max(LEVEL_CHIPS, LEVEL_SHARE * n)
    if min(count, n - count) < max(LEVEL_CHIPS, min(LEVEL_SHARE * n, max(SMALL_LEVEL, SMALL_SHARE * n))):
        return 0
    apart_by = float(high[best] - low[best])
    apart = apart_by / max(float(np.sqrt(within[best] / n)), smallest)
    spreads = sorted(max(robust_spread(part), smallest) for part in (ordered[:-count], ordered[-count:]))
    alike = spreads[1] <= ALIKE * spreads[0]
    if small:
        fewer = ordered[-count:] if count <= n - count else ordered[:-count]
        more = ordered[:-count] if count <= n - count else ordered[-count:]
        alike &= apart_by <= SMALL_DISTANCE
        alike &= float(fewer.std(ddof=1)) <= ALIKE_IF_SMALL * max(robust_spread(more), smallest)
    return count if alike and apart > LEVELS_APART * (1 + FEW / np.sqrt(n)) else 0


def in_whole_nodes(some: Bools, judged: Bools, node: Ints) -> Bools:
    """Chips of nodes all of whose chips, two or more, are among `some`; none if chance makes as many such nodes."""
    known, nodes = judged & (node >= 0), int(node.max(initial=-1)) + 1
    size, of_some = np.bincount(node[known], minlength=nodes), np.bincount(node[known & some], minlength=nodes)
    whole = (size >= 2) & (of_some == size)
    inside = known & np.append(whole, False)[node]
    others = judged & ~inside
    share = float(some[others].mean()) if others.any() else 0.0
    chance = float((share ** size[size >= 2]).sum())
    many = whole.sum() > chance + CHANCE * np.sqrt(chance) + 1
    return inside if many else np.zeros_like(inside)


def _fill_nodes(away: Bools, usable: Bools, node: Ints) -> bool:
    """Whether half of the few chips of a small level or more are all chips of their nodes: these are slow nodes."""
    known, nodes = usable & (node >= 0), int(node.max(initial=-1)) + 1
    size, slow = np.bincount(node[known], minlength=nodes), np.bincount(node[known & away], minlength=nodes)
    return bool(2 * slow[(size >= 2) & (slow == size)].sum() >= away.sum())


def _of_nodes(away: Bools, usable: Bools, node: Ints) -> bool:
    """Whether most chips of a level are on nodes that have no others."""
    return bool(in_whole_nodes(away, usable, node).sum() >= WHOLE_NODES * away.sum())
