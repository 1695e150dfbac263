"""Health reports ⇄ OTLP metrics, protobuf and JSON, both directions in one room so that a round trip pins them.

The JSON dialect that is read is the specification's and the published agent's: integers as numbers or strings, no
start time. Reading never fails on one bad report: it is left out, counted, and named in the answer.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import orjson
from google.protobuf.message import DecodeError
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
from ingero_contract.values import NodeState
from ingero_kit.otlp_layout import (
    JsonLayout,
    Layout,
    Unfit,
    find_json,
    find_numbers,
    is_whole_head,
    learn,
    learn_json,
    split,
    split_json,
    with_numbers,
)  # fmt: skip

MAX_NAME: Final = 253
"""Longest node or cluster id, characters: the longest Kubernetes node name."""

MAX_LABEL: Final = 256
"""Longest value of any other attribute that is kept; longer ones are cut."""

MAX_TOTALS: Final = 1024
"""Most counters that one report may carry."""

FUTURE_SECONDS: Final = 3600.0
"""How far ahead of the receiver's clock a point's time may lie."""

SCOPE: Final = "ingero.health"


class MalformedPayload(Exception):
    """The payload as a whole cannot be read; the text says why."""


@dataclass(slots=True, kw_only=True)
class HealthReport:
    """What one node says about itself in one push.

    `score` and the four signals are 0 to 1; `rate` is absolute work a second; `time_unix_nano` is the sender's clock,
    0 when not given. `totals` holds the cumulative counters by (metric name, cgroup hash, direction).
    """

    node_id: str
    cluster_id: str
    state: NodeState = NodeState.ACTIVE
    score: float = 0.0
    throughput: float | None = None
    compute: float | None = None
    memory: float | None = None
    cpu: float | None = None
    rate: float | None = None
    degraded: bool = False
    detection_mode: str = ""
    decision_source: str = ""
    fleet_reachable: bool = True
    workload_type: str = ""
    cgroup_path_hash: str = ""
    world_size: int = 0
    rank: int | None = None
    provider: str = ""
    gpu_model: str = ""
    gpu_count: int = 0
    job_id: str = ""
    stage: str = ""
    last_verdict: str = ""
    time_unix_nano: int = 0
    totals: dict[tuple[str, str, str], int] = field(default_factory=dict)


@dataclass(slots=True)
class Decoded:
    """What a payload held: reports, self-declared straggler edges (node, cluster, is straggler), what was wrong.

    `rejected` counts data points; `reasons` says why, by short text.
    """

    reports: list[HealthReport] = field(default_factory=list)
    events: list[tuple[str, str, bool]] = field(default_factory=list)
    other_points: int = 0
    collective_points: int = 0
    rejected: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def message(self) -> str:
        """The reasons in one line for the sender; empty when nothing was wrong."""
        return "; ".join(f"{reason} ({count})" for reason, count in self.reasons.items())


def check_name(name: str) -> str | None:
    """Say what is wrong with a node or cluster id, or `None`."""
    if not name:
        return "is empty"
    if len(name) > MAX_NAME:
        return f"is longer than {MAX_NAME} characters"
    if not name.isprintable():
        return "holds control characters"
    return None


# Encoding.

_SIGNAL_METRICS: Final = (
    (metrics.HEALTH_SCORE, "score"),
    (metrics.THROUGHPUT_RATIO, "throughput"),
    (metrics.COMPUTE_EFFICIENCY, "compute"),
    (metrics.MEMORY_HEADROOM, "memory"),
    (metrics.CPU_AVAILABILITY, "cpu"),
    (metrics.THROUGHPUT_RATE, "rate"),
)


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
    common = _pairs({attributes.NODE_STATE: str(report.state), attributes.WORKLOAD_TYPE: report.workload_type})

    def gauge(name: str, value: float | int, pairs: Iterable[KeyValue], unit: str = "1") -> None:
        point = NumberDataPoint(time_unix_nano=now, attributes=pairs)
        if isinstance(value, int):
            point.as_int = value
        else:
            point.as_double = value
        scope.metrics.append(Metric(name=name, unit=unit, gauge=Gauge(data_points=[point])))

    for name, attribute in _SIGNAL_METRICS:
        value = getattr(report, attribute)
        if value is not None:
            pairs = common
            if name == metrics.HEALTH_SCORE:
                pairs = [*common, *_pairs({attributes.CGROUP_PATH_HASH: report.cgroup_path_hash})]
            gauge(name, float(value), pairs, "1/s" if name == metrics.THROUGHPUT_RATE else "1")
    gauge(metrics.DEGRADATION_WARNING, int(report.degraded), common)
    if report.detection_mode:
        mode = {attributes.DETECTION_MODE_VALUE: report.detection_mode}
        if report.decision_source:
            mode[attributes.DECISION_SOURCE] = report.decision_source
        gauge(metrics.DETECTION_MODE, 1, _pairs(mode))
    gauge(metrics.FLEET_REACHABLE, int(report.fleet_reachable), [])
    if report.gpu_model:
        gauge(
            metrics.NODE_INFO,
            1,
            _pairs({attributes.GPU_MODEL: report.gpu_model, attributes.GPU_COUNT: report.gpu_count}),
        )
    gauge(metrics.WORLD_SIZE_GAUGE, report.world_size, [])
    for name, total_points in _group_totals(report.totals):
        data = Sum(
            aggregation_temporality=AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE, is_monotonic=True
        )
        for cgroup, direction, count in total_points:
            keys: dict[str, str | int] = {attributes.CGROUP_PATH_HASH: cgroup}
            if direction:
                keys[attributes.MEMCPY_DIRECTION] = direction
            data.data_points.append(NumberDataPoint(time_unix_nano=now, as_int=count, attributes=_pairs(keys)))
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
        attributes=_pairs(
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


def _pairs(values: dict[str, Any]) -> list[KeyValue]:
    pairs: list[KeyValue] = []
    for key, value in values.items():
        pairs.append(KeyValue(key=key, value=_any(value)))
    return pairs


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


# Decoding: both encodings are walked into the same few calls on a `_Builder`.

_DOUBLES: Final = {name: attribute for name, attribute in _SIGNAL_METRICS if name != metrics.HEALTH_SCORE}
_TOTALS: Final = frozenset((metrics.LAUNCHES_TOTAL, metrics.CPU_STALL_TOTAL, metrics.MEMCPY_BYTES_TOTAL))
_RESOURCE_STRINGS: Final = {
    attributes.PROVIDER: "provider",
    attributes.JOB_ID: "job_id",
    attributes.STAGE: "stage",
    attributes.LAST_VERDICT: "last_verdict",
    attributes.GPU_MODEL: "gpu_model",
    attributes.WORKLOAD_TYPE: "workload_type",
}
_STATES: Final = {str(state): state for state in NodeState}
_ACTIVE: Final = NodeState.ACTIVE

COLLECTIVES: Final = frozenset(
    (metrics.COLLECTIVE_DURATION, metrics.COLLECTIVE_BYTES, metrics.COLLECTIVE_BARRIER_WAIT)
)
"""Metrics with a point for every collective. They are only counted here; who wants them reads the push again."""

MAX_LAYOUTS: Final = 16
"""Shapes of one length that are remembered; in a fleet of one version there are a handful."""

MAX_LENGTHS: Final = 256
"""Lengths of pushes for which shapes are remembered."""

MAX_BASES: Final = 2048
"""Pairs of what resources share and shapes whose common fields are remembered."""

_WANTED: Final = {
    **{(name, False): attribute for name, attribute in _SIGNAL_METRICS},
    (metrics.HEALTH_SCORE, True): "time_unix_nano",
    (metrics.DEGRADATION_WARNING, False): "degraded",
    (metrics.FLEET_REACHABLE, False): "fleet_reachable",
}


class Identity(NamedTuple):
    """The report fields that a resource block fixes; `shared` is one dictionary for all nodes that say the same."""

    node_id: str
    cluster_id: str
    rank: int | None
    shared: dict[str, Any]

    def fields(self) -> dict[str, Any]:
        """All of them in a fresh dictionary."""
        return {**self.shared, "node_id": self.node_id, "cluster_id": self.cluster_id, "rank": self.rank}


class _Base(NamedTuple):
    """Fields from two dictionaries, which it keeps so that their identity stays theirs."""

    shared: dict[str, Any]
    fixed: dict[str, Any]
    fields: dict[str, Any]


_NUMERIC: Final = (*(attribute for _, attribute in _SIGNAL_METRICS), "time_unix_nano")
_NOBODY: Final = Identity("-", "-", None, {**dict.fromkeys(_RESOURCE_STRINGS.values(), ""), "world_size": 0})

Template = Identity | str
"""What a resource block fixes, or the reason why it names no node."""


class Decoder:
    """Reads pushes. It remembers resource blocks that it has seen, byte for byte, because every node repeats its own.

    The memory is bounded by `remembered` blocks; when full it starts anew.
    """

    def __init__(self, remembered: int = 200_000) -> None:
        self._remembered = remembered
        self._resources: dict[bytes, Template] = {}
        self._layouts: dict[int, list[Layout]] = {}
        self._json_layouts: list[JsonLayout] = []
        self._shared: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._bases: dict[tuple[int, int], _Base] = {}

    def decode(self, body: bytes, encoding: Literal["protobuf", "json"], now: float, cluster: str = "") -> Decoded:
        """Read one push; `now` is seconds since the epoch, `cluster` overrides the payload's cluster id.

        Raises `MalformedPayload` when the payload as a whole cannot be read.
        """
        decoded = Decoded()
        if encoding == "protobuf":
            start, tail = split(body)
            known = self._resources.get(body[start:tail]) if tail else None
            if isinstance(known, Identity) and self._fast(body, tail, known, decoded, now, cluster):
                return decoded
            try:
                request = ExportMetricsServiceRequest.FromString(body)
            except DecodeError:
                raise MalformedPayload("the body is not an OTLP ExportMetricsServiceRequest in protobuf") from None
            for resource in request.resource_metrics:
                self._protobuf(resource, decoded, now, cluster)
            if tail and not decoded.rejected and len(decoded.reports) == 1:
                self._learn(body, start, tail, request.resource_metrics[0])
            return decoded
        tail = split_json(body)
        known = self._resources.get(body[:tail]) if tail else None
        if isinstance(known, Identity) and self._fast_json(body[tail:], known, decoded, now, cluster):
            return decoded
        try:
            tree = orjson.loads(body)
            for block in tree.get("resourceMetrics") or ():
                self._json(block, decoded, now, cluster)
        except orjson.JSONDecodeError as error:
            raise MalformedPayload(f"the body is not JSON: {error}") from None
        except (AttributeError, TypeError, ValueError, KeyError, IndexError, OverflowError) as error:
            raise MalformedPayload(f"the body is not OTLP/JSON metrics: {type(error).__name__}: {error}") from None
        if tail and not decoded.rejected and len(decoded.reports) == 1:
            self._learn_json(body, tail, tree["resourceMetrics"])
        return decoded

    def _fast_json(self, rest: bytes, known: Identity, decoded: Decoded, now: float, cluster: str) -> bool:
        for layout in self._json_layouts:
            found = layout.read(rest)
            if found is not None:
                return self._fill(known, layout.fixed, *found, decoded, now, cluster)
        return False

    def _learn_json(self, body: bytes, tail: int, blocks: list[Any]) -> None:
        """Remember the head of a good push, and the shape of the rest.

        Which number is which is found by trial: a copy with a different number at every place is read in full.
        """
        head, rest = body[:tail], body[tail:]
        key = orjson.dumps((blocks[0].get("resource") or {}).get("attributes") or [])
        known = self._resources.get(key)
        if len(blocks) != 1 or not isinstance(known, Identity) or not is_whole_head(head):
            return
        self._resources[head] = known
        del self._resources[key]
        if any(layout.read(rest) is not None for layout in self._json_layouts):
            return
        try:
            spans = find_json(rest)
        except Unfit:
            return
        marks = [b"%d" % (place + 1) if rest[start - 1 : start] == b'"' else b"0.%03d" % (place + 1)
                 for place, (start, _) in enumerate(spans)]  # fmt: skip
        trial = Decoded()
        builder = _Builder(_NOBODY, trial, math.inf, "")
        try:
            tree = orjson.loads(b'{"resourceMetrics":[{' + with_numbers(rest, spans, marks))
            self._walk_json(tree["resourceMetrics"][0], builder, trial)
        except (orjson.JSONDecodeError, AttributeError, TypeError, ValueError, KeyError, IndexError):
            return
        builder.finish()
        fixed = _fixed(builder, trial)
        if fixed is None or len(spans) >= 999:
            return
        places = {float(mark): place for place, mark in enumerate(marks)}
        names = [""] * len(spans)
        for name in _NUMERIC:
            if name in fixed and float(fixed[name]) in places:
                names[places[float(fixed.pop(name))]] = name
        if "score" not in names or "time_unix_nano" not in names or any(name in fixed for name in _NUMERIC):
            return
        if len(self._json_layouts) >= MAX_LAYOUTS:
            self._json_layouts.clear()
        self._json_layouts.append(learn_json(rest, spans, tuple(names), fixed))

    def _fast(self, body: bytes, tail: int, known: Identity, decoded: Decoded, now: float, cluster: str) -> bool:
        """Read a push of a known shape; says whether it was one and all its numbers are in range."""
        rest = body[tail:]
        for layout in self._layouts.get(len(rest), ()):
            numbers = layout.read(rest)
            if numbers is None:
                continue
            return self._fill(known, layout.fixed, layout.names, numbers, decoded, now, cluster)
        return False

    def _fill(
        self,
        known: Identity,
        fixed: dict[str, Any],
        names: tuple[str, ...],
        numbers: Sequence[float],
        decoded: Decoded,
        now: float,
        cluster: str,
    ) -> bool:
        """Make the report; says whether every number is in its range."""
        if not (min(numbers) >= 0.0 and sum(numbers) < math.inf):  # a number that is none makes the sum none
            return False
        base = self._bases.get((id(known.shared), id(fixed))) or self._base(known.shared, fixed)
        fields = base.fields.copy()
        fields.update(zip(names, numbers))  # noqa: B905 – a layout reads as many numbers as it has names
        fields.pop("", None)
        cluster = cluster or known.cluster_id
        if (
            fields["score"] > 1.0
            or fields["time_unix_nano"] > (now + FUTURE_SECONDS) * 1e9
            or check_name(cluster) is not None
        ):
            return False
        fields["node_id"], fields["rank"], fields["cluster_id"] = known.node_id, known.rank, cluster
        fields["degraded"] = fields["degraded"] != 0
        fields["fleet_reachable"] = fields["fleet_reachable"] != 0
        decoded.reports.append(HealthReport(**fields))
        return True

    def _base(self, shared: dict[str, Any], fixed: dict[str, Any]) -> "_Base":
        """What a resource and a shape fix together, remembered for the two dictionaries themselves."""
        if len(self._bases) >= MAX_BASES:
            self._bases.clear()
        fields = {**shared, **fixed}
        fields["world_size"] = shared["world_size"] or fields["world_size"]
        base = self._bases[(id(shared), id(fixed))] = _Base(shared, fixed, fields)
        return base

    def _learn(self, body: bytes, start: int, tail: int, resource: ResourceMetrics) -> None:
        """Remember the resource and the shape of a push that was read in full and found good."""
        template = self._resources.get(resource.resource.SerializeToString())
        if not isinstance(template, Identity):
            return
        self._resources[body[start:tail]] = template
        rest = body[tail:]
        if any(layout.read(rest) is not None for layout in self._layouts.get(len(rest), ())):
            return
        if len(self._layouts) >= MAX_LENGTHS:
            self._layouts.clear()
        layouts = self._layouts.setdefault(len(rest), [])
        if len(layouts) >= MAX_LAYOUTS:
            layouts.clear()
        trial = Decoded()
        builder = _Builder(_NOBODY, trial, math.inf, "")
        self._walk(resource, builder, trial)
        builder.finish()
        fixed = _fixed(builder, trial)
        if fixed is None:
            return
        try:
            numbers = find_numbers(body, tail)
        except Unfit:
            return
        if len({(number.metric, number.field) for number in numbers}) != len(numbers):
            return
        layouts.append(learn(rest, numbers, _WANTED, fixed))

    def _identity(self, key: bytes, pairs: Iterable[tuple[str, Any]]) -> Template:
        """Return the fields that a resource block fixes, or the reason why it names no node."""
        known = self._resources.get(key)
        if known is None:
            if len(self._resources) >= self._remembered:
                self._resources.clear()
                self._shared.clear()
            known = _template(dict(pairs))
            if isinstance(known, Identity):
                same = self._shared.setdefault(tuple(known.shared.values()), known.shared)
                known = known._replace(shared=same)
            self._resources[key] = known
        return known

    def _protobuf(self, resource: ResourceMetrics, decoded: Decoded, now: float, cluster: str) -> None:
        block = resource.resource
        key = block.SerializeToString()
        template = self._resources.get(key)
        if template is None:
            template = self._identity(key, ((pair.key, _value(pair.value)) for pair in block.attributes))
        builder = _Builder(template, decoded, now, cluster)
        self._walk(resource, builder, decoded)
        builder.finish()

    @staticmethod
    def _walk(resource: ResourceMetrics, builder: "_Builder", decoded: Decoded) -> None:
        fields = builder.fields
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                name = metric.name
                points = metric.gauge.data_points
                if name in COLLECTIVES:
                    decoded.collective_points += len(points)
                    continue
                if len(points) == 1:
                    point = points[0]
                    number: float = point.as_double or point.as_int
                    attribute = _DOUBLES.get(name)
                    if attribute is None:
                        builder.point(name, number, point.time_unix_nano, _LazyPairs(point))
                    elif 0.0 <= number < math.inf:
                        fields[attribute] = number
                    else:
                        builder.reject_signal(name)
                    continue
                for point in points or metric.sum.data_points:
                    builder.point(name, point.as_double or point.as_int, point.time_unix_nano, _LazyPairs(point))
                if not points and not metric.HasField("sum"):
                    decoded.other_points += 1

    def _json(self, block: dict[str, Any], decoded: Decoded, now: float, cluster: str) -> None:
        pairs = (block.get("resource") or {}).get("attributes") or []
        template = self._identity(orjson.dumps(pairs), ((pair["key"], _json_value(pair["value"])) for pair in pairs))
        builder = _Builder(template, decoded, now, cluster)
        self._walk_json(block, builder, decoded)
        builder.finish()

    @staticmethod
    def _walk_json(block: dict[str, Any], builder: "_Builder", decoded: Decoded) -> None:
        for scope in block.get("scopeMetrics") or ():
            for metric in scope.get("metrics") or ():
                name = metric["name"]
                data = metric.get("gauge") or metric.get("sum")
                if name in COLLECTIVES and data is not None:
                    decoded.collective_points += len(data.get("dataPoints") or ())
                    continue
                if data is None:
                    decoded.other_points += 1
                    continue
                for point in data.get("dataPoints") or ():
                    number = point.get("asDouble")
                    if number is None:
                        number = int(point.get("asInt", 0))
                    attribute = _DOUBLES.get(name)
                    if attribute is None:
                        builder.point(name, float(number), int(point.get("timeUnixNano", 0)), _JsonPairs(point))
                    elif 0.0 <= float(number) < math.inf:
                        builder.fields[attribute] = float(number)
                    else:
                        builder.reject_signal(name)


def _fixed(builder: "_Builder", trial: Decoded) -> dict[str, Any] | None:
    """What a push says beside its resource, read with an empty identity; `None` if it cannot be read by shape."""
    fields = dict(builder.fields)
    if (
        trial.rejected
        or trial.other_points
        or trial.collective_points
        or trial.events
        or len(trial.reports) != 1
        or "totals" in fields
    ):
        return None
    blank = _NOBODY.fields()
    fixed = {name: value for name, value in fields.items() if name not in blank or value != blank[name]}
    fixed.setdefault("degraded", False)
    fixed.setdefault("fleet_reachable", True)
    return fixed


class _LazyPairs:
    """Attributes of a protobuf point, walked only when somebody asks."""

    __slots__ = ("_point",)

    def __init__(self, point: NumberDataPoint) -> None:
        self._point = point

    def read(self) -> dict[str, Any]:
        return {pair.key: pair.value.string_value or _value(pair.value) for pair in self._point.attributes}


class _JsonPairs:
    """Attributes of a JSON point, walked only when somebody asks."""

    __slots__ = ("_point",)

    def __init__(self, point: dict[str, Any]) -> None:
        self._point = point

    def read(self) -> dict[str, Any]:
        return {pair["key"]: _json_value(pair["value"]) for pair in self._point.get("attributes") or ()}


class _Builder:
    """Collects the points of one resource block into a report."""

    __slots__ = ("_decoded", "_now", "_problem", "_scored", "fields")

    def __init__(self, template: Template, decoded: Decoded, now: float, cluster: str) -> None:
        self._decoded = decoded
        self._now = now
        self._scored = False
        self._problem = ""
        if isinstance(template, str):
            self._problem = template
            self.fields: dict[str, Any] = {}
        else:
            self.fields = template.fields()
            if cluster:
                self.fields["cluster_id"] = cluster

    def point(self, name: str, number: float, time_unix_nano: int, pairs: _LazyPairs | _JsonPairs) -> None:
        """Take a number point that is none of the plain signals."""
        fields = self.fields
        if self._problem:
            self.reject(self._problem)
        elif name == metrics.HEALTH_SCORE:
            self._score(number, time_unix_nano, pairs.read())
        elif name == metrics.FLEET_REACHABLE:
            fields["fleet_reachable"] = number != 0
        elif name == metrics.DEGRADATION_WARNING:
            fields["degraded"] = number != 0
        elif name == metrics.WORLD_SIZE_GAUGE:
            fields["world_size"] = fields["world_size"] or _count(number)
        elif name == metrics.DETECTION_MODE:
            found = pairs.read()
            fields["detection_mode"] = _text(found.get(attributes.DETECTION_MODE_VALUE))
            fields["decision_source"] = _text(found.get(attributes.DECISION_SOURCE))
        elif name == metrics.NODE_INFO:
            found = pairs.read()
            fields["gpu_model"] = _text(found.get(attributes.GPU_MODEL)) or fields["gpu_model"]
            fields["gpu_count"] = _count(found.get(attributes.GPU_COUNT))
        elif name in _TOTALS:
            self._total(name, number, pairs.read())
        elif name == metrics.STRAGGLER_EVENT:
            self._decoded.events.append((fields["node_id"], fields["cluster_id"], number != 0))
        else:
            self._decoded.other_points += 1

    def _score(self, number: float, time_unix_nano: int, found: dict[str, Any]) -> None:
        if not 0.0 <= number <= 1.0:
            self.reject(f"{metrics.HEALTH_SCORE} is not between 0 and 1")
            return
        if time_unix_nano < 0 or time_unix_nano > (self._now + FUTURE_SECONDS) * 1e9:
            self.reject("the time lies more than an hour in the future or before 1970")
            return
        state = _STATES.get(_text(found.get(attributes.NODE_STATE)) or _ACTIVE)
        if state is None:
            self.reject(f"{attributes.NODE_STATE} is none of calibrating, active, idle")
            return
        fields = self.fields
        fields["score"] = float(number)
        fields["state"] = state
        fields["time_unix_nano"] = time_unix_nano
        fields["workload_type"] = _text(found.get(attributes.WORKLOAD_TYPE)) or fields["workload_type"]
        fields["cgroup_path_hash"] = _text(found.get(attributes.CGROUP_PATH_HASH))
        self._scored = True

    def _total(self, name: str, number: float, found: dict[str, Any]) -> None:
        totals = self.fields.setdefault("totals", {})
        key = (name, _text(found.get(attributes.CGROUP_PATH_HASH)), _text(found.get(attributes.MEMCPY_DIRECTION)))
        if 0.0 <= number < 2.0**63 and len(totals) < MAX_TOTALS:
            totals[key] = int(number)
        else:
            self.reject(f"{name} is not a count, or one of more than {MAX_TOTALS}")

    def reject_signal(self, name: str) -> None:
        """Leave out a signal that is negative or not finite."""
        self.reject(self._problem or f"{name} is not a number from 0")

    def reject(self, reason: str) -> None:
        """Count a point that was left out."""
        self._decoded.rejected += 1
        self._decoded.reasons[reason] = self._decoded.reasons.get(reason, 0) + 1

    def finish(self) -> None:
        """Hand the report over when it carries a score and names its cluster."""
        if not self._scored:
            return
        problem = check_name(self.fields["cluster_id"])
        if problem:
            self.reject(f"the cluster id {problem}")
        else:
            self._decoded.reports.append(HealthReport(**self.fields))


def _template(found: dict[str, Any]) -> Template:
    node, cluster = _raw_text(found.get(attributes.NODE_ID)), _raw_text(found.get(attributes.CLUSTER_ID))
    for key, name, optional in ((attributes.NODE_ID, node, False), (attributes.CLUSTER_ID, cluster, True)):
        problem = check_name(name)
        if problem and (name or not optional):
            return f"the resource attribute {key} {problem}"
    shared: dict[str, Any] = {attribute: _text(found.get(key)) for key, attribute in _RESOURCE_STRINGS.items()}
    shared["world_size"] = _count(found.get(attributes.WORLD_SIZE))
    rank = _count(found[attributes.NODE_RANK]) if attributes.NODE_RANK in found else None
    return Identity(node, cluster, rank, shared)


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return getattr(value, kind) if kind in ("string_value", "int_value", "double_value", "bool_value") else None


def _json_value(value: dict[str, Any]) -> Any:
    text = value.get("stringValue")
    if text is not None:
        return text
    if "intValue" in value:
        return int(value["intValue"])
    return value.get("doubleValue", value.get("boolValue"))


def _raw_text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        return ""
    if len(value) > MAX_LABEL or not value.isprintable():
        return "".join(letter for letter in value[:MAX_LABEL] if letter.isprintable())
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        return 0
    return int(value)
