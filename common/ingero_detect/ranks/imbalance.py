"""Finds slowness that belongs to a pipeline stage, or to a step and its data, and not to a rank. Pure."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints, grouped_median
from ingero_detect.ranks.last_arrival import median_by_step, min_last_count
from ingero_detect.ranks.timeline import FEWEST_STEPS, Timeline, places_of_compute, sum_by_rank_and_step
from ingero_detect.threshold import MAD_TO_SIGMA


class Cause(StrEnum):
    """Cause of a slow job."""

    NODE = "node"
    STAGE = "stage_imbalance"
    SEQUENCE = "sequence_imbalance"
    UNKNOWN = "unknown"
    NONE = "none"


@dataclass(frozen=True)
class Diagnosis:
    """The verdict. `ranks` are numbers of the timeline; `slowdown` is the step time over the possible step time.

    With an unknown cause, `possible` in the evidence has the ranks that lose the time.
    """

    cause: Cause
    ranks: tuple[int, ...] = ()
    slowdown: float = 1.0
    seconds_lost_per_step: float = 0.0
    evidence: dict[str, Any] = field(default_factory=dict)


PART_OF_STAGE: Final = 1 / 3
MOST_OF_STAGE: Final = 0.75
"""Share of what a stage takes longer that a rank of it takes longer at least, and share of its ranks that do."""

SMALLEST_IMBALANCE: Final = 0.05
"""Share of a step that an imbalance of stages or sequences must cost to be named."""

AS_HEAVY: Final = 0.98
"""Share of the longest time of a stage from which another stage is as heavy."""

CHANCE_OF_ONE: Final = 0.01
"""Chance with which changing data strikes one rank so often that the cause is called unknown."""


MOST_UNUSUAL: Final = 0.1
"""Share of operations that a step may have more or fewer than usual, and of steps of ranks that have."""

OF_ONE_OPERATION: Final = 0.8
"""Share of what makes a step of a rank longer from which it is the pause of a single operation."""

MOST_OF_ONE: Final = 1 / 3
"""Share of a rank's compute of one operation from which the data of a step may make nothing else longer."""


WARM_UP: Final = 3.0
"""How many times as long as usual most ranks compute in a step that is no usual one."""


def stage_imbalance(compute: Floats, stage: Ints, period: float, stragglers: set[int]) -> Diagnosis | None:
    """Stages whose work differs, and what the heaviest one costs compared with an even partition.

    Several stages may be equally heavy: `stages` in the evidence has all of them.
    """
    healthy = np.array([rank not in stragglers for rank in range(len(stage))])
    kinds = [kind for kind in np.unique(stage).tolist() if (healthy & (stage == kind)).any()]
    if len(kinds) < 2:
        return None
    means = [median_by_step(compute[healthy & (stage == kind)]) for kind in kinds]
    table = np.array(means)
    typical = np.nanmedian(table, axis=1)
    heaviest = int(np.argmax(typical))
    lost = float(np.nanmean(table[heaviest] - np.nanmean(table, axis=0)))
    second = float(np.partition(typical, -2)[-2])
    heavy = typical >= AS_HEAVY * typical[heaviest]
    if not _is_heavy_as_a_whole(compute[healthy & np.isin(stage, np.array(kinds)[heavy])], typical, heaviest):
        return None
    steady = float(np.nanmean(np.nanmax(table[heavy], axis=0) >= np.nanmax(table, axis=0) - 1e-12))
    if lost < SMALLEST_IMBALANCE * period or typical[heaviest] < 1.05 * np.median(typical) or steady < 0.6:
        return None
    evidence = {
        "stage": kinds[heaviest],
        **({"stages": [kind for kind, found in zip(kinds, heavy, strict=True) if found]} if heavy.sum() > 1 else {}),
        "stage_over_mean": round(float(typical[heaviest] / typical.mean()), 6),
        "stage_over_second": round(float(typical[heaviest] / max(second, 1e-12)), 6),
    }
    return Diagnosis(Cause.STAGE, seconds_lost_per_step=lost, evidence=evidence)


def _is_heavy_as_a_whole(compute: Floats, typical: Floats, heaviest: int) -> bool:
    """Whether nearly all ranks of the heaviest stages compute longer than others: one slow rank is no heavy stage."""
    usual = float(np.median(typical))
    least = usual + PART_OF_STAGE * (float(typical[heaviest]) - usual)
    return bool((np.nanmedian(compute, axis=1) > least).mean() >= MOST_OF_STAGE)


def usual_counts(line: Timeline) -> Bools:
    """By (rank, step): the rank does as many operations as usual, give or take a tenth; or none is known."""
    count = sum_by_rank_and_step(line, ~line.collective, np.ones(len(line.rank)))
    middle = median_by_step(count.T)[:, None]
    return np.asarray(~(np.abs(count - middle) > MOST_UNUSUAL * middle))


def usual_steps(line: Timeline, compute: Floats, known: Bools) -> Bools:
    """The known steps in which ranks do as many operations as usual, and most do not compute far longer; all known
    ones where these are less than half.

    An evaluation, or a step that was cut, is shorter or longer for another reason than its data, and so is a warm-up,
    in which ranks compile for different times. `compute`: seconds by (rank, step).
    """
    found = known & (usual_counts(line).mean(axis=0) >= 0.8)
    length = median_by_step(compute)
    found &= ~(length > WARM_UP * np.nanmedian(length[known]))
    return found if 2 * found.sum() >= known.sum() else known


def sequence_imbalance(
    line: Timeline, compute: Floats, steps: Bools, alike: Ints, replica: Ints, period: float, stragglers: set[int]
) -> Diagnosis | None:
    """Excess that belongs to the data of a step on any rank, and not to one rank; `steps` are those of `compute`.

    What makes a step longer on all ranks alike, such as a warm-up, is no imbalance. Nor is what makes a single
    operation of a step longer, because data makes forward and backward passes longer.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(np.maximum(compute, 1e-12))
    logs = np.where(np.isfinite(compute), logs, np.nan)
    healthy = np.array([rank not in stragglers for rank in range(len(logs))])
    # Where rows are lost that tell steps apart, a few steps of a rank have the operations of two.
    if (seldom := ~usual_counts(line)[:, steps]).mean() <= MOST_UNUSUAL:
        logs[seldom] = np.nan
        compute = np.where(seldom, np.nan, compute)
    logs = logs[healthy]
    alike, replica, compute = alike[healthy], replica[healthy], compute[healthy]
    by_rank = np.nanmedian(logs, axis=1, keepdims=True)
    centred = logs - by_rank
    step = np.nanmedian(centred, axis=0)
    cells = centred - step
    sigma = max(MAD_TO_SIGMA * float(np.nanmedian(np.abs(cells - np.nanmedian(cells)))), 1e-4)
    ordinary = np.exp(by_rank + step + np.minimum(cells, 4 * sigma))
    lost_cells = float(np.nanmean(np.nanmax(compute, axis=0) - np.nanmax(ordinary, axis=0)))
    together = _comovement(line, healthy, steps, alike, replica, cells)
    lost_spread = 0.0
    if (sigma > 0.05 and together > 0.6) or sigma > 0.15:
        lost_spread = float(np.nanmean(np.nanmax(compute, axis=0) - np.nanmean(compute, axis=0)))
        lost_spread = max(0.0, lost_spread - float(np.nanmax(np.exp(by_rank)) - np.nanmean(np.exp(by_rank))))
    odd = cells > 4 * sigma
    lost = max(lost_cells, lost_spread)
    if lost < SMALLEST_IMBALANCE * period:
        return None
    counts = odd.sum(axis=1)
    if lost_spread < SMALLEST_IMBALANCE * period and _concentrated(counts):
        possible = [int(np.flatnonzero(healthy)[counts.argmax()])]
        evidence = {"by": "few_steps", "possible": possible, "odd_steps": int(counts.max())}
        return Diagnosis(Cause.UNKNOWN, seconds_lost_per_step=lost_cells, evidence=evidence)
    paused = np.zeros((line.ranks, line.steps), np.bool_)
    paused[np.ix_(healthy, steps)] = odd
    paused &= _longer_in_one_operation(line, steps)
    paused = paused[np.ix_(healthy, steps)]
    lasting = np.where(paused, np.minimum(compute, ordinary), compute)
    lost_cells = float(np.nanmean(np.nanmax(lasting, axis=0) - np.nanmax(ordinary, axis=0)))
    lost = max(lost_cells, lost_spread)
    if lost < SMALLEST_IMBALANCE * period:
        return None
    evidence = {
        "odd_share_of_cells": round(float(odd.mean()), 6), "noise": round(sigma, 6),
        "operations_move_together": round(together, 4),
        "seconds": {"cells": lost_cells, "spread": lost_spread},
    }  # fmt: skip
    return Diagnosis(Cause.SEQUENCE, seconds_lost_per_step=lost, evidence=evidence)


def _longer_in_one_operation(line: Timeline, steps: Bools) -> Bools:
    """By (rank, step): what is longer than in other steps is nearly all in one operation that is usually short.

    An operation is compared with those at the same place of other steps, all relative to the length of their step.
    One that most steps do not have, such as a checkpoint, usually takes no time.
    """
    rows = np.flatnonzero(~line.collective & steps[line.step])
    total = sum_by_rank_and_step(line, ~line.collective, line.duration)
    with np.errstate(divide="ignore", invalid="ignore"):
        length = np.nan_to_num(median_by_step(total / np.nanmedian(total[:, steps], axis=1, keepdims=True)), nan=1.0)
    length = np.maximum(length, 1e-12)
    place = places_of_compute(line)[rows]
    _, kind = np.unique(line.rank[rows] * (int(place.max(initial=0)) + 1) + place, return_inverse=True)
    count, middle = grouped_median(line.duration[rows] / length[line.step[rows]], kind, int(kind.max(initial=-1)) + 1)
    middle[2 * count < steps.sum()] = 0.0
    usual = middle[kind] * length[line.step[rows]]
    longer = line.duration[rows] - usual
    cell = line.rank[rows] * line.steps + line.step[rows]
    size = line.ranks * line.steps
    whole, most = np.bincount(cell, usual, size), np.zeros(size)
    np.maximum.at(most, cell, np.where(usual < MOST_OF_ONE * whole[cell], longer, 0.0))
    found = most >= OF_ONE_OPERATION * np.maximum(np.bincount(cell, longer, size), 1e-12)
    return np.asarray(found.reshape(line.ranks, line.steps))


def _concentrated(counts: Ints) -> bool:
    """Whether one rank has more of the odd cells than changing data explains, and more than half of them."""
    total, ranks = int(counts.sum()), len(counts)
    needed = max(min_last_count(total, ranks, CHANCE_OF_ONE / ranks), total // 2 + 1)
    return bool(total > 0 and counts.max() >= needed)


def _comovement(line: Timeline, healthy: Bools, steps: Bools, alike: Ints, replica: Ints, cells: Floats) -> float:
    """Correlation by which different operations, or different stages of one replica, are long in the same steps."""
    found = [0.0]
    names = np.unique(line.op[~line.collective])
    if 2 <= len(names) <= 64:
        parts = []
        for name in names.tolist():
            table = sum_by_rank_and_step(line, ~line.collective & (line.op == name), line.duration)[healthy][:, steps]
            if np.isfinite(table).mean() < 0.5:
                continue
            with np.errstate(divide="ignore", invalid="ignore"):
                logs = np.log(np.maximum(table, 1e-12))
            logs = np.where(np.isfinite(table), logs, np.nan)
            logs = logs - np.nanmedian(logs, axis=1, keepdims=True)
            parts.append(logs - median_by_step(logs))
        found += [_correlation(parts[0], other) for other in parts[1:]]
    if (replica >= 0).all() and len(np.unique(alike)) > 1:
        for one in np.unique(replica).tolist():
            members = np.flatnonzero(replica == one)
            found += [_correlation(cells[members[0]], cells[other]) for other in members[1:]]
        return float(np.median(found[1:])) if len(found) > 1 else 0.0
    return max(found)


def _correlation(one: Floats, other: Floats) -> float:
    both = np.isfinite(one) & np.isfinite(other)
    if both.sum() < FEWEST_STEPS:
        return 0.0
    a, b = one[both] - one[both].mean(), other[both] - other[both].mean()
    power = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum() / power) if power > 0 else 0.0
