"""Statistics of GPUs: one sample, samples added up over a window, and totals since the start. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ingero_agent.health.throttle import Throttle, Throttling


@dataclass(frozen=True, kw_only=True)
class GpuSample:
    """One GPU now. Memory in bytes, clocks in MHz; what the driver does not report is absent.

    `throttled_ns`: time for which it was throttled since the driver was loaded, by kind. `processes`: bytes by pid.
    """

    index: int
    uuid: str
    model: str = ""
    used: int
    free: int
    total: int
    throttle: frozenset[Throttle] | None = None
    sm_mhz: int | None = None
    sm_max_mhz: int | None = None
    memory_mhz: int | None = None
    throttled_ns: Mapping[Throttle, int] = field(default_factory=dict)
    processes: Mapping[int, int] = field(default_factory=dict)

    @property
    def fragmentation(self) -> float:
        """Share of the memory that is neither used nor free, 0 to 1."""
        return max(0.0, (self.total - self.used - self.free) / self.total) if self.total else 0.0


@dataclass(kw_only=True)
class GpuWindow:
    """A GPU over some seconds: polls, polls at which each kind throttled it, and the lowest clock seen.

    Of throttled polls if there are any: an idle GPU has a lower clock, and is not throttled. `throttled_ns`:
    nanoseconds for which it was throttled by the driver's own count, which includes the time between polls.
    """

    index: int
    uuid: str
    polls: int = 0
    used: int = 0
    free: int = 0
    total: int = 0
    throttled: dict[Throttle, int] = field(default_factory=dict)
    sm_mhz: int | None = None
    sm_max_mhz: int | None = None
    throttled_ns: dict[Throttle, int] = field(default_factory=dict)

    def add(self, gpu: GpuSample, throttled: Mapping[Throttle, int]) -> None:
        """Add one poll. `throttled`: what the driver added since the last poll."""
        self.polls += 1
        self.used, self.free, self.total = gpu.used, gpu.free, gpu.total
        if gpu.throttle and not self.throttled:
            self.sm_mhz = None
        if gpu.sm_mhz is not None and (gpu.throttle or not self.throttled):
            self.sm_mhz = gpu.sm_mhz if self.sm_mhz is None else min(self.sm_mhz, gpu.sm_mhz)
        for kind in gpu.throttle or ():
            self.throttled[kind] = self.throttled.get(kind, 0) + 1
        for kind, spent in throttled.items():
            self.throttled_ns[kind] = self.throttled_ns.get(kind, 0) + spent
        self.sm_max_mhz = gpu.sm_max_mhz


class GpuStats:
    """Sums over polls. `now`: the newest poll; `throttling` counts its starts, `throttled_ns` its duration."""

    def __init__(self) -> None:
        self.now: list[GpuSample] = []
        self.throttling = Throttling()
        self.throttled_ns: dict[tuple[str, Throttle], int] = {}
        self._before: dict[tuple[str, Throttle], int] = {}
        self._window: dict[str, GpuWindow] = {}

    def add(self, gpus: Iterable[GpuSample]) -> None:
        """Add one poll. A kind counts as active if the driver counted time for it between two polls."""
        self.now = list(gpus)
        seen: dict[str, frozenset[Throttle]] = {}
        missed: dict[str, frozenset[Throttle]] = {}
        for gpu in self.now:
            throttled = self._throttled(gpu)
            if gpu.throttle is not None:
                seen[gpu.uuid] = gpu.throttle
                was = self.throttling.now.get(gpu.uuid, frozenset())
                missed[gpu.uuid] = frozenset(throttled) - gpu.throttle - was
            self._window.setdefault(gpu.uuid, GpuWindow(index=gpu.index, uuid=gpu.uuid)).add(gpu, throttled)
        if any(missed.values()):
            both = {uuid: active | missed[uuid] for uuid, active in seen.items()}
            self.throttling = self.throttling.advance(both)
        self.throttling = self.throttling.advance(seen)

    def drain_window(self) -> list[GpuWindow]:
        """Return the windows since the previous call, one for each GPU."""
        found, self._window = list(self._window.values()), {}
        return found

    def _throttled(self, gpu: GpuSample) -> dict[Throttle, int]:
        throttled = {}
        for kind, total in gpu.throttled_ns.items():
            before = self._before.get((gpu.uuid, kind), total)
            self._before[gpu.uuid, kind] = total
            if total > before:
                throttled[kind] = total - before
                self.throttled_ns[gpu.uuid, kind] = self.throttled_ns.get((gpu.uuid, kind), 0) + total - before
        return throttled
