"""The metrics of throttled GPUs: pushed separately from the health report, exported, and on the Prometheus pages."""

from collections.abc import Iterator
from typing import Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from ingero_agent.health.throttle import Throttle, Throttling
from ingero_contract import attributes, metrics
from ingero_kit.exposition import Family
from ingero_kit.health_report import HealthReport
from ingero_kit.metrics_table import counter_now, gauge_now
from ingero_kit.otlp_encode import SCOPE, MetricBatch, resource_attributes

THROTTLE_METRICS: Final = {
    Throttle.POWER: metrics.GPU_THROTTLE_POWER,
    Throttle.THERMAL: metrics.GPU_THROTTLE_THERMAL,
    Throttle.SW: metrics.GPU_THROTTLE_SW,
    Throttle.HW: metrics.GPU_THROTTLE_HW,
}
_BY: Final = {
    Throttle.POWER: " by power",
    Throttle.THERMAL: " by heat",
    Throttle.SW: " by software",
    Throttle.HW: " by hardware",
}


def encode_throttling(throttling: Throttling, node: HealthReport, time_unix_nano: int) -> ExportMetricsServiceRequest:
    """Encode one gauge for each kind with one point for each GPU, 0 or 1. `node` identifies the sender.

    They are sent in a separate request, so that the reports of all nodes keep one shape, which Fleet reads fastest.
    """
    batch = MetricBatch(resource_attributes(node), SCOPE, time_unix_nano)
    add_throttling(batch, throttling)
    return batch.request


def add_throttling(batch: MetricBatch, throttling: Throttling) -> None:
    """Add the gauges of all kinds."""
    for kind, name in THROTTLE_METRICS.items():
        active = sorted(throttling.now.items())
        batch.gauge(name, [batch.point(int(kind in kinds), {attributes.GPU_UUID: gpu}) for gpu, kinds in active])


def throttle_families(throttling: Throttling) -> Iterator[Family]:
    """Prometheus metrics of all kinds: whether each is active, and how often it began."""
    for kind in Throttle:
        now = {gpu: kind in kinds for gpu, kinds in throttling.now.items()}
        began = {gpu: throttling.began.get((gpu, kind), 0) for gpu in throttling.now}
        yield gauge_now(f"gpu_throttle_{kind}_active", f"1 while the GPU is throttled{_BY[kind]}.", now, "gpu_uuid")
        yield counter_now(f"gpu_throttle_{kind}_event", "Times that this began.", began, "gpu_uuid")
