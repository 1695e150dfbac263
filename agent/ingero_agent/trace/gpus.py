"""The node's GPUs one by one, through NVML: memory, clocks, what holds them back, and which process holds how much.

The driver may hang, so that it is asked in a thread of its own; an answer that is late is missing, never zero.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from ingero_agent.health.throttle import Throttle, Throttling, throttle_kinds
from ingero_kit.logs import get

log = get(__name__)

LATE_SECONDS: Final = 5.0
"""Age above which an answer says nothing about now."""

MAX_GPUS: Final = 64
NVML, NONE, LATE, OFF = "nvml", "none", "late", "off"
"""Where GPU figures come from: the driver; there is no GPU or driver; the driver does not answer; not wanted."""

_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_POLICIES: Final = {Throttle.POWER: 0, Throttle.THERMAL: 1}
"""Kinds whose time the driver adds up by itself, by its number for them."""


@dataclass(frozen=True, kw_only=True)
class GpuSample:
    """One GPU now. Memory in bytes, clocks in MHz; what it does not tell is absent.

    `held_ns`: nanoseconds for which it was held back since the driver was loaded, by kind. `processes`: bytes by pid.
    """

    index: int
    uuid: str
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


class GpuReader(Protocol):
    """Asks the driver once."""

    def read(self) -> list[GpuSample]:
        """All GPUs that answer. Never fails."""


class NvmlReader:
    """NVML through nvidia-ml-py; `nvml` is its module. A GPU that is lost is left out."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml

    def read(self) -> list[GpuSample]:
        """All GPUs that answer."""
        try:
            count = min(int(self._nvml.nvmlDeviceGetCount()), MAX_GPUS)
        except self._nvml.NVMLError as error:
            log.debug("nvml_read_failed", reason=str(error))
            return []
        return [gpu for index in range(count) if (gpu := self._one(index))]

    def _one(self, index: int) -> GpuSample | None:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid, memory = str(nvml.nvmlDeviceGetUUID(handle)), nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            log.debug("nvml_read_failed", gpu=index, reason=str(error))
            return None
        bits = self._query("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if bits is None:
            bits = self._query("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        throttled = {
            kind: self._query("nvmlDeviceGetViolationStatus", handle, policy) for kind, policy in _POLICIES.items()
        }
        processes = self._query("nvmlDeviceGetComputeRunningProcesses", handle) or ()
        return GpuSample(
            index=index, uuid=uuid, used=int(memory.used), free=int(memory.free), total=int(memory.total),
            throttle=None if bits is None else throttle_kinds(int(bits)),
            sm_mhz=self._query("nvmlDeviceGetClockInfo", handle, _SM_CLOCK),
            sm_max_mhz=self._query("nvmlDeviceGetMaxClockInfo", handle, _SM_CLOCK),
            memory_mhz=self._query("nvmlDeviceGetClockInfo", handle, _MEMORY_CLOCK),
            throttled_ns={kind: int(one.violationTime) for kind, one in throttled.items() if one is not None},
            processes={int(one.pid): int(one.usedGpuMemory) for one in processes if one.usedGpuMemory is not None},
        )  # fmt: skip

    def _query(self, function: str, *arguments: Any) -> Any:
        """The answer, or nothing from a GPU, driver or binding that does not know this."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None


def find_reader() -> GpuReader | str:
    """The driver, or why there is none."""
    try:
        import pynvml
    except ImportError as error:
        return str(error)
    try:
        pynvml.nvmlInit()
        if int(pynvml.nvmlDeviceGetCount()) == 0:
            return "the driver has no GPU"
    except pynvml.NVMLError as error:
        return f"NVML: {error}"
    return NvmlReader(pynvml)


class GpuPoller:
    """Asks every `period` seconds in a thread of its own. `find` says how; nobody ever waits for it.

    `mode` is one of the words above, `reason` says why it is none.
    """

    def __init__(
        self, period: float, find: Callable[[], GpuReader | str] = find_reader,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._period, self._find, self._clock = period, find, clock
        self._latest: list[GpuSample] | None = None
        self._at = clock()
        self._over = threading.Event()
        self.reason = ""
        threading.Thread(target=self._run, name="gpus", daemon=True).start()

    @property
    def mode(self) -> str:
        """Where figures come from now."""
        if self.reason:
            return NONE
        return NVML if self._latest is not None and not self._is_late() else LATE

    def latest(self) -> list[GpuSample]:
        """The newest answer; none while it is late."""
        return [] if self._is_late() else list(self._latest or ())

    def stop(self) -> None:
        """Ask no more; a call that hangs is left to itself."""
        self._over.set()

    def _is_late(self) -> bool:
        return self._clock() - self._at > max(LATE_SECONDS, 3 * self._period)

    def _run(self) -> None:
        reader = self._find()
        if isinstance(reader, str):
            self.reason = reader
            log.info("no_gpu", reason=reader)
            return
        while not self._over.is_set():
            found = reader.read()
            if found:
                self._latest, self._at = found, self._clock()
            self._over.wait(self._period)


@dataclass(kw_only=True)
class GpuWindow:
    """A GPU over some seconds: looks, looks at which each kind held it back, and the lowest clock seen.

    `held_ns`: nanoseconds that the driver says it was held back, which knows of what happened between two looks.
    """

    index: int
    uuid: str
    looks: int = 0
    used: int = 0
    free: int = 0
    total: int = 0
    throttled: dict[Throttle, int] = field(default_factory=dict)
    sm_mhz: int | None = None
    sm_max_mhz: int | None = None
    throttled_ns: dict[Throttle, int] = field(default_factory=dict)

    def add(self, gpu: GpuSample, throttled: Mapping[Throttle, int]) -> None:
        """Take one look in. `held`: what the driver added since the look before."""
        self.looks += 1
        self.used, self.free, self.total = gpu.used, gpu.free, gpu.total
        for kind in gpu.throttle or ():
            self.throttled[kind] = self.throttled.get(kind, 0) + 1
        for kind, spent in throttled.items():
            self.throttled_ns[kind] = self.throttled_ns.get(kind, 0) + spent
        if gpu.sm_mhz is not None:
            self.sm_mhz = gpu.sm_mhz if self.sm_mhz is None else min(self.sm_mhz, gpu.sm_mhz)
        self.sm_max_mhz = gpu.sm_max_mhz


class GpuStats:
    """What the looks add up to. Pure. `now`: the newest look; `throttling` counts what began, `held_ns` its time."""

    def __init__(self) -> None:
        self.now: list[GpuSample] = []
        self.throttling = Throttling()
        self.throttled_ns: dict[tuple[str, Throttle], int] = {}
        self._before: dict[tuple[str, Throttle], int] = {}
        self._window: dict[str, GpuWindow] = {}

    def add(self, gpus: Iterable[GpuSample]) -> None:
        """One look. A kind that the driver counted time for between two looks has been active, seen or not."""
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
        """What happened since the call before, by GPU."""
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
