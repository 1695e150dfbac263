"""What this process takes of its host, as metrics named as Prometheus' client libraries name them.

Only `/proc/self` is read: units may hide the rest (`ProcSubset=pid`).
"""

import os
import platform
import resource
import sys
import time
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from ingero_kit.metrics_table import MetricRow, TableCollector, counter, gauge
from ingero_kit.proc_stat import stat_fields

_PAGE: Final = resource.getpagesize()
_VERSION: Final = {
    "implementation": platform.python_implementation(), "major": str(sys.version_info.major),
    "minor": str(sys.version_info.minor), "patchlevel": str(sys.version_info.micro),
    "version": platform.python_version(),
}  # fmt: skip


def _release() -> str:
    """The installed version of ingero."""
    try:
        return version("ingero")
    except PackageNotFoundError:
        return "unknown"


_RELEASE: Final = _release()
"""As of the start, because an upgrade replaces files that this process has loaded."""


@cache
def _started() -> float:
    """When this process began, seconds since the epoch (proc(5): field 22 of `stat`, in ticks since boot)."""
    ticks = int(stat_fields(Path("/proc/self/stat").read_text())[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return round(time.time() - age, 2)


def _memory(field: int) -> int:
    """Bytes of one field of `statm`."""
    return _PAGE * int(Path("/proc/self/statm").read_text().split()[field])


_ROWS: Final[tuple[MetricRow[object], ...]] = (
    gauge("process_virtual_memory_bytes", "Virtual memory size.", lambda _: _memory(0)),
    gauge("process_resident_memory_bytes", "Resident memory size.", lambda _: _memory(1)),
    gauge("process_start_time_seconds", "Start of the process since the epoch.", lambda _: _started()),
    counter("process_cpu_seconds", "Processor time in user and system mode.", lambda _: sum(os.times()[:2])),
    gauge("process_open_fds", "Open file descriptors.", lambda _: len(os.listdir("/proc/self/fd"))),  # noqa: PTH208
    gauge("process_max_fds", "Most open file descriptors.", lambda _: resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    gauge("ingero_build_info", "1; the version of ingero.", lambda _: {_RELEASE: 1}, "version"),
    gauge("python_info", "Version of Python.", lambda _: {tuple(_VERSION.values()): 1}, *_VERSION),
)

PROCESS: Final = TableCollector(_ROWS, lambda: _ROWS)
"""Collects the metrics of this process."""
