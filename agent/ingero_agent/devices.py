"""Reads the node's GPUs through NVML. A node without a driver has no GPUs."""

import asyncio
import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ingero_agent.health.throttle import Throttle, throttle_kinds
from ingero_kit.logs import get

log = get(__name__)


@dataclass(frozen=True)
class GpuReading:
    """All GPUs of the node together.

    `memory_headroom` is free over total memory, 0 to 1, of those that could be read; `unreadable` counts the others,
    such as a GPU that fell off the bus. `throttle` has every GPU that reports its throttling, by UUID.
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
    """NVML through nvidia-ml-py.

    Model and count are kept when the driver stops answering: they determine the node's peers.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._model = ""
        self._count = 0

    def read(self) -> GpuReading:
        """Sum memory over the GPUs and read why they are throttled."""
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
                throttle[str(nvml.nvmlDeviceGetUUID(handle))] = throttle_kinds(bits)
            except nvml.NVMLError as error:
                log.debug("nvml_no_throttle_reasons", gpu=index, reason=str(error))
        return GpuReading(self._model, self._count, (total - used) / total if total else None, unreadable, throttle)


class BackgroundDevices:
    """Reads the GPUs in a thread, so that a driver that does not answer does not block the agent.

    A call that takes longer than `timeout` seconds counts as unreadable until the driver answers. At most one call
    runs at a time. The thread ends with the process.
    """

    def __init__(self, devices: Devices, timeout: float) -> None:
        self.timeouts = 0
        self._devices, self._timeout = devices, timeout
        self._last = GpuReading()
        self._under_way: asyncio.Future[GpuReading] | None = None

    async def read(self) -> GpuReading:
        """Never fails; all GPUs are unreadable while the driver does not answer."""
        if self._under_way is None:
            self._under_way = asyncio.get_running_loop().create_future()
            threading.Thread(target=self._call, args=(self._under_way,), name="nvml", daemon=True).start()
        done, _ = await asyncio.wait({self._under_way}, timeout=self._timeout)
        if not done:
            self.timeouts += 1
            if self.timeouts == 1:
                log.warning("nvml_does_not_answer", seconds=self._timeout)
            return GpuReading(self._last.model, self._last.count, unreadable=self._last.count)
        self._last, self._under_way = self._under_way.result(), None
        return self._last

    def _call(self, answer: "asyncio.Future[GpuReading]") -> None:
        reading = self._devices.read()
        with contextlib.suppress(RuntimeError):  # the loop is gone
            answer.get_loop().call_soon_threadsafe(_settle, answer, reading)


def _settle(answer: "asyncio.Future[GpuReading]", reading: GpuReading) -> None:
    if not answer.done():
        answer.set_result(reading)


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
