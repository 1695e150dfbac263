"""Reads the load of the host and of the agent itself. Parsing is separate from reading."""

import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from ingero_agent.sources.procfs import HostLoad
from ingero_agent.trace.containers import Container, parse_container, parse_environment, parse_rank
from ingero_agent.trace.libraries import NCCL, MappedLibrary
from ingero_agent.trace.stats import HostSnapshot, NcclProcess


def host_snapshot(load: HostLoad) -> HostSnapshot:
    """The state of the host since the previous reading of its load. Raises as `HostLoad.read`."""
    busy, available = load.read()
    swap = load.memory.get("SwapTotal", 0) - load.memory.get("SwapFree", 0)
    average = os.getloadavg()[0]
    return HostSnapshot(100 * busy, 100 * (1 - available), load.memory["MemAvailable"] >> 10, swap >> 10, average)


class OwnCpu:
    """Measures the processor time that this process uses between two polls."""

    def __init__(self) -> None:
        self._before = time.process_time(), time.monotonic()

    def share(self) -> float:
        """Share of one processor used since the previous call."""
        before, self._before = self._before, (time.process_time(), time.monotonic())
        return (self._before[0] - before[0]) / max(1e-9, self._before[1] - before[1])


def own_capabilities() -> int:
    """Kernel capabilities in effect for this process, by bit."""
    text = Path("/proc/self/status").read_text()
    return int(next((line.split()[1] for line in text.splitlines() if line.startswith("CapEff")), "0"), 16)


def own_rss() -> int:
    """Resident memory of this process, bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def command_of(pid: int) -> str:
    """A process's name; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def environment_of(pid: int) -> dict[str, str]:
    """A process's environment; empty when it is gone or may not be read."""
    try:
        return parse_environment(Path(f"/proc/{pid}/environ").read_bytes())
    except OSError:
        return {}


def rank_and_world_size(pid: int) -> tuple[int, int] | None:
    """A process's RANK and WORLD_SIZE, or what `srun` sets; `None` unless the world has several ranks."""
    environment = environment_of(pid)
    for rank_name, size_name in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")):
        size, rank = parse_rank(environment, size_name), parse_rank(environment, rank_name)
        if size and rank is not None:
            return rank, size
    return None


def container_of(pid: int) -> Container | None:
    """The container of a process; `None` when it is gone or has no cgroup."""
    try:
        cgroups = Path(f"/proc/{pid}/cgroup").read_text(errors="replace")
    except OSError:
        return None
    return parse_container(cgroups, environment_of(pid))


def nccl_processes(found: Mapping[int, Iterable[MappedLibrary]]) -> list[NcclProcess]:
    """Processes with NCCL loaded. The version is taken from the file's name."""
    processes = []
    for pid, libraries in found.items():
        for one in libraries:
            if one.kind == NCCL:
                version = re.search(r"\.so\.([\d.]+)$", one.name)
                processes.append(NcclProcess(pid, command_of(pid), one.name, version.group(1) if version else ""))
                break
    return processes
