"""Reads each GPU of the node through NVML: memory, clocks, throttling, and the memory that each process holds.

The driver may hang, so it is asked in a separate thread. A late answer counts as missing, never as zero.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from ingero_agent.health.throttle import Throttle, throttle_kinds
from ingero_agent.trace.gpu_stats import GpuSample
from ingero_kit.logs import get

log = get(__name__)

LATE_SECONDS: Final = 5.0
"""Age above which an answer counts as late."""

MAX_GPUS: Final = 64
NVML, NONE, LATE, OFF = "nvml", "none", "late", "off"
"""Where GPU figures come from: the driver; there is no GPU or driver; the driver does not answer; not wanted."""

_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_POLICIES: Final = {Throttle.POWER: 0, Throttle.THERMAL: 1}
"""Kinds of throttling whose time the driver adds up, by NVML's policy number."""


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
    """Return a reader of the driver, or why there is none."""
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
    """Reads the GPUs every `period` seconds in a separate thread, which no other waits for. `find` finds the driver.

    `mode` is one of the modes above; `reason` says why there are no figures.
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
        """The current mode."""
        if self.reason:
            return NONE
        return NVML if self._latest is not None and not self._is_late() else LATE

    def latest(self) -> list[GpuSample]:
        """The newest answer; none while it is late."""
        return [] if self._is_late() else list(self._latest or ())

    def stop(self) -> None:
        """Stop reading. A call that hangs is not waited for."""
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
