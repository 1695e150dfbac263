"""The wiring of `ingero-agent trace`: tracer, governor, database, page, export and recording in one loop."""

import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ingero_agent.sockets import EventSocket
from ingero_agent.trace import governor
from ingero_agent.trace.annotations import AnnotationSocket
from ingero_agent.trace.beside import Beside
from ingero_agent.trace.blind import BLIND, Blind, Counter
from ingero_agent.trace.calibrate import nanoseconds
from ingero_agent.trace.counts import Counted, Scaler
from ingero_agent.trace.events import Collective, Event, sample_mask
from ingero_agent.trace.export import ExportConfig, Exporter
from ingero_agent.trace.governor import CORE, GROUPS, SCHEDULER, GovernorConfig, GovernorState, Window
from ingero_agent.trace.gpus import Poller
from ingero_agent.trace.host import Host, OwnLoad, command_of, container_of, nccl_processes, own_rss, rank_of
from ingero_agent.trace.ledger import Ledger
from ingero_agent.trace.loader import CannotTrace
from ingero_agent.trace.outlets import Outlets
from ingero_agent.trace.page import make_server
from ingero_agent.trace.rates import CallRates
from ingero_agent.trace.record import Recorder, open_recorder
from ingero_agent.trace.selection import Selection
from ingero_agent.trace.store import Retention, Snapshot, Store
from ingero_agent.trace.timeline import Timeline
from ingero_agent.trace.tracer import AUTO, Tracer
from ingero_kit.logs import get

log = get(__name__)

EVENT_SOCKET, ANNOTATE_SOCKET = "trace.sock", "annotate.sock"
"""Names of the sockets where no path is set: not that of `fleet-push`, so that both may listen."""

SLOW_ROUND_SECONDS: Final = 10.0
"""How often the host is looked at and the agent's own load is judged."""

CALIBRATION_SECONDS: Final = 600.0
"""How often the cost of a probe is measured anew: neighbours double it, and leave again."""

RETRY_SECONDS: Final = 60.0
"""How long to go on without programs in the kernel before they are tried again."""

LOOK_SECONDS: Final = 0.5
"""How soon processes are looked for again; counts may be read more often."""

MIN_WAIT_SECONDS: Final = 0.02


@dataclass(frozen=True, kw_only=True)
class TraceConfig:
    """What `ingero-agent trace` was told. `period` in seconds; `budget` (of a traced process) and `own_budget` (of
    the agent itself) are shares of one processor.

    `gpu_period`: seconds between looks at the GPUs, 0 for none. `events`, `annotations`: paths of the sockets and the
    groups that may use them.
    """

    database: Path
    period: float = 1.0
    budget: float = 0.005
    own_budget: float = 0.01
    retention: Retention = field(default_factory=Retention)
    listen: tuple[str, int] | None = None
    export: ExportConfig | None = None
    record: Path | None = None
    attach: str = AUTO
    returns: str = AUTO
    selection: Selection = field(default_factory=Selection)
    gpu_period: float = 1.0
    events: tuple[Path, int | None] | None = None
    annotations: tuple[Path, int | None] | None = None


class TraceService:
    """One tracer and everything that it feeds. `tick` is one look."""

    def __init__(
        self, config: TraceConfig, tracer: Counter, store: Store, recorder: Recorder | None = None,
        outlets: Outlets | None = None,
    ) -> None:  # fmt: skip
        self.ledger = Ledger()
        poller = Poller(config.gpu_period) if config.gpu_period else None
        self._beside = Beside(self.ledger, store, poller, outlets, tracer.pushed_off)
        self._config, self._tracer, self._store, self._recorder = config, tracer, store, recorder
        self._governor = GovernorConfig(budget=config.budget)
        self._state, self._window = GovernorState(), Window()
        self._scalers = {group: Scaler() for group in GROUPS}
        self._open, self._opened_at = dict.fromkeys(GROUPS, True), dict.fromkeys(GROUPS, 0.0)
        self._meanwhile: list[Counted] = []
        self._looked_at = -LOOK_SECONDS
        self._rates = CallRates()
        self._exporter = Exporter(config.export) if config.export else None
        self._host, self._own, self._timeline = Host(), OwnLoad(), Timeline()
        self._latest: Snapshot | None = None
        self._started_ns = time.time_ns()
        self._read_at = self._round_at = self._exported_at = time.monotonic()
        self._level, self._mask, self._seen_events = 0, 0, 0
        self._named: set[int] = set()
        self._counting = False
        figures = self.ledger.figures
        figures.budget, figures.mode, figures.helper_peak = config.budget, tracer.mode, tracer.helper_peak_bytes
        figures.scheduler, tracer.scheduler.budget = tracer.scheduler.on, config.budget
        figures.blind = tracer.blind
        self._take_costs()
        self._calibrated_at = self._read_at

    @property
    def period(self) -> float:
        """Seconds between looks, longer when the agent itself works too much."""
        return self._config.period * governor.PERIODS[self._level]

    def wait_seconds(self, now: float) -> float:
        """Seconds until the next look: a period, or sooner when a window opens or closes."""
        return max(MIN_WAIT_SECONDS, min(self.period, self._window.next_change(now)))

    def tick(self, now: float) -> None:
        """Read what was called, hand it out, and open or close windows. `now`: monotonic seconds."""
        if now - self._looked_at >= LOOK_SECONDS:
            self._tracer.look()
            self._looked_at = now
        counted, ended = self._close_windows(now)
        events = self._tracer.events()
        last, self._read_at = self._read_at, time.monotonic()
        seconds, on = max(1e-6, self._read_at - last), self._counted_for(last, ended)
        self._hand_out(self._scale(counted, on, seconds), events, now, seconds)
        self._govern(counted, on, now)
        self._open_windows(ended, now)
        if now - self._round_at >= SLOW_ROUND_SECONDS:
            self._slow_round(now - self._round_at)
            if now - self._calibrated_at >= CALIBRATION_SECONDS:
                self._tracer.recalibrate()
                self._take_costs()
                self._calibrated_at = now
            self._round_at = now
        if self._config.export and now - self._exported_at >= self._config.export.interval:
            self._export()
            self._exported_at = now

    def close(self) -> None:
        """Send and write what is left."""
        self._beside.keep(time.time())
        self._beside.close()
        if self._exporter:
            self._export()
            self._exporter.close()
        if self._recorder:
            self._recorder.close()

    def _close_windows(self, now: float) -> tuple[list[Counted], dict[str, float]]:
        """What was counted since the last look, and when each group that is to be counted no more was read last.

        Attaching and detaching take the kernel a while in which some calls are counted and some are not: windows are
        timed without it, and what a group counts meanwhile is left out.
        """
        closing = [group for group in GROUPS if self._open[group] and not self._window.is_open(group, now)]
        counted, self._meanwhile = [*self._meanwhile, *self._tracer.read()], []
        ended = dict.fromkeys(closing, time.monotonic())
        if closing:
            counted += self._switch(closing, False)
        return counted, ended

    def _open_windows(self, ended: Mapping[str, float], now: float) -> None:
        before = {group for group in GROUPS if self._open[group] and group not in ended}
        self._open = {group: self._window.is_open(group, now) for group in GROUPS}
        opening = [group for group in GROUPS if self._open[group] and group not in before]
        if opening:
            self._meanwhile = self._switch(opening, True)
            self._opened_at |= dict.fromkeys(opening, time.monotonic())

    def _switch(self, groups: Collection[str], on: bool) -> list[Counted]:
        """Count these groups, or stop; what all others counted meanwhile."""
        for group in groups:
            self._tracer.switch(group, on)
        return [one for one in self._tracer.read() if one.function.group not in groups]

    def _counted_for(self, last: float, ended: Mapping[str, float]) -> dict[str, float]:
        """Seconds since the last look for which each group was counted."""
        return {
            group: max(0.0, ended.get(group, self._read_at) - max(last, self._opened_at[group]))
            if self._open[group]
            else 0.0
            for group in GROUPS
        }

    def _hand_out(self, rows: list[Counted], events: list[Event], now: float, seconds: float) -> None:
        collectives = [event for event in events if isinstance(event, Collective)]
        self._seen_events += len(events)
        with suppress(sqlite3.OperationalError):
            if self._tracer.blind:
                self._counting = False
            else:
                read_at = time.time() - (time.monotonic() - self._read_at)
                if not self._counting:
                    self._store.begin(read_at - seconds)
                    self._counting = True
                self._store.add(rows, read_at, self._new_names(), events)
        if self._recorder:
            self._record(collectives)
        if self._exporter:
            self._exporter.keep(collectives)
        with self.ledger.lock:
            self.ledger.add(rows, events)
        self._beside.add(rows, now)

    def _new_names(self) -> dict[int, str]:
        """Names of processes that were not there at the look before."""
        fresh = {pid: command_of(pid) for pid in self._tracer.found if pid not in self._named}
        self._named = set(self._tracer.found)
        return fresh

    def _scale(self, counted: list[Counted], on: dict[str, float], seconds: float) -> list[Counted]:
        if not self._state.step:
            return counted
        by_group: dict[str, list[Counted]] = defaultdict(list)
        for one in counted:
            by_group[one.function.group].append(one)
        always: dict[int, int] = defaultdict(int)
        for one in by_group[CORE]:
            always[one.pid] += one.count
        alive, rows = set(self._tracer.found), []
        for group in GROUPS:
            if governor.duty(self._state.step, group) == 1.0:
                rows += by_group[group]
            else:
                rows += self._scalers[group].step(by_group[group], on[group], seconds - on[group], alive, always)
        return rows

    def _govern(self, counted: list[Counted], on: dict[str, float], now: float) -> None:
        self._rates.update(counted, on, self._tracer.found, self._tracer.stepped)
        full = self._rates.dearest(self._tracer.costs)
        full[SCHEDULER] = self._tracer.scheduler.share
        before, self._state = self._state, governor.advance(self._state, full, now, self._governor)
        if before.step != self._state.step:
            self._window = Window(self._state.step, now)
            for scaler in self._scalers.values():
                scaler.restart()
            duties = {group: governor.duty(self._state.step, group) for group in GROUPS}
            log.info("budget", step=self._state.step, cost_always_on=round(sum(full.values()), 5), **duties)
        figures = self.ledger.figures
        figures.overhead, figures.step = governor.cost_at(self._state.step, full), self._state.step
        figures.duty = {group: governor.duty(self._state.step, group) for group in GROUPS}
        figures.lost, figures.libraries = self._tracer.lost(), self._tracer.libraries
        figures.period_seconds, figures.sample_every = self.period, self._mask + 1
        figures.replaced, figures.unattached = self._tracer.replaced, self._tracer.unattached
        figures.left_alone, figures.modes = self._tracer.left_alone, self._modes()
        figures.blind, figures.refused = self._tracer.blind, self._tracer.refused

    def _modes(self) -> dict[str, str]:
        """What works how, one word for each capability; docs/trace.md lists them."""
        tracer, scheduler = self._tracer, self._tracer.scheduler
        unwatched = "refused" if scheduler.why_not else "left_alone"
        return {
            "probes": tracer.mode,
            "returns": BLIND if tracer.mode == BLIND else "entry_only" if tracer.no_returns else "timed",
            "scheduler": "watched" if scheduler.on else unwatched,
            "gpus": self._beside.gpu_mode,
            "counts": BLIND if tracer.mode == BLIND else "incomplete" if self.ledger.figures.lost else "complete",
            "libraries": BLIND if tracer.blind else "some" if tracer.refused else "all",
            "processes": "selected" if self._config.selection else "all",
        }

    def _take_costs(self) -> None:
        self.ledger.figures.costs = nanoseconds(self._tracer.costs)

    def _record(self, collectives: list[Collective]) -> None:
        assert self._recorder
        for pid in self._tracer.found:
            if pid not in self._timeline.ranks:
                rank = rank_of(pid)
                if rank is not None:
                    self._timeline.ranks[pid] = rank
        self._recorder.write(self._timeline.rows(collectives))

    def _slow_round(self, seconds: float) -> None:
        figures = self.ledger.figures
        figures.own_cpu, figures.own_rss = self._own.share(), own_rss()
        self._level = governor.reader_level(self._level, figures.own_cpu, self._config.own_budget)
        if not self._recorder:
            mask = sample_mask(self._mask, self._seen_events / seconds)
            if mask != self._mask:
                self._mask = mask
                self._tracer.sample(mask)
        self._seen_events = 0
        self._tracer.scheduler.judge(time.monotonic())
        figures.scheduler = self._tracer.scheduler.on
        figures.scheduler_share, figures.switch_ns = self._tracer.scheduler.share, self._tracer.scheduler.switch_ns
        self._beside.keep(time.time())
        self._timeline.forget(set(self._tracer.found))
        self._named.clear()
        with self.ledger.lock:
            self.ledger.nccl_processes = nccl_processes(dict(self._tracer.found))
            figures.database_bytes, figures.pruned_rows = self._store.size, self._store.pruned_rows
        with suppress(OSError, sqlite3.OperationalError):
            self._latest = self._host.snapshot()
            self._store.snapshot(self._latest, time.time())
            places = {pid: container_of(pid) for pid in self._tracer.found}
            self._store.containers({pid: one for pid, one in places.items() if one}, time.time())

    def _export(self) -> None:
        if self._exporter:
            self.ledger.figures.unexported = self._exporter.given_up
            self._exporter.send(self.ledger, self._latest, time.time_ns(), self._started_ns)


def open_outlets(config: TraceConfig) -> Outlets | None:
    """The sockets that are wanted. Raises `OSError`."""
    events = EventSocket(*config.events) if config.events else None
    annotations = AnnotationSocket(*config.annotations) if config.annotations else None
    if not events and not annotations:
        return None
    outlets = Outlets(events, annotations)
    for one in (events, annotations):
        if one:
            log.info("socket", path=str(one.path))
    return outlets


def find_tracer(config: TraceConfig) -> Counter:
    """The tracer; where no program can be loaded but something else is wanted of the agent, one that is blind.

    Raises `CannotTrace` where nothing else is.
    """
    try:
        return Tracer(config.attach, config.returns, config.selection)
    except CannotTrace as error:
        if not (config.listen or config.export or config.events or config.annotations):
            raise
        log.error("cannot_trace", reason=str(error), again_in_seconds=RETRY_SECONDS)
        return Blind(str(error))


def run(config: TraceConfig, ended: Callable[[float], bool]) -> None:
    """Trace until `ended` (which waits the seconds that it is given) says so; while blind, try again now and then.

    Raises `CannotTrace`, and `OSError` for what cannot be opened.
    """
    while not _run_once(config, find_tracer(config), ended):
        pass


def _run_once(config: TraceConfig, tracer: Counter, ended: Callable[[float], bool]) -> bool:
    """Run with this tracer; whether it is over, and not only time to look for another."""
    with ExitStack() as stack:
        stack.callback(tracer.close)
        store = Store(config.database, config.retention)
        stack.callback(store.close)
        outlets = open_outlets(config)
        if outlets:
            stack.callback(outlets.close)
        recorder = open_recorder(config.record) if config.record else None
        service = TraceService(config, tracer, store, recorder, outlets)
        if config.listen:
            server = make_server(config.listen, service.ledger)
            stack.callback(server.stop)
            server.start()
            log.info("listening", address=f"{server.server_address[0]!s}:{server.port}")
        log.info("started", database=str(config.database), mode=tracer.mode, **nanoseconds(tracer.costs))
        tracer.look()
        begun, over = time.monotonic(), False
        while not over and (tracer.mode != BLIND or time.monotonic() - begun < RETRY_SECONDS):
            over = ended(service.wait_seconds(time.monotonic()))
            service.tick(time.monotonic())
        service.close()
        if tracer.lost():
            log.warning("lost", reasons=tracer.lost())
    return over
