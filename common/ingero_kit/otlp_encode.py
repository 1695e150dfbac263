"""Encodes health reports and events as OTLP metrics, protobuf and JSON."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import orjson
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Gauge,
    Metric,
    NumberDataPoint,
    ResourceMetrics,
    Sum,
)

from ingero_contract import attributes, metrics
from ingero_kit.health_report import SIGNAL_METRICS, HealthReport

SCOPE: Final = "ingero.health"


def encode_report(report: HealthReport, version: str = "0.1.0") -> ExportMetricsServiceRequest:
    """Build the push of one node."""
    resource = ResourceMetrics()
    _set(resource.resource.attributes, attributes.NODE_ID, report.node_id)
    _set(resource.resource.attributes, attributes.CLUSTER_ID, report.cluster_id)
    if report.world_size > 0:
        _set(resource.resource.attributes, attributes.WORLD_SIZE, report.world_size)
        _set(resource.resource.attributes, attributes.NODE_RANK, report.rank or 0)
    for key, text in (
        (attributes.PROVIDER, report.provider),
        (attributes.JOB_ID, report.job_id),
        (attributes.STAGE, report.stage),
        (attributes.LAST_VERDICT, report.last_verdict),
        (attributes.GPU_MODEL, report.gpu_model),
        (attributes.WORKLOAD_TYPE, report.workload_type),
    ):
        if text:
            _set(resource.resource.attributes, key, text)
    scope = resource.scope_metrics.add()
    scope.scope.name, scope.scope.version = SCOPE, version
    now = report.time_unix_nano
    common = pairs({attributes.NODE_STATE: str(report.state), attributes.WORKLOAD_TYPE: report.workload_type})

    def gauge(name: str, value: float | int, keys: Iterable[KeyValue], unit: str = "1") -> None:
        point = NumberDataPoint(time_unix_nano=now, attributes=keys)
        if isinstance(value, int):
            point.as_int = value
        else:
            point.as_double = value
        scope.metrics.append(Metric(name=name, unit=unit, gauge=Gauge(data_points=[point])))

    for name, attribute in SIGNAL_METRICS:
        value = getattr(report, attribute)
        if value is not None:
            keys = common
            if name == metrics.HEALTH_SCORE:
                keys = [*common, *pairs({attributes.CGROUP_PATH_HASH: report.cgroup_path_hash})]
            gauge(name, float(value), keys, "1/s" if name == metrics.THROUGHPUT_RATE else "1")
    gauge(metrics.DEGRADATION_WARNING, int(report.degraded), common)
    if report.detection_mode:
        mode = {attributes.DETECTION_MODE_VALUE: report.detection_mode}
        if report.decision_source:
            mode[attributes.DECISION_SOURCE] = report.decision_source
        gauge(metrics.DETECTION_MODE, 1, pairs(mode))
    gauge(metrics.FLEET_REACHABLE, int(report.fleet_reachable), [])
    if report.gpu_model:
        gauge(
            metrics.NODE_INFO,
            1,
            pairs({attributes.GPU_MODEL: report.gpu_model, attributes.GPU_COUNT: report.gpu_count}),
        )
    gauge(metrics.WORLD_SIZE_GAUGE, report.world_size, [])
    for name, total_points in _group_totals(report.totals):
        data = Sum(
            aggregation_temporality=AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE, is_monotonic=True
        )
        for cgroup, direction, count in total_points:
            group: dict[str, str | int] = {attributes.CGROUP_PATH_HASH: cgroup}
            if direction:
                group[attributes.MEMCPY_DIRECTION] = direction
            data.data_points.append(NumberDataPoint(time_unix_nano=now, as_int=count, attributes=pairs(group)))
        scope.metrics.append(Metric(name=name, unit=_TOTAL_UNITS.get(name, "1"), sum=data))
    return ExportMetricsServiceRequest(resource_metrics=[resource])


_TOTAL_UNITS: Final = {metrics.CPU_STALL_TOTAL: "ns", metrics.MEMCPY_BYTES_TOTAL: "By"}


def encode_event(
    *,
    node_id: str,
    cluster_id: str,
    straggler: bool,
    detection_mode: str,
    threshold: float,
    score: float,
    dominant_signal: str,
    event_id: str,
    time_unix_nano: int,
    world_size: int = 0,
    rank: int | None = None,
) -> ExportMetricsServiceRequest:
    """Build the push of one straggler event: 1 while a straggler, 0 once on recovery."""
    identity = HealthReport(node_id=node_id, cluster_id=cluster_id, world_size=world_size, rank=rank)
    request = encode_report(identity)
    scope = request.resource_metrics[0].scope_metrics[0]
    del scope.metrics[:]
    point = NumberDataPoint(
        time_unix_nano=time_unix_nano,
        as_int=int(straggler),
        attributes=pairs(
            {
                attributes.DETECTION_MODE_VALUE: detection_mode,
                attributes.THRESHOLD: threshold,
                attributes.SCORE: score,
                attributes.DOMINANT_SIGNAL: dominant_signal,
                attributes.EVENT_ID: event_id,
            }
        ),
    )
    scope.metrics.append(Metric(name=metrics.STRAGGLER_EVENT, unit="1", gauge=Gauge(data_points=[point])))
    return request


def to_json(request: ExportMetricsServiceRequest) -> bytes:
    """Render a push as OTLP/HTTP JSON."""
    from google.protobuf.json_format import MessageToDict

    return orjson.dumps(MessageToDict(request))


def _group_totals(totals: dict[tuple[str, str, str], int]) -> Iterator[tuple[str, list[tuple[str, str, int]]]]:
    names: dict[str, list[tuple[str, str, int]]] = {}
    for (name, cgroup, direction), count in sorted(totals.items()):
        names.setdefault(name, []).append((cgroup, direction, count))
    yield from names.items()


def pairs(values: Mapping[str, Any]) -> list[KeyValue]:
    """OTLP attributes from Python values."""
    return [KeyValue(key=key, value=_any(value)) for key, value in values.items()]


def _set(target: Any, key: str, value: str | int | float) -> None:
    target.append(KeyValue(key=key, value=_any(value)))


def _any(value: str | int | float) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    return AnyValue(string_value=value)
