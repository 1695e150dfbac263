"""Encodes health reports and events as OTLP metrics, protobuf and JSON."""

from collections.abc import Iterable, Mapping
from typing import Final

import orjson
from google.protobuf.message import Message
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    Sum,
)

from ingero_contract import attributes, metrics
from ingero_contract.events import StragglerStateEvent
from ingero_kit.health_report import SIGNAL_METRICS, HealthReport

SCOPE: Final = "ingero.health"
VERSION: Final = "0.1.0"
"""Version of the sender, as in the package."""

_CUMULATIVE: Final = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE

Value = str | int | float
Attributes = Mapping[str, Value | None]
"""Attributes by key; those that are `None` are left out."""


class MetricBatch:
    """Collects the metrics of one resource in `request`. Sums are cumulative since `start_ns`."""

    def __init__(
        self, resource: Attributes, scope: str, now_ns: int, start_ns: int = 0, version: str = VERSION
    ) -> None:
        self.now_ns, self.start_ns = now_ns, start_ns
        self.request = ExportMetricsServiceRequest()
        block = self.request.resource_metrics.add()
        block.resource.attributes.extend(pairs(resource))
        scoped = block.scope_metrics.add()
        scoped.scope.name, scoped.scope.version = scope, version
        self._metrics = scoped.metrics

    def gauge(self, name: str, points: Iterable[NumberDataPoint], unit: str = "1") -> None:
        """Add a gauge, unless it has no points."""
        if points := list(points):
            self._metrics.append(Metric(name=name, unit=unit, gauge=Gauge(data_points=points)))

    def total(self, name: str, values: Iterable[tuple[int, Attributes]], unit: str = "1") -> None:
        """Add a cumulative sum, unless it has no values."""
        if points := [point(value, self.now_ns, keys, self.start_ns) for value, keys in values]:
            data = Sum(aggregation_temporality=_CUMULATIVE, is_monotonic=True, data_points=points)
            self._metrics.append(Metric(name=name, unit=unit, sum=data))

    def histogram(self, name: str, points: Iterable[HistogramDataPoint], unit: str = "1") -> None:
        """Add a cumulative histogram, unless it has no points."""
        if points := list(points):
            data = Histogram(aggregation_temporality=_CUMULATIVE, data_points=points)
            self._metrics.append(Metric(name=name, unit=unit, histogram=data))

    def point(self, value: int | float, keys: Attributes | None = None) -> NumberDataPoint:
        """A point with the current time."""
        return point(value, self.now_ns, keys or {})


def point(value: int | float, time_ns: int, keys: Attributes, start_ns: int = 0) -> NumberDataPoint:
    """A data point, integer or double as the value is."""
    return number_point(value, time_ns, pairs(keys), start_ns)


def number_point(value: int | float, time_ns: int, keys: Iterable[KeyValue], start_ns: int = 0) -> NumberDataPoint:
    """A data point with attributes that are encoded already."""
    made = NumberDataPoint(time_unix_nano=time_ns, start_time_unix_nano=start_ns, attributes=keys)
    if isinstance(value, int):
        made.as_int = value
    else:
        made.as_double = value
    return made


def resource_attributes(report: HealthReport) -> Attributes:
    """The attributes that identify the sender of a report."""
    ranked = report.world_size > 0
    return {
        attributes.NODE_ID: report.node_id,
        attributes.CLUSTER_ID: report.cluster_id,
        attributes.WORLD_SIZE: report.world_size if ranked else None,
        attributes.NODE_RANK: report.rank if ranked else None,
        attributes.PROVIDER: report.provider or None,
        attributes.JOB_ID: report.job_id or None,
        attributes.STAGE: report.stage or None,
        attributes.LAST_VERDICT: report.last_verdict or None,
        attributes.INSTANCE_ID: report.instance_id or None,
        attributes.GPU_MODEL: report.gpu_model or None,
        attributes.WORKLOAD_TYPE: report.workload_type or None,
    }


def encode_report(report: HealthReport, version: str = VERSION) -> ExportMetricsServiceRequest:
    """Build the push of one node."""
    batch = MetricBatch(resource_attributes(report), SCOPE, report.time_unix_nano, version=version)
    common: Attributes = {attributes.NODE_STATE: str(report.state), attributes.WORKLOAD_TYPE: report.workload_type}

    def gauge(name: str, value: float | int, keys: Attributes, unit: str = "1") -> None:
        batch.gauge(name, [batch.point(value, keys)], unit)

    for name, attribute in SIGNAL_METRICS:
        value = getattr(report, attribute)
        if value is not None:
            keys = common
            if name == metrics.HEALTH_SCORE:
                keys = {**common, attributes.CGROUP_PATH_HASH: report.cgroup_path_hash}
            gauge(name, float(value), keys, "1/s" if name == metrics.THROUGHPUT_RATE else "1")
    gauge(metrics.DEGRADATION_WARNING, int(report.degraded), common)
    if report.detection_mode:
        mode = {attributes.DETECTION_MODE_VALUE: report.detection_mode}
        if report.decision_source:
            mode[attributes.DECISION_SOURCE] = report.decision_source
        gauge(metrics.DETECTION_MODE, 1, mode)
    gauge(metrics.FLEET_REACHABLE, int(report.fleet_reachable), {})
    if report.gpu_model:
        hardware: Attributes = {attributes.GPU_MODEL: report.gpu_model, attributes.GPU_COUNT: report.gpu_count}
        gauge(metrics.NODE_INFO, 1, hardware)
    gauge(metrics.WORLD_SIZE_GAUGE, report.world_size, {})
    return batch.request


def encode_event(event: StragglerStateEvent, *, straggler: bool, time_unix_nano: int) -> ExportMetricsServiceRequest:
    """Build the push of one straggler event: 1 while a straggler, 0 once on recovery."""
    identity = HealthReport(
        node_id=event.node_id, cluster_id=event.cluster_id, world_size=event.world_size or 0, rank=event.rank
    )
    batch = MetricBatch(resource_attributes(identity), SCOPE, time_unix_nano)
    keys: Attributes = {
        attributes.DETECTION_MODE_VALUE: event.detection_mode, attributes.THRESHOLD: event.threshold,
        attributes.SCORE: event.score, attributes.DOMINANT_SIGNAL: event.dominant_signal,
        attributes.EVENT_ID: event.event_id,
    }  # fmt: skip
    batch.gauge(metrics.STRAGGLER_EVENT, [batch.point(int(straggler), keys)])
    return batch.request


def to_json(request: Message) -> bytes:
    """Render a push as OTLP/HTTP JSON. Trace and span ids are not supported."""
    from google.protobuf.json_format import MessageToDict

    return orjson.dumps(MessageToDict(request))


def pairs(values: Attributes) -> list[KeyValue]:
    """OTLP attributes from Python values."""
    return [KeyValue(key=key, value=_any(value)) for key, value in values.items() if value is not None]


def _any(value: Value) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    return AnyValue(string_value=value)
