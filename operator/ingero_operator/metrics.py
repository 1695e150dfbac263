"""The operator's HTTP endpoints: `/healthz`, `/readyz`, `/metrics`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiohttp import web

from ingero_kit.exposition import Collector, exposition
from ingero_kit.metrics_table import MetricRow, TableCollector, counter, gauge
from ingero_kit.process_metrics import PROCESS

if TYPE_CHECKING:
    from ingero_operator.app import Operator

_LEVELS = {"Refused": 0, "Pending": 0, "Declared": 1, "ProviderDefault": 2, "Proven": 3}


OPERATOR: Final[tuple[MetricRow[Operator], ...]] = (
    counter(
        "ingero_operator_api_requests", "Requests to the API server.", lambda s: s.context.api.requests, "method"
    ),
    counter(
        "ingero_operator_taint_actions",
        "Taints written to nodes.",
        lambda s: s.taint_controller.writes,
        "action",
        "reason",
    ),
    counter(
        "ingero_operator_task_failures",
        "Failures of background tasks, by faults of the operator.",
        lambda s: s.tasks.failures,
        "task",
    ),
    counter("ingero_operator_reconciles", "Reconciles finished.", lambda s: s.queue.done),
    counter("ingero_operator_child_writes", "Children written.", lambda s: s.context.applier.applied),
    counter("ingero_operator_status_writes", "Statuses written.", lambda s: s.context.status.writes),
    counter("ingero_operator_watch_events", "Watch events received.", lambda s: s.context.informer.events),
    counter("ingero_operator_fleet_polls", "Polls of Fleets.", lambda s: s.context.fleet_poller.polls),
    counter("ingero_operator_fleet_poll_failures", "Polls that failed.", lambda s: s.context.fleet_poller.failed),
    counter("ingero_operator_volume_usage_polls", "Polls of EchoStores.", lambda s: s.context.volume_usage.polls),
    counter(
        "ingero_operator_volume_usage_poll_failures", "Polls that failed.", lambda s: s.context.volume_usage.failed
    ),
    counter(
        "ingero_operator_audit_events_exported",
        "Taint events that Fleets accepted.",
        lambda s: s.context.audit_exporter.sent,
    ),
    counter(
        "ingero_operator_audit_events_dropped",
        "Taint events that no Fleet accepted in time.",
        lambda s: s.context.audit_exporter.lost,
    ),
    counter(
        "ingero_operator_health_events_exported",
        "Health events that NVSentinel accepted.",
        lambda s: s.context.health_events.sent if s.context.health_events else 0,
    ),
    counter(
        "ingero_operator_health_events_dropped",
        "Health events that NVSentinel did not accept in time.",
        lambda s: s.context.health_events.lost if s.context.health_events else 0,
    ),
    counter("ingero_operator_resyncs", "Comparisons of the cache with the API server.", lambda s: s.resync.rounds),
    gauge("ingero_operator_queue_length", "Resources that are due or being reconciled.", lambda s: len(s.queue)),
    gauge(
        "ingero_operator_failing",
        "Resources whose last reconcile failed, or one of whose children or taints could not be written.",
        lambda s: len(s.context.failures.owners() | s.queue.failures.keys()),
    ),
    gauge("ingero_operator_cached_objects", "Objects in the cache.", lambda s: len(s.context.informer.cache)),
    gauge("ingero_operator_nodes", "Nodes seen.", lambda s: len(s.context.informer.nodes)),
    gauge("ingero_operator_leading", "1 while this replica leads.", lambda s: s.active),
    gauge(
        "ingero_operator_node_policy_missing",
        "1 while no admission policy bounds writes to nodes.",
        lambda s: bool(s.context.admission.missing),
    ),
    gauge("ingero_operator_loop_lag_seconds", "Longest recent stall of the event loop.", lambda s: s.lag),
    gauge(
        "ingero_operator_tainted_nodes",
        "Nodes that carry the operator's taint.",
        lambda s: {key[1:]: tainted for key, (tainted, _) in s.taint_controller.budgets.items()},
        "namespace",
        "name",
    ),
    gauge(
        "ingero_operator_taint_budget",
        "Nodes that may carry the operator's taint at once.",
        lambda s: {key[1:]: allowed for key, (_, allowed) in s.taint_controller.budgets.items()},
        "namespace",
        "name",
    ),
    gauge(
        "ingero_operator_encryption_level",
        "0 none, 1 declared, 2 provider default, 3 proven.",
        lambda s: {key[1:]: _encryption_level(s, key) for key in s.context.informer.cache.keys("EchoStore")},
        "namespace",
        "name",
    ),
)


def _encryption_level(operator: Operator, key: tuple[str, str, str]) -> int:
    status = (operator.context.informer.cache.get(key) or {}).get("status") or {}
    return _LEVELS.get((status.get("encryption") or {}).get("verdict", "Pending"), 0)


def make_app(operator: Operator) -> web.Application:
    """The HTTP application."""
    collectors: list[Collector] = [TableCollector(OPERATOR, lambda: operator), PROCESS]

    async def healthz(_: web.Request) -> web.Response:
        """Liveness: the event loop runs, and a leader's watches agree with the API server."""
        healthy = operator.healthy()
        return web.Response(status=200 if healthy else 503, text="ok\n" if healthy else "the watches lag behind\n")

    async def readyz(_: web.Request) -> web.Response:
        """Readiness: this replica leads, or could take over."""
        if not operator.prepared:
            return web.Response(status=503, text="waiting for the API server and the CustomResourceDefinitions\n")
        if reason := operator.blocked_reason():
            return web.Response(status=503, text=f"{reason}\n")
        return web.Response(text="leading\n" if operator.active else "standing by\n")

    async def metrics(_: web.Request) -> web.Response:
        """The metrics in the Prometheus text format."""
        return web.Response(body=exposition(collectors), headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    return app
