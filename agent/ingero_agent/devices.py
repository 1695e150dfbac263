"""The node's GPUs through NVML, or nothing at all where there is none."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ingero_agent.health.throttle import Throttle, kinds
from ingero_kit.logs import get

log = get(__name__)


@dataclass(frozen=True)
class GpuReading:
    """All GPUs of the node together.

    `memory_headroom` is free over total memory, 0 to 1, of those that could be read; `unreadable` counts the others,
    such as a GPU that fell off the bus. `throttle` has every GPU that tells, by UUID.
    """

    model: str = ""
    count: int = 0
    memory_headroom: float | None = None
    unreadable: int = 0
    throttle: Mapping[str, frozenset[Throttle]] = field(default_factory=dict)


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
    """NVML through nvidia-ml-py. Model and count outlive a driver that stops to answer: they say who this node is."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._model = ""
        self._count = 0

    def read(self) -> GpuReading:
        """Sum memory over the GPUs and look why they are held back."""
        nvml = self._nvml
        used = total = unreadable = 0
        throttle: dict[str, frozenset[Throttle]] = {}
        try:
            self._count = int(nvml.nvmlDeviceGetCount())
        except nvml.NVMLError as error:
            log.debug("nvml_read_failed", reason=str(error))
            return GpuReading(self._model, self._count, unreadable=self._count)
        for index in range(self._count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                self._model = self._model or str(nvml.nvmlDeviceGetName(handle))
                memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            except nvml.NVMLError as error:
                unreadable += 1
                log.debug("nvml_read_failed", gpu=index, reason=str(error))
                continue
            used, total = used + int(memory.used), total + int(memory.total)
            try:
                bits = int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
                throttle[str(nvml.nvmlDeviceGetUUID(handle))] = kinds(bits)
            except nvml.NVMLError as error:
                log.debug("nvml_no_throttle_reasons", gpu=index, reason=str(error))
        return GpuReading(self._model, self._count, (total - used) / total if total else None, unreadable, throttle)


def find_devices() -> Devices:
    """NVML when driver and library are there, otherwise none."""
    try:
        import pynvml
    except ImportError as error:
        log.info("no_gpu", reason=str(error))
        return NoDevices()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        log.info("no_gpu", reason=str(error))
        return NoDevices()
    return NvmlDevices(pynvml)
