"""Effects that are, or may be, errors of the measurement: far too fast, or far slower in the only value. Pure."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ingero_detect.audit.audit_tiers import FEWEST_UNITS, SMALLEST_SPREAD, AuditLevel, robust_spread
from ingero_detect.audit.node_kinds import KIND_SHARE
from ingero_detect.audit.own_noise import IMPLAUSIBLE_SPEED
from ingero_detect.grouped import Bools, Floats, Ints

FAR_FAST: Final = 10.0
"""With one value per chip, spreads by which one is too fast if no other is half as far: an error as well."""

FAST_SHARE: Final = 0.01
"""Most of the chips that are left out as too fast for this reason; one at least."""

HALF_SPEED: Final = np.log(2.0)
BEYOND: Final = 3.0
"""Speed of chips that protect themselves by half of their clock (HW slowdown of NVML), and spreads beyond it from
which a single value is as likely an error: what chips lose otherwise is less, and a wrong value can be anything."""


@dataclass(frozen=True)
class DoubtfulUnit:
    """A chip, or a node of such chips, whose only value is so low that it may be wrong. `loss` is a share."""

    level: AuditLevel
    number: int
    loss: float
    members: tuple[int, ...]


def too_fast(effect: Floats, usable: Bools, count: Ints, rounding: float) -> Bools:
    """The units that are left out as too fast. `count`: values by unit; `rounding`: half of their step."""
    if not usable.any():
        return usable.copy()
    found: Bools = usable & (np.median(effect[usable]) - effect > IMPLAUSIBLE_SPEED)
    found &= bool(found.sum() < KIND_SHARE * usable.sum())
    rest = usable & ~found
    if rest.sum() >= FEWEST_UNITS and np.median(count[rest]) < 2:
        found |= _far_fast(effect, rest, max(rounding, SMALLEST_SPREAD))
    return found


def _far_fast(effect: Floats, usable: Bools, smallest: float) -> Bools:
    """The few units that are far faster than all others, which are at most half as far from the median."""
    order = np.flatnonzero(usable)[np.argsort(effect[usable])]
    median, spread = float(np.median(effect[usable])), max(robust_spread(effect[usable]), smallest)
    gain = median - effect[order]
    found = np.zeros(len(effect), np.bool_)
    for many in range(max(1, int(FAST_SHARE * len(order))), 0, -1):
        if gain[many - 1] > max(FAR_FAST * spread, 2 * gain[many]):
            found[order[:many]] = True
            break
    return found


def doubtful(effect: Floats, usable: Bools, count: Ints) -> Bools:
    """The units with one value, which is less than half of the usual speed; none if many are."""
    if usable.sum() < FEWEST_UNITS:
        return np.zeros_like(usable)
    loss = effect - float(np.median(effect[usable]))
    found: Bools = usable & (count == 1) & (loss > HALF_SPEED + BEYOND * robust_spread(effect[usable]))
    return found & bool(found.sum() < KIND_SHARE * usable.sum())


def doubtful_units(
    found: Bools, effect: Floats, centre: float, judged: Bools, node: Ints
) -> tuple[DoubtfulUnit, ...]:
    """Nodes that have several chips and only such ones, then other chips. `judged`: with a value, not left out."""
    nodes = int(node.max(initial=-1)) + 1
    known = (judged | found) & (node >= 0)
    size = np.bincount(node[known], minlength=nodes)
    whole = np.append((size > 1) & (np.bincount(node[found & known], minlength=nodes) == size), False)
    inside = np.flatnonzero(found & whole[node])
    inside = inside[np.argsort(node[inside], kind="stable")]
    of_nodes = np.split(inside, np.flatnonzero(np.diff(node[inside])) + 1) if len(inside) else []
    units = [(AuditLevel.NODE, int(node[members[0]]), members) for members in of_nodes]
    units += [(AuditLevel.CHIP, int(chip), np.array([chip])) for chip in np.flatnonzero(found & ~whole[node])]
    return tuple(
        DoubtfulUnit(level, number, float(-np.expm1(centre - np.median(effect[members]))), tuple(members.tolist()))
        for level, number, members in units
    )
