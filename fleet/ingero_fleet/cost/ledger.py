"""What stragglers have cost since Fleet started, added up tick by tick. Bounded; closed accounts stay in the sum."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ingero_contract.identifiers import NodeKey, node_key
from ingero_fleet.cost.bill import Bill, JobKey

MAX_STRAGGLERS: Final = 10_000
MAX_JOBS: Final = 10_000
"""Most accounts; beyond that, the one booked longest ago is added to the cluster's sum and closed."""


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


@dataclass
class CostLedger:
    """All accounts. `closed_*` hold, by cluster, the sums of accounts that were closed."""

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
        for key, job in bill.jobs.items():
            account = self.jobs.pop(key, JobAccount())
            self.jobs[key] = JobAccount(account.cost + job.cost * hours, account.waiting + job.waiting * hours, now)
        for straggler in bill.stragglers:
            known = self.stragglers.pop(straggler.node, None) or StragglerAccount(straggler.job, now, now)
            self.stragglers[straggler.node] = replace(
                known,
                job=straggler.job,
                last=now,
                seconds=known.seconds + seconds,
                share=known.share + straggler.share * hours,
                saving=known.saving + straggler.saving * hours,
                unpriced_gpus=max(known.unpriced_gpus, straggler.unpriced_gpus),
            )
        while len(self.stragglers) > MAX_STRAGGLERS:
            node = next(iter(self.stragglers))
            self.closed_shares[node[0]] = self.closed_shares.get(node[0], 0.0) + self.stragglers.pop(node).share
        while len(self.jobs) > MAX_JOBS:
            key = next(iter(self.jobs))
            gone, kept = self.jobs.pop(key), self.closed_jobs.get(key[0], JobAccount())
            self.closed_jobs[key[0]] = JobAccount(kept.cost + gone.cost, kept.waiting + gone.waiting, gone.last)

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

    def cluster(self, name: str) -> JobAccount:
        """All jobs of a cluster together, closed ones included."""
        own = [account for key, account in self.jobs.items() if key[0] == name]
        own += [self.closed_jobs[name]] if name in self.closed_jobs else []
        return JobAccount(sum(item.cost for item in own), sum(item.waiting for item in own))

    def clusters(self) -> list[str]:
        """Clusters with any account."""
        return sorted({key[0] for key in self.jobs} | set(self.closed_jobs))
