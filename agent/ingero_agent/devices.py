"""The node's GPUs through NVML, or nothing at all where there is none."""

from dataclasses import dataclass
from typing import Any, Protocol

from ingero_kit.logs import get

log = get(__name__)


@dataclass(frozen=True)
class GpuReading:
    """All GPUs of the node together. `throttled` says whether any is held back by power, heat or hardware."""

    model: str = ""
    count: int = 0
    memory_headroom: float | None = None
    throttled: bool = False


class Devices(Protocol):
    """Reads the GPUs."""

    def read(self) -> GpuReading:
        """Never fails; what cannot be read is absent."""


class NoDevices:
    """A node without GPUs."""

    def read(self) -> GpuReading:
        """Nothing."""
        return GpuReading()


class NvmlDevices:
    """NVML through nvidia-ml-py."""

    _THROTTLE_MASK = 0x04 | 0x08 | 0x20 | 0x40 | 0x80
    """Software power cap, hardware slowdown, software thermal, hardware thermal, hardware power brake."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml

    def read(self) -> GpuReading:
        """Sum memory over the GPUs and look for throttling."""
        nvml = self._nvml
        model, used, total, throttled = "", 0, 0, False
        try:
            count = int(nvml.nvmlDeviceGetCount())
        except nvml.NVMLError:
            return GpuReading()
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                if not index:
                    name = nvml.nvmlDeviceGetName(handle)
                    model = name.decode() if isinstance(name, bytes) else str(name)
                memory = nvml.nvmlDeviceGetMemoryInfo(handle)
                used, total = used + int(memory.used), total + int(memory.total)
                reasons = int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
                throttled = throttled or bool(reasons & self._THROTTLE_MASK)
            except nvml.NVMLError as error:
                log.debug("nvml_read_failed", gpu=index, reason=str(error))
        return GpuReading(model, count, (total - used) / total if total else None, throttled)


def find_devices() -> Devices:
    """NVML when driver and library are there, otherwise none."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:
        log.info("no_gpu", reason=str(error))
        return NoDevices()
    return NvmlDevices(pynvml)
