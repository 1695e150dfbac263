"""Exports what was traced as OTLP/HTTP protobuf, as the published trace agent does, with our `nccl.seq`,
`nccl.message.size` and `ingero.work` in addition."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import HistogramDataPoint

from ingero_agent.sources.trace_db import LAUNCHES
from ingero_agent.throttle_metrics import add_throttling
from ingero_agent.trace.events import Collective
from ingero_agent.trace.gpu_stats import GpuSample, GpuStats
from ingero_agent.trace.places import Place
from ingero_agent.trace.probes.table import HOST, SCHED_SWITCH
from ingero_agent.trace.stats import (
    COPY_BOUNDS_MS,
    PERCENTILES,
    HostSnapshot,
    TracerStatus,
    TraceStats,
    histogram_buckets,
    quantile,
)
from ingero_agent.trace.varying_work import VaryingWork
from ingero_contract import attributes, headers, metrics
from ingero_contract.verdicts import VerdictLine, parse_verdict
from ingero_kit.addresses import without_user
from ingero_kit.logs import get
from ingero_kit.otlp_client import ClientConfig, make_client
from ingero_kit.otlp_encode import VERSION, Attributes, MetricBatch, number_point, pairs
from ingero_kit.otlp_signal import Signal

log = get(__name__)

MAX_POINTS: Final = 20_000
"""Most single collectives that wait for a failed export; older ones are dropped and counted."""

_GPU_GAUGES: Final[tuple[tuple[str, str, Callable[[GpuSample], float | None]], ...]] = (
    (metrics.GPU_MEMORY_USED, "By", lambda gpu: gpu.used),
    (metrics.GPU_MEMORY_FREE, "By", lambda gpu: gpu.free),
    (metrics.GPU_MEMORY_TOTAL, "By", lambda gpu: gpu.total),
    (metrics.GPU_MEMORY_FRAGMENTATION, "1", lambda gpu: gpu.fragmentation),
    (metrics.GPU_CLOCK_SM, "Hz", lambda gpu: None if gpu.sm_mhz is None else gpu.sm_mhz * 10**6),
)
_COLLECTIVE_GAUGES: Final[tuple[tuple[str, str, Callable[[Collective], float | None]], ...]] = (
    (metrics.COLLECTIVE_DURATION, "ms", lambda one: one.enqueue_ns / 1e6),
    (metrics.COLLECTIVE_BYTES, "By", lambda one: one.size),
    (metrics.COLLECTIVE_BARRIER_WAIT, "ms", lambda one: one.blocked_ns / 1e6),
)


def collective_attributes(one: Collective) -> Attributes:
    """The attributes of a collective's points; unknown values are absent, never 0. `nccl.seq` only when exact."""
    return {
        attributes.NCCL_OP_TYPE: one.operation,
        attributes.NCCL_COMM_HASH: one.communicator,
        attributes.NCCL_RANK: one.rank,
        attributes.NCCL_NRANKS: one.nranks or None,
        attributes.NCCL_DATATYPE: one.dtype,
        attributes.NCCL_REDUCE_OP: one.reduce_op,
        attributes.NCCL_SEQ: one.seq if one.exact else None,
        attributes.NCCL_MESSAGE_SIZE: one.size,
        attributes.WORK: one.work,
        attributes.PROCESS_PID: one.pid,
    }


def build_request(
    stats: TraceStats, collectives: Iterable[tuple[Place, Collective]], host: HostSnapshot | None, node: str,
    cluster: str, now_ns: int, start_ns: int, job: str = "",
) -> ExportMetricsServiceRequest:  # fmt: skip
    """Build one export. Sums are cumulative since `start_ns`; a collective's points carry its time of arrival.

    Each collective comes with the place of its process. A pod, and a job other than the node's, is a resource of its
    own.
    """
    identity = {
        "service.name": "ingero", "service.version": VERSION, attributes.NODE_ID: node,
        attributes.CLUSTER_ID: cluster or None, attributes.JOB_ID: job or None,
    }  # fmt: skip
    batch = MetricBatch(identity, "ingero", now_ns, start_ns)
    if host:
        _add_host(batch, host)
    _add_operations(batch, stats)
    _add_node_totals(batch, stats)
    _add_copies(batch, stats)
    _add_processes(batch, stats)
    _add_gpus(batch, stats.gpus)
    _add_own(batch, stats.status)
    by_place: dict[Place, list[Collective]] = defaultdict(list)
    for place, one in collectives:
        by_place[Place(place.pod, place.job or job)].append(one)
    for (pod, own_job), found in by_place.items():
        own = {**identity, attributes.POD_NAME: pod or None, attributes.JOB_ID: own_job or None}
        part = batch if (pod, own_job) == ("", job) else MetricBatch(own, "ingero", now_ns, start_ns)
        _add_collectives(part, found)
        if part is not batch:
            batch.request.resource_metrics.extend(part.request.resource_metrics)
    return batch.request


def _add_host(batch: MetricBatch, host: HostSnapshot) -> None:
    batch.gauge(metrics.SYSTEM_CPU, [batch.point(host.cpu_percent / 100)])
    batch.gauge(metrics.SYSTEM_MEMORY, [batch.point(host.memory_percent / 100)])
    batch.gauge(metrics.SYSTEM_MEMORY_AVAILABLE, [batch.point(host.memory_available_mb << 20)], "By")
    batch.gauge(metrics.SYSTEM_LOAD, [batch.point(host.load)])


def _add_operations(batch: MetricBatch, stats: TraceStats) -> None:
    rows = [
        (dict(zip((attributes.SOURCE, attributes.OPERATION), stats.labels(key), strict=True)), totals)
        for key, totals in sorted(stats.operations.items())
    ]
    durations = (
        batch.point(quantile(totals.histogram, share) / 1e3, {**keys, attributes.PERCENTILE: name})
        for keys, totals in rows if any(totals.histogram)
        for name, share in PERCENTILES.items()
    )  # fmt: skip
    batch.gauge(metrics.OPERATION_DURATION, durations, "us")
    batch.total(metrics.OPERATION_COUNT, ((totals.count, keys) for keys, totals in rows), "{event}")


def _add_node_totals(batch: MetricBatch, stats: TraceStats) -> None:
    """Totals of the node over all processes. What was never seen is absent: it may not have been counted at all."""
    launches = [stats.operations[key].count for key in LAUNCHES if key in stats.operations]
    stalled = stats.operations.get((HOST, SCHED_SWITCH.operation))
    batch.total(metrics.LAUNCHES_TOTAL, [(sum(launches), {})] if launches else ())
    batch.total(metrics.CPU_STALL_TOTAL, [(stalled.nanoseconds, {})] if stalled else (), "ns")


def _add_copies(batch: MetricBatch, stats: TraceStats) -> None:
    rows = [({attributes.MEMCPY_DIRECTION: name}, totals) for name, totals in sorted(stats.copies.items())]
    batch.total(metrics.GPU_MEMCPY_BYTES, ((totals.size, keys) for keys, totals in rows), "By")
    durations = (
        HistogramDataPoint(
            time_unix_nano=batch.now_ns, start_time_unix_nano=batch.start_ns, count=sum(counts),
            sum=totals.nanoseconds / 1e6, bucket_counts=counts, explicit_bounds=COPY_BOUNDS_MS,
            attributes=pairs(keys),
        )
        for keys, totals in rows for counts in (histogram_buckets(totals),)
    )  # fmt: skip
    batch.histogram(metrics.GPU_MEMCPY_DURATION, durations, "ms")


def _add_processes(batch: MetricBatch, stats: TraceStats) -> None:
    loaded = (
        batch.point(1, {
            attributes.PROCESS_PID: one.pid, attributes.PROCESS_COMM: one.command,
            attributes.LIBNCCL_PATH: one.path, attributes.LIBNCCL_VERSION: one.version,
        })
        for one in stats.nccl_processes
    )  # fmt: skip
    batch.gauge(metrics.NCCL_PROCESS_LOADED, loaded)
    batch.gauge(metrics.NCCL_PROCESSES, [batch.point(len(stats.nccl_processes))])


def _add_gpus(batch: MetricBatch, gpus: GpuStats) -> None:
    for name, unit, read in _GPU_GAUGES:
        found = ((read(gpu), {attributes.GPU_UUID: gpu.uuid}) for gpu in gpus.now)
        batch.gauge(name, (batch.point(value, keys) for value, keys in found if value is not None), unit)
    allocated = (
        batch.point(size, {attributes.GPU_UUID: gpu.uuid, attributes.PROCESS_PID: pid})
        for gpu in gpus.now for pid, size in sorted(gpu.processes.items())
    )  # fmt: skip
    batch.gauge(metrics.GPU_MEMORY_PROCESS, allocated, "By")
    add_throttling(batch, gpus.throttling)


def _add_collectives(batch: MetricBatch, collectives: Iterable[Collective]) -> None:
    singles = [(one, pairs(collective_attributes(one))) for one in collectives]
    for name, unit, read in _COLLECTIVE_GAUGES:
        found = ((read(one), one.arrival_ns, keys) for one, keys in singles)
        batch.gauge(name, (number_point(value, at, keys) for value, at, keys in found if value is not None), unit)


def _add_own(batch: MetricBatch, status: TracerStatus) -> None:
    batch.gauge(metrics.TRACE_BUDGET, [batch.point(status.budget)])
    batch.gauge(metrics.TRACE_OVERHEAD, [batch.point(status.overhead)])
    duties = (batch.point(value, {attributes.PROBE_GROUP: group}) for group, value in sorted(status.duty.items()))
    batch.gauge(metrics.TRACE_DUTY, duties)


class TraceExporter:
    """Posts from a separate thread, so that a slow receiver never blocks the counting.

    Single collectives wait here until a receiver accepts them. Everything else is cumulative and is sent every time.
    """

    def __init__(self, config: ClientConfig, node: str, job: str = "") -> None:
        self._config, self._node = config, node
        self.job = job
        """The job of the node in the next export."""
        self._client = make_client(self._config)
        self._worker = ThreadPoolExecutor(1, "export")
        self._loop = asyncio.new_event_loop()
        self._post_under_way: Future[None] | None = None
        self._work = VaryingWork()
        self._waiting: list[tuple[Place, Collective]] = []
        self._flying: list[tuple[Place, Collective]] = []
        self._failed = False
        self.given_up = 0
        self.verdict: VerdictLine | None = None
        """Fleet's verdict on this node, of the last answer."""

    def keep(self, collectives: Iterable[tuple[Place, Collective]]) -> None:
        """Queue single collectives, each with the place of its process, for the next export."""
        self._waiting.extend((place, self._work.told(one)) for place, one in collectives)
        self._shorten()

    def forget(self, alive: Collection[int]) -> None:
        """Forget processes that are gone."""
        self._work.forget(alive)

    def _shorten(self) -> None:
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
            self._shorten()
        self._flying, self._waiting = self._waiting, []
        with stats.lock:
            cluster = self._config.cluster
            request = build_request(stats, self._flying, host, self._node, cluster, now_ns, start_ns, self.job)
            body = request.SerializeToString()
        self._post_under_way = self._worker.submit(self._post, body)

    def settle(self) -> None:
        """Wait for the post under way, at most the client's timeout, so that `send` posts what came after it."""
        if self._post_under_way:
            wait([self._post_under_way])

    def close(self) -> None:
        """Wait for the last post."""
        self._worker.submit(self._loop.run_until_complete, self._client.close())
        self._worker.shutdown()
        self._loop.close()

    def _post(self, body: bytes) -> None:
        result = self._loop.run_until_complete(self._client.send(Signal.METRICS, body))
        failed = result.failure is not None
        if failed and not self._failed:
            log.warning("export_failed", endpoint=without_user(self._config.endpoint), reason=result.detail)
        line = result.headers.get(headers.VERDICT.lower())
        self.verdict = parse_verdict(line) if line and not failed else None
        self._failed = failed
