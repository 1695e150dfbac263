"""NVML's state of GPUs as agents push it: which are throttled, why, since when, and at what clock. Bounded."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from ingero_contract import metrics
from ingero_contract.identifiers import NodeKey, node_key

POWER: Final = "power"

KINDS: Final = {
    metrics.GPU_THROTTLE_POWER: POWER,
    metrics.GPU_THROTTLE_THERMAL: "heat",
    metrics.GPU_THROTTLE_HW: "hardware",
}
"""Reasons that throttle a GPU. Software alone is none: such clocks were set, or kept alike, on purpose."""

METRICS: Final = frozenset((*KINDS, metrics.GPU_CLOCK_SM))
NEEDLE: Final = metrics.GPU_THROTTLE_POWER.rpartition(".")[0].encode()
"""Bytes that a push with any of these metrics contains."""

MAX_UUID: Final = 64


@dataclass
class GpuState:
    """One GPU: time of its last report, since when each reason throttles it, and its clock in Hz, 0 when unknown."""

    heard: float
    throttled: dict[str, float] = field(default_factory=dict)
    clock: float = 0.0


@dataclass(frozen=True)
class GpuThrottling:
    """A GPU that is throttled, and since when, seconds on Fleet's clock: by another reason than power where one is.

    A GPU that is fully loaded is at its power limit.
    """

    uuid: str
    kinds: tuple[str, ...]
    since: float
    clock: float

    @property
    def at_limit(self) -> bool:
        """Whether its power limit is the only reason."""
        return self.kinds == (POWER,)


class GpuStates:
    """GPUs by node. Methods that change them must be called by one thread at a time."""

    def __init__(self, max_gpus: int, age_seconds: float) -> None:
        self.refused: Counter[str] = Counter()
        self._max, self._age = max_gpus, age_seconds
        self._nodes: dict[NodeKey, dict[str, GpuState]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def note(self, node: NodeKey, metric: str, uuid: Any, value: float, now: float) -> None:
        """Take one point of `METRICS`; what cannot be taken is counted in `refused`."""
        if not isinstance(uuid, str) or not 0 < len(uuid) <= MAX_UUID or not uuid.isprintable():
            self.refused["gpu.uuid is missing"] += 1
            return
        gpu = self._nodes.get(node, {}).get(uuid)
        if gpu is None:
            if self._count >= self._max:
                self.refused["more GPUs than Fleet keeps (processors.nccl.max_gpus)"] += 1
                return
            gpu = self._nodes.setdefault(node, {})[uuid] = GpuState(now)
            self._count += 1
        gpu.heard = now
        kind = KINDS.get(metric)
        if kind is None:
            gpu.clock = value if 0.0 < value < 1e12 else 0.0
        elif value > 0:
            gpu.throttled.setdefault(kind, now)
        else:
            gpu.throttled.pop(kind, None)

    def throttled(self) -> dict[NodeKey, GpuThrottling]:
        """Nodes with a throttled GPU. May run while `note` does.

        Of several GPUs one with another reason than its power limit, then the lowest clock, then the longest time.
        """
        found: dict[NodeKey, GpuThrottling] = {}
        for node, gpus in list(self._nodes.items()):
            known = [(uuid, dict(gpu.throttled), gpu.clock) for uuid, gpu in list(gpus.items()) if gpu.throttled]
            throttled = [
                GpuThrottling(uuid, tuple(sorted(kinds)), _since(kinds), clock)
                for uuid, kinds, clock in known
                if kinds
            ]
            if throttled:
                found[node] = min(throttled, key=lambda item: (item.at_limit, item.clock, item.since, item.uuid))
        return found

    def clock(self, node: NodeKey) -> float:
        """The highest clock of a node's GPUs, Hz; 0 when unknown. May run while `note` does."""
        return max((gpu.clock for gpu in list(self._nodes.get(node, {}).values())), default=0.0)

    def state(self) -> dict[str, Any]:
        """Everything that later steps depend on."""
        return {
            "nodes": [
                [*node, {uuid: asdict(gpu) for uuid, gpu in gpus.items()}] for node, gpus in self._nodes.items()
            ]
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned."""
        self._nodes = {
            node_key(cluster, node): {uuid: GpuState(**gpu) for uuid, gpu in gpus.items()}
            for cluster, node, gpus in state["nodes"]
        }
        self._count = sum(map(len, self._nodes.values()))

    def silent(self, now: float) -> list[tuple[NodeKey, str]]:
        """GPUs without a report for long: their agent is silent, or has nothing more to report.

        May run while `note` does.
        """
        return [
            (node, uuid)
            for node, gpus in list(self._nodes.items())
            for uuid, gpu in list(gpus.items())
            if now - gpu.heard > self._age
        ]

    def forget(self, gpus: list[tuple[NodeKey, str]], now: float) -> None:
        """Forget these GPUs, unless they were reported again meanwhile."""
        for node, uuid in gpus:
            known = self._nodes.get(node, {})
            if uuid in known and now - known[uuid].heard > self._age:
                del known[uuid]
                self._count -= 1
                if not known:
                    del self._nodes[node]


def _since(kinds: Mapping[str, float]) -> float:
    return min([time for kind, time in kinds.items() if kind != POWER] or kinds.values())
