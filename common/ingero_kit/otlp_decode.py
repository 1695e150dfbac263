"""Decodes OTLP metrics, protobuf and JSON, to health reports; the reverse of `otlp_encode`.

It accepts the JSON of the specification and of the published agent: integers as numbers or strings, no start time.
One bad report does not fail the push: it is left out, counted, and named in the answer.
"""

import math
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple

import orjson
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from ingero_contract import metrics
from ingero_kit.health_report import (
    FUTURE_SECONDS,
    SIGNAL_METRICS,
    DecodedReports,
    HealthReport,
    MalformedPayload,
    check_name,
)
from ingero_kit.otlp_layout import (
    JsonLayout,
    Layout,
    UnsupportedLayout,
    find_json_numbers,
    find_numbers,
    is_whole_head,
    learn_json_layout,
    learn_layout,
    split_json_resource,
    split_resource,
    with_numbers,
)  # fmt: skip
from ingero_kit.otlp_limits import ALWAYS_ALLOWED_BYTES, check_cost, check_density, check_json_cost
from ingero_kit.otlp_repair import METRICS, read_json, repair
from ingero_kit.otlp_values import (
    NO_RECORDED_VALUE,
    attribute_value,
    is_recorded,
    json_attributes,
    json_int_field,
    json_list,
    json_number,
)
from ingero_kit.report_builder import (
    RESOURCE_STRINGS,
    Identity,
    IdentityOrError,
    JsonAttributes,
    ProtobufAttributes,
    ReportBuilder,
    read_identity,
)

_DOUBLES: Final = {name: attribute for name, attribute in SIGNAL_METRICS if name != metrics.HEALTH_SCORE}

COLLECTIVES: Final = frozenset(
    (metrics.COLLECTIVE_DURATION, metrics.COLLECTIVE_BYTES, metrics.COLLECTIVE_BARRIER_WAIT)
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

_NUMERIC: Final = (*(attribute for _, attribute in SIGNAL_METRICS), "time_unix_nano")
_BLANK_IDENTITY: Final = Identity(
    "-", None, {**dict.fromkeys(RESOURCE_STRINGS.values(), ""), "world_size": 0, "cluster_id": "-"}
)


def _digest(block: bytes) -> bytes:
    """A 15-byte digest of a block: it takes a fifth of the memory, and no sender can construct a collision."""
    return blake2b(block, digest_size=15).digest()


class ReportDecoder:
    """Decodes pushes. It caches resource blocks by their digest, because every node repeats its own.

    The cache holds `remembered` blocks and is cleared when it is full.
    """

    def __init__(self, remembered: int = 200_000) -> None:
        self._remembered = remembered
        self._resources: dict[bytes, IdentityOrError] = {}
        self._layouts: dict[int, list[Layout]] = {}
        self._layout_bytes = 0
        self._letters = 0
        self._json_layouts: list[JsonLayout] = []
        self._shared: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._bases: dict[tuple[int, int], _Base] = {}

    def decode(
        self, body: bytes, encoding: Literal["protobuf", "json"], now: float, cluster: str = ""
    ) -> DecodedReports:
        """Decode one push; `now` is seconds since the epoch, `cluster` overrides the payload's cluster id.

        Raises `MalformedPayload` when the payload as a whole cannot be read.
        """
        decoded = DecodedReports()
        if encoding == "protobuf":
            start, tail = split_resource(body)
            known = self._resources.get(_digest(body[start:tail])) if tail else None
            if isinstance(known, Identity) and self._fast(body, tail, known, decoded, now, cluster):
                return decoded
            check_density(body, encoding)
            repaired = 0
            try:
                request = ExportMetricsServiceRequest.FromString(body)
            except DecodeError:
                (request, repaired), tail = self._repaired(body, decoded), 0
            if len(body) > ALWAYS_ALLOWED_BYTES:
                check_cost(request, repaired)
                tail = 0
            for resource in request.resource_metrics:
                self._protobuf(resource, decoded, now, cluster)
            if tail and _is_learnable(decoded):
                self._learn(body, start, tail, request.resource_metrics[0])
            return decoded
        tail = split_json_resource(body)
        known = self._resources.get(_digest(body[:tail])) if tail else None
        if isinstance(known, Identity) and self._fast_json(body[tail:], known, decoded, now, cluster):
            return decoded
        check_density(body, encoding)
        blocks = self._tree(body, decoded)
        if len(body) > ALWAYS_ALLOWED_BYTES:
            check_json_cost(blocks)
            tail = 0
        for block in blocks:
            try:
                self._json(block, decoded, now, cluster)
            except _NOT_OTLP as error:
                decoded.reject(_reason("a block", error))
        if tail and _is_learnable(decoded):
            self._learn_json(body, tail, blocks)
        return decoded

    @staticmethod
    def _repaired(body: bytes, decoded: DecodedReports) -> tuple[ExportMetricsServiceRequest, int]:
        """The readable part of an unreadable request, and how many parts were parsed to find it."""
        found = repair(METRICS, body)
        if found is None:
            raise MalformedPayload("the body is not an OTLP ExportMetricsServiceRequest in protobuf")
        decoded.repaired = found.body
        decoded.rejected += found.records
        decoded.reasons |= found.reasons
        return ExportMetricsServiceRequest.FromString(found.body), found.parts

    @staticmethod
    def _tree(body: bytes, decoded: DecodedReports) -> list[Any]:
        """The blocks of a JSON request."""
        try:
            tree, found = read_json(body)
        except orjson.JSONDecodeError as error:
            raise MalformedPayload(f"the body is not JSON: {error}") from None
        if found:
            decoded.repaired = found.body
            decoded.reasons |= found.reasons
        blocks = tree.get("resourceMetrics") if isinstance(tree, dict) else ()
        if not isinstance(blocks or [], list):
            raise MalformedPayload("the body is not OTLP/JSON metrics: resourceMetrics is a list")
        return blocks or []

    def _fast_json(self, rest: bytes, known: Identity, decoded: DecodedReports, now: float, cluster: str) -> bool:
        for layout in self._json_layouts:
            found = layout.read(rest)
            if found is not None:
                return self._fill(known, layout.fixed, *found, decoded, now, cluster)
        return False

    def _learn_json(self, body: bytes, tail: int, blocks: list[Any]) -> None:
        """Cache the head of a valid push and the shape of the rest.

        The meaning of each number is found by decoding a copy with a different number at every place.
        """
        head, rest = body[:tail], body[tail:]
        key = _digest(orjson.dumps((blocks[0].get("resource") or {}).get("attributes") or []))
        known = self._resources.get(key)
        if len(blocks) != 1 or not isinstance(known, Identity) or not is_whole_head(head, blocks[0].get("resource")):
            return
        self._resources[_digest(head)] = known
        del self._resources[key]
        if any(layout.read(rest) is not None for layout in self._json_layouts):
            return
        try:
            spans = find_json_numbers(rest)
        except UnsupportedLayout:
            return
        marks = [b"%d" % (place + 1) if rest[start - 1 : start] == b'"' else b"0.%03d" % (place + 1)
                 for place, (start, _) in enumerate(spans)]  # fmt: skip
        trial = DecodedReports()
        builder = ReportBuilder(_BLANK_IDENTITY, trial, math.inf, "")
        try:
            tree = orjson.loads(b'{"resourceMetrics":[{' + with_numbers(rest, spans, marks))
            if "resource" in tree["resourceMetrics"][0]:
                return
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
        self._json_layouts.append(learn_json_layout(rest, spans, tuple(names), fixed))

    def _fast(
        self, body: bytes, tail: int, known: Identity, decoded: DecodedReports, now: float, cluster: str
    ) -> bool:
        """Decode a push of a known shape; returns whether it had one and all its numbers are in range."""
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
        decoded: DecodedReports,
        now: float,
        cluster: str,
    ) -> bool:
        """Make the report; returns whether every number is in range."""
        if not (min(numbers) >= 0.0 and sum(numbers) < math.inf):  # NaN makes the sum NaN
            return False
        base = self._bases.get((id(known.shared), id(fixed))) or self._base(known.shared, fixed)
        fields = base.fields.copy()
        fields.update(zip(names, numbers))  # noqa: B905 – a layout reads as many numbers as it has names
        fields.pop("", None)
        cluster = cluster or fields["cluster_id"]
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
        """The fields that a resource and a shape define together, cached by the identity of the two dictionaries."""
        if len(self._bases) >= MAX_BASES:
            self._bases.clear()
        fields = {**shared, **fixed}
        fields["world_size"] = shared["world_size"] or fields["world_size"]
        base = self._bases[(id(shared), id(fixed))] = _Base(shared, fixed, fields)
        return base

    def _learn(self, body: bytes, start: int, tail: int, resource: ResourceMetrics) -> None:
        """Cache the resource and the shape of a push that was decoded in full and is valid."""
        template = self._resources.get(_digest(resource.resource.SerializeToString()))
        if not isinstance(template, Identity) or resource.resource != Resource.FromString(body[start:tail]):
            return  # a second resource after the first; protobuf merges the two
        self._resources[_digest(body[start:tail])] = template
        rest = body[tail:]
        if any(layout.read(rest) is not None for layout in self._layouts.get(len(rest), ())):
            return
        if len(self._layouts) >= MAX_LENGTHS or self._layout_bytes + len(rest) > MAX_LAYOUT_BYTES:
            self._layouts.clear()
            self._layout_bytes = 0
        layouts = self._layouts.setdefault(len(rest), [])
        if len(layouts) >= MAX_LAYOUTS:
            layouts.clear()
        trial = DecodedReports()
        builder = ReportBuilder(_BLANK_IDENTITY, trial, math.inf, "")
        self._walk(resource, builder, trial)
        builder.finish()
        fixed = _fixed(builder, trial)
        if fixed is None:
            return
        try:
            numbers = find_numbers(body, tail)
        except UnsupportedLayout:
            return
        if len({(number.metric, number.field) for number in numbers}) != len(numbers):
            return
        layouts.append(learn_layout(rest, numbers, _WANTED, fixed))
        self._layout_bytes += len(rest)

    def _identity(self, key: bytes, pairs: Iterable[tuple[str, Any]]) -> IdentityOrError:
        """Return the fields that a resource block defines, or the reason why it names no node."""
        known = self._resources.get(key)
        if known is None:
            known = read_identity(dict(pairs))
            if len(self._resources) >= self._remembered or self._letters > MAX_LABEL_CHARACTERS:
                self._resources.clear()
                self._shared.clear()
                self._letters = 0
            if isinstance(known, Identity):
                labels = tuple(known.shared.values())
                same = self._shared.setdefault(labels, known.shared)
                if same is known.shared:
                    self._letters += _ENTRY + sum(len(label) for label in labels if isinstance(label, str))
                known = known._replace(shared=same)
            self._resources[key] = known
        return known

    def _protobuf(self, resource: ResourceMetrics, decoded: DecodedReports, now: float, cluster: str) -> None:
        block = resource.resource
        key = _digest(block.SerializeToString())
        template = self._resources.get(key)
        if template is None:
            template = self._identity(key, ((pair.key, attribute_value(pair.value)) for pair in block.attributes))
        builder = ReportBuilder(template, decoded, now, cluster)
        self._walk(resource, builder, decoded)
        builder.finish()

    @staticmethod
    def _walk(resource: ResourceMetrics, builder: ReportBuilder, decoded: DecodedReports) -> None:
        fields = builder.fields
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                name = metric.name
                points = metric.gauge.data_points or metric.sum.data_points
                if name in COLLECTIVES:
                    decoded.collective_points += len(points)
                    continue
                if not name:
                    builder.reject(_NAMELESS)
                    continue
                attribute = _DOUBLES.get(name)
                for point in points:
                    number: float = point.as_double or point.as_int
                    if (not number or point.flags) and not is_recorded(point):
                        _absent(point.flags, decoded)
                    elif attribute is None:
                        builder.point(name, number, point.time_unix_nano, ProtobufAttributes(point))
                    elif 0.0 <= number < math.inf:
                        fields[attribute] = number
                    else:
                        builder.reject_signal(name)
                if not points and not metric.HasField("sum"):
                    decoded.other_points += 1

    def _json(self, block: dict[str, Any], decoded: DecodedReports, now: float, cluster: str) -> None:
        pairs = (block.get("resource") or {}).get("attributes") or []
        template = self._identity(_digest(orjson.dumps(pairs)), json_attributes(pairs))
        builder = ReportBuilder(template, decoded, now, cluster)
        self._walk_json(block, builder, decoded)
        builder.finish()

    @staticmethod
    def _walk_json(block: dict[str, Any], builder: ReportBuilder, decoded: DecodedReports) -> None:
        for scope in json_list(block.get("scopeMetrics")):
            for metric in json_list(scope.get("metrics")):
                try:
                    name = metric.get("name")
                    if not name or not isinstance(name, str):
                        builder.reject(_NAMELESS)
                        continue
                    data = metric.get("gauge") or metric.get("sum")
                    if data is None:
                        decoded.other_points += 1
                        continue
                    points = json_list(data.get("dataPoints"))
                    if name in COLLECTIVES:
                        decoded.collective_points += len(points)
                        continue
                except _NOT_OTLP as error:
                    builder.reject(_reason("a metric", error))
                    continue
                attribute = _DOUBLES.get(name)
                for point in points:
                    try:
                        number, flags = json_number(point), json_int_field(point, "flags")
                        if number is None or flags & NO_RECORDED_VALUE:
                            _absent(flags, decoded)
                        elif attribute is None:
                            builder.point(name, number, json_int_field(point, "timeUnixNano"), JsonAttributes(point))
                        elif 0.0 <= number < math.inf:
                            builder.fields[attribute] = number
                        else:
                            builder.reject_signal(name)
                    except _NOT_OTLP as error:
                        builder.reject(_reason("a point", error))


_NAMELESS: Final = "a metric has no name"
_NOT_OTLP: Final = (AttributeError, TypeError, ValueError, KeyError, IndexError, OverflowError)
"""Exceptions raised by JSON of another structure."""


def _reason(what: str, error: Exception) -> str:
    """The reason why a part of a JSON request was left out."""
    return f"{what} is not OTLP/JSON: {error}" if type(error) is ValueError else f"{what} is not OTLP/JSON"


def _absent(flags: int, decoded: DecodedReports) -> None:
    """Count a point without a value; it is rejected unless its flags say that no value was recorded."""
    if flags & NO_RECORDED_VALUE:
        decoded.other_points += 1
    else:
        decoded.reject("a point has no value")


def _is_learnable(decoded: DecodedReports) -> bool:
    """Whether a push has one valid report and nothing that a layout cannot describe."""
    return (
        len(decoded.reports) == 1
        and not (decoded.reasons or decoded.other_points or decoded.collective_points or decoded.events)
        and not decoded.reports[0].totals
    )


def _fixed(builder: ReportBuilder, trial: DecodedReports) -> dict[str, Any] | None:
    """The constant fields of a push without its resource; `None` if no layout can be learnt from it."""
    if not _is_learnable(trial):
        return None
    fields = dict(builder.fields)
    blank = _BLANK_IDENTITY.fields()
    fixed = {name: value for name, value in fields.items() if name not in blank or value != blank[name]}
    fixed.setdefault("degraded", False)
    fixed.setdefault("fleet_reachable", True)
    return fixed
