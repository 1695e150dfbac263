"""The metrics of throttled GPUs, which are pushed separately from the health report."""

from typing import Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Gauge, Metric, NumberDataPoint

from ingero_agent.health.throttle import Throttle, Throttling
from ingero_contract import attributes, metrics
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_encode import encode_report

THROTTLE_METRICS: Final = {
    Throttle.POWER: metrics.GPU_THROTTLE_POWER,
    Throttle.THERMAL: metrics.GPU_THROTTLE_THERMAL,
    Throttle.SW: metrics.GPU_THROTTLE_SW,
    Throttle.HW: metrics.GPU_THROTTLE_HW,
}


def encode_throttling(
    throttling: Throttling, *, node_id: str, cluster_id: str, provider: str, time_unix_nano: int
) -> ExportMetricsServiceRequest:
    """Encode one gauge for each kind with one point for each GPU, 0 or 1.

    They are sent in a separate request, so that the reports of all nodes keep one shape, which Fleet reads fastest.
    """
    request = encode_report(HealthReport(node_id=node_id, cluster_id=cluster_id, provider=provider))
    scope = request.resource_metrics[0].scope_metrics[0]
    del scope.metrics[:]
    for kind, name in THROTTLE_METRICS.items():
        points = [
            NumberDataPoint(
                time_unix_nano=time_unix_nano,
                as_int=int(kind in active),
                attributes=[KeyValue(key=attributes.GPU_UUID, value=AnyValue(string_value=gpu))],
            )
            for gpu, active in sorted(throttling.now.items())
        ]
        scope.metrics.append(Metric(name=name, unit="1", gauge=Gauge(data_points=points)))
    return request
