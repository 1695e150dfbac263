"""Decodes OTLP metrics, protobuf and JSON, to health reports; the reverse of `otlp_encode`.

It accepts the JSON of the specification and of the published agent: integers as numbers or strings, no start time.
One bad report does not fail the push: it is left out, counted, and named in the answer.
"""

import math
from collections.abc import Sequence
from hashlib import blake2b
from itertools import compress
from typing import Any, Final, NamedTuple

import orjson
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from ingero_contract import metrics
from ingero_contract.identifiers import node_key
from ingero_kit.health_report import (
    FUTURE_SECONDS,
    SIGNAL_METRICS,
    DecodedReports,
    HealthReport,
    MalformedPayload,
    check_name,
)
from ingero_kit.otlp_json import read_tree
from ingero_kit.otlp_layout import (
    JsonLayout,
    Layout,
    find_json_numbers,
    find_numbers,
    learn_json_layout,
    learn_layout,
    read_resource,
    split_json_resource,
    split_resource,
    with_numbers,
)  # fmt: skip
from ingero_kit.otlp_limits import ALWAYS_ALLOWED_BYTES, MAX_MESSAGES, check_cost, check_density
from ingero_kit.otlp_repair import METRICS, read_json, repair
from ingero_kit.otlp_signal import Encoding, Signal
from ingero_kit.otlp_values import NO_RECORDED_VALUE, attribute_value, is_recorded
from ingero_kit.otlp_wire import UnsupportedLayout
from ingero_kit.report_builder import RESOURCE_STRINGS, IdentityOrError, ReportBuilder, ReportIdentity, read_identity

_DOUBLES: Final = {name: attribute for name, attribute in SIGNAL_METRICS if name != metrics.HEALTH_SCORE}

COLLECTIVES: Final = frozenset(
    (
        metrics.COLLECTIVE_DURATION,
        metrics.COLLECTIVE_BYTES,
        metrics.COLLECTIVE_BARRIER_WAIT,
        metrics.INSPECTOR_EXEC_TIME,
        "nccl_bus_bandwidth_gbs",
        "nccl_collective_algobw_gbs",
        "nccl_p2p_bus_bandwidth_gbs",
        "nccl_p2p_exec_time_microseconds",
        "nccl_p2p_algobw_gbs",
        "nccl_collectives_total",
        "nccl_collectives_dropped_total",
        "nccl_p2p_total",
        "nccl_p2p_dropped_total",
    )
)
"""Metrics with a point for every collective. They are only counted here; Fleet's collectives read the push again."""

MAX_LAYOUTS: Final = 16
"""Shapes of one length that are cached; a fleet with one agent version has a handful."""

MAX_LENGTHS: Final = 256
"""Lengths of pushes for which shapes are cached."""

MAX_LAYOUT_BYTES: Final = 8 << 20
"""Total length of the pushes whose shapes are cached, bytes."""

MAX_LABEL_CHARACTERS: Final = 16 << 20
"""Total length of the labels of cached resources, characters, without names of nodes."""

MAX_BASES: Final = 2048
"""Pairs of shared resource fields and shapes whose common fields are cached."""

_WANTED: Final = {
    **{(name, False): attribute for name, attribute in SIGNAL_METRICS},
    (metrics.HEALTH_SCORE, True): "time_unix_nano",
    (metrics.DEGRADATION_WARNING, False): "degraded",
    (metrics.FLEET_REACHABLE, False): "fleet_reachable",
}


class _Base(NamedTuple):
    """Fields from two dictionaries; it keeps a reference to both, so that their ids stay unique."""

    shared: dict[str, Any]
    fixed: dict[str, Any]
    fields: dict[str, Any]


_ENTRY: Final = 512
"""Characters that a cache entry of labels counts in addition to their text."""

_JSON: Final = -1
"""Key of the shapes in JSON, whose length varies."""

_NUMERIC: Final = (*(attribute for _, attribute in SIGNAL_METRICS), "time_unix_nano")
_BLANK_IDENTITY: Final = ReportIdentity(
    "-", None, "", {**dict.fromkeys(RESOURCE_STRINGS.values(), ""), "world_size": 0, "cluster_id": "-"}
)


def _digest(block: bytes) -> bytes:
    """A 15-byte digest of a block: it takes a fifth of the memory, and no sender can construct a collision."""
    return blake2b(block, digest_size=15).digest()


class ReportDecoder:
    """Decodes pushes. It caches the shapes of pushes (`otlp_layout`) and, by digest, their resources.

    The cache holds `remembered` blocks and is cleared when it is full.
    """

    def __init__(self, remembered: int = 200_000) -> None:
        self._remembered = remembered
        self._resources: dict[bytes, IdentityOrError] = {}
        self._layouts: dict[int, list[Layout | JsonLayout]] = {}
        """By length of the part after the resource, in JSON by `_JSON`."""
        self._layout_bytes = 0
        self._letters = 0
        self._shared: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._bases: dict[tuple[int, int], _Base] = {}

    def decode(self, body: bytes, encoding: Encoding, now: float, cluster: str = "") -> DecodedReports:
        """Decode one push; `now` is seconds since the epoch, `cluster` overrides the payload's cluster id.

        Raises `MalformedPayload` when the payload as a whole cannot be read.
        """
        decoded = DecodedReports()
        start, tail = split_resource(body) if encoding == "protobuf" else (0, split_json_resource(body))
        if tail and self._read_known_shape(body[start:tail], body[tail:], encoding, decoded, now, cluster):
            return decoded
        check_density(body, encoding)
        request, repaired = self._parse(body, encoding, decoded)
        if len(body) > ALWAYS_ALLOWED_BYTES:
            check_cost(request, encoding, repaired)
            tail = 0
        for place, block in enumerate(request.resource_metrics):
            resource = block.resource
            template = self._identity(_digest(resource.SerializeToString()), resource)
            if isinstance(template, ReportIdentity):
                sender = node_key(cluster or template.shared["cluster_id"], template.node_id)
                decoded.sender = sender if not place or decoded.sender == sender else None
            builder = ReportBuilder(template, decoded, now, cluster)
            self._walk(block, builder, decoded)
            builder.finish()
        if decoded.reports:
            decoded.sender = None
        if tail and _is_learnable(decoded):
            self._learn(body, tail, encoding, request.resource_metrics[0])
        return decoded

    @staticmethod
    def _parse(body: bytes, encoding: Encoding, decoded: DecodedReports) -> tuple[ExportMetricsServiceRequest, int]:
        """The readable part of a request, and how many parts were parsed singly to find it."""
        if encoding == "protobuf":
            try:
                return ExportMetricsServiceRequest.FromString(body), 0
            except DecodeError:
                found = repair(METRICS, body)
            if found is None:
                raise MalformedPayload("the body is not an OTLP ExportMetricsServiceRequest in protobuf")
            request = ExportMetricsServiceRequest.FromString(found.body)
        else:
            try:
                tree, found = read_json(body)
                request, unreadable = read_tree(Signal.METRICS, tree, MAX_MESSAGES)
            except orjson.JSONDecodeError as error:
                raise MalformedPayload(f"the body is not JSON: {error}") from None
            except ValueError as error:
                raise MalformedPayload(str(error)) from None
            for reason, count in unreadable.items():
                decoded.reject(reason, count)
        if found:
            decoded.repaired = found.body
            decoded.rejected += found.records
            decoded.reasons |= found.reasons
        return request, found.parts if found else 0

    # Known shapes.

    def _read_known_shape(
        self, head: bytes, rest: bytes, encoding: Encoding, decoded: DecodedReports, now: float, cluster: str
    ) -> bool:
        """Decode a push of a known shape; returns whether it had one and all its numbers are in range."""
        for layout in self._layouts.get(len(rest) if encoding == "protobuf" else _JSON, ()):
            numbers = layout.read(rest)
            if numbers is None:
                continue
            key = _digest(head)
            known = self._resources.get(key)
            if known is None:
                resource = read_resource(head, encoding)
                known = self._identity(key, resource) if resource else None
            return isinstance(known, ReportIdentity) and self._fill(known, layout, numbers, decoded, now, cluster)
        return False

    def _fill(
        self,
        known: ReportIdentity,
        layout: Layout | JsonLayout,
        numbers: Sequence[float],
        decoded: DecodedReports,
        now: float,
        cluster: str,
    ) -> bool:
        """Make the report; returns whether every number is in range."""
        if not (min(numbers) >= 0.0 and sum(numbers) < math.inf):  # NaN makes the sum NaN
            return False
        fixed = layout.fixed
        base = self._bases.get((id(known.shared), id(fixed))) or self._base(known.shared, fixed)
        fields = base.fields.copy()
        fields.update(zip(layout.names, numbers))  # noqa: B905 – a layout reads as many numbers as it has names
        cluster = cluster or fields["cluster_id"]
        if (
            fields["score"] > 1.0
            or fields["time_unix_nano"] > (now + FUTURE_SECONDS) * 1e9
            or check_name(cluster) is not None
        ):
            return False
        fields["node_id"], fields["rank"], fields["cluster_id"] = known.node_id, known.rank, cluster
        fields["instance_id"] = known.instance_id
        fields["degraded"] = fields["degraded"] != 0
        fields["fleet_reachable"] = fields["fleet_reachable"] != 0
        decoded.reports.append(HealthReport(**fields))
        return True

    def _base(self, shared: dict[str, Any], fixed: dict[str, Any]) -> "_Base":
        """The fields that a resource and a shape define together, cached by the identity of the two dictionaries."""
        if len(self._bases) >= MAX_BASES:
            self._bases.clear()
        fields = {**shared, **fixed}
        fields["world_size"] = shared["world_size"] or fields["world_size"]
        base = self._bases[(id(shared), id(fixed))] = _Base(shared, fixed, fields)
        return base

    def _learn(self, body: bytes, tail: int, encoding: Encoding, block: ResourceMetrics) -> None:
        """Cache the shape of a push that was decoded in full and is valid."""
        rest = body[tail:]
        key = len(rest) if encoding == "protobuf" else _JSON
        if any(layout.read(rest) is not None for layout in self._layouts.get(key, ())):
            return
        try:
            layout = self._layout(body, tail, block) if encoding == "protobuf" else self._json_layout(rest)
        except UnsupportedLayout:
            return
        if len(self._layouts) >= MAX_LENGTHS or self._layout_bytes + len(rest) > MAX_LAYOUT_BYTES:
            self._layouts.clear()
            self._layout_bytes = 0
        layouts = self._layouts.setdefault(key, [])
        if len(layouts) >= MAX_LAYOUTS:
            layouts.clear()
        layouts.append(layout)
        self._layout_bytes += len(rest)

    def _layout(self, body: bytes, tail: int, block: ResourceMetrics) -> Layout:
        fixed = self._fixed(block)
        numbers = find_numbers(body, tail)
        if len({(number.metric, number.field) for number in numbers}) != len(numbers):
            raise UnsupportedLayout
        return learn_layout(body[tail:], numbers, _WANTED, fixed)

    def _json_layout(self, rest: bytes) -> JsonLayout:
        """The meaning of each number is found by decoding a copy with a different number at every place."""
        numbers = find_json_numbers(rest)
        for _ in range(2):
            marks = [
                b"%d" % place if number.is_time else b"0.%03d" % place for place, number in enumerate(numbers, 1)
            ]
            try:
                tree = orjson.loads(b'{"resourceMetrics":[{' + with_numbers(rest, numbers, marks))
                request, unreadable = read_tree(Signal.METRICS, tree)
            except ValueError:
                raise UnsupportedLayout from None
            if unreadable or len(request.resource_metrics) != 1 or request.resource_metrics[0].HasField("resource"):
                raise UnsupportedLayout
            fixed = self._fixed(request.resource_metrics[0])
            fields = {float(fixed.pop(name)): name for name in _NUMERIC if name in fixed}
            names = [fields.pop(float(mark), "") for mark in marks]
            wanted = [number.is_time or bool(name) for number, name in zip(numbers, names, strict=True)]
            if all(wanted):
                break
            # A number with no field of its own, such as a flag, must stay as it is.
            numbers = list(compress(numbers, wanted))
        if fields or "score" not in names or "time_unix_nano" not in names:
            raise UnsupportedLayout
        return learn_json_layout(rest, numbers, names, fixed)

    def _fixed(self, block: ResourceMetrics) -> dict[str, Any]:
        """The constant fields of a push without its resource."""
        trial = DecodedReports()
        builder = ReportBuilder(_BLANK_IDENTITY, trial, math.inf, "")
        self._walk(block, builder, trial)
        builder.finish()
        if not _is_learnable(trial):
            raise UnsupportedLayout
        blank = _BLANK_IDENTITY.fields()
        fixed = {key: value for key, value in builder.fields.items() if key not in blank or value != blank[key]}
        return {"degraded": False, "fleet_reachable": True, **fixed}

    # Full parse.

    def _identity(self, key: bytes, resource: Resource) -> IdentityOrError:
        """Return the fields that a resource block defines, or the reason why it names no node."""
        known = self._resources.get(key)
        if known is None:
            known = read_identity({pair.key: attribute_value(pair.value) for pair in resource.attributes})
            if len(self._resources) >= self._remembered or self._letters > MAX_LABEL_CHARACTERS:
                self._resources.clear()
                self._shared.clear()
                self._letters = 0
            if isinstance(known, ReportIdentity):
                labels = tuple(known.shared.values())
                same = self._shared.setdefault(labels, known.shared)
                if same is known.shared:
                    self._letters += _ENTRY + sum(len(label) for label in labels if isinstance(label, str))
                known = known._replace(shared=same)
            self._resources[key] = known
        return known

    @staticmethod
    def _walk(block: ResourceMetrics, builder: ReportBuilder, decoded: DecodedReports) -> None:
        fields = builder.fields
        for scope in block.scope_metrics:
            for metric in scope.metrics:
                name = metric.name
                points = metric.gauge.data_points or metric.sum.data_points
                if name in COLLECTIVES:
                    decoded.collective_points += len(points)
                    continue
                if not name:
                    builder.reject("a metric has no name")
                    continue
                attribute = _DOUBLES.get(name)
                for point in points:
                    number: float = point.as_double or point.as_int
                    if (not number or point.flags) and not is_recorded(point):
                        if point.flags & NO_RECORDED_VALUE:
                            decoded.other_points += 1
                        else:
                            decoded.reject("a point has no value")
                    elif attribute is None:
                        builder.point(name, number, point)
                    elif 0.0 <= number < math.inf:
                        fields[attribute] = number
                    else:
                        builder.reject_signal(name)
                if not points and not metric.HasField("sum"):
                    decoded.other_points += 1


def _is_learnable(decoded: DecodedReports) -> bool:
    """Whether a push has one valid report and nothing that a layout cannot describe."""
    return len(decoded.reports) == 1 and not (
        decoded.reasons or decoded.other_points or decoded.collective_points or decoded.events
    )
