"""The eBPF tracer: owns the programs, links, maps and the ring, and returns counts and events."""

import os
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from ingero_agent.trace import kernel
from ingero_agent.trace.attachments import Attachments
from ingero_agent.trace.calibrate import COLLECTIVE_TYPE, COMMUNICATOR, SCRATCH_NUMBER, calibrate, without_returns
from ingero_agent.trace.capabilities import kernel_version, no_mapped_files
from ingero_agent.trace.counts import CALL_KEY, COLLECTIVE_KEY, VALUE_BYTES, CallCount, CounterDeltas, unpack
from ingero_agent.trace.discovery import OPEN_MAPPED, LibraryFinder, mapped_files_error
from ingero_agent.trace.events import Event, decode
from ingero_agent.trace.governor import ProbeCost
from ingero_agent.trace.helper import possible_cpus
from ingero_agent.trace.host import own_capabilities
from ingero_agent.trace.loader import RING_BYTES, CannotTrace, load_programs
from ingero_agent.trace.scheduler import EbpfSchedulerMonitor
from ingero_agent.trace.seccomp import try_returns
from ingero_agent.trace.selection import APART_KERNEL, Selection, split_by_selection
from ingero_agent.trace.settings import AUTO, MULTI, NEVER, PERF
from ingero_agent.trace.tracer_base import Tracer
from ingero_kit.clock import Every, clock_offset_ns
from ingero_kit.logs import get

log = get(__name__)

LOST_REASONS: Final = (
    "calls_full", "collectives_full", "starts_full", "communicators_full", "ring_full", "read_fault",
    "structure_unknown", "ambiguous_wait", "pending_full",
)  # fmt: skip
"""Names of the kernel program's loss counters, in its order."""

SLOW_COLLECTIVE_NS: Final = 100_000_000
SLOW_CALL_NS: Final = 1_000_000_000
_MASK, _SLOW_COLLECTIVE, _SLOW_CALL, _ENTRY_ONLY = range(4)
_CLOCK_SECONDS: Final = 10.0
_SWEEP_SECONDS: Final = 30.0
_STATE_KEYS: Final = {"comms": 16, "last_coll": 4, "start": 8, "group": 4, "device": 4}
"""Maps that keep state between calls, by size of key. Every key begins with a process or thread."""


class EbpfTracer(Tracer):
    """Counts calls through eBPF. Closing it, or the end of the process, detaches everything. Raises `CannotTrace`.

    `returns` is "auto" or "never"; `programs` is "auto", "prebuilt" or "compiled".
    """

    def __init__(
        self, attach: str = AUTO, returns: str = AUTO, selection: Selection | None = None, programs: str = AUTO
    ) -> None:
        super().__init__()
        self._wanted = programs
        if error := mapped_files_error():
            raise CannotTrace(": ".join(no_mapped_files(error, own_capabilities())))
        self._load(MULTI if attach == AUTO else attach)
        try:
            self.costs = self._calibrate()
        except OSError as error:
            if attach == AUTO:
                log.warning("no_links_of_many_functions", reason=str(error))
                self._close_descriptors()
                self._load(PERF)
            with suppress(OSError):
                self.costs = self._calibrate()
        self.no_returns = "not wanted" if returns == NEVER else self._try_returns()
        if self.no_returns:
            log.warning("calls_are_not_timed", reason=self.no_returns)
            self.costs = without_returns(self.costs)
        self._selection, self._excluded = selection or Selection(), set[int]()
        per_process = bool(self._selection) and kernel_version(os.uname().release) >= APART_KERNEL
        offsets = kernel.Map(self._descriptors["rank_offset"], 4, 8)
        self._attachments = Attachments(
            self._descriptors,
            lambda slot, offset: offsets.put(struct.pack("=I", slot), struct.pack("=Q", offset)),
            multi=self.mode == MULTI, returns=not self.no_returns, per_process=per_process,
        )  # fmt: skip
        self._cpus = possible_cpus()
        self._calls = kernel.Map(self._descriptors["agg"], CALL_KEY.size, VALUE_BYTES, self._cpus)
        self._collectives = kernel.Map(self._descriptors["coll"], COLLECTIVE_KEY.size, VALUE_BYTES, self._cpus)
        self._lost = kernel.Map(self._descriptors["lost"], 4, 8, self._cpus)
        self._config = kernel.Map(self._descriptors["config"], 4, 8)
        self._states = [kernel.Map(self._descriptors[name], size, 8) for name, size in _STATE_KEYS.items()]
        self._sweep_due = Every(_SWEEP_SECONDS, time.monotonic() + _SWEEP_SECONDS)
        self._forget_calibration()
        self._ring = kernel.Ring(self._descriptors["events"], RING_BYTES)
        self.scheduler: EbpfSchedulerMonitor = EbpfSchedulerMonitor(self._descriptors, self._no_scheduler)
        self._set(_SLOW_COLLECTIVE, SLOW_COLLECTIVE_NS)
        self._set(_SLOW_CALL, SLOW_CALL_NS)
        self._set(_ENTRY_ONLY, int(bool(self.no_returns)))
        self._differences = CounterDeltas()
        self._finder = LibraryFinder()
        self._offset, self._offset_due = 0, Every(_CLOCK_SECONDS)
        self._reported = set[str]()

    def scan(self) -> None:
        found = self._finder.find()
        self.found, self._excluded = split_by_selection(found, self._selection)
        self._report_hidden(bool(found))
        now = time.monotonic()
        attached = self._attachments
        attached.update(self.found, now)
        self.libraries, self.replaced, self.unattached = attached.count, attached.replaced, attached.unattached
        self.single_stepped, self.excluded = attached.single_stepped, len(self._excluded)
        self.scheduler.follow(self.found)
        if self._sweep_due.due(now):
            self.sweep()

    def _report_hidden(self, sees_any: bool) -> None:
        """Log once which processes may not be read. An agent that cannot open any library counts nothing."""
        self.hidden_processes = self._finder.refused
        unopened, self.blocked_reason = self.hidden_processes.get(OPEN_MAPPED, 0), ""
        if unopened and not sees_any:
            self.blocked_reason = (
                f"no GPU library of {unopened} processes may be opened: {OPEN_MAPPED}, or leave by a security module "
                "(SELinux, AppArmor), is missing"
            )
        for missing in self.hidden_processes.keys() - self._reported:
            log.warning("processes_hidden", missing=missing, processes=self.hidden_processes[missing])
        self._reported |= self.hidden_processes.keys()

    def sweep(self) -> None:
        """Remove entries of processes and threads that are gone: the maps are bounded, and numbers are used again."""
        for table in self._states:
            for key in table.every_key():
                if not Path(f"/proc/{int.from_bytes(key[:4], sys.byteorder)}").exists():
                    table.delete(key)

    def switch(self, group: str, on: bool) -> None:
        self._attachments.switch(group, on)

    def sample(self, mask: int) -> None:
        self._set(_MASK, mask)

    def read_counts(self) -> list[CallCount]:
        counted = []
        for table, pid_of, difference in (
            (self._calls, CALL_KEY, self._differences.call),
            (self._collectives, COLLECTIVE_KEY, self._differences.collective),
        ):
            for key, value in table.items():
                new = difference(key, unpack(value, self._cpus))
                if new:
                    if new.pid not in self._excluded:
                        counted.append(new)
                # The counts of a process that is gone were read once more, so they can be removed.
                elif not Path(f"/proc/{pid_of.unpack(key)[0]}").exists():
                    table.delete(key)
                    self._differences.forget(key)
        return counted

    def read_events(self) -> list[Event]:
        if self._offset_due.due(time.monotonic()):
            self._offset = clock_offset_ns()
        decoded = (decode(record, self._offset) for record in self._ring.read())
        return [event for event in decoded if event]

    def recalibrate(self) -> None:
        with suppress(OSError):
            costs = self._calibrate()
            self.costs = without_returns(costs) if self.no_returns else costs
        self._forget_calibration()

    def lost(self) -> dict[str, int]:
        found = {}
        for number, reason in enumerate(LOST_REASONS):
            value = self._lost.get(struct.pack("=I", number)) or b""
            found[reason] = sum(count for (count,) in struct.iter_unpack("=Q", value))
        return {reason: count for reason, count in found.items() if count}

    def pushed_off(self, pid: int, since_ns: int) -> list[int]:
        return self.scheduler.pushed_off(pid, since_ns)

    def close(self) -> None:
        self._attachments.close()
        self.scheduler.close()
        self._ring.close()
        self._close_descriptors()

    def _load(self, mode: str) -> None:
        loaded = load_programs(mode, self._wanted)
        self.mode, self._descriptors, self._no_scheduler = mode, loaded.descriptors, loaded.no_scheduler
        self.programs = loaded.origin
        self.helper_peak_bytes = max(self.helper_peak_bytes, loaded.peak_bytes)

    def _calibrate(self) -> dict[str, ProbeCost]:
        return calibrate(self._descriptors, multi=self.mode == MULTI)

    def _try_returns(self) -> str:
        programs = self._descriptors
        return try_returns(programs["call_enter"], programs["call_return"], multi=self.mode == MULTI)

    def _forget_calibration(self) -> None:
        me = os.getpid()
        self._calls.delete(CALL_KEY.pack(me, SCRATCH_NUMBER, 0))
        self._collectives.delete(COLLECTIVE_KEY.pack(me, SCRATCH_NUMBER, *COLLECTIVE_TYPE, COMMUNICATOR))
        kernel.Map(self._descriptors["comms"], 16, 8).delete(struct.pack("=IIQ", me, 0, COMMUNICATOR))
        kernel.Map(self._descriptors["last_coll"], 4, 8).delete(struct.pack("=I", me))

    def _set(self, index: int, value: int) -> None:
        self._config.put(struct.pack("=I", index), struct.pack("=Q", value))

    def _close_descriptors(self) -> None:
        kernel.close_all(self._descriptors.values())
