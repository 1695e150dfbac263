"""Keeps prices and the ledger of an engine and answers questions on cost. Files are read again on request."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from ingero_contract.identifiers import NodeKey
from ingero_fleet.cost.bill import Bill, JobBill, JobKey, StragglerCost, make_bill
from ingero_fleet.cost.export import CostExporter
from ingero_fleet.cost.files import read_prices
from ingero_fleet.cost.ledger import CostLedger, JobAccount, StragglerAccount
from ingero_fleet.processor_settings import CostConfig
from ingero_fleet.score_table import Hardware
from ingero_fleet.tick_snapshot import TickSnapshot
from ingero_kit.clock import rfc3339
from ingero_kit.metrics_table import MetricRow, Samples, counter, gauge
from ingero_kit.otlp_receiver import Push
from ingero_kit.otlp_signal import Signal

MAX_GAP_INTERVALS: Final = 3.0
"""Most push intervals that one booking may cover; time that Fleet did not observe is not charged."""

MAX_SERIES: Final = 1_000
"""Most clusters, jobs and stragglers with their own series on the Prometheus page, the most expensive first."""


class CostTracker:
    """One for each engine; `book` is called once a tick, everything else reads."""

    def __init__(
        self, config: CostConfig, hardware: list[Hardware], by: tuple[str, ...], now: float,
        export: Callable[[Push], None] | None = None,
    ) -> None:  # fmt: skip
        self.config = config
        self.prices = read_prices(config)
        self.bill = Bill()
        self.ledger = CostLedger(now, now)
        self._hardware = hardware
        self._by = by
        self._export = export
        self._exporter = CostExporter(now)

    @property
    def currency(self) -> str:
        """Currency of the price table."""
        return self.prices.table.currency

    def start(self, now: float) -> None:
        """Begin the sums at this time instead of the one of construction."""
        self.ledger.since = self.ledger.last = now
        self._exporter = CostExporter(now)

    def adopt(self, config: CostConfig) -> None:
        """Read the files again; on `SettingsError` the old prices stay in force."""
        self.prices = read_prices(config)
        self.config = config

    def state(self) -> dict[str, Any]:
        """Everything that later bookings depend on."""
        return {"currency": self.currency, "ledger": self.ledger.state(), "exporter": self._exporter.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned; sums in another currency are left out."""
        if state["currency"] == self.currency:
            self.ledger.restore(state["ledger"])
            self._exporter.restore(state["exporter"])

    def book(
        self, snapshot: TickSnapshot, interval_seconds: float, late: Mapping[NodeKey, float] = MappingProxyType({})
    ) -> None:
        """Price a tick and add it up. `late` is what `make_bill` takes."""
        self.bill = make_bill(snapshot, list(self._hardware), self.prices, self._by, late)
        self.ledger.book(self.bill, snapshot.tick.now, MAX_GAP_INTERVALS * interval_seconds)
        body = self._exporter.encode(self.ledger, self.currency) if self._export else None
        if body and self._export:
            self._export(Push(Signal.METRICS, "protobuf", body))

    def summary(self, cluster: str | None = None) -> dict[str, Any]:
        """What jobs cost in all, and how much of it is waiting: by the hour now, and since Fleet started."""
        ledger, table = self.ledger, self.prices.table
        jobs = [job for key, job in self.bill.jobs.items() if cluster in (None, key[0])]
        sums = ledger.sums(cluster).values()
        return {
            "currency": table.currency,
            "symbol": table.symbol,
            "since": rfc3339(ledger.since),
            "cost_per_hour": _money(sum(job.cost for job in jobs)),
            "waiting_per_hour": _money(sum(job.waiting for job in jobs)),
            "cost": _money(sum(item.cost for item in sums)),
            "waiting": _money(sum(item.waiting for item in sums)),
            "gpus_without_rate": sum(job.unpriced_gpus for job in jobs),
        }

    def culprits(self, nodes: Iterable[NodeKey]) -> dict[NodeKey, dict[str, Any]]:
        """What `answer` says of each of these nodes that a job has waited for."""
        now, accounts = self._now(), self.ledger.stragglers
        return {node: _culprit_answer(node, accounts[node], now.get(node)) for node in nodes if node in accounts}

    def _now(self) -> dict[NodeKey, StragglerCost]:
        """What stragglers cost at present."""
        return {straggler.node: straggler for straggler in self.bill.stragglers}

    def answer(
        self, cluster: str | None = None, job: str | None = None, *, offset: int = 0, limit: int | None = None
    ) -> dict[str, Any]:
        """What jobs cost, how much of it was waiting, and for whom: now by the hour, and since Fleet started.

        `jobs` and `culprits` are those of one cluster, or job, or of all: the costliest first, `limit` of each from
        `offset` on. The sums are of the whole cluster.
        """
        bill, ledger, now = self.bill, self.ledger, self._now()
        jobs = [(key, one) for key, one in ledger.jobs.items() if cluster in (None, key[0]) and job in (None, key[1])]
        jobs.sort(key=lambda item: (-item[1].cost, item[0]))
        culprits = [
            (node, one)
            for node, one in ledger.stragglers.items()
            if cluster in (None, node[0]) and job in (None, one.job[1])
        ]
        culprits.sort(key=lambda item: (-item[1].share, item[0]))
        page = slice(offset, None if limit is None else offset + limit)
        sums = ledger.sums(cluster).values()
        forgotten = sum(share for name, share in ledger.closed_shares.items() if cluster in (None, name))
        return {
            "cluster_id": cluster,
            "currency": self.prices.table.currency,
            "symbol": self.prices.table.symbol,
            "since": rfc3339(ledger.since),
            "until": rfc3339(ledger.last),
            "cost": _money(sum(item.cost for item in sums)),
            "waiting": _money(sum(item.waiting for item in sums)),
            "forgotten_shares": _money(forgotten),
            "offset": offset,
            "jobs_total": len(jobs),
            "jobs": [_job_answer(key, one, bill.jobs.get(key)) for key, one in jobs[page]],
            "culprits_total": len(culprits),
            "culprits": [_culprit_answer(node, one, now.get(node)) for node, one in culprits[page]],
            "missing_rates": [
                {"provider": provider, "gpu_model": model, "gpus": count, "why": _why(provider, model)}
                for (provider, model), count in sorted(bill.missing.items())
            ],
        }


def _job_answer(key: JobKey, account: JobAccount, bill: JobBill | None) -> dict[str, Any]:
    """A job; `bill` is what it costs now, if it runs."""
    return {
        "cluster_id": key[0],
        "job": key[1],
        "nodes": bill.nodes if bill else 0,
        "gpus": bill.gpus if bill else 0,
        "synchronised": bill.synchronised if bill else None,
        "cost_per_hour": _money(bill.cost if bill else 0.0),
        "waiting_per_hour": _money(bill.waiting if bill else 0.0),
        "cost": _money(account.cost),
        "waiting": _money(account.waiting),
        "gpus_without_rate": bill.unpriced_gpus if bill else 0,
    }


def _culprit_answer(node: NodeKey, account: StragglerAccount, now: StragglerCost | None) -> dict[str, Any]:
    """A node that jobs wait for, or waited for; `now` is what it costs at present."""
    return {
        "cluster_id": node[0],
        "node_id": node[1],
        "job": account.job[1],
        "straggling_now": now is not None,
        "severity": round(now.severity, 6) if now else None,
        "named_by": now.by if now else None,
        "share_per_hour": _money(now.share if now else 0.0),
        "share": _money(account.share),
        "saving_alone": _money(account.saving),
        "gpus_without_rate": account.unpriced_gpus,
        "straggler_seconds": round(account.seconds, 3),
        "first_seen": rfc3339(account.first),
        "last_seen": rfc3339(account.last),
    }


def _why(provider: str, model: str) -> str:
    if not model:
        return "the agents reported no GPU model"
    if not provider:
        return "no provider is known; set processors.cost.default_provider or a rule"
    return f"the rate table has no {model} at {provider}"


def _money(value: float) -> float:
    return round(value, 12)


def _clusters(name: str, text: str, sums: Callable[[JobAccount], float]) -> MetricRow[CostTracker]:
    def samples(s: CostTracker) -> Samples:
        costliest = sorted(s.ledger.sums().items(), key=lambda item: -item[1].cost)[:MAX_SERIES]
        return {(cluster, s.currency): sums(account) for cluster, account in costliest}

    return counter(name, text, samples, "cluster_id", "currency")


def _jobs(name: str, text: str, value: Callable[[JobBill], float]) -> MetricRow[CostTracker]:
    def samples(s: CostTracker) -> Samples:
        costliest = sorted(s.bill.jobs.items(), key=lambda item: -item[1].cost)[:MAX_SERIES]
        return [((*key, s.currency), value(job)) for key, job in costliest]

    return gauge(name, text, samples, "cluster_id", "job", "currency")


def _shares(s: CostTracker) -> Samples:
    costliest = sorted(s.ledger.stragglers.items(), key=lambda item: -item[1].share)[:MAX_SERIES]
    return [((*node, s.currency), one.share) for node, one in costliest]


COST: Final[tuple[MetricRow[CostTracker], ...]] = (
    _clusters("ingero_fleet_job_cost", "What all jobs cost.", lambda sums: sums.cost),
    _clusters("ingero_fleet_waiting_cost", "What of that is waiting for stragglers.", lambda sums: sums.waiting),
    _jobs("ingero_fleet_job_cost_per_hour", "What a job costs an hour.", lambda job: job.cost),
    _jobs("ingero_fleet_waiting_cost_per_hour", "What of that is waiting.", lambda job: job.waiting),
    counter(
        "ingero_fleet_straggler_cost", "A straggler's share of the waiting.", _shares,
        "cluster_id", "node_id", "currency",
    ),
    gauge(
        "ingero_fleet_gpus_without_rate", "GPUs that no rate is known for.", lambda s: s.bill.missing,
        "provider", "gpu_model",
    ),
)  # fmt: skip
