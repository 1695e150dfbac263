"""Reads the node's GPUs through NVML. A node without a driver has no GPUs."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ingero_agent.health.throttle import Throttle
from ingero_agent.nvml import NvmlReader, open_reader
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


ReadGpus = Callable[[], GpuReading]
"""Reads the GPUs. Never fails; what cannot be read is absent."""


class NvmlDevices:
    """Adds the GPUs up. Model and count are kept when the driver stops answering: they determine the node's peers."""

    def __init__(self, reader: NvmlReader) -> None:
        self._reader = reader
        self._model = ""

    def read(self) -> GpuReading:
        """Sum memory over the GPUs and read why they are throttled."""
        gpus = self._reader.read()
        self._model = self._model or next((gpu.model for gpu in gpus), "")
        used, total = sum(gpu.used for gpu in gpus), sum(gpu.total for gpu in gpus)
        headroom = (total - used) / total if total else None
        throttle = {gpu.uuid: gpu.throttle for gpu in gpus if gpu.throttle is not None}
        return GpuReading(self._model, self._reader.count, headroom, self._reader.count - len(gpus), throttle)


class BackgroundDevices:
    """Reads the GPUs in a thread, so that a driver that does not answer does not block the agent.

    A call that takes longer than `timeout` seconds counts as unreadable until the driver answers. At most one call
    runs at a time. The thread ends with the process.
    """

    def __init__(self, read: ReadGpus, timeout: float) -> None:
        self.timeouts = 0
        self._read, self._timeout = read, timeout
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
        reading = self._read()
        with contextlib.suppress(RuntimeError):  # the loop is gone
            answer.get_loop().call_soon_threadsafe(_settle, answer, reading)


def _settle(answer: "asyncio.Future[GpuReading]", reading: GpuReading) -> None:
    if not answer.done():
        answer.set_result(reading)


def find_gpus() -> ReadGpus:
    """NVML when driver and library are there, otherwise a reader of no GPUs."""
    reader = open_reader()
    if isinstance(reader, str):
        log.info("no_gpu", reason=reader)
        return GpuReading
    return NvmlDevices(reader).read
