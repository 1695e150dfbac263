"""Reads collective points from OTLP pushes, fast: attributes stay bytes, and bytes seen before are not decoded again.

A second, smaller protobuf schema with the same field numbers leaves resources and attributes undecoded, so that a
point costs a few dictionary look-ups instead of a dozen objects.
"""

from collections.abc import Collection, Mapping
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

import orjson
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from ingero_contract import attributes, metrics
from ingero_contract.identifiers import node_key
from ingero_fleet.collectives import gpu_states, inspector_points
from ingero_fleet.collectives.batch import PointBatch, pack_point
from ingero_kit.health_report import check_name
from ingero_kit.otlp_json import read_tree
from ingero_kit.otlp_receiver import Push
from ingero_kit.otlp_signal import Signal
from ingero_kit.otlp_values import is_recorded

BLOCKED, HOST = 0, 1
KINDS: Final = {metrics.COLLECTIVE_BARRIER_WAIT: BLOCKED, metrics.COLLECTIVE_DURATION: HOST}
"""The metrics that are read: waits, and the host's time in the call. Others are passed on unread."""

MAX_RANKS: Final = 65_536
"""Most ranks of a communicator."""

MAX_MILLISECONDS: Final = 1e9
"""A longer wait is taken for an error."""

MAX_TEXT: Final = 64
_REMEMBERED: Final = 200_000
NO_SEQ: Final = -1
NO_SIZE: Final = 0
NO_WORK: Final = float("nan")
_SEQ, _OTHER, _WORK = 4, 6, 7
_SLOTS: Final = {
    attributes.NCCL_OP_TYPE: 0,
    attributes.NCCL_COMM_HASH: 1,
    attributes.NCCL_RANK: 2,
    attributes.NCCL_NRANKS: 3,
    attributes.NCCL_SEQ: _SEQ,
    attributes.NCCL_MESSAGE_SIZE: 5,
}
_EMPTY_SLOTS: Final[list[Any]] = ["", "", NO_SEQ, NO_SEQ, NO_SEQ, NO_SIZE, None, NO_WORK]
"""Operation, communicator, rank, ranks, number, bytes, any other attribute, and work."""

_SEQ_HEAD: Final = KeyValue(key=attributes.NCCL_SEQ).SerializeToString()
_WORK_HEAD: Final = KeyValue(key=attributes.WORK).SerializeToString()
_WHOLE: Final = b"\x18"
_NO_VALUE: Final = "a point has no value"
_MAX_KEPT: Final = 1024
"""Longest attribute that is remembered, bytes; a resource may be four times as long."""

_MAX_VARINT: Final = 10


class PointSource(NamedTuple):
    """The sender of points; pod and job are empty when they were not reported.

    `gpu` is set where points name the GPU and not the rank.
    """

    cluster: str
    node: str
    pod: str
    gpu: str = ""
    job: str = ""


class CommKey(NamedTuple):
    """One communicator. Two that share a hash and a size are distinguished by their members' nodes, or not at all."""

    cluster: str
    hash: str
    ranks: int


@cache
def _request_class() -> Any:
    """The message that the fields needed are read with; made, from libraries of 1 MB, for the first collective."""
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(name="ingero/slim.proto", package="ingero.slim", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto

    def message(name: str, *fields: tuple[str, int, int, str | None, bool], one_of: Collection[str] = ()) -> None:
        added = file.message_type.add(name=name)
        if one_of:
            added.oneof_decl.add(name="value")
        for field_name, number, kind, of, many in fields:
            added.field.add(
                name=field_name, number=number, type=kind, type_name=of,
                label=kinds.LABEL_REPEATED if many else kinds.LABEL_OPTIONAL,
                oneof_index=0 if field_name in one_of else None,
            )  # fmt: skip

    inner = kinds.TYPE_MESSAGE
    message("Point", ("time", 3, kinds.TYPE_FIXED64, None, False), ("double", 4, kinds.TYPE_DOUBLE, None, False),
            ("whole", 6, kinds.TYPE_SFIXED64, None, False), ("pairs", 7, kinds.TYPE_BYTES, None, True),
            ("flags", 8, kinds.TYPE_UINT32, None, False), one_of=("double", "whole"))  # fmt: skip
    message("Gauge", ("points", 1, inner, ".ingero.slim.Point", True))
    message("Metric", ("name", 1, kinds.TYPE_STRING, None, False), ("gauge", 5, inner, ".ingero.slim.Gauge", False))
    message("Scope", ("metrics", 2, inner, ".ingero.slim.Metric", True))
    message("Block", ("resource", 1, kinds.TYPE_BYTES, None, False), ("scopes", 2, inner, ".ingero.slim.Scope", True))
    message("Request", ("blocks", 1, inner, ".ingero.slim.Block", True))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("ingero.slim.Request"))


class PointReader:
    """Turns pushes into batches. Remembers attributes that it has read; this memory is cleared when full.

    Numbers of communicators, operations and sources stay valid until `forget`.
    """

    def __init__(self, max_communicators: int, max_ranks_in_all: int, known_gpus: gpu_states.GpuStates) -> None:
        self.gpus = known_gpus
        self.comms: list[CommKey] = []
        self.ops: list[str] = []
        self.sources: list[PointSource] = []
        self.refused: dict[str, int] = {}
        self._max_communicators = max_communicators
        self._max_ranks = max_ranks_in_all
        self._ranks = 0
        self._by_cluster: dict[str, int] = {}
        self._comm_numbers: dict[CommKey, int] = {}
        self._op_numbers: dict[str, int] = {}
        self._source_numbers: dict[PointSource, int] = {}
        self._resources: dict[bytes, PointSource | str] = {}
        self._pairs: dict[bytes, tuple[int, Any]] = {}
        self._known: dict[tuple[str, Any, Any, Any], tuple[int, int]] = {}
        self._gpu_ranks: dict[CommKey, dict[PointSource, int]] = {}

    def read(self, push: Push, batch: PointBatch, now: float) -> None:
        """Add the collective points of a push to a batch; what cannot be taken is counted in `refused`."""
        try:
            request = _request_class().FromString(self._as_protobuf(push))
        except (DecodeError, ValueError):
            self._refuse("the body is not OTLP")
            return
        for block in request.blocks:
            source = self._source(block.resource, push.cluster)
            for scope in block.scopes:
                for metric in scope.metrics:
                    kind = KINDS.get(metric.name)
                    if metric.name == metrics.INSPECTOR_EXEC_TIME:
                        self._inspected(metric.gauge.points, batch, _texts(block.resource), push.cluster, now)
                        continue
                    if kind is None and metric.name not in gpu_states.METRICS:
                        continue
                    points = metric.gauge.points
                    if isinstance(source, str):
                        self._refuse(source, len(points))
                        continue
                    if kind is None:
                        self._gpus(points, source, metric.name, now)
                    else:
                        self._points(points, batch, source, kind, now)

    def _points(self, points: Any, batch: PointBatch, source: PointSource, kind: int, now: float) -> None:
        """Add the points of one metric. This loop dominates the cost of a collective."""
        pairs_known, learn, known = self._pairs, self._learn, self._known
        place, packed = self._source_numbers[source], batch.packed
        for point in points:
            slots = _EMPTY_SLOTS.copy()
            for raw in point.pairs:
                slot, value = pairs_known.get(raw) or learn(raw)
                slots[slot] = value
            op, comm, rank, ranks, seq, size, _, work = slots
            numbers = known.get((source.cluster, comm, op, ranks))
            if numbers is None:
                numbers = self._numbers(source, comm, op, ranks)
                if numbers is None:
                    continue
                if len(known) >= _REMEMBERED:
                    known.clear()
                known[(source.cluster, comm, op, ranks)] = numbers
            value = point.double or point.whole
            if (not value or point.flags) and not is_recorded(point):
                self._refuse(_NO_VALUE)
            elif self._fits(rank, seq, value, ranks):
                size = size if type(size) is int and 0 < size < inspector_points.MAX_SIZE else NO_SIZE
                packed += pack_point(*numbers, rank, seq, size, place, kind, value, point.time * 1e-9, now, work)

    def _inspected(self, points: Any, batch: PointBatch, resource: dict[str, Any], cluster: str, now: float) -> None:
        """Add points of NCCL Inspector: the shorter a rank's kernel ran, the less it waited."""
        for point in points:
            found = inspector_points.read_attributes(point.pairs)
            if isinstance(found, str):
                self._refuse(found)
                continue
            node = resource.get(attributes.NODE_ID) or found.node
            source = _find_source({**resource, attributes.NODE_ID: node}, cluster)
            if isinstance(source, str):
                self._refuse(source)
                continue
            source = source._replace(gpu=found.gpu)
            numbers = self._numbers(source, found.comm, found.op, found.ranks)
            if numbers is None:
                continue
            ranks = self._gpu_ranks.setdefault(self.comms[numbers[0]], {})
            rank = ranks.get(source, len(ranks))
            value = (point.double or point.whole) / 1000.0
            if not is_recorded(point):
                self._refuse(_NO_VALUE)
            elif rank >= found.ranks:
                self._refuse("more GPUs than nranks are in the communicator")
            elif self._fits(rank, found.seq, value, found.ranks):
                ranks[source] = rank
                place = self._source_number(source)
                batch.packed += pack_point(
                    *numbers, rank, found.seq, found.size, place, BLOCKED, value, point.time * 1e-9, now, NO_WORK
                )

    def _gpus(self, points: Any, source: PointSource, name: str, now: float) -> None:
        for point in points:
            if not is_recorded(point):
                self._refuse(_NO_VALUE)
                continue
            uuid = next((value for raw in point.pairs if (value := _uuid_of(raw))), None)
            self.gpus.note(node_key(source.cluster, source.node), name, uuid, point.double or point.whole, now)

    def _as_protobuf(self, push: Push) -> bytes:
        """The push in protobuf, without the points that cannot be read. Raises `ValueError`."""
        if push.encoding == "protobuf":
            return push.body
        request, unreadable = read_tree(Signal.METRICS, orjson.loads(push.body))
        if unreadable:
            self._refuse("a point is not OTLP", unreadable.total())
        return bytes(request.SerializeToString())

    def _fits(self, rank: Any, seq: Any, value: float, ranks: int) -> bool:
        """Whether all numbers of a point are in range; a point that is not is counted."""
        if type(rank) is int and 0 <= rank < ranks and 0.0 <= value < MAX_MILLISECONDS:
            if type(seq) is int and NO_SEQ <= seq < 2**62:
                return True
            self._refuse("nccl.seq is not a count")
        elif type(rank) is not int or not 0 <= rank < ranks:
            self._refuse("nccl.rank is not a rank of its communicator")
        else:
            self._refuse("the value is not a duration")
        return False

    def _numbers(self, source: PointSource, comm: Any, op: Any, ranks: Any) -> tuple[int, int] | None:
        """Indices of communicator and operation; `None`, counted, when one is missing or a limit is reached."""
        if not isinstance(comm, str) or not 0 < len(comm) <= MAX_TEXT or not comm.isprintable():
            self._refuse("nccl.comm_id_hash is missing")
            return None
        if type(ranks) is not int or not 2 <= ranks <= MAX_RANKS:
            self._refuse(f"nccl.nranks is not between 2 and {MAX_RANKS}")
            return None
        key = CommKey(source.cluster, comm, ranks)
        number = self._comm_numbers.get(key)
        if number is None:
            if self._by_cluster.get(source.cluster, 0) >= self._max_communicators:
                self._refuse("more communicators than Fleet keeps (processors.nccl.max_communicators)")
                return None
            if self._ranks + ranks > self._max_ranks:
                self._refuse("more ranks than Fleet keeps (processors.nccl.max_ranks)")
                return None
            number = self._comm_numbers[key] = len(self.comms)
            self.comms.append(key)
            self._ranks += ranks
            self._by_cluster[source.cluster] = self._by_cluster.get(source.cluster, 0) + 1
        name = normal_op(op)
        op_number = self._op_numbers.get(name)
        if op_number is None:
            if len(self.ops) >= 64:
                name = "other"
            op_number = self._op_numbers.setdefault(name, len(self.ops))
            if op_number == len(self.ops):
                self.ops.append(name)
        return number, op_number

    def _refuse(self, reason: str, count: int = 1) -> None:
        """Count points that are left out."""
        self.refused[reason] = self.refused.get(reason, 0) + count

    def _learn(self, raw: bytes) -> tuple[int, Any]:
        """Read one attribute, and remember it unless it is a sequence number or work, which few points share."""
        head, slot = (_SEQ_HEAD, _SEQ) if raw.startswith(_SEQ_HEAD) else (_WORK_HEAD, _WORK)
        if raw.startswith(head) and len(raw) <= len(head) + 3 + _MAX_VARINT:
            number = shift = 0
            # Key, length of the value, its field, then a varint.
            for byte in raw[len(head) + 3 :]:
                number |= (byte & 0x7F) << shift
                shift += 7
            if raw[len(head) + 2 : len(head) + 3] == _WHOLE and number < 2**63:
                return slot, number
        try:
            pair = KeyValue.FromString(raw)
        except DecodeError:
            return _OTHER, None
        value = pair.value
        kind = value.WhichOneof("value")
        whole = getattr(value, kind) if kind in ("string_value", "int_value") else None
        if pair.key == attributes.WORK:
            return _WORK, whole if isinstance(whole, int) and whole >= 0 else NO_WORK
        found = (_SLOTS.get(pair.key, _OTHER), whole)
        if len(raw) <= _MAX_KEPT:
            if len(self._pairs) >= _REMEMBERED:
                self._pairs.clear()
            self._pairs[raw] = found
        return found

    def _source(self, raw: bytes, cluster: str) -> PointSource | str:
        key = raw + b"\0" + cluster.encode()
        source = self._resources.get(key)
        if source is None:
            source = _find_source(_texts(raw), cluster)
            if len(raw) <= _MAX_KEPT * 4:
                if len(self._resources) >= _REMEMBERED:
                    self._resources.clear()
                self._resources[key] = source
        if isinstance(source, PointSource):
            self._source_number(source)
        return source

    def _source_number(self, source: PointSource) -> int:
        number = self._source_numbers.get(source)
        if number is None:
            number = self._source_numbers[source] = len(self.sources)
            self.sources.append(source)
        return number

    def forget(self, keep_comms: list[int], keep_sources: list[int]) -> None:
        """Keep only these communicators and sources, renumbered in this order."""
        self.comms = [self.comms[number] for number in keep_comms]
        self.sources = [self.sources[number] for number in keep_sources]
        self._number()

    def state(self) -> dict[str, Any]:
        """Everything that later points depend on."""
        gpu_ranks = [[key, list(ranks.items())] for key, ranks in self._gpu_ranks.items()]
        return {
            "comms": list(self.comms), "ops": list(self.ops), "sources": list(self.sources), "gpu_ranks": gpu_ranks
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned."""
        self.comms = [CommKey(*key) for key in state["comms"]]
        self.sources = [PointSource(*source) for source in state["sources"]]
        self.ops = list(state["ops"])
        self._op_numbers = {name: number for number, name in enumerate(self.ops)}
        self._gpu_ranks = {
            CommKey(*key): {PointSource(*source): rank for source, rank in ranks}
            for key, ranks in state.get("gpu_ranks", ())
        }
        self._number()

    def _number(self) -> None:
        self._comm_numbers = {key: number for number, key in enumerate(self.comms)}
        self._source_numbers = {source: number for number, source in enumerate(self.sources)}
        self._known.clear()
        self._gpu_ranks = {key: ranks for key, ranks in self._gpu_ranks.items() if key in self._comm_numbers}
        self._ranks = sum(key.ranks for key in self.comms)
        self._by_cluster = {}
        for key in self.comms:
            self._by_cluster[key.cluster] = self._by_cluster.get(key.cluster, 0) + 1


@lru_cache(1 << 16)
def _uuid_of(raw: bytes) -> str:
    try:
        pair = KeyValue.FromString(raw)
    except DecodeError:
        return ""
    return pair.value.string_value if pair.key == attributes.GPU_UUID else ""


def normal_op(op: Any) -> str:
    """The name of an operation in one spelling: `ncclAllReduce` and `allreduce` are the same."""
    text = op.lower() if isinstance(op, str) else ""
    return "".join(letter for letter in text.removeprefix("nccl") if letter.isalnum())[:24] or "unknown"


def _texts(resource: bytes) -> dict[str, Any]:
    """The attributes of a resource that are texts, empty where it cannot be read."""
    try:
        return {pair.key: pair.value.string_value for pair in Resource.FromString(resource).attributes}
    except DecodeError:
        return {}


def _find_source(pairs: dict[str, Any], cluster: str) -> PointSource | str:
    node, own = str(pairs.get(attributes.NODE_ID) or ""), cluster or str(pairs.get(attributes.CLUSTER_ID) or "")
    pod, job = (_name_or_empty(pairs.get(key)) for key in (attributes.POD_NAME, attributes.JOB_ID))
    for key, name in ((attributes.NODE_ID, node), (attributes.CLUSTER_ID, own)):
        problem = check_name(name)
        if problem:
            return f"the resource attribute {key} {problem}"
    return PointSource(own, node, pod, job=job)


def _name_or_empty(value: Any) -> str:
    return value if isinstance(value, str) and check_name(value) is None else ""
