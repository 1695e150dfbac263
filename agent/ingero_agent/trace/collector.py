"""The tracer's Prometheus page. It has no authentication: bind it to the loopback, or to a network you trust."""

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from math import inf
from typing import Final

import orjson

from ingero_agent.throttle_metrics import throttle_families
from ingero_agent.trace.gpu_stats import GpuSample, GpuStats
from ingero_agent.trace.stats import (
    COPY_BOUNDS_MS,
    PERCENTILES,
    RING_FULL,
    CallTotals,
    TracerStatus,
    TraceStats,
    histogram_buckets,
    quantile,
)
from ingero_contract import routes
from ingero_http.http1.messages import Request, Response
from ingero_kit.exposition import Family
from ingero_kit.metrics_server import PageServer, serve_metrics
from ingero_kit.metrics_table import MetricRow, Samples, collect_rows, counter, gauge

CALLS: Final[tuple[MetricRow[TraceStats], ...]] = (
    gauge(
        "gpu_cuda_operation_duration_microseconds",
        "Duration of calls since the start.",
        lambda s: {
            (*s.labels(key), name): round(quantile(totals.histogram, share) / 1e3, 3)
            for key, totals in s.operations.items()
            if any(totals.histogram)
            for name, share in PERCENTILES.items()
        },
        "source",
        "operation",
        "percentile",
    ),
    gauge(
        "gpu_cuda_operation_count",
        "Calls since the start.",
        lambda s: {s.labels(key): totals.count for key, totals in s.operations.items()},
        "source",
        "operation",
    ),
    counter(
        "gpu_memcpy_bytes",
        "Bytes copied, by direction.",
        lambda s: {direction: totals.size for direction, totals in s.copies.items()},
        "direction",
    ),
    gauge(
        "gpu_nccl_process_loaded",
        "1 for a process that has NCCL loaded.",
        lambda s: {(str(one.pid), one.command, one.path, one.version): 1 for one in s.nccl_processes},
        "pid",
        "comm",
        "libnccl_path",
        "libnccl_version",
    ),
    gauge("gpu_nccl_processes_total", "Processes that have NCCL loaded.", lambda s: len(s.nccl_processes)),
    gauge("gpu_nccl_collective_count", "Collectives called.", lambda s: _counts(s.collectives), "op_type"),
    counter(
        "gpu_nccl_collective_bytes",
        "Bytes of collectives.",
        lambda s: {name: totals.size for name, totals in s.collectives.items()},
        "op_type",
    ),
    gauge(
        "gpu_nccl_collective_barrier_events",
        "Collectives whose wait was seen.",
        lambda s: _counts(s.waits),
        "op_type",
    ),
)


def _counts(totals: Mapping[str, CallTotals]) -> Samples:
    return {name: one.count for name, one in totals.items()}


def _hertz(mhz: int | None) -> float | None:
    return None if mhz is None else mhz * 1e6


def _by_gpu(name: str, text: str, value: Callable[[GpuSample], float | None]) -> MetricRow[GpuStats]:
    def samples(gpus: GpuStats) -> Samples:
        return {gpu.uuid: found for gpu in gpus.now if (found := value(gpu)) is not None}

    return gauge(name, text, samples, "gpu_uuid")


GPUS: Final[tuple[MetricRow[GpuStats], ...]] = (
    _by_gpu("gpu_memory_used_bytes", "Memory in use.", lambda gpu: gpu.used),
    _by_gpu("gpu_memory_free_bytes", "Memory that is free.", lambda gpu: gpu.free),
    _by_gpu("gpu_memory_total_bytes", "Total memory.", lambda gpu: gpu.total),
    _by_gpu("gpu_memory_fragmentation_estimate", "Share neither used nor free.", lambda gpu: gpu.fragmentation),
    _by_gpu("gpu_clock_sm_hertz", "Clock of the processors.", lambda gpu: _hertz(gpu.sm_mhz)),
    _by_gpu("gpu_clock_sm_max_hertz", "Highest clock of the processors.", lambda gpu: _hertz(gpu.sm_max_mhz)),
    _by_gpu("gpu_clock_memory_hertz", "Clock of the memory.", lambda gpu: _hertz(gpu.memory_mhz)),
    gauge(
        "gpu_memory_process_allocated_bytes",
        "Memory that a process has allocated.",
        lambda s: {(gpu.uuid, str(pid)): size for gpu in s.now for pid, size in gpu.processes.items()},
        "gpu_uuid",
        "pid",
    ),
    counter(
        "gpu_throttle_seconds",
        "Time throttled, by the driver's own count.",
        lambda s: {labels: spent / 1e9 for labels, spent in s.throttled_ns.items()},
        "gpu_uuid",
        "kind",
    ),
)

STATUS: Final[tuple[MetricRow[TracerStatus], ...]] = (
    gauge("ingero_trace_budget_ratio", "Share of one processor that tracing may cost a process.", lambda s: s.budget),
    gauge("ingero_trace_overhead_ratio", "Share that it costs the most traced process now.", lambda s: s.overhead),
    gauge(
        "ingero_trace_step", "How much is reduced: 0 is nothing; the steps are in docs/trace.md.", lambda s: s.step
    ),
    gauge("ingero_trace_agent_cpu_ratio", "Share of one processor that the agent itself uses.", lambda s: s.own_cpu),
    gauge("ingero_trace_agent_rss_bytes", "Resident memory of the agent.", lambda s: s.own_rss),
    gauge(
        "ingero_trace_helper_peak_bytes",
        "Peak memory of the helper, which is gone.",
        lambda s: s.tracer.helper_peak_bytes,
    ),
    gauge("ingero_trace_period_seconds", "Time between polls of the counts.", lambda s: s.period_seconds),
    gauge(
        "ingero_trace_sample_every", "One of so many collectives is stored individually.", lambda s: s.sample_every
    ),
    gauge(
        "ingero_trace_scheduler", "1 while waiting for processors is watched.", lambda s: int(s.tracer.scheduler.on)
    ),
    gauge(
        "ingero_trace_scheduler_share_ratio", "What that costs every processor.", lambda s: s.tracer.scheduler.share
    ),
    gauge("ingero_trace_libraries", "Library files that are attached.", lambda s: s.tracer.libraries),
    gauge("ingero_trace_unattached_libraries", "Library files that are too many.", lambda s: s.tracer.unattached),
    gauge("ingero_trace_excluded_processes", "Processes that the selection leaves out.", lambda s: s.tracer.excluded),
    gauge("ingero_trace_db_bytes", "Size of the database.", lambda s: s.database_bytes),
    gauge(
        "ingero_trace_hidden_processes",
        "Processes that may not be read, by the missing capability.",
        lambda s: s.tracer.hidden_processes,
        "missing",
    ),
    gauge(
        "ingero_trace_capability",
        "1 for how each capability works now.",
        lambda s: dict.fromkeys(s.modes.items(), 1),
        "capability",
        "mode",
    ),
    gauge(
        "ingero_trace_problem",
        "1 for each reason for which the node is not traced, or only in part.",
        lambda s: dict.fromkeys(s.problems, 1),
        "reason",
    ),
    gauge("ingero_trace_duty_ratio", "Share of the time in which a group is counted.", lambda s: s.duty, "group"),
    gauge(
        "ingero_trace_probe_cost_seconds",
        "Measured cost of one probed call; `_cold`: after a pause.",
        lambda s: {kind: value / 1e9 for kind, value in {**s.costs, "switch": s.tracer.scheduler.switch_ns}.items()},
        "kind",
    ),
    gauge("ingero_trace_mode", "1 for the way probes are attached.", lambda s: {s.tracer.mode: 1}, "mode"),
    counter("ingero_trace_replaced_libraries", "Libraries overwritten while attached.", lambda s: s.tracer.replaced),
    counter("ingero_trace_lost", "Calls or records lost, by reason.", lambda s: s.lost, "reason"),
    counter("ingero_ringbuf_overflows", "Records lost to a full ring.", lambda s: s.lost.get(RING_FULL, 0)),
    counter("ingero_trace_db_pruned_rows", "Rows removed from the database by size or age.", lambda s: s.pruned_rows),
    counter(
        "ingero_trace_unexported_points", "Points dropped because no receiver accepted them.", lambda s: s.unexported
    ),
    counter("ingero_trace_sent_events", "Lines sent to consumers.", lambda s: s.lines_sent),
    gauge("ingero_trace_event_consumers", "Consumers of the socket.", lambda s: s.consumers),
    counter("ingero_trace_annotations", "Annotations accepted.", lambda s: s.annotations),
    counter(
        "ingero_trace_unwritten_annotations",
        "Annotations lost to a locked database.",
        lambda s: s.unwritten_annotations,
    ),
    counter(
        "ingero_trace_stack_samplings", "Samplings of call stacks, by outcome.", lambda s: s.samplings, "outcome"
    ),
    counter("ingero_trace_dropped_events", "Lines that were lost, by reason.", lambda s: s.lines_dropped, "reason"),
    counter(
        "ingero_trace_annotations_refused",
        "Annotations refused, by reason.",
        lambda s: s.annotations_refused,
        "reason",
    ),
)


class TraceCollector:
    """The tracer's statistics as metric families, read under their lock."""

    def __init__(self, stats: TraceStats) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Family]:
        """Build the families anew for every scrape."""
        stats = self._stats
        with stats.lock:
            families = [
                *collect_rows(CALLS, stats), _copy_durations(stats), *collect_rows(GPUS, stats.gpus),
                *throttle_families(stats.gpus.throttling), *collect_rows(STATUS, stats.status),
            ]  # fmt: skip
        yield from families


def _copy_durations(stats: TraceStats) -> Family:
    duration = Family("histogram", "gpu_memcpy_duration_ms", "Duration of copies.", ("direction",))
    for direction, totals in sorted(stats.copies.items()):
        buckets = zip((*COPY_BOUNDS_MS, inf), accumulate(histogram_buckets(totals)), strict=True)
        duration.add_histogram((direction,), buckets, totals.nanoseconds / 1e6)
    return duration


def serve_pages(listen: str, stats: TraceStats) -> PageServer:
    """Serve the totals. Raises `OSError`."""

    def health(_: Request) -> Response:
        status = stats.status
        body = {"ready": not status.tracer.blocked_reason, "modes": status.modes, "problems": status.problems}
        return Response(200, orjson.dumps(body), b"application/json")

    return serve_metrics(
        listen, [TraceCollector(stats)], lambda: stats.status.tracer.blocked_reason or None, flag="--prometheus",
        pages={routes.TRACER_HEALTH.encode(): health},
    )  # fmt: skip
