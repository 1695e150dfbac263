"""One tick in money: what every job costs an hour, and what of that it spends waiting for whom. Pure."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from ingero_detect.cohorts import CohortKey
from ingero_detect.memory import NodeKey
from ingero_fleet.cost.counterfactual import savings, shares
from ingero_fleet.cost.providers import ProviderMap
from ingero_fleet.cost.rates import RateTable
from ingero_fleet.picture import Picture
from ingero_fleet.scores import IDLE, Hardware

JOB_PARTS = ("workload_type", "job_id")
"""What of a cohort names the job; stage and GPU model are parts of one."""

VERDICT, COLLECTIVES, BOTH = "verdict", "collectives", "both"
"""Who names a culprit: the detector, the collectives that wait for it, or both."""

JobKey = tuple[str, str]
"""Cluster and job; the job is empty when nobody named one."""


@dataclass(frozen=True)
class Prices:
    """Rates and who runs where."""

    table: RateTable
    providers: ProviderMap = field(default_factory=ProviderMap)


@dataclass(frozen=True)
class Culprit:
    """One straggler: what its job spends because of it, in the table's currency an hour.

    `share` adds up over culprits to the waiting of their job; `saving` is what curing this one alone would save.
    """

    node: NodeKey
    job: JobKey
    severity: float
    share: float
    saving: float
    by: str = VERDICT


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
    culprits: list[Culprit] = field(default_factory=list)
    missing: Counter[tuple[str, str]] = field(default_factory=Counter)


def make_bill(
    picture: Picture, hardware: Sequence[Hardware], prices: Prices, by: tuple[str, ...],
    late: Mapping[NodeKey, float] = MappingProxyType({}),
) -> Bill:  # fmt: skip
    """Price a picture. Nodes of a job that told a world size above 1 wait for each other; others do not.

    `late` is the share of its job's time that was lost waiting in collectives for a node alone: such a job waits for
    each other whatever it told. A node that is accused on both counts is billed once, by the larger.
    A stopped node wastes only itself, because its peers are seen to go on.
    """
    columns, names = picture.frame.columns, picture.frame.names
    rates, gpus, missing = _rates(picture, hardware, prices)
    places = [by.index(part) + 1 for part in JOB_PARTS if part in by]
    keys = [job_of(cohort, places) for cohort in picture.frame.cohorts]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    if not numbers:
        return Bill()
    job_of_cohort = np.array([numbers[key] for key in keys], np.int64)
    alive = columns["alive"]
    job = job_of_cohort[columns["cohort"][alive]]
    length = len(numbers)
    hourly = np.where(np.isfinite(rates), rates * gpus, 0.0)
    # Whoever rests or has stopped does not wait for anybody.
    waits = alive & (columns["state"] != IDLE) & ~picture.stopped
    cost = np.bincount(job, weights=hourly[alive], minlength=length)
    waiting_cost = np.bincount(job_of_cohort[columns["cohort"][waits]], weights=hourly[waits], minlength=length)
    nodes = np.bincount(job, minlength=length)
    all_gpus = np.bincount(job, weights=gpus[alive], minlength=length)
    unpriced = np.bincount(job, weights=np.where(np.isfinite(rates), 0, gpus)[alive], minlength=length)
    synchronised = np.zeros(length, bool)
    np.logical_or.at(synchronised, job, columns["world_size"][alive] > 1)

    accused: dict[int, list[tuple[int, float]]] = {}
    reasons: dict[int, str] = {}
    medians = {summary.key: summary.median for summary in picture.tick.cohorts}
    straggling = picture.straggling
    rows = (
        (row for row in picture.rows() if names[row] in late or straggling[row]) if late else straggling.nonzero()[0]
    )
    for row in map(int, rows):
        share, straggles = late.get(names[row]), bool(straggling[row])
        severity = max(severity_of(picture, row, medians) if straggles else 0.0, share or 0.0)
        number = int(job_of_cohort[int(columns["cohort"][row])])
        accused.setdefault(number, []).append((row, min(severity, 1.0)))
        reasons[row] = COLLECTIVES if not straggles else VERDICT if share is None else BOTH
        synchronised[number] |= share is not None

    bill = Bill(missing=missing)
    for key, number in numbers.items():
        if not nodes[number]:
            continue
        found = accused.get(number, [])
        waiting = 0.0
        if synchronised[number]:
            joint = [(row, severity) for row, severity in found if not picture.stopped[row]]
            alone = [(row, severity) for row, severity in found if picture.stopped[row]]
            levels = [severity for _, severity in joint]
            total = float(waiting_cost[number])
            waiting = total * max(levels, default=0.0)
            for (row, severity), share, saving in zip(joint, shares(levels), savings(levels), strict=True):
                bill.culprits.append(Culprit(names[row], key, severity, share * total, saving * total, reasons[row]))
        else:
            alone = found
        for row, severity in alone:
            wasted = float(hourly[row]) * severity
            waiting += wasted
            bill.culprits.append(Culprit(names[row], key, severity, wasted, wasted, reasons[row]))
        bill.jobs[key] = JobBill(
            key, int(nodes[number]), int(all_gpus[number]), bool(synchronised[number]), float(cost[number]), waiting,
            int(unpriced[number]),
        )  # fmt: skip
    return bill


def severity_of(picture: Picture, row: int, medians: dict[CohortKey, float]) -> float:
    """Share of its own rate that a straggler lost, 0 to 1: the verdict's, else how far it scores below its peers."""
    if picture.stopped[row]:
        return 1.0
    verdict = picture.findings.verdict(row) if picture.findings else None
    if verdict is not None:
        value = verdict.severity
    else:
        columns = picture.frame.columns
        median = medians.get(picture.frame.cohorts[int(columns["cohort"][row])], math.nan)
        value = 1.0 - float(columns["score"][row]) / median if median > 0 else 0.0
    return min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0


def job_of(cohort: CohortKey, places: Sequence[int]) -> JobKey:
    """The job that a cohort belongs to."""
    return cohort[0], "/".join(cohort[place] for place in places if cohort[place])


def _rates(
    picture: Picture, hardware: Sequence[Hardware], prices: Prices
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], Counter[tuple[str, str]]]:
    """Rate (not a number when there is none) and GPUs by row, and how many GPUs have no rate."""
    columns = picture.frame.columns
    codes, alive = columns["hardware"], columns["alive"]
    if prices.providers.rules or prices.providers.places:
        return _rates_by_rule(picture, hardware, prices)
    providers = [item.provider or prices.providers.default for item in hardware]
    known = [prices.table.find(provider, item.model) for provider, item in zip(providers, hardware, strict=True)]
    counts = np.array([gpus_of(item) for item in hardware], np.int64)
    rates = np.array([math.nan if rate is None else rate for rate in known], np.float64)
    nodes = np.bincount(codes[alive], minlength=len(hardware))
    missing: Counter[tuple[str, str]] = Counter()
    for item, provider, rate, count in zip(hardware, providers, known, (nodes * counts).tolist(), strict=True):
        if rate is None and count:
            missing[(provider, item.model)] += count
    return rates[codes], counts[codes], missing


def _rates_by_rule(
    picture: Picture, hardware: Sequence[Hardware], prices: Prices
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], Counter[tuple[str, str]]]:
    columns = picture.frame.columns
    rates = np.full(len(columns["hardware"]), np.nan)
    gpus = np.zeros(len(columns["hardware"]), np.int64)
    missing: Counter[tuple[str, str]] = Counter()
    found: dict[tuple[str, str], float | None] = {}
    for row in np.flatnonzero(columns["alive"]).tolist():
        item = hardware[int(columns["hardware"][row])]
        provider = prices.providers.find(picture.frame.names[row], item.provider)
        key = (provider, item.model)
        if key not in found:
            found[key] = prices.table.find(provider, item.model)
        gpus[row] = gpus_of(item)
        rate = found[key]
        if rate is None:
            missing[key] += int(gpus[row])
        else:
            rates[row] = rate
    return rates, gpus, missing


def gpus_of(item: Hardware) -> int:
    """GPUs of a node; 1 when it did not say how many."""
    return max(1, item.gpus)
