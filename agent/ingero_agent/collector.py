"""The agent's Prometheus metrics about its node and itself, and its health and readiness.

Pushed metrics have the same names here, with underscores for dots.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from ingero_agent.causal_chains import CausalChains
from ingero_agent.devices import GpuReading
from ingero_agent.event_socket import EventSocket
from ingero_agent.health.phase import Phase
from ingero_agent.loop import LatestPoll, LoopCounters, PushLoop
from ingero_agent.push import FleetClient
from ingero_agent.settings import AgentSettings
from ingero_agent.throttle_metrics import throttle_families
from ingero_contract import metrics
from ingero_contract.signals import RATIOS, SIGNALS
from ingero_http.http1.messages import Handler
from ingero_kit.clock import Clock
from ingero_kit.exposition import Collector, Family
from ingero_kit.metrics_server import PageServer, serve_metrics
from ingero_kit.metrics_table import MetricRow, collect_rows, counter, gauge, gauge_now
from ingero_kit.otlp_client import DeliveryFailure
from ingero_kit.process_metrics import PROCESS

if TYPE_CHECKING:
    from ingero_agent.ras import RasPoller

STUCK_SECONDS: Final = 30.0
"""Shortest silence of the loop that counts as stuck."""


def wire_name(metric: str) -> str:
    """The Prometheus name of a pushed metric."""
    return metric.replace(".", "_")


def not_ready(phase: Phase, pushed: bool, reachable: bool) -> str | None:
    """Why the node's health does not reach Fleet at present, or `None`."""
    if phase is Phase.STALE:
        return "source_unreadable"
    if not reachable:
        return "fleet_unreachable"
    return None if pushed else "no_push_yet"


def stuck(idle_seconds: float, interval: float, timeout: float, asked: float) -> str | None:
    """Why the loop counts as stuck, or `None`.

    It is stuck after five intervals, a slow tick and the wait that Fleet asked for. Times in seconds.
    """
    limit = max(STUCK_SECONDS, 5 * interval) + 4 * timeout + asked
    return f"no poll for {idle_seconds:.0f} s" if idle_seconds > limit else None


def _signal_value(name: str) -> Callable[[LatestPoll], float]:
    """Reads a signal as it is pushed: throughput as a ratio to the node's own normal, the others as measured."""
    if name in RATIOS:
        return lambda s: float(getattr(s.observation, name))
    return lambda s: float(getattr(s.score.ratios, name))


NODE: Final[tuple[MetricRow[LatestPoll], ...]] = (
    gauge(wire_name(metrics.HEALTH_SCORE), "Health of the node, 0 to 1.", lambda s: s.score.value),
    *(gauge(wire_name(row.metric), row.help, _signal_value(str(row.signal))) for row in SIGNALS),
    gauge(wire_name(metrics.THROUGHPUT_RATE), "Work a second.", lambda s: s.observation.rate),
    gauge(
        "ingero_agent_dominant_signal",
        "1 for the signal furthest below its normal.",
        lambda s: {str(s.score.dominant): 1},
        "signal",
    ),
)

GPUS: Final[tuple[MetricRow[GpuReading], ...]] = (
    gauge(
        wire_name(metrics.NODE_INFO),
        "1; what the node is.",
        lambda s: {(s.model, str(s.count)): 1},
        "gpu_model",
        "gpu_count",
    ),
    gauge("ingero_agent_unreadable_gpus", "GPUs that cannot be read.", lambda s: s.unreadable),
)

STATE: Final[tuple[MetricRow[PushLoop], ...]] = (
    gauge(
        "ingero_agent_state",
        "1 for the state that the node is in.",
        lambda s: {str(phase): phase is s.phase.phase for phase in Phase},
        "state",
    ),
    gauge(
        wire_name(metrics.DETECTION_MODE),
        "1; what the node is judged with.",
        lambda s: {(str(s.rule.mode), str(s.rule.source)): 1},
        "mode",
        "source",
    ),
    gauge("ingero_agent_threshold", "Threshold that the node is judged with.", lambda s: s.rule.threshold),
    gauge("ingero_agent_straggler", "1 while the node calls itself a straggler.", lambda s: s.straggler),
    gauge("ingero_agent_baseline_samples", "Polls that the baseline consists of.", lambda s: s.baseline.samples),
)

LOOP: Final[tuple[MetricRow[LoopCounters], ...]] = (
    counter("ingero_agent_polls", "Polls of the node.", lambda s: s.ticks),
    counter("ingero_agent_early_pushes", "Pushes ahead of time, as throughput fell.", lambda s: s.early),
    counter("ingero_agent_failed_polls", "Polls that failed.", lambda s: s.failed_polls),
    counter("ingero_agent_out_of_range_signals", "Signals out of their range.", lambda s: s.out_of_range),
    counter("ingero_agent_baseline_saves", "Times that the baseline was saved.", lambda s: s.saved),
)

PUSHES: Final[tuple[MetricRow[FleetClient], ...]] = (
    gauge(wire_name(metrics.FLEET_REACHABLE), "1 unless the last pushes failed.", lambda s: s.response.reachable),
    counter("ingero_agent_pushes", "Pushes that arrived.", lambda s: s.counters.sent),
    counter(
        "ingero_agent_push_failures",
        "Pushes that did not, by reason.",
        lambda s: {str(reason): s.counters.failed[reason] for reason in DeliveryFailure},
        "reason",
    ),
    counter("ingero_agent_push_retries", "Second tries.", lambda s: s.counters.retried),
    counter(
        "ingero_agent_thresholds",
        "Answers by what became of their threshold.",
        lambda s: s.counters.thresholds,
        "outcome",
    ),
)

CHAINS: Final[tuple[MetricRow[CausalChains], ...]] = (
    counter(
        "ingero_agent_causal_chains",
        "Records about causes, and searches that failed, by outcome.",
        lambda s: s.outcomes,
        "outcome",
    ),
)

RAS: Final[tuple[MetricRow["RasPoller"], ...]] = (
    counter("ingero_agent_ras_polls", "Questions to NCCL RAS, by outcome.", lambda s: s.polls, "outcome"),
    counter("ingero_agent_ras_reports", "Records about jobs, by outcome.", lambda s: s.reports, "outcome"),
    gauge("ingero_agent_hanging_jobs", "Jobs of this node that hang, by NCCL RAS.", lambda s: s.hanging),
    gauge("ingero_agent_ras_period_seconds", "Time between two questions of this node.", lambda s: s.period),
)

EVENTS: Final[tuple[MetricRow[EventSocket], ...]] = (
    counter("ingero_agent_sent_events", "Lines sent to consumers.", lambda s: s.sent),
    counter("ingero_agent_dropped_events", "Lines that were lost, by reason.", lambda s: s.dropped, "reason"),
    gauge("ingero_agent_event_consumers", "Consumers of the socket.", lambda s: s.consumers),
)


class AgentCollector:
    """The loop, the client and the socket as metric families."""

    def __init__(
        self, health: PushLoop, client: FleetClient, socket: EventSocket | None, clock: Clock,
        ras: "RasPoller | None" = None,
    ) -> None:  # fmt: skip
        self._health, self._client, self._socket, self._clock, self._ras = health, client, socket, clock, ras

    def collect(self) -> Iterator[Family]:
        """Build the families anew for every scrape."""
        health, latest = self._health, self._health.latest
        if latest:
            yield from collect_rows(NODE, latest)
            text = "1 while a signal is below half of its long average."
            yield gauge_now(wire_name(metrics.DEGRADATION_WARNING), text, health.baseline.degraded())
            if latest.gpus.count:
                yield from collect_rows(GPUS, latest.gpus)
        if health.throttling.now:
            yield from throttle_families(health.throttling)
        yield from collect_rows(STATE, health)
        yield from collect_rows(LOOP, health.counters)
        yield from collect_rows(PUSHES, self._client)
        if health.chains:
            yield from collect_rows(CHAINS, health.chains)
        at = self._client.pushed_at
        age = None if at is None else max(0.0, self._clock() - at)
        yield gauge_now("ingero_agent_last_push_age_seconds", "Time since a push arrived.", age)
        if self._ras:
            yield from collect_rows(RAS, self._ras)
        if self._socket is not None:
            yield from collect_rows(EVENTS, self._socket)


def serve_pages(
    config: AgentSettings,
    health: PushLoop,
    client: FleetClient,
    socket: EventSocket | None,
    clock: Clock,
    pages: Mapping[bytes, Handler],
    ras: "RasPoller | None" = None,
) -> PageServer:
    """Serve the agent's metrics and probes, and `pages`, at `metrics_listen`. Raises `OSError`."""
    collectors: list[Collector] = [AgentCollector(health, client, socket, clock, ras), PROCESS]

    def ready() -> str | None:
        return not_ready(health.phase.phase, client.pushed_at is not None, client.response.reachable)

    def healthy() -> str | None:
        idle = clock() - health.ticked_at
        return stuck(idle, config.fleet_push_interval, config.fleet_timeout, client.retry_after)

    return serve_metrics(config.metrics_listen, collectors, ready, healthy, flag="--metrics-listen", pages=pages)
