"""Exports what was traced as OTLP/HTTP JSON, as the published trace agent does, with our `nccl.seq` in addition."""

import asyncio
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)

from ingero_agent.throttle_metrics import THROTTLE_METRICS
from ingero_agent.trace.events import Collective
from ingero_agent.trace.gpu_stats import GpuStats
from ingero_agent.trace.stats import (
    COPY_BOUNDS_MS,
    PERCENTILES,
    HostSnapshot,
    TracerStatus,
    TraceStats,
    histogram_buckets,
    quantile,
)
from ingero_contract import attributes, metrics
from ingero_kit.logs import get
from ingero_kit.otlp_client import ClientConfig, make_client
from ingero_kit.otlp_encode import to_json
from ingero_kit.otlp_signal import Signal
from ingero_kit.tls import ClientTls

log = get(__name__)

MAX_POINTS: Final = 20_000
"""Most single collectives that wait for a failed export; older ones are dropped and counted."""

CUMULATIVE: Final = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
Value = str | int | float


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """The receiver and the sender's identity. `insecure`: plain HTTP. `timeout` in seconds."""

    endpoint: str
    node: str
    cluster: str = ""
    insecure: bool = False
    token_file: Path | None = None
    timeout: float = 10.0
    version: str = "0.1.0"


def _pairs(values: Mapping[str, Value | None]) -> list[KeyValue]:
    pairs = []
    for key, value in values.items():
        if isinstance(value, int):
            pairs.append(KeyValue(key=key, value=AnyValue(int_value=value)))
        elif isinstance(value, float):
            pairs.append(KeyValue(key=key, value=AnyValue(double_value=value)))
        elif value is not None:
            pairs.append(KeyValue(key=key, value=AnyValue(string_value=value)))
    return pairs


def _point(value: int | float, time_ns: int, keys: Mapping[str, Value | None], start_ns: int = 0) -> NumberDataPoint:
    point = NumberDataPoint(time_unix_nano=time_ns, start_time_unix_nano=start_ns, attributes=_pairs(keys))
    if isinstance(value, int):
        point.as_int = value
    else:
        point.as_double = value
    return point


def collective_attributes(one: Collective) -> dict[str, Value | None]:
    """The attributes of a collective's points; unknown values are absent, never 0. `nccl.seq` only when exact."""
    return {
        attributes.NCCL_OP_TYPE: one.operation,
        attributes.NCCL_COMM_HASH: one.communicator,
        attributes.NCCL_RANK: one.rank,
        attributes.NCCL_NRANKS: one.nranks or None,
        attributes.NCCL_DATATYPE: one.dtype,
        attributes.NCCL_REDUCE_OP: one.reduce_op,
        attributes.NCCL_SEQ: one.seq if one.exact else None,
        attributes.PROCESS_PID: one.pid,
    }


class _Batch:
    """Collects the metrics of one export. Sums are cumulative since `start_ns`."""

    def __init__(self, scope: ScopeMetrics, now_ns: int, start_ns: int) -> None:
        self._scope, self.now_ns, self.start_ns = scope, now_ns, start_ns

    def point(self, value: int | float, keys: Mapping[str, Value | None] | None = None) -> NumberDataPoint:
        """Create a point with the current time."""
        return _point(value, self.now_ns, keys or {})

    def count(self, value: int, keys: Mapping[str, Value | None]) -> NumberDataPoint:
        """Create a cumulative point with the current time."""
        return _point(value, self.now_ns, keys, self.start_ns)

    def gauge(self, name: str, unit: str, points: Iterable[NumberDataPoint]) -> None:
        """Add a gauge, unless it has no points."""
        points = list(points)
        if points:
            self._scope.metrics.append(Metric(name=name, unit=unit, gauge=Gauge(data_points=points)))

    def total(self, name: str, unit: str, points: Iterable[NumberDataPoint]) -> None:
        """Add a sum, unless it has no points."""
        points = list(points)
        if points:
            data = Sum(aggregation_temporality=CUMULATIVE, is_monotonic=True, data_points=points)
            self._scope.metrics.append(Metric(name=name, unit=unit, sum=data))

    def histogram(self, name: str, unit: str, points: Iterable[HistogramDataPoint]) -> None:
        """Add a histogram, unless it has no points."""
        points = list(points)
        if points:
            data = Histogram(aggregation_temporality=CUMULATIVE, data_points=points)
            self._scope.metrics.append(Metric(name=name, unit=unit, histogram=data))


def build_request(
    stats: TraceStats, collectives: Iterable[Collective], host: HostSnapshot | None, config: ExportConfig,
    now_ns: int, start_ns: int,
) -> ExportMetricsServiceRequest:  # fmt: skip
    """Build one export. Sums are cumulative since `start_ns`; a collective's points carry its time of arrival."""
    resource = ResourceMetrics()
    identity = {
        "service.name": "ingero", "service.version": config.version, attributes.NODE_ID: config.node,
        attributes.CLUSTER_ID: config.cluster or None,
    }  # fmt: skip
    resource.resource.attributes.extend(_pairs(identity))
    scope = resource.scope_metrics.add()
    scope.scope.name, scope.scope.version = "ingero", config.version
    batch = _Batch(scope, now_ns, start_ns)
    if host:
        _add_host(batch, host)
    _add_operations(batch, stats)
    _add_copies(batch, stats)
    _add_processes(batch, stats)
    _add_gpus(batch, stats.gpus)
    _add_collectives(batch, collectives)
    _add_own(batch, stats.status)
    return ExportMetricsServiceRequest(resource_metrics=[resource])


def _add_host(batch: _Batch, host: HostSnapshot) -> None:
    batch.gauge(metrics.SYSTEM_CPU, "1", [batch.point(host.cpu_percent / 100)])
    batch.gauge(metrics.SYSTEM_MEMORY, "1", [batch.point(host.memory_percent / 100)])
    batch.gauge(metrics.SYSTEM_MEMORY_AVAILABLE, "By", [batch.point(host.memory_available_mb << 20)])
    batch.gauge(metrics.SYSTEM_LOAD, "1", [batch.point(host.load)])


def _add_operations(batch: _Batch, stats: TraceStats) -> None:
    rows = sorted(stats.operations.items())
    labelled = {
        key: dict(zip((attributes.SOURCE, attributes.OPERATION), stats.labels(key), strict=True)) for key, _ in rows
    }
    batch.gauge(
        metrics.OPERATION_DURATION, "us",
        (
            batch.point(quantile(totals.histogram, share) / 1e3, {**labelled[key], attributes.PERCENTILE: name})
            for key, totals in rows if any(totals.histogram)
            for name, share in PERCENTILES.items()
        ),
    )  # fmt: skip
    counts = (batch.count(totals.count, labelled[key]) for key, totals in rows)
    batch.total(metrics.OPERATION_COUNT, "{event}", counts)


def _add_copies(batch: _Batch, stats: TraceStats) -> None:
    rows = sorted(stats.copies.items())
    sizes = (batch.count(totals.size, {attributes.MEMCPY_DIRECTION: direction}) for direction, totals in rows)
    batch.total(metrics.GPU_MEMCPY_BYTES, "By", sizes)
    batch.histogram(
        metrics.GPU_MEMCPY_DURATION, "ms",
        (
            HistogramDataPoint(
                time_unix_nano=batch.now_ns, start_time_unix_nano=batch.start_ns, count=sum(counts),
                sum=totals.nanoseconds / 1e6, bucket_counts=counts, explicit_bounds=COPY_BOUNDS_MS,
                attributes=_pairs({attributes.MEMCPY_DIRECTION: direction}),
            )
            for direction, totals in rows for counts in (histogram_buckets(totals),)
        ),
    )  # fmt: skip


def _add_processes(batch: _Batch, stats: TraceStats) -> None:
    loaded = (
        batch.point(1, {
            attributes.PROCESS_PID: one.pid, attributes.PROCESS_COMM: one.command,
            attributes.LIBNCCL_PATH: one.path, attributes.LIBNCCL_VERSION: one.version,
        })
        for one in stats.nccl_processes
    )  # fmt: skip
    batch.gauge(metrics.NCCL_PROCESS_LOADED, "1", loaded)
    batch.gauge(metrics.NCCL_PROCESSES, "1", [batch.point(len(stats.nccl_processes))])


def _add_gpus(batch: _Batch, gpus: GpuStats) -> None:
    named = [({attributes.GPU_UUID: gpu.uuid}, gpu) for gpu in gpus.now]
    batch.gauge(metrics.GPU_MEMORY_USED, "By", (batch.point(gpu.used, keys) for keys, gpu in named))
    batch.gauge(metrics.GPU_MEMORY_FREE, "By", (batch.point(gpu.free, keys) for keys, gpu in named))
    batch.gauge(metrics.GPU_MEMORY_TOTAL, "By", (batch.point(gpu.total, keys) for keys, gpu in named))
    batch.gauge(metrics.GPU_MEMORY_FRAGMENTATION, "1", (batch.point(gpu.fragmentation, keys) for keys, gpu in named))
    clocks = (batch.point(gpu.sm_mhz * 10**6, keys) for keys, gpu in named if gpu.sm_mhz is not None)
    batch.gauge(metrics.GPU_CLOCK_SM, "Hz", clocks)
    allocated = (
        batch.point(size, {**keys, attributes.PROCESS_PID: pid})
        for keys, gpu in named for pid, size in sorted(gpu.processes.items())
    )  # fmt: skip
    batch.gauge(metrics.GPU_MEMORY_PROCESS, "By", allocated)
    for kind, name in THROTTLE_METRICS.items():
        active = (
            batch.point(int(kind in kinds), {attributes.GPU_UUID: uuid})
            for uuid, kinds in sorted(gpus.throttling.now.items())
        )
        batch.gauge(name, "1", active)


def _add_collectives(batch: _Batch, collectives: Iterable[Collective]) -> None:
    singles = [(one, collective_attributes(one)) for one in collectives]
    batch.gauge(
        metrics.COLLECTIVE_DURATION,
        "ms",
        (_point(one.enqueue_ns / 1e6, one.arrival_ns, keys) for one, keys in singles),
    )
    batch.gauge(
        metrics.COLLECTIVE_BYTES, "By",
        (_point(one.size, one.arrival_ns, keys) for one, keys in singles if one.size is not None),
    )  # fmt: skip
    batch.gauge(
        metrics.COLLECTIVE_BARRIER_WAIT, "ms",
        (_point(one.blocked_ns / 1e6, one.arrival_ns, keys) for one, keys in singles),
    )  # fmt: skip


def _add_own(batch: _Batch, status: TracerStatus) -> None:
    batch.gauge(metrics.TRACE_BUDGET, "1", [batch.point(status.budget)])
    batch.gauge(metrics.TRACE_OVERHEAD, "1", [batch.point(status.overhead)])
    duties = (batch.point(value, {attributes.PROBE_GROUP: group}) for group, value in sorted(status.duty.items()))
    batch.gauge(metrics.TRACE_DUTY, "1", duties)


class TraceExporter:
    """Posts from a separate thread, so that a slow receiver never blocks the counting.

    Single collectives wait here until a receiver accepts them. Everything else is cumulative and is sent every time.
    """

    def __init__(self, config: ExportConfig) -> None:
        self._config = config
        self._client = make_client(
            ClientConfig(
                endpoint=config.endpoint, tls=ClientTls(insecure=config.insecure), token_file=config.token_file,
                cluster=config.cluster, timeout=config.timeout, encoding="json",
            )
        )  # fmt: skip
        self._worker = ThreadPoolExecutor(1, "export")
        self._loop = asyncio.new_event_loop()
        self._post_under_way: Future[None] | None = None
        self._waiting: list[Collective] = []
        self._flying: list[Collective] = []
        self._failed = False
        self.given_up = 0

    def keep(self, collectives: Iterable[Collective]) -> None:
        """Queue single collectives for the next export."""
        self._waiting.extend(collectives)
        excess = len(self._waiting) - MAX_POINTS
        if excess > 0:
            del self._waiting[:excess]
            self.given_up += excess

    def send(self, stats: TraceStats, host: HostSnapshot | None, now_ns: int, start_ns: int) -> None:
        """Post in the background, unless the previous post still runs."""
        if self._post_under_way and not self._post_under_way.done():
            return
        if self._failed:
            self._waiting[:0] = self._flying
            self.keep(())
        self._flying, self._waiting = self._waiting, []
        with stats.lock:
            body = to_json(build_request(stats, self._flying, host, self._config, now_ns, start_ns))
        self._post_under_way = self._worker.submit(self._post, body)

    def close(self) -> None:
        """Wait for the last post."""
        self._worker.submit(self._loop.run_until_complete, self._client.close())
        self._worker.shutdown()
        self._loop.close()

    def _post(self, body: bytes) -> None:
        result = self._loop.run_until_complete(self._client.send(Signal.METRICS, body))
        failed = result.failure is not None
        if failed and not self._failed:
            log.warning("export_failed", endpoint=self._config.endpoint, reason=result.detail)
        self._failed = failed
