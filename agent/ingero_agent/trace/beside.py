"""What is looked at beside the calls, once a second: GPUs, stragglers, and what programs say of themselves."""

import sqlite3
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress

from ingero_agent.sources.database import LAUNCHES
from ingero_agent.trace.counts import Counted
from ingero_agent.trace.gpus import OFF, GpuBook, Poller
from ingero_agent.trace.host import command_of, place_of
from ingero_agent.trace.ledger import Ledger
from ingero_agent.trace.outlets import Outlets
from ingero_agent.trace.probes.table import SCHED_SWITCH, SIZE_1
from ingero_agent.trace.store import Store
from ingero_agent.trace.straggle import Drop, Holdings, Paces, straggle_line
from ingero_contract.events import StraggleEvent

LOOK_SECONDS = 1.0
"""How often; rates over less say little."""


class Beside:
    """`pushed_off` names the processes that ran in one's place since a monotonic time in nanoseconds."""

    def __init__(
        self, ledger: Ledger, store: Store, poller: Poller | None, outlets: Outlets | None,
        pushed_off: Callable[[int, int], list[int]],
    ) -> None:  # fmt: skip
        self._ledger, self._store, self._poller, self._outlets = ledger, store, poller, outlets
        self._pushed_off = pushed_off
        self._book, self._paces, self._holdings = GpuBook(), Paces(), Holdings()
        self._launches: dict[int, int] = defaultdict(int)
        self._switches: dict[int, int] = defaultdict(int)
        self._since: float | None = None
        ledger.gpus = self._book

    @property
    def gpu_mode(self) -> str:
        """Where GPU figures come from."""
        return self._poller.mode if self._poller else OFF

    def add(self, rows: Iterable[Counted], now: float) -> None:
        """Take what was called; every second look at the rest. `now`: monotonic seconds."""
        for one in rows:
            function = one.function
            if (function.source, function.operation) in LAUNCHES:
                self._launches[one.pid] += one.count
            elif function.number == SCHED_SWITCH.number:
                self._switches[one.pid] += one.count
            elif function.shape == SIZE_1 and one.count:
                self._holdings.allocated(one.pid, one.size // one.count)
        if self._since is None:
            self._since = now
        elif now - self._since >= LOOK_SECONDS:
            self._look(now - self._since, now)
            self._since = now

    def keep(self, now: float) -> None:
        """Write down how the GPUs were. `now`: seconds of the day."""
        with suppress(sqlite3.OperationalError):
            self._store.gpus(self._book.stretch(), now)

    def close(self) -> None:
        """Write what is left and ask no more; the sockets are whose they are."""
        self._take_annotations()
        if self._poller:
            self._poller.stop()

    def _look(self, seconds: float, now: float) -> None:
        now_ns = time.time_ns()
        gpus = self._poller.latest() if self._poller else []
        with self._ledger.lock:
            self._book.take(gpus)
        drops = self._paces.look({pid: count / seconds for pid, count in self._launches.items()}, self._switches)
        held = self._holdings.look(gpus, now_ns, command_of)
        self._launches.clear()
        self._switches.clear()
        if self._outlets:
            since_ns = int((now - seconds) * 1e9)
            self._outlets.publish([*held, *(self._line(drop, since_ns, now_ns) for drop in drops)])
        self._take_annotations()

    def _line(self, drop: Drop, since_ns: int, now_ns: int) -> StraggleEvent:
        return straggle_line(
            drop, self._pushed_off(drop.pid, since_ns), now_ns, command_of(drop.pid), str(uuid.uuid4()),
            place_of(drop.pid),
        )  # fmt: skip

    def _take_annotations(self) -> None:
        if not self._outlets:
            return
        found = self._outlets.take()
        if found:
            try:
                self._store.annotations(found)
            except sqlite3.OperationalError:
                self._ledger.figures.unwritten_annotations += len(found)
        events, heard = self._outlets.events, self._outlets.annotations
        figures = self._ledger.figures
        if events:
            figures.lines_sent, figures.lines_dropped = events.sent, dict(events.dropped)
            figures.consumers = events.consumers
        if heard:
            figures.annotations, figures.annotations_refused = heard.taken, dict(heard.refused)
