"""Finds nodes that are behind their peers in job after job, where every job is too short or too small to tell. Pure.

The jobs of a history are the runs of an audit: what all nodes of a job share is removed, and a node is compared with
all others by what it does in its jobs.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ingero_detect.audit.audit import audit
from ingero_detect.audit.audit_results import Population
from ingero_detect.audit.audit_tiers import AuditLevel
from ingero_detect.grouped import Floats, Ints

FEWEST_TICKS: Final = 10
"""Ticks of a node in a job from which its level there is known."""

FEWEST_JOBS: Final = 3
"""Jobs in which a node is behind, at least."""

FDR: Final = 0.05
"""Chance that anybody is found among healthy nodes."""

LEAST: Final = 0.05
"""Share of the usual rate that is lost, at least."""


@dataclass(frozen=True)
class Behind:
    """The number of a node, the share of its rate that it lost in its last `jobs` jobs, and when they began."""

    node: int
    lost: float
    jobs: int
    since: float


def behind(node: Ints, job: Ints, level: Floats, ticks: Ints, begun: Floats) -> list[Behind]:
    """Nodes that are behind, by number. By node and job: the mean distance from the peers there (log), the number of
    ticks, and when it began, seconds."""
    known = (ticks >= FEWEST_TICKS) & np.isfinite(level)
    node, job, level, begun = node[known], job[known], level[known], begun[known]
    shared = np.bincount(job)[job] > 1 if len(job) else np.zeros(0, np.bool_)
    node, job, level, begun = node[shared], job[shared], level[shared], begun[shared]
    if len(np.unique(job)) < FEWEST_JOBS:
        return []
    nodes, unit = np.unique(node, return_inverse=True)
    jobs, of_job = np.unique(job, return_inverse=True)
    starts = np.full(len(jobs), np.inf)
    np.minimum.at(starts, of_job, begun)
    order = np.argsort(starts, kind="stable")
    run = np.argsort(order)[of_job]
    alone = np.full(len(nodes), -1)
    found = audit([Population("", -level, unit, run, alone, np.zeros(0, np.int64))], FDR, LEAST)
    first = dict.fromkeys(range(len(nodes)), 0)
    lost = {one.number: one.loss for one in found.findings if one.level is AuditLevel.CHIP}
    first |= {one.number: one.since or 0 for one in found.findings}
    for _, number, change in found.populations[0].later:
        lost.setdefault(number, float(-np.expm1(-change.loss)))
        first[number] = change.run
    answer = []
    for number in sorted(lost):
        its = np.unique(run[(unit == number) & (run >= first[number])])
        if found.populations[0].fit.runs and len(its) >= FEWEST_JOBS:
            answer.append(Behind(int(nodes[number]), lost[number], len(its), float(starts[order[its[0]]])))
    return answer
