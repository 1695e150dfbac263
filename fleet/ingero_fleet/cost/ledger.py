"""What stragglers have cost since Fleet started, added up tick by tick. Bounded; closed accounts stay in the sum."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from ingero_contract.identifiers import NodeKey, node_key
from ingero_fleet.cost.bill import Bill, JobKey

MAX_STRAGGLERS: Final = 10_000
MAX_JOBS: Final = 10_000
"""Most accounts; beyond that, the one booked longest ago is added to the cluster's sum and closed."""

MAX_CLUSTERS: Final = 1_000
"""Most clusters with a sum of closed accounts; beyond that, the oldest sum is added to that of `FORGOTTEN`."""

FORGOTTEN: Final = ""
"""Stands for clusters that are no longer told apart. No cluster has this name."""


@dataclass(frozen=True)
class StragglerAccount:
    """One node: seconds as a straggler, and its cost so far."""

    job: JobKey
    first: float
    last: float
    seconds: float = 0.0
    share: float = 0.0
    saving: float = 0.0
    unpriced_gpus: int = 0
    """Most GPUs at one time that lost time to it and had no rate; neither sum includes them."""


@dataclass(frozen=True)
class JobAccount:
    """One job: its cost so far."""

    cost: float = 0.0
    waiting: float = 0.0
    last: float = 0.0

    def __add__(self, other: "JobAccount") -> "JobAccount":
        """Both together."""
        return JobAccount(self.cost + other.cost, self.waiting + other.waiting, max(self.last, other.last))


Sum = TypeVar("Sum", float, JobAccount)


@dataclass
class CostLedger:
    """All accounts. `closed_*` hold, by cluster, the sums of accounts that were closed.

    A booking replaces the dictionaries and changes none, so that other threads may read them meanwhile.
    """

    since: float
    last: float
    stragglers: dict[NodeKey, StragglerAccount] = field(default_factory=dict)
    jobs: dict[JobKey, JobAccount] = field(default_factory=dict)
    closed_shares: dict[str, float] = field(default_factory=dict)
    closed_jobs: dict[str, JobAccount] = field(default_factory=dict)

    def book(self, bill: Bill, now: float, longest_seconds: float) -> None:
        """Add the time since the last booking at the bill's prices; a gap counts as `longest_seconds` at most."""
        seconds = min(max(0.0, now - self.last), longest_seconds)
        self.last, hours = now, seconds / 3600.0
        jobs, stragglers = dict(self.jobs), dict(self.stragglers)
        for key, job in bill.jobs.items():
            account = jobs.pop(key, JobAccount())
            jobs[key] = JobAccount(account.cost + job.cost * hours, account.waiting + job.waiting * hours, now)
        for straggler in bill.stragglers:
            known = stragglers.pop(straggler.node, None) or StragglerAccount(straggler.job, now, now)
            stragglers[straggler.node] = replace(
                known,
                job=straggler.job,
                last=now,
                seconds=known.seconds + seconds,
                share=known.share + straggler.share * hours,
                saving=known.saving + straggler.saving * hours,
                unpriced_gpus=max(known.unpriced_gpus, straggler.unpriced_gpus),
            )
        closed_shares, closed_jobs = dict(self.closed_shares), dict(self.closed_jobs)
        while len(stragglers) > MAX_STRAGGLERS:
            node = next(iter(stragglers))
            _close(closed_shares, node[0], stragglers.pop(node).share)
        while len(jobs) > MAX_JOBS:
            key = next(iter(jobs))
            _close(closed_jobs, key[0], jobs.pop(key))
        self.jobs, self.stragglers = jobs, stragglers
        self.closed_jobs, self.closed_shares = closed_jobs, closed_shares

    def state(self) -> dict[str, Any]:
        """Everything that later bookings depend on."""
        return {name: list(value.items()) if isinstance(value, dict) else value for name, value in vars(self).items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned."""
        self.since, self.last = state["since"], state["last"]
        self.stragglers = {
            node_key(*node): StragglerAccount(**{**account, "job": tuple(account["job"])})
            for node, account in state["stragglers"]
        }
        self.jobs = {(cluster, job): JobAccount(**account) for (cluster, job), account in state["jobs"]}
        self.closed_shares = dict(state["closed_shares"])
        self.closed_jobs = {cluster: JobAccount(**account) for cluster, account in state["closed_jobs"]}

    def sums(self, cluster: str | None = None) -> dict[str, JobAccount]:
        """All jobs together by cluster, closed ones included; of one cluster or of all."""
        found = {name: account for name, account in self.closed_jobs.items() if cluster in (None, name)}
        for (name, _), account in self.jobs.items():
            if cluster is None or name == cluster:
                found[name] = found[name] + account if name in found else account
        return found


def _close(closed: dict[str, Sum], cluster: str, account: Sum) -> None:
    """Add an account to the sum of its cluster, which becomes the newest; forget the oldest if there are too many."""
    closed[cluster] = closed.pop(cluster) + account if cluster in closed else account
    if len(closed) > MAX_CLUSTERS + (FORGOTTEN in closed):
        oldest = next(name for name in closed if name != FORGOTTEN)
        _close(closed, FORGOTTEN, closed.pop(oldest))
