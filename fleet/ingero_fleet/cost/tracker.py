"""Keeps prices and the ledger beside the engine, and answers what things cost. Files are read again when asked to."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ingero_detect.column_store import NodeKey
from ingero_fleet.cost.bill import Bill, make_bill
from ingero_fleet.cost.export import CostExporter
from ingero_fleet.cost.files import read_prices
from ingero_fleet.cost.ledger import CostLedger
from ingero_fleet.cost.settings import CostConfig
from ingero_fleet.score_table import Hardware
from ingero_fleet.tick_snapshot import TickSnapshot
from ingero_kit.clock import rfc3339
from ingero_kit.otlp_receiver import Push
from ingero_kit.otlp_signal import Signal

MAX_GAP_INTERVALS: Final = 3.0
"""Push intervals that one booking may span; Fleet claims nothing for time in which it saw nothing."""

MAX_SERIES: Final = 1_000
"""Culprits with series of their own on the Prometheus page, the dearest first."""


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

    def adopt(self, config: CostConfig) -> None:
        """Read the files again; raises `SettingsError`, and then the old prices stay."""
        self.prices = read_prices(config)
        self.config = config

    def book(
        self, snapshot: TickSnapshot, interval_seconds: float, late: Mapping[NodeKey, float] = MappingProxyType({})
    ) -> None:
        """Price a tick and add it up. `late` is what `make_bill` takes."""
        self.bill = make_bill(snapshot, list(self._hardware), self.prices, self._by, late)
        self.ledger.book(self.bill, snapshot.tick.now, MAX_GAP_INTERVALS * interval_seconds)
        body = self._exporter.encode(self.ledger, self.prices.table.currency) if self._export else None
        if body and self._export:
            self._export(Push(Signal.METRICS, "protobuf", body))

    def summary(self, cluster: str | None = None) -> dict[str, Any]:
        """What jobs cost in all, and what of it is waiting: by the hour now, and since Fleet started."""
        ledger, table = self.ledger, self.prices.table
        jobs = [job for key, job in self.bill.jobs.items() if cluster in (None, key[0])]
        sums = [ledger.cluster(name) for name in ledger.clusters() if cluster in (None, name)]
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

    def answer(self, cluster: str | None = None) -> dict[str, Any]:
        """What jobs cost, what of it was waiting, and for whom: now by the hour, and since Fleet started."""
        bill, ledger = self.bill, self.ledger
        now = {straggler.node: straggler for straggler in bill.stragglers}
        jobs = [
            {
                "cluster_id": key[0],
                "job": key[1],
                "nodes": job.nodes if job else 0,
                "gpus": job.gpus if job else 0,
                "synchronised": job.synchronised if job else None,
                "cost_per_hour": _money(job.cost if job else 0.0),
                "waiting_per_hour": _money(job.waiting if job else 0.0),
                "cost": _money(account.cost),
                "waiting": _money(account.waiting),
                "gpus_without_rate": job.unpriced_gpus if job else 0,
            }
            for key, account in ledger.jobs.items()
            if cluster in (None, key[0])
            for job in [bill.jobs.get(key)]
        ]
        stragglers = [
            {
                "cluster_id": node[0],
                "node_id": node[1],
                "job": account.job[1],
                "straggling_now": node in now,
                "severity": round(now[node].severity, 6) if node in now else None,
                "named_by": now[node].by if node in now else None,
                "share_per_hour": _money(now[node].share if node in now else 0.0),
                "share": _money(account.share),
                "saving_alone": _money(account.saving),
                "gpus_without_rate": account.unpriced_gpus,
                "straggler_seconds": round(account.seconds, 3),
                "first_seen": rfc3339(account.first),
                "last_seen": rfc3339(account.last),
            }
            for node, account in ledger.stragglers.items()
            if cluster in (None, node[0])
        ]
        stragglers.sort(key=lambda item: (-float(item["share"] or 0), str(item["node_id"])))
        clusters = [name for name in ledger.clusters() if cluster in (None, name)]
        sums = [ledger.cluster(name) for name in clusters]
        return {
            "cluster_id": cluster,
            "currency": self.prices.table.currency,
            "symbol": self.prices.table.symbol,
            "since": rfc3339(ledger.since),
            "until": rfc3339(ledger.last),
            "cost": _money(sum(item.cost for item in sums)),
            "waiting": _money(sum(item.waiting for item in sums)),
            "forgotten_shares": _money(sum(ledger.closed_shares.get(name, 0.0) for name in clusters)),
            "jobs": jobs,
            "culprits": stragglers,
            "missing_rates": [
                {"provider": provider, "gpu_model": model, "gpus": count, "why": _why(provider, model)}
                for (provider, model), count in sorted(bill.missing.items())
            ],
        }


def _why(provider: str, model: str) -> str:
    if not model:
        return "the agents told no GPU model"
    if not provider:
        return "no provider is known; set processors.cost.default_provider or a rule"
    return f"the rate table has no {model} at {provider}"


def _money(value: float) -> float:
    return round(value, 12)


class CostCollector(Collector):
    """The cost families of the findings page."""

    def __init__(self, tracker: Callable[[], CostTracker]) -> None:
        self._tracker = tracker

    def collect(self) -> Iterator[Metric]:
        """Build the families anew for every scrape."""
        tracker = self._tracker()
        bill, ledger, currency = tracker.bill, tracker.ledger, tracker.prices.table.currency
        cluster_labels = ["cluster_id", "currency"]
        spent = CounterMetricFamily("ingero_fleet_job_cost", "What all jobs cost.", labels=cluster_labels)
        waited = CounterMetricFamily(
            "ingero_fleet_waiting_cost", "What of that was spent waiting for stragglers.", labels=cluster_labels
        )
        for name in ledger.clusters():
            account = ledger.cluster(name)
            spent.add_metric([name, currency], account.cost)
            waited.add_metric([name, currency], account.waiting)
        hourly = GaugeMetricFamily(
            "ingero_fleet_job_cost_per_hour", "What a job costs an hour.", labels=["cluster_id", "job", "currency"]
        )
        waiting = GaugeMetricFamily(
            "ingero_fleet_waiting_cost_per_hour", "What of that is waiting.", labels=["cluster_id", "job", "currency"]
        )
        for key, job in list(bill.jobs.items())[:MAX_SERIES]:
            hourly.add_metric([*key, currency], job.cost)
            waiting.add_metric([*key, currency], job.waiting)
        share = CounterMetricFamily(
            "ingero_fleet_straggler_cost",
            "A culprit's share of the waiting.",
            labels=["cluster_id", "node_id", "currency"],
        )
        costliest = sorted(ledger.stragglers.items(), key=lambda item: -item[1].share)[:MAX_SERIES]
        for node, straggler in costliest:
            share.add_metric([*node, currency], straggler.share)
        missing = GaugeMetricFamily(
            "ingero_fleet_gpus_without_rate", "GPUs that no rate is known for.", labels=["provider", "gpu_model"]
        )
        for (provider, model), count in bill.missing.items():
            missing.add_metric([provider, model], count)
        yield from (spent, waited, hourly, waiting, share, missing)
