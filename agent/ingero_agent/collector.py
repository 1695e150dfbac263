"""What the agent shows to Prometheus about its node and itself, and whether it is healthy and ready.

Names of the wire keep their names here, with underscores for dots.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ingero_agent.event_socket import EventSocket
from ingero_agent.health.phase import Phase
from ingero_agent.health.throttle import Throttle, Throttling
from ingero_agent.loop import NodeSnapshot, PollResult, PushLoop
from ingero_agent.push import FleetClient
from ingero_agent.settings import AgentSettings
from ingero_agent.throttle_metrics import THROTTLE_METRICS
from ingero_contract import metrics
from ingero_kit.clock import Clock
from ingero_kit.metrics_server import MetricsServer
from ingero_kit.otlp_client import Failure

STUCK_SECONDS: Final = 30.0
"""Shortest silence of the loop that counts as stuck."""

Rows = Iterable[tuple[tuple[str, ...], float]]


def not_ready(phase: Phase, pushed: bool, reachable: bool) -> str | None:
    """Why the node's health does not reach Fleet at present, or `None`."""
    if phase is Phase.STALE:
        return "source_unreadable"
    if not reachable:
        return "fleet_unreachable"
    return None if pushed else "no_push_yet"


def stuck(idle_seconds: float, interval: float, timeout: float, asked: float) -> str | None:
    """Whether ticks have stopped: five intervals, a slow tick and the asked wait have passed. Times in seconds."""
    limit = max(STUCK_SECONDS, 5 * interval) + 4 * timeout + asked
    return f"no look for {idle_seconds:.0f} s" if idle_seconds > limit else None


class AgentCollector(Collector):
    """The loop, the client and the socket as metric families."""

    def __init__(self, health: PushLoop, client: FleetClient, socket: EventSocket | None, clock: Clock) -> None:
        self._health = health
        self._client = client
        self._socket = socket
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """Build the families anew for every scrape."""
        snapshot = self._health.snapshot
        if snapshot.latest:
            yield from _node(snapshot, snapshot.latest)
        yield from _throttling(snapshot.throttling)
        yield from self._decision(snapshot)
        yield from self._polls(snapshot)
        yield from self._pushes()
        yield from self._events()

    def _decision(self, snapshot: NodeSnapshot) -> Iterator[Metric]:
        rule, response = snapshot.rule, self._client.response
        phases = [((str(phase),), float(phase is snapshot.phase)) for phase in Phase]
        yield _gauge("ingero_agent_state", "1 for the state that the node is in.", phases, "state")
        mode = [((str(rule.mode), str(rule.source)), 1.0)]
        yield _gauge(_name(metrics.DETECTION_MODE), "1; what the node is judged with.", mode, "mode", "source")
        threshold = [((), rule.threshold)] if rule.threshold is not None else []
        yield _gauge("ingero_agent_threshold", "Threshold that the node is judged with.", threshold)
        yield _gauge("ingero_agent_straggler", "1 while the node calls itself a straggler.", _one(snapshot.straggler))
        yield _gauge(_name(metrics.FLEET_REACHABLE), "1 unless the last pushes failed.", _one(response.reachable))

    def _polls(self, snapshot: NodeSnapshot) -> Iterator[Metric]:
        counters = self._health.counters
        yield _counter("ingero_agent_looks", "Looks at the node.", _one(counters.ticks))
        yield _counter(
            "ingero_agent_early_pushes", "Pushes of work that fell far, before they were due.", _one(counters.early)
        )
        yield _counter("ingero_agent_failed_looks", "Looks that failed.", _one(counters.failed_polls))
        yield _counter("ingero_agent_impossible_signals", "Signals out of their range.", _one(counters.out_of_range))
        yield _counter("ingero_agent_baseline_saves", "Times that the baseline was saved.", _one(counters.saved))
        yield _gauge("ingero_agent_baseline_samples", "Looks that the baseline rests on.", _one(snapshot.samples))

    def _pushes(self) -> Iterator[Metric]:
        counters, failed = self._client.counters, self._client.counters.failed.copy()
        yield _counter("ingero_agent_pushes", "Pushes that arrived.", _one(counters.sent))
        rows = [((str(reason),), float(failed[reason])) for reason in Failure]
        yield _counter("ingero_agent_push_failures", "Pushes that did not, by reason.", rows, "reason")
        yield _counter("ingero_agent_push_retries", "Second tries.", _one(counters.retried))
        outcomes = {
            "taken": counters.thresholds,
            "missing": counters.thresholds_missing,
            "rejected": counters.thresholds_rejected,
        }
        thresholds = [((outcome,), float(count)) for outcome, count in outcomes.items()]
        yield _counter("ingero_agent_thresholds", "Answers by what became of their threshold.", thresholds, "outcome")
        at = self._client.pushed_at
        age = [((), max(0.0, self._clock() - at))] if at is not None else []
        yield _gauge("ingero_agent_last_push_age_seconds", "Time since a push arrived.", age)

    def _events(self) -> Iterator[Metric]:
        if self._socket is None:
            return
        dropped = [((reason,), float(count)) for reason, count in sorted(self._socket.dropped.copy().items())]
        yield _counter("ingero_agent_sent_events", "Lines that consumers were sent.", _one(self._socket.sent))
        yield _counter("ingero_agent_dropped_events", "Lines that were lost, by reason.", dropped, "reason")
        yield _gauge("ingero_agent_event_consumers", "Consumers of the socket.", _one(self._socket.consumers))


def _node(snapshot: NodeSnapshot, latest: PollResult) -> Iterator[Metric]:
    observation, gpus = latest.observation, latest.gpus
    for name, text, value in (
        (metrics.HEALTH_SCORE, "Health of the node, 0 to 1.", latest.score.value),
        (metrics.THROUGHPUT_RATIO, "Work rate over the node's own normal, 0 to 1.", latest.score.ratios.throughput),
        (metrics.THROUGHPUT_RATE, "Work a second.", observation.rate),
        (metrics.COMPUTE_EFFICIENCY, "Share of the time spent in work, 0 to 1.", observation.compute),
        (metrics.MEMORY_HEADROOM, "Free over total memory, 0 to 1.", observation.memory),
        (metrics.CPU_AVAILABILITY, "Idle share of the processors, 0 to 1.", observation.cpu),
        (metrics.DEGRADATION_WARNING, "1 while a signal is below half of its long average.", snapshot.degraded),
    ):
        yield _gauge(_name(name), text, _one(value))
    dominant = [((str(latest.score.dominant),), 1.0)]
    yield _gauge("ingero_agent_dominant_signal", "1 for the signal furthest below its normal.", dominant, "signal")
    if gpus.count:
        info = [((gpus.model, str(gpus.count)), 1.0)]
        yield _gauge(_name(metrics.NODE_INFO), "1; what the node is.", info, "gpu_model", "gpu_count")
        yield _gauge("ingero_agent_unreadable_gpus", "GPUs that cannot be read.", _one(gpus.unreadable))
    totals: dict[str, list[tuple[tuple[str, ...], float]]] = {}
    for name, cgroup, direction, count in observation.totals:
        totals.setdefault(name, []).append(((cgroup, direction), float(count)))
    for name, rows in totals.items():
        text = "Cumulative count by cgroup, and direction for copies."
        yield _counter(_name(name).removesuffix("_total"), text, rows, "cgroup_path_hash", "direction")


def _throttling(throttling: Throttling) -> Iterator[Metric]:
    for kind, name in THROTTLE_METRICS.items():
        if throttling.now:
            now = [((gpu,), float(kind in active)) for gpu, active in sorted(throttling.now.items())]
            yield _gauge(_name(name), _THROTTLE_TEXTS[kind], now, "gpu_uuid")
            began = [((gpu,), float(throttling.began.get((gpu, kind), 0))) for gpu in sorted(throttling.now)]
            yield _counter(f"gpu_throttle_{kind}_event", "Times that this began.", began, "gpu_uuid")


_THROTTLE_TEXTS: Final = {
    Throttle.POWER: "1 while the GPU is held back by power.",
    Throttle.THERMAL: "1 while the GPU is held back by heat.",
    Throttle.SW: "1 while software holds the GPU back.",
    Throttle.HW: "1 while hardware holds the GPU back.",
}


def _name(metric: str) -> str:
    return metric.replace(".", "_")


def _one(value: float) -> Rows:
    return [((), float(value))]


def _gauge(name: str, text: str, rows: Rows, *labels: str) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family


def _counter(name: str, text: str, rows: Rows, *labels: str) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family


def make_metrics_server(
    address: tuple[str, int], config: AgentSettings, health: PushLoop, client: FleetClient,
    socket: EventSocket | None, clock: Clock,
) -> MetricsServer:  # fmt: skip
    """The pages of a running agent. Raises `OSError` when the address cannot be taken."""
    registry = CollectorRegistry()
    registry.register(AgentCollector(health, client, socket, clock))
    ProcessCollector(registry=registry)

    def ready() -> str | None:
        return not_ready(health.snapshot.phase, client.pushed_at is not None, client.response.reachable)

    def healthy() -> str | None:
        idle = clock() - health.snapshot.ticked_at
        return stuck(idle, config.fleet_push_interval, config.fleet_timeout, client.retry_after)

    return MetricsServer(address, registry, ready, healthy)
