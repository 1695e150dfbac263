"""The operator's own HTTP side: `/healthz`, `/readyz`, `/metrics`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ingero_operator.desk import Desk
from ingero_operator.taints.keeper import Keeper
from ingero_operator.tasks import Tasks
from ingero_operator.workqueue import WorkQueue

_LEVELS = {"Refused": 0, "Pending": 0, "Declared": 1, "ProviderDefault": 2, "Proven": 3}


@dataclass
class Vitals:
    """What the pages read."""

    desk: Desk
    keeper: Keeper
    queue: WorkQueue[tuple[str, str, str]]
    fit: Callable[[], bool]
    leading: Callable[[], bool]
    hindered: Callable[[], str]
    well: Callable[[], bool]
    lag: Callable[[], float]
    sweeps: Callable[[], int]
    tasks: Tasks


class OperatorPage(Collector):
    """Counters and gauges of the operator."""

    def __init__(self, vitals: Vitals) -> None:
        self._vitals = vitals

    def collect(self) -> Iterator[Metric]:
        """Build the families anew for every scrape."""
        vitals, desk = self._vitals, self._vitals.desk
        requests = CounterMetricFamily(
            "ingero_operator_api_requests", "Requests to the API server.", labels=["method"]
        )
        for method, count in sorted(desk.api.requests.items()):
            requests.add_metric([method], count)
        yield requests
        actions = CounterMetricFamily(
            "ingero_operator_taint_actions", "Marks written to nodes.", labels=["action", "reason"]
        )
        for (verb, reason), count in sorted(desk.node_writes.items()):
            actions.add_metric([verb, reason], count)
        yield actions
        failures = CounterMetricFamily(
            "ingero_operator_task_failures",
            "Failures of background tasks, by faults of the operator.",
            labels=["task"],
        )
        for name, count in sorted(vitals.tasks.failures.items()):
            failures.add_metric([name], count)
        yield failures
        for name, text, value in (
            ("reconciles", "Reconciles finished.", vitals.queue.done),
            ("child_writes", "Children written.", desk.hands.applied),
            ("status_writes", "Statuses written.", desk.status_writes),
            ("watch_events", "Watch events taken in.", desk.sight.events),
            ("fleet_questions", "Questions asked of Fleets.", desk.inquirer.asked),
            ("fleet_failures", "Questions without an answer.", desk.inquirer.failed),
            ("echo_questions", "Questions asked of Echos.", desk.fullness.asked),
            ("echo_failures", "Questions without an answer.", desk.fullness.failed),
            ("evidence_sent", "Records of marks that Fleets took.", desk.witness.sent),
            ("evidence_lost", "Records of marks that no Fleet took in time.", desk.witness.lost),
            ("sweeps", "Comparisons of the cache with the API server.", vitals.sweeps()),
        ):
            yield CounterMetricFamily(f"ingero_operator_{name}", text, value=value)
        for name, text, number in (
            ("queue_length", "Resources waiting or being reconciled.", len(vitals.queue)),
            (
                "failing",
                "Resources whose last reconcile failed, or a child or a mark of which could not be written.",
                len(desk.failures.owners() | vitals.queue.failures.keys()),
            ),
            ("cached_objects", "Objects in the cache.", len(desk.sight.cache)),
            ("nodes", "Nodes seen.", len(desk.sight.nodes)),
            ("leading", "1 while this replica leads.", float(vitals.leading())),
            ("unguarded", "1 while no admission policy bounds writes to nodes.", float(bool(desk.guard.missing))),
            ("loop_lag_seconds", "Longest recent stall of the event loop.", vitals.lag()),
        ):
            yield GaugeMetricFamily(f"ingero_operator_{name}", text, value=number)
        yield from self._resources()

    def _resources(self) -> Iterator[Metric]:
        labels = ["namespace", "name"]
        used = GaugeMetricFamily("ingero_operator_marked_nodes", "Nodes that carry our mark.", labels=labels)
        budget = GaugeMetricFamily("ingero_operator_mark_budget", "Nodes that may.", labels=labels)
        for (_, namespace, name), (marked, allowed) in sorted(self._vitals.keeper.budgets.items()):
            used.add_metric([namespace, name], marked)
            budget.add_metric([namespace, name], allowed)
        level = GaugeMetricFamily(
            "ingero_operator_encryption_level", "0 none, 1 declared, 2 provider default, 3 proven.", labels=labels
        )
        cache = self._vitals.desk.sight.cache
        for key in sorted(cache.keys("EchoStore")):
            status = (cache.get(key) or {}).get("status") or {}
            verdict = (status.get("encryption") or {}).get("verdict", "Pending")
            level.add_metric([key[1], key[2]], _LEVELS.get(verdict, 0))
        yield from (used, budget, level)


def make_app(vitals: Vitals) -> web.Application:
    """The HTTP application."""
    registry = CollectorRegistry()
    registry.register(OperatorPage(vitals))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)

    async def healthz(_: web.Request) -> web.Response:
        """Alive: the loop runs, and a leader's watches agree with the API server."""
        well = vitals.well()
        return web.Response(status=200 if well else 503, text="ok\n" if well else "the watches lag behind\n")

    async def readyz(_: web.Request) -> web.Response:
        """Ready: leading, or able to take over."""
        if not vitals.fit():
            return web.Response(status=503, text="looking for the API server and the CustomResourceDefinitions\n")
        if words := vitals.hindered():
            return web.Response(status=503, text=f"{words}\n")
        return web.Response(text="leading\n" if vitals.leading() else "standing by\n")

    async def metrics(_: web.Request) -> web.Response:
        """Prometheus text format."""
        return web.Response(body=generate_latest(registry), headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    return app
