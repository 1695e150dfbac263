"""Reads each GPU of the node through NVML: memory, clocks, throttling, and the memory that each process holds."""

import ctypes
from typing import Any, Final

from ingero_agent.health.throttle import Throttle, throttle_kinds
from ingero_agent.trace.gpu_stats import GpuSample
from ingero_kit.logs import get

log = get(__name__)

MAX_GPUS: Final = 64
_LIBRARY: Final = "libnvidia-ml.so.1"
_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_POLICIES: Final = {Throttle.POWER: 0, Throttle.THERMAL: 1}
"""Kinds of throttling whose time the driver adds up, by NVML's policy number."""


class NvmlReader:
    """NVML through nvidia-ml-py; `nvml` is its module. A GPU that is lost is left out.

    `count`: GPUs, kept when the driver stops answering.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self.count = 0

    def update_count(self) -> int:
        """Ask for the number of GPUs; 0 when the driver does not answer."""
        try:
            self.count = min(int(self._nvml.nvmlDeviceGetCount()), MAX_GPUS)
        except self._nvml.NVMLError as error:
            log.debug("nvml_read_failed", reason=str(error))
            return 0
        return self.count

    def read(self) -> list[GpuSample]:
        """All GPUs that answer. Never fails."""
        return [gpu for index in range(self.update_count()) if (gpu := self._one(index))]

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
            index=index, uuid=uuid, model=str(self._query("nvmlDeviceGetName", handle) or ""),
            used=int(memory.used), free=int(memory.free), total=int(memory.total),
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


def open_reader() -> NvmlReader | str:
    """A reader of the driver, or why there is none. Without its library the bindings (17 MB) are not loaded."""
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return f"NVML: {_LIBRARY} is not on this machine"
    try:
        import pynvml
    except ImportError as error:
        return str(error)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return f"NVML: {error}"
    return NvmlReader(pynvml)


def find_reader() -> NvmlReader | str:
    """A reader of a driver that has GPUs, or why there is none."""
    reader = open_reader()
    return reader if isinstance(reader, str) or reader.update_count() else "the driver has no GPU"
