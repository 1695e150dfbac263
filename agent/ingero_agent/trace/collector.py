"""The tracer's Prometheus page. It has no authentication: bind it to the loopback, or to a network you trust."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ingero_agent.health.throttle import Throttle
from ingero_agent.trace.gpus import GpuSample
from ingero_agent.trace.stats import CallTotals, TracerStatus, TraceStats, quantile
from ingero_agent.trace.tracer import RING_FULL
from ingero_kit.metrics_server import MetricsServer

PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
COPY_BOUNDS_MS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)


def histogram_buckets(totals: CallTotals, bounds_ms: tuple[float, ...] = COPY_BOUNDS_MS) -> list[int]:
    """Calls in each bucket, not added up, the last one unbounded; an octave counts where its middle lies."""
    found = [0] * (len(bounds_ms) + 1)
    for index, count in enumerate(totals.histogram):
        middle = 1.5 * 2.0**index / 1e6
        found[next((place for place, bound in enumerate(bounds_ms) if middle <= bound), len(bounds_ms))] += count
    return found


class TraceCollector(Collector):
    """The ledger as metric families."""

    def __init__(self, stats: TraceStats) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """Build the families anew for every scrape."""
        with self._stats.lock:
            status = self._stats.status
            families = [
                *self._operations(), *self._copies(), *self._nccl(), *self._gpus(), *self._throttling(),
                *self._own(status), *self._probes(status), *self._losses(status), *self._sockets(status),
            ]  # fmt: skip
        yield from families

    def _operations(self) -> Iterator[Metric]:
        stats = self._stats
        duration = GaugeMetricFamily(
            "gpu_cuda_operation_duration_microseconds", "Duration of calls since the start.",
            labels=["source", "operation", "percentile"],
        )  # fmt: skip
        count = GaugeMetricFamily(
            "gpu_cuda_operation_count", "Calls since the start.", labels=["source", "operation"]
        )
        for key, totals in sorted(stats.operations.items()):
            labels = list(stats.labels(key))
            count.add_metric(labels, totals.count)
            if any(totals.histogram):
                for name, share in PERCENTILES.items():
                    duration.add_metric([*labels, name], round(quantile(totals.histogram, share) / 1e3, 3))
        yield duration
        yield count

    def _copies(self) -> Iterator[Metric]:
        size = CounterMetricFamily("gpu_memcpy_bytes", "Bytes copied, by direction.", labels=["direction"])
        duration = HistogramMetricFamily("gpu_memcpy_duration_ms", "Duration of copies.", labels=["direction"])
        for direction, totals in sorted(self._stats.copies.items()):
            size.add_metric([direction], totals.size)
            passed, rows = 0, []
            for bound, count in zip([*map(str, COPY_BOUNDS_MS), "+Inf"], histogram_buckets(totals), strict=True):
                passed += count
                rows.append((bound, passed))
            duration.add_metric([direction], rows, totals.nanoseconds / 1e6)
        yield size
        yield duration

    def _nccl(self) -> Iterator[Metric]:
        stats = self._stats
        loaded = GaugeMetricFamily(
            "gpu_nccl_process_loaded", "1 for a process that has NCCL loaded.",
            labels=["pid", "comm", "libnccl_path", "libnccl_version"],
        )  # fmt: skip
        for one in stats.nccl_processes:
            loaded.add_metric([str(one.pid), one.command, one.path, one.version], 1)
        yield loaded
        yield GaugeMetricFamily(
            "gpu_nccl_processes_total", "Processes that have NCCL loaded.", value=len(stats.nccl_processes)
        )
        count = GaugeMetricFamily("gpu_nccl_collective_count", "Collectives called.", labels=["op_type"])
        size = CounterMetricFamily("gpu_nccl_collective_bytes", "Bytes of collectives.", labels=["op_type"])
        for name, totals in sorted(stats.collectives.items()):
            count.add_metric([name], totals.count)
            size.add_metric([name], totals.size)
        yield count
        yield size
        waits = GaugeMetricFamily(
            "gpu_nccl_collective_barrier_events", "Collectives seen being waited for.", labels=["op_type"]
        )
        for name, totals in sorted(stats.waits.items()):
            waits.add_metric([name], totals.count)
        yield waits

    def _gpus(self) -> Iterator[Metric]:
        rows: dict[str, tuple[str, Callable[[GpuSample], float | None]]] = {
            "gpu_memory_used_bytes": ("Memory in use.", lambda gpu: gpu.used),
            "gpu_memory_free_bytes": ("Memory that is free.", lambda gpu: gpu.free),
            "gpu_memory_total_bytes": ("Memory altogether.", lambda gpu: gpu.total),
            "gpu_memory_fragmentation_estimate": ("Share neither used nor free.", lambda gpu: gpu.fragmentation),
            "gpu_clock_sm_hertz": ("Clock of the processors.", lambda gpu: gpu.sm_mhz and gpu.sm_mhz * 1e6),
            "gpu_clock_sm_max_hertz": ("The most it can be.", lambda gpu: gpu.sm_max_mhz and gpu.sm_max_mhz * 1e6),
            "gpu_clock_memory_hertz": ("Clock of the memory.", lambda gpu: gpu.memory_mhz and gpu.memory_mhz * 1e6),
        }
        for name, (text, value) in rows.items():
            family = GaugeMetricFamily(name, text, labels=["gpu_uuid"])
            for gpu in self._stats.gpus.now:
                found = value(gpu)
                if found is not None:
                    family.add_metric([gpu.uuid], found)
            yield family
        allocated = GaugeMetricFamily(
            "gpu_memory_process_allocated_bytes", "What a process holds.", labels=["gpu_uuid", "pid"]
        )
        for gpu in self._stats.gpus.now:
            for pid, size in sorted(gpu.processes.items()):
                allocated.add_metric([gpu.uuid, str(pid)], size)
        yield allocated

    def _throttling(self) -> Iterator[Metric]:
        gpus = self._stats.gpus
        for kind in Throttle:
            active = GaugeMetricFamily(
                f"gpu_throttle_{kind}_active", "1 while the GPU is held back.", labels=["gpu_uuid"]
            )
            began = CounterMetricFamily(f"gpu_throttle_{kind}_event", "Times that it began.", labels=["gpu_uuid"])
            for uuid, kinds in sorted(gpus.throttling.now.items()):
                active.add_metric([uuid], int(kind in kinds))
                began.add_metric([uuid], gpus.throttling.began.get((uuid, kind), 0))
            yield active
            yield began
        seconds = CounterMetricFamily(
            "gpu_throttle_seconds", "Time held back, by the driver's own count.", labels=["gpu_uuid", "kind"]
        )
        for (uuid, kind), spent in sorted(gpus.throttled_ns.items()):
            seconds.add_metric([uuid, kind], spent / 1e9)
        yield seconds

    @staticmethod
    def _own(status: TracerStatus) -> Iterator[Metric]:
        for name, text, value in (
            ("ingero_trace_budget_ratio", "Share of one processor that tracing may cost a process.", status.budget),
            ("ingero_trace_overhead_ratio", "Share that it costs the most traced process now.", status.overhead),
            ("ingero_trace_step", "How much is shed: 0 is nothing; the steps are in docs/trace.md.", status.step),
            ("ingero_trace_agent_cpu_ratio", "Share of one processor that the agent itself uses.", status.own_cpu),
            ("ingero_trace_agent_rss_bytes", "Resident memory of the agent.", status.own_rss),
            ("ingero_trace_helper_peak_bytes", "Peak memory of the helper, which is gone.", status.helper_peak),
            ("ingero_trace_period_seconds", "Time between looks at the counts.", status.period_seconds),
            ("ingero_trace_sample_every", "One of so many collectives is kept singly.", status.sample_every),
            ("ingero_trace_scheduler", "1 while waiting for processors is watched.", int(status.scheduler)),
            ("ingero_trace_scheduler_share_ratio", "What that costs every processor.", status.scheduler_share),
            ("ingero_trace_libraries", "Library files that are attached.", status.libraries),
            ("ingero_trace_unattached_libraries", "Library files that are too many.", status.unattached),
            ("ingero_trace_processes_left_alone", "Processes that the selection leaves out.", status.left_alone),
            ("ingero_trace_db_bytes", "Size of the database.", status.database_bytes),
        ):  # fmt: skip
            yield GaugeMetricFamily(name, text, value=value)
        hidden = GaugeMetricFamily(
            "ingero_trace_hidden_processes", "Processes that may not be looked into, by what is missing.",
            labels=["missing"],
        )  # fmt: skip
        for missing, count in sorted(status.hidden_processes.items()):
            hidden.add_metric([missing], count)
        yield hidden
        modes = GaugeMetricFamily(
            "ingero_trace_capability", "1 for how each capability works now.", labels=["capability", "mode"]
        )
        for capability, word in sorted(status.modes.items()):
            modes.add_metric([capability, word], 1)
        yield modes

    @staticmethod
    def _probes(status: TracerStatus) -> Iterator[Metric]:
        duty = GaugeMetricFamily(
            "ingero_trace_duty_ratio", "Share of the time in which a group is counted.", labels=["group"]
        )
        for group, value in sorted(status.duty.items()):
            duty.add_metric([group], value)
        yield duty
        cost = GaugeMetricFamily(
            "ingero_trace_probe_cost_seconds",
            "Measured cost of one probed call; `_cold`: after a pause.",
            labels=["kind"],
        )
        for kind, value in status.costs.items():
            cost.add_metric([kind], value / 1e9)
        cost.add_metric(["switch"], status.switch_ns / 1e9)
        yield cost
        mode = GaugeMetricFamily("ingero_trace_mode", "1 for the way probes are attached.", labels=["mode"])
        mode.add_metric([status.mode], 1)
        yield mode

    @staticmethod
    def _losses(status: TracerStatus) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "ingero_trace_replaced_libraries", "Libraries written over while attached.", value=status.replaced
        )
        lost = CounterMetricFamily("ingero_trace_lost", "Calls or records lost, by reason.", labels=["reason"])
        for reason, count in sorted(status.lost.items()):
            lost.add_metric([reason], count)
        yield lost
        yield CounterMetricFamily(
            "ingero_ringbuf_overflows", "Records lost to a full ring.", value=status.lost.get(RING_FULL, 0)
        )
        yield CounterMetricFamily(
            "ingero_trace_db_pruned_rows", "Rows removed from the database by size or age.", value=status.pruned_rows
        )
        yield CounterMetricFamily(
            "ingero_trace_unexported_points", "Points given up because nobody took them.", value=status.unexported
        )

    @staticmethod
    def _sockets(status: TracerStatus) -> Iterator[Metric]:
        yield CounterMetricFamily("ingero_trace_sent_events", "Lines that consumers got.", value=status.lines_sent)
        yield GaugeMetricFamily("ingero_trace_event_consumers", "Consumers of the socket.", value=status.consumers)
        yield CounterMetricFamily("ingero_trace_annotations", "Annotations taken.", value=status.annotations)
        yield CounterMetricFamily(
            "ingero_trace_unwritten_annotations", "Annotations lost to a locked database.",
            value=status.unwritten_annotations,
        )  # fmt: skip
        for name, text, counts in (
            ("ingero_trace_dropped_events", "Lines that were lost, by reason.", status.lines_dropped),
            ("ingero_trace_annotations_refused", "Annotations refused, by reason.", status.annotations_refused),
        ):
            family = CounterMetricFamily(name, text, labels=["reason"])
            for reason, count in sorted(counts.items()):
                family.add_metric([reason], count)
            yield family


def make_metrics_server(address: tuple[str, int], stats: TraceStats) -> MetricsServer:
    """A server over the ledger. Raises `OSError`."""
    registry = CollectorRegistry()
    registry.register(TraceCollector(stats))
    return MetricsServer(address, registry, ready=lambda: stats.status.blocked_reason or None, healthy=lambda: None)
