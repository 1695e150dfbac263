"""Polls the GPUs in a separate thread, because the driver may hang. A late answer is missing, never zero."""

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from ingero_agent.nvml import find_reader
from ingero_agent.trace.gpu_stats import GpuSample
from ingero_kit.logs import get

log = get(__name__)

LATE_SECONDS: Final = 5.0
"""Age above which an answer counts as late."""

NVML, NONE, LATE, OFF = "nvml", "none", "late", "off"
"""Where GPU figures come from: the driver; there is no GPU or driver; the driver does not answer; not wanted."""


class GpuReader(Protocol):
    """Asks the driver once."""

    def read(self) -> list[GpuSample]:
        """All GPUs that answer. Never fails."""


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
