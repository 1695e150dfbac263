"""Simulates synchronised jobs as data points: ranks arrive, wait for the last one, and report how long they wait."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import orjson
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from ingero_contract import attributes, metrics
from ingero_fleet.collectives.tracker import CollectivesTracker
from ingero_kit.otlp_receiver import Push
from ingero_kit.otlp_signal import Encoding, Signal

Matrix = npt.NDArray[np.float64]

BEGIN = 1_700_000_000.0


@dataclass(frozen=True)
class Lengths:
    """How long the sequences of ranks are; 1 is usual, and the logarithm has the deviation `spread`.

    `memory` is the correlation of a rank's lengths from step to step; the last rank's are longer by `skew`. A part
    `share` of a step depends on the length, and on its square as far as `quadratic` says.
    """

    spread: float = 0.3
    memory: float = 0.0
    skew: float = 0.0
    quadratic: float = 0.0
    share: float = 0.8

    def draw(self, random: np.random.Generator, ranks: int, steps: int) -> Matrix:
        """The lengths of a number of steps."""
        state, found = random.normal(size=ranks), np.ones((steps, ranks))
        for step in range(steps):
            state = self.memory * state + np.sqrt(1 - self.memory**2) * random.normal(size=ranks)
            found[step] = np.exp(self.spread * state)
        found[:, -1] *= 1 + self.skew
        return found

    def times(self, lengths: Matrix) -> Matrix:
        """How long a step takes, as a multiple of the usual."""
        longer = (lengths + self.quadratic * lengths**2) / (1 + self.quadratic)
        return 1 - self.share + self.share * longer


@dataclass
class Job:
    """One communicator. Steps take `step_ms`; `late_ms` is by rank; jitter is its standard deviation.

    With `lengths`, ranks differ in their work, which is told in tokens if `tells` says so. Jitter and `late`, a share
    by rank, are then relative to the time of each rank's step.
    """

    ranks: int = 8
    step_ms: float = 100.0
    jitter_ms: float = 1.0
    late_ms: dict[int, float] = field(default_factory=dict)
    clock_seconds: float = 0.0
    seed: int = 0
    comm: str = "0123456789abcdef"
    cluster: str = "c"
    per_step: int = 1
    lengths: Lengths | None = None
    late: dict[int, float] = field(default_factory=dict)
    tells: bool = True

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.work: Matrix | None = None
        self.offset = self.random.uniform(-self.clock_seconds, self.clock_seconds, self.ranks)
        self.done = 0
        self.moment = BEGIN

    def run(self, steps: int) -> tuple[Matrix, Matrix]:
        """Entry time on each rank's own clock, seconds, and time blocked, milliseconds: (collectives, ranks) each."""
        entered, blocked = [], []
        if self.lengths:
            drawn = self.lengths.draw(self.random, self.ranks, steps)
            self.work, times = np.round(4096 * drawn), self.lengths.times(drawn)
            for rank, late in self.late.items():
                times[:, rank] *= 1 + late
        for step in range(steps):
            for part in range(self.per_step):
                arrival = self.step_ms / self.per_step + self.random.normal(0, self.jitter_ms, self.ranks)
                if self.lengths:
                    arrival *= times[step]
                if part == 0:
                    for rank, late in self.late_ms.items():
                        arrival[rank] += late
                release = float(arrival.max())
                entered.append(self.moment + arrival / 1000 + self.offset)
                blocked.append(release - arrival)
                self.moment += release / 1000
        return np.array(entered), np.array(blocked)

    def pushes(
        self, steps: int, *, seq: bool = True, drop: float = 0.0, node: str = "node-{}", job: str = ""
    ) -> list[bytes]:
        """The same as OTLP pushes, one for each rank; `job` is in all of them unless it is empty."""
        entered, blocked = self.run(steps)
        out = []
        for rank in range(self.ranks):
            request = ExportMetricsServiceRequest()
            block = request.resource_metrics.add()
            for key, text in (
                (attributes.NODE_ID, node.format(rank)), (attributes.CLUSTER_ID, self.cluster),
                (attributes.POD_NAME, f"pod-{rank}"), *([(attributes.JOB_ID, job)] if job else []),
            ):  # fmt: skip
                block.resource.attributes.add(key=key).value.string_value = text
            metric = block.scope_metrics.add().metrics.add(name=metrics.COLLECTIVE_BARRIER_WAIT, unit="ms")
            for place in range(len(entered)):
                if drop and self.random.random() < drop:
                    continue
                point = metric.gauge.data_points.add(
                    time_unix_nano=int(entered[place, rank] * 1e9), as_double=float(blocked[place, rank])
                )
                for key, value in (
                    (attributes.NCCL_OP_TYPE, "ncclAllReduce"), (attributes.NCCL_COMM_HASH, self.comm),
                    (attributes.NCCL_RANK, rank), (attributes.NCCL_NRANKS, self.ranks),
                    (attributes.NCCL_SEQ, self.done + place if seq else None),
                    (attributes.WORK, self._told(place, rank)),
                ):  # fmt: skip
                    if isinstance(value, str):
                        point.attributes.add(key=key).value.string_value = value
                    elif value is not None:
                        point.attributes.add(key=key).value.int_value = value
            out.append(request.SerializeToString())
        self.done += len(entered)
        return out

    def _told(self, place: int, rank: int) -> int | None:
        """Tokens of a collective of the latest run; those of a step are shared among its collectives."""
        if self.work is None or not self.tells:
            return None
        return int(self.work[place // self.per_step, rank]) // self.per_step


@dataclass
class Chain:
    """Two communicators of 8 ranks with one node in both, `BRIDGE`, which is late in the second when it has to wait
    in the first. Nodes 0 to 7 are in the first; 8 to 14 and the bridge in the second. Steps take 100 ms."""

    seed: int = 0
    jitter_ms: float = 1.0

    BRIDGE = 3
    NODES = 15

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.moment = BEGIN
        self.done = 0
        self._pushed = [0] * self.NODES
        self._points: list[list[tuple[float, str, int, int, float]]] = [[] for _ in range(self.NODES)]

    def run(self, steps: int, late: dict[int, float]) -> None:
        """Run `steps` steps; `late` is milliseconds by node."""
        first, second = list(range(8)), [self.BRIDGE, *range(8, self.NODES)]
        for step in range(self.done, self.done + steps):
            arrival = 100 + self.random.normal(0, self.jitter_ms, self.NODES)
            for node, more in late.items():
                arrival[node] += more
            for comm, members in (("a" * 16, first), ("b" * 16, second)):
                release = float(arrival[members].max())
                for rank, node in enumerate(members):
                    entered = self.moment + arrival[node] / 1000
                    self._points[node].append((entered, comm, rank, step, release - float(arrival[node])))
                if members is first:
                    arrival[self.BRIDGE] = release
                    arrival[8:] += self.jitter_ms
            self.moment += release / 1000
        self.done += steps

    def push(self, node: int, until: float) -> bytes:
        """A node's push with the collectives that ended by `until` and were not pushed before."""
        points = self._points[node][self._pushed[node] :]
        points = points[: sum(entered + blocked / 1000 <= until for entered, _, _, _, blocked in points)]
        self._pushed[node] += len(points)
        request = ExportMetricsServiceRequest()
        block = request.resource_metrics.add()
        for key, text in ((attributes.NODE_ID, f"node-{node}"), (attributes.CLUSTER_ID, "c")):
            block.resource.attributes.add(key=key).value.string_value = text
        metric = block.scope_metrics.add().metrics.add(name=metrics.COLLECTIVE_BARRIER_WAIT, unit="ms")
        for entered, comm, rank, step, blocked in points:
            point = metric.gauge.data_points.add(time_unix_nano=int(entered * 1e9), as_double=blocked)
            point.attributes.add(key=attributes.NCCL_OP_TYPE).value.string_value = "ncclAllReduce"
            point.attributes.add(key=attributes.NCCL_COMM_HASH).value.string_value = comm
            for key, number in (
                (attributes.NCCL_RANK, rank), (attributes.NCCL_NRANKS, 8), (attributes.NCCL_SEQ, step),
            ):  # fmt: skip
                point.attributes.add(key=key).value.int_value = number
        return request.SerializeToString()


def feed(tracker: CollectivesTracker, bodies: list[bytes], now: float, encoding: Encoding = "protobuf") -> None:
    """Give pushes of metrics to a tracker."""
    for body in bodies:
        tracker.take(Push(Signal.METRICS, encoding, body), now)


def named(tracker: CollectivesTracker) -> set[str]:
    """Nodes that the tracker names."""
    return {node for _, node in tracker.stragglers}


def as_json(body: bytes) -> bytes:
    """A push as the published agent would send it: JSON, integers as numbers."""
    request = ExportMetricsServiceRequest.FromString(body)
    block = request.resource_metrics[0]

    def pairs(items: object) -> list[dict[str, object]]:
        return [
            {"key": item.key, "value": {"stringValue": item.value.string_value}
             if item.value.WhichOneof("value") == "string_value" else {"intValue": item.value.int_value}}
            for item in items  # type: ignore[attr-defined]
        ]  # fmt: skip

    metric = block.scope_metrics[0].metrics[0]
    points = [
        {
            "timeUnixNano": str(point.time_unix_nano),
            "asDouble": point.as_double,
            "attributes": pairs(point.attributes),
        }
        for point in metric.gauge.data_points
    ]
    scope = {"metrics": [{"name": metric.name, "unit": "ms", "gauge": {"dataPoints": points}}]}
    return orjson.dumps(
        {"resourceMetrics": [{"resource": {"attributes": pairs(block.resource.attributes)}, "scopeMetrics": [scope]}]}
    )
