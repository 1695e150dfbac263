"""Finds processes that launch much less than before because others preempt them, and changes of GPU memory. Pure.

The rule is the published agent's: the rate is compared with an average of the process's own launches, which is frozen
while the process straggles.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ingero_agent.trace.gpu_stats import GpuSample
from ingero_contract.events import MemoryEvent, StraggleEvent

WEIGHT: Final = 0.2
"""Weight of the newest poll in the average."""

MIN_POLLS: Final = 3
MIN_DROP: Final = 0.3
MIN_SWITCHES: Final = 5
IDLE_POLLS: Final = 30
"""Polls without a launch after which a process is forgotten."""

MAX_PREEMPTING: Final = 16
MAX_PROCESSES: Final = 4096


@dataclass(frozen=True)
class LaunchRate:
    """A process's launches a second: the average, the polls in it, and the polls in a row without a launch."""

    average: float = 0.0
    polls: int = 0
    idle: int = 0
    straggling: bool = False


@dataclass(frozen=True, kw_only=True)
class ThroughputDrop:
    """A process that straggles. `share` of its launches is missing, 0 to 1; `sustained`: it did before."""

    pid: int
    share: float
    switches: int
    sustained: bool


def advance(state: LaunchRate, rate: float, switches: int) -> LaunchRate:
    """The rate after a poll: `rate` in launches a second, `switches` at which a thread of it was kept waiting."""
    idle = 0 if rate else state.idle + 1
    dropped = state.polls >= MIN_POLLS and rate < (1 - MIN_DROP) * state.average
    if dropped and switches >= MIN_SWITCHES:
        return replace(state, straggling=True, idle=idle)
    average = WEIGHT * rate + (1 - WEIGHT) * state.average if state.polls else rate
    return LaunchRate(average, state.polls + 1, idle)


class LaunchRates:
    """Launch rates of all processes."""

    def __init__(self) -> None:
        self._rates: dict[int, LaunchRate] = {}

    def update(self, rates: Mapping[int, float], switches: Mapping[int, int]) -> list[ThroughputDrop]:
        """Add one poll, launches a second by process, and return the processes that straggle."""
        drops = []
        for pid in {**self._rates, **rates}:
            before, rate = self._rates.get(pid), rates.get(pid, 0.0)
            if before is None and (not rate or len(self._rates) >= MAX_PROCESSES):
                continue
            after = advance(before or LaunchRate(), rate, switches.get(pid, 0))
            if after.idle >= IDLE_POLLS:
                self._rates.pop(pid, None)
                continue
            self._rates[pid] = after
            if before and after.straggling:
                share, count = 1 - rate / after.average, switches.get(pid, 0)
                drops.append(ThroughputDrop(pid=pid, share=share, switches=count, sustained=before.straggling))
        return drops


def straggle_line(
    drop: ThroughputDrop,
    preempting: Iterable[int],
    now_ns: int,
    command: str,
    event_id: str,
    rank_and_world: tuple[int, int] | None,
) -> StraggleEvent:
    """The line of a process that straggles. `rank_and_world`: its rank and its job's size, where it has one."""
    return StraggleEvent(
        pid=drop.pid, throughput_drop_pct=round(100 * drop.share, 1), sched_switch_count=drop.switches,
        preempting_pids=list(preempting)[:MAX_PREEMPTING], timestamp_ns=now_ns, sustained=drop.sustained,
        comm=command or None, event_id=event_id,
        rank=rank_and_world[0] if rank_and_world else None, world_size=rank_and_world[1] if rank_and_world else None,
    )  # fmt: skip


class GpuAllocations:
    """Tracks the memory that each process holds of each GPU, and reports changes."""

    def __init__(self) -> None:
        self._allocated: dict[tuple[int, int], int] = {}
        self._last: dict[int, int] = {}

    def allocated(self, pid: int, size: int) -> None:
        """A process's newest allocations had this size on average, bytes."""
        if pid in self._last or len(self._last) < MAX_PROCESSES:
            self._last[pid] = size

    def update(self, gpus: Iterable[GpuSample], now_ns: int, command: Callable[[int], str]) -> list[MemoryEvent]:
        """Lines for what changed since the last poll; a process that no longer holds memory reports 0."""
        sizes = {gpu.index: gpu.total for gpu in gpus if gpu.total}
        allocated = {(pid, gpu.index): used for gpu in gpus for pid, used in gpu.processes.items()}
        allocated = dict(list(allocated.items())[:MAX_PROCESSES])
        changed = {
            key: allocated.get(key, 0)
            for key in {**self._allocated, **allocated}
            if allocated.get(key) != self._allocated.get(key)
        }
        self._allocated = {**{key: used for key, used in self._allocated.items() if key[1] not in sizes}, **allocated}
        lines = [
            MemoryEvent(
                pid=pid, gpu_id=gpu, allocated_bytes=used, total_vram=sizes[gpu],
                utilization_pct=round(100 * used / sizes[gpu], 2), last_alloc_size=self._last.get(pid, 0),
                timestamp_ns=now_ns, comm=command(pid) or None,
            )
            for (pid, gpu), used in sorted(changed.items()) if gpu in sizes
        ]  # fmt: skip
        for pid in {pid for pid, _ in changed} - {pid for pid, _ in self._allocated}:
            self._last.pop(pid, None)
        return lines
