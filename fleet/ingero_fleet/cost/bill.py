"""The cost of one tick: what every job costs an hour, and how much it spends waiting for which straggler. Pure."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from ingero_contract.identifiers import NodeKey
from ingero_detect.nodes.cohorts import CohortKey
from ingero_fleet.cost.pricing import Priced, Prices, price
from ingero_fleet.score_table import IDLE, Hardware
from ingero_fleet.tick_snapshot import TickSnapshot

JOB_PARTS = ("workload_type", "job_id")
"""Parts of a cohort's key that name the job; stage and GPU model divide one job."""

VERDICT, COLLECTIVES, BOTH = "verdict", "collectives", "both"
"""What names a straggler: the detector, the collectives that wait for it, or both."""

JobKey = tuple[str, str]
"""Cluster and job; the job is empty when none was reported."""


@dataclass(frozen=True)
class StragglerCost:
    """One straggler: what its job spends because of it, in the table's currency an hour.

    `share` adds up over stragglers to the waiting of their job; `saving` is what repairing this one alone would save.
    Neither includes the `unpriced_gpus`, which also lose time to it but have no rate.
    """

    node: NodeKey
    job: JobKey
    severity: float
    share: float
    saving: float
    by: str = VERDICT
    unpriced_gpus: int = 0


@dataclass(frozen=True)
class JobBill:
    """One job an hour: all it costs, what of it is waiting, and how many of its GPUs have no rate."""

    key: JobKey
    nodes: int
    gpus: int
    synchronised: bool
    cost: float
    waiting: float
    unpriced_gpus: int


@dataclass(frozen=True)
class Bill:
    """One tick. `missing` counts GPUs by the (provider, model) that has no rate."""

    jobs: dict[JobKey, JobBill] = field(default_factory=dict)
    stragglers: list[StragglerCost] = field(default_factory=list)
    missing: Counter[tuple[str, str]] = field(default_factory=Counter)


def make_bill(
    snapshot: TickSnapshot, hardware: Sequence[Hardware], prices: Prices, by: tuple[str, ...],
    late: Mapping[NodeKey, float] = MappingProxyType({}),
) -> Bill:  # fmt: skip
    """Price a snapshot. Nodes of a job that reported a world size above 1 wait for each other; others do not.

    `late` is, by node, the share of its job's time that was lost waiting in collectives for it alone: nodes of such a
    job wait for each other whatever world size they reported. A node that both sources accuse is billed once, by the
    larger share. A stopped node wastes only its own time, because its peers continue.
    """
    priced = price(snapshot, hardware, prices)
    places = [by.index(part) + 1 for part in JOB_PARTS if part in by]
    keys = [job_of(cohort, places) for cohort in snapshot.scores.cohorts]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    if not numbers:
        return Bill()
    job_of_cohort = np.array([numbers[key] for key in keys], np.int64)
    job_of_row = job_of_cohort[snapshot.scores.columns["cohort"]]
    sums = _sum_by_job(snapshot, priced, job_of_row, len(numbers))
    accused: dict[int, list[_Accused]] = {}
    for item in _accused(snapshot, late):
        number = int(job_of_row[item.row])
        accused.setdefault(number, []).append(item)
        sums.synchronised[number] |= item.by != VERDICT
    bill = Bill(missing=priced.missing)
    for key, number in numbers.items():
        if not sums.nodes[number]:
            continue
        stragglers, waiting = _charge(snapshot, priced, sums, key, number, accused.get(number, []))
        bill.stragglers.extend(stragglers)
        bill.jobs[key] = JobBill(
            key, int(sums.nodes[number]), int(sums.gpus[number]), bool(sums.synchronised[number]),
            float(sums.cost[number]), waiting, int(sums.unpriced[number]),
        )  # fmt: skip
    return bill


@dataclass(frozen=True)
class _Sums:
    """By job. `waiting` and `waiting_unpriced`: money an hour, and GPUs without a rate, of nodes that can wait."""

    nodes: npt.NDArray[np.int64]
    gpus: npt.NDArray[np.int64]
    unpriced: npt.NDArray[np.int64]
    cost: npt.NDArray[np.float64]
    waiting: npt.NDArray[np.float64]
    waiting_unpriced: npt.NDArray[np.int64]
    synchronised: npt.NDArray[np.bool_]


def _sum_by_job(snapshot: TickSnapshot, priced: Priced, job: npt.NDArray[np.int64], jobs: int) -> _Sums:
    columns = snapshot.scores.columns
    alive = columns["alive"]
    # Idle and stopped nodes do not wait for others.
    waits = alive & (columns["state"] != IDLE) & ~snapshot.stopped

    def total(rows: npt.NDArray[np.bool_], values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.bincount(job[rows], weights=values[rows], minlength=jobs)

    synchronised = np.bincount(job[alive & (columns["world_size"] > 1)], minlength=jobs) > 0
    return _Sums(
        np.bincount(job[alive], minlength=jobs), total(alive, priced.gpus), total(alive, priced.unpriced),
        total(alive, priced.hourly), total(waits, priced.hourly), total(waits, priced.unpriced), synchronised,
    )  # fmt: skip


@dataclass(frozen=True)
class _Accused:
    row: int
    severity: float
    by: str


def _accused(snapshot: TickSnapshot, late: Mapping[NodeKey, float]) -> Iterator[_Accused]:
    medians = {summary.key: summary.median for summary in snapshot.tick.cohorts}
    names, straggling = snapshot.scores.names, snapshot.straggling
    rows = (
        [row for row in snapshot.rows() if names[row] in late or straggling[row]] if late else straggling.nonzero()[0]
    )
    for row in map(int, rows):
        share, straggles = late.get(names[row]), bool(straggling[row])
        severity = max(severity_of(snapshot, row, medians) if straggles else 0.0, share or 0.0)
        by = COLLECTIVES if not straggles else VERDICT if share is None else BOTH
        yield _Accused(row, min(severity, 1.0), by)


def _charge(
    snapshot: TickSnapshot, priced: Priced, sums: _Sums, key: JobKey, number: int, accused: list[_Accused]
) -> tuple[list[StragglerCost], float]:
    """Cost by straggler of a job, and the sum: jointly for the waiting of all, or each for its own time."""
    synchronised = bool(sums.synchronised[number])
    joint = [item for item in accused if synchronised and not snapshot.stopped[item.row]]
    levels = [item.severity for item in joint]
    total, unpriced = float(sums.waiting[number]), int(sums.waiting_unpriced[number])
    names = snapshot.scores.names
    found = [
        StragglerCost(names[item.row], key, item.severity, share * total, saving * total, item.by, unpriced)
        for item, share, saving in zip(joint, shares(levels), savings(levels), strict=True)
    ]
    waiting = total * max(levels, default=0.0)
    for item in accused:
        if not synchronised or snapshot.stopped[item.row]:
            wasted = float(priced.hourly[item.row]) * item.severity
            waiting += wasted
            unpriced = int(priced.unpriced[item.row])
            found.append(StragglerCost(names[item.row], key, item.severity, wasted, wasted, item.by, unpriced))
    return found, waiting


def severity_of(snapshot: TickSnapshot, row: int, medians: dict[CohortKey, float]) -> float:
    """Share of its own rate that a straggler lost, 0 to 1: the verdict's, else how far it scores below its peers."""
    if snapshot.stopped[row]:
        return 1.0
    verdict = snapshot.findings.verdict(row) if snapshot.findings else None
    if verdict is not None:
        value = verdict.severity
    else:
        columns = snapshot.scores.columns
        median = medians.get(snapshot.scores.cohorts[int(columns["cohort"][row])], math.nan)
        value = 1.0 - float(columns["score"][row]) / median if median > 0 else 0.0
    return min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0


def job_of(cohort: CohortKey, places: Sequence[int]) -> JobKey:
    """The job that a cohort belongs to."""
    return cohort[0], "/".join(cohort[place] for place in places if cohort[place])


def shares(severities: Sequence[float]) -> list[float]:
    """Each member's part of max(severities), 0 to 1; they add up to it."""
    order = sorted(range(len(severities)), key=severities.__getitem__)
    out = [0.0] * len(severities)
    reached = carried = 0.0
    for place, member in enumerate(order):
        carried += (severities[member] - reached) / (len(order) - place)
        reached = severities[member]
        out[member] = carried
    return out


def savings(severities: Sequence[float]) -> list[float]:
    """What repairing one member alone would save, as a share of the job: above 0 only for the single slowest."""
    if not severities:
        return []
    first, second = sorted((*severities, 0.0), reverse=True)[:2]
    return [first - second if severity == first else 0.0 for severity in severities]
