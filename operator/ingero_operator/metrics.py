"""The operator's own HTTP side: `/healthz`, `/readyz`, `/metrics`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ingero_operator.context import ReconcileContext
from ingero_operator.taints.controller import TaintController
from ingero_operator.tasks import Tasks
from ingero_operator.workqueue import WorkQueue

_LEVELS = {"Refused": 0, "Pending": 0, "Declared": 1, "ProviderDefault": 2, "Proven": 3}


@dataclass
class RuntimeStats:
    """What the pages read."""

    context: ReconcileContext
    taint_controller: TaintController
    queue: WorkQueue[tuple[str, str, str]]
    fit: Callable[[], bool]
    leading: Callable[[], bool]
    blocked_reason: Callable[[], str]
    healthy: Callable[[], bool]
    lag: Callable[[], float]
    sweeps: Callable[[], int]
    tasks: Tasks


class OperatorCollector(Collector):
    """Counters and gauges of the operator."""

    def __init__(self, stats: RuntimeStats) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """Build the families anew for every scrape."""
        stats, context = self._stats, self._stats.context
        requests = CounterMetricFamily(
            "ingero_operator_api_requests", "Requests to the API server.", labels=["method"]
        )
        for method, count in sorted(context.api.requests.items()):
            requests.add_metric([method], count)
        yield requests
        actions = CounterMetricFamily(
            "ingero_operator_taint_actions", "Marks written to nodes.", labels=["action", "reason"]
        )
        for (verb, reason), count in sorted(context.node_writes.items()):
            actions.add_metric([verb, reason], count)
        yield actions
        failures = CounterMetricFamily(
            "ingero_operator_task_failures",
            "Failures of background tasks, by faults of the operator.",
            labels=["task"],
        )
        for name, count in sorted(stats.tasks.failures.items()):
            failures.add_metric([name], count)
        yield failures
        for name, text, value in (
            ("reconciles", "Reconciles finished.", stats.queue.done),
            ("child_writes", "Children written.", context.applier.applied),
            ("status_writes", "Statuses written.", context.status_writes),
            ("watch_events", "Watch events taken in.", context.informer.events),
            ("fleet_questions", "Questions asked of Fleets.", context.fleet_poller.asked),
            ("fleet_failures", "Questions without an answer.", context.fleet_poller.failed),
            ("echo_questions", "Questions asked of Echos.", context.volume_usage.asked),
            ("echo_failures", "Questions without an answer.", context.volume_usage.failed),
            ("evidence_sent", "Records of marks that Fleets took.", context.audit_exporter.sent),
            ("evidence_lost", "Records of marks that no Fleet took in time.", context.audit_exporter.lost),
            ("sweeps", "Comparisons of the cache with the API server.", stats.sweeps()),
        ):
            yield CounterMetricFamily(f"ingero_operator_{name}", text, value=value)
        for name, text, number in (
            ("queue_length", "Resources waiting or being reconciled.", len(stats.queue)),
            (
                "failing",
                "Resources whose last reconcile failed, or a child or a mark of which could not be written.",
                len(context.failures.owners() | stats.queue.failures.keys()),
            ),
            ("cached_objects", "Objects in the cache.", len(context.informer.cache)),
            ("nodes", "Nodes seen.", len(context.informer.nodes)),
            ("leading", "1 while this replica leads.", float(stats.leading())),
            (
                "unguarded",
                "1 while no admission policy bounds writes to nodes.",
                float(bool(context.admission.missing)),
            ),
            ("loop_lag_seconds", "Longest recent stall of the event loop.", stats.lag()),
        ):
            yield GaugeMetricFamily(f"ingero_operator_{name}", text, value=number)
        yield from self._resources()

    def _resources(self) -> Iterator[Metric]:
        labels = ["namespace", "name"]
        used = GaugeMetricFamily("ingero_operator_marked_nodes", "Nodes that carry our mark.", labels=labels)
        budget = GaugeMetricFamily("ingero_operator_mark_budget", "Nodes that may.", labels=labels)
        for (_, namespace, name), (marked, allowed) in sorted(self._stats.taint_controller.budgets.items()):
            used.add_metric([namespace, name], marked)
            budget.add_metric([namespace, name], allowed)
        level = GaugeMetricFamily(
            "ingero_operator_encryption_level", "0 none, 1 declared, 2 provider default, 3 proven.", labels=labels
        )
        cache = self._stats.context.informer.cache
        for key in sorted(cache.keys("EchoStore")):
            status = (cache.get(key) or {}).get("status") or {}
            verdict = (status.get("encryption") or {}).get("verdict", "Pending")
            level.add_metric([key[1], key[2]], _LEVELS.get(verdict, 0))
        yield from (used, budget, level)


def make_app(stats: RuntimeStats) -> web.Application:
    """The HTTP application."""
    registry = CollectorRegistry()
    registry.register(OperatorCollector(stats))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)

    async def healthz(_: web.Request) -> web.Response:
        """Alive: the loop runs, and a leader's watches agree with the API server."""
        healthy = stats.healthy()
        return web.Response(status=200 if healthy else 503, text="ok\n" if healthy else "the watches lag behind\n")

    async def readyz(_: web.Request) -> web.Response:
        """Ready: leading, or able to take over."""
        if not stats.fit():
            return web.Response(status=503, text="looking for the API server and the CustomResourceDefinitions\n")
        if reason := stats.blocked_reason():
            return web.Response(status=503, text=f"{reason}\n")
        return web.Response(text="leading\n" if stats.leading() else "standing by\n")

    async def metrics(_: web.Request) -> web.Response:
        """Prometheus text format."""
        return web.Response(body=generate_latest(registry), headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    return app
