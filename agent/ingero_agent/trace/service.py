"""One tick of the tracer: read the counts, pass them to every consumer, and keep the cost within the budget."""

import sqlite3
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from ingero_agent.sources.procfs import HostLoad
from ingero_agent.trace import governor
from ingero_agent.trace.aux_collectors import AuxCollectors
from ingero_agent.trace.calibrate import nanoseconds
from ingero_agent.trace.call_rates import CallRates
from ingero_agent.trace.capabilities import evaluate
from ingero_agent.trace.check import machine_facts
from ingero_agent.trace.containers import rank_of
from ingero_agent.trace.counts import CallCount, Scaler
from ingero_agent.trace.events import Collective, Event, sample_mask
from ingero_agent.trace.export import TraceExporter
from ingero_agent.trace.governor import CORE, GROUPS, SCHEDULER, DutyCycle, GovernorState
from ingero_agent.trace.gpus import GpuPoller
from ingero_agent.trace.host import (
    OwnCpu,
    command_of,
    environment_of,
    host_snapshot,
    nccl_processes,
    own_rss,
)
from ingero_agent.trace.places import ProcessPlaces
from ingero_agent.trace.problems import TerminationLog, find_problems
from ingero_agent.trace.recorder import TimelineRecorder
from ingero_agent.trace.settings import TraceSettings
from ingero_agent.trace.sockets import Sockets
from ingero_agent.trace.stack_sampler import StackSampler
from ingero_agent.trace.stats import HostSnapshot, TracerStatus, TraceStats
from ingero_agent.trace.store import TraceStore
from ingero_agent.trace.timeline import CollectiveTimeline
from ingero_agent.trace.tracer_base import NOOP_MODE, Tracer
from ingero_kit.clock import Every
from ingero_kit.logs import get

log = get(__name__)

SLOW_ROUND_SECONDS: Final = 10.0
"""How often the host is sampled and the agent's own load is checked."""

CALIBRATION_SECONDS: Final = 600.0
"""How often the cost of a probe is measured again: other processes on the machine can double it for a time."""

SCAN_SECONDS: Final = 0.5
"""Time between two searches for processes; counts may be read more often."""

MIN_WAIT_SECONDS: Final = 0.02


class TraceService:
    """Runs one tracer and its consumers. `tick` is one poll."""

    def __init__(
        self, settings: TraceSettings, tracer: Tracer, store: TraceStore, recorder: TimelineRecorder | None = None,
        sockets: Sockets | None = None, exporter: TraceExporter | None = None,
    ) -> None:  # fmt: skip
        self.stats = TraceStats(TracerStatus(tracer, settings.budget))
        poller = GpuPoller(settings.gpu_interval) if settings.gpu_interval else None
        self._aux = AuxCollectors(self.stats, store, poller, sockets, tracer.pushed_off)
        self._settings, self._tracer, self._store, self._recorder = settings, tracer, store, recorder
        self._state, self._window = GovernorState(), DutyCycle()
        self._scalers = {group: Scaler() for group in GROUPS}
        self._open, self._opened_at = dict.fromkeys(GROUPS, True), dict.fromkeys(GROUPS, 0.0)
        self._meanwhile: list[CallCount] = []
        self._rates = CallRates()
        self._exporter = exporter
        self._sampler = StackSampler() if exporter and settings.stacks else None
        self._host, self._own, self._timeline = HostLoad(), OwnCpu(), CollectiveTimeline()
        self._latest: HostSnapshot | None = None
        self._started_ns = time.time_ns()
        self._read_at = self._round_at = now = time.monotonic()
        self._scan_due = Every(SCAN_SECONDS)
        self._export_due = Every(settings.otlp_interval, now + settings.otlp_interval)
        self._calibration_due = Every(CALIBRATION_SECONDS, now + CALIBRATION_SECONDS)
        self._level, self._mask, self._seen_events = 0, 0, 0
        self._named: set[int] = set()
        self._places = ProcessPlaces(detect_slurm=settings.detect_slurm and not settings.job_id)
        self._counting = False
        self._termination_log = TerminationLog(settings.termination_log)
        tracer.scheduler.budget = settings.budget
        self.stats.status.costs = nanoseconds(tracer.costs)

    @property
    def period(self) -> float:
        """Seconds between polls, longer when the agent itself works too much."""
        return self._settings.period * governor.PERIODS[self._level]

    def wait_seconds(self, now: float) -> float:
        """Seconds until the next poll: a period, or sooner when a window opens or closes."""
        return max(MIN_WAIT_SECONDS, min(self.period, self._window.next_change(now)))

    def tick(self, now: float) -> None:
        """Read the counts, pass them on, and open or close windows. `now`: monotonic seconds."""
        if self._scan_due.due(now):
            self._tracer.scan()
            self._places.note(self._tracer.found)
        counted, ended = self._close_windows(now)
        events = self._tracer.read_events()
        last, self._read_at = self._read_at, time.monotonic()
        seconds, on = max(1e-6, self._read_at - last), self._counted_for(last, ended)
        self._hand_out(self._scale(counted, on, seconds), events, now, seconds)
        self._govern(counted, on, now)
        self._open_windows(ended, now)
        if now - self._round_at >= SLOW_ROUND_SECONDS:
            self._slow_round(now - self._round_at)
            if self._calibration_due.due(now):
                self._tracer.recalibrate()
                self.stats.status.costs = nanoseconds(self._tracer.costs)
            self.report_problems()
            self._round_at = now
        if self._exporter and self._export_due.due(now):
            self._export()

    def report_problems(self) -> None:
        """Find out why the node is not traced, or only in part, and keep it where an operator can read it."""
        facts = replace(machine_facts(), load_error=self._tracer.blocked_reason, gpu_error=self._aux.gpu_error)
        with self.stats.lock:
            problems = find_problems(evaluate(facts), self.stats.gpus.now, self._tracer.found)
            self.stats.status.problems = {str(reason): text for reason, text in problems.items()}
        self._termination_log.write(problems)

    def close(self) -> None:
        """Send and write the remaining data."""
        self._aux.save_gpus(time.time())
        self._aux.close()
        if self._sampler:
            self._sampler.close()
        if self._exporter:
            self._exporter.settle()
            self._export()
            self._exporter.close()
        if self._recorder:
            self._recorder.close()

    def _close_windows(self, now: float) -> tuple[list[CallCount], dict[str, float]]:
        """Return the counts since the last poll, and when each group whose window closes was read last.

        While the kernel attaches and detaches, only some calls are counted. So that time belongs to no window, and
        what a group counts meanwhile is left out.
        """
        closing = [group for group in GROUPS if self._open[group] and not self._window.is_open(group, now)]
        counted, self._meanwhile = [*self._meanwhile, *self._tracer.read_counts()], []
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

    def _switch(self, groups: Collection[str], on: bool) -> list[CallCount]:
        """Count these groups, or stop; return what the other groups counted meanwhile."""
        for group in groups:
            self._tracer.switch(group, on)
        return [one for one in self._tracer.read_counts() if one.function.group not in groups]

    def _counted_for(self, last: float, ended: Mapping[str, float]) -> dict[str, float]:
        """Seconds since the last poll for which each group was counted."""
        return {
            group: max(0.0, ended.get(group, self._read_at) - max(last, self._opened_at[group]))
            if self._open[group]
            else 0.0
            for group in GROUPS
        }

    def _hand_out(self, rows: list[CallCount], events: list[Event], now: float, seconds: float) -> None:
        collectives = [event for event in events if isinstance(event, Collective)]
        self._seen_events += len(events)
        with suppress(sqlite3.OperationalError):
            if self._tracer.blocked_reason:
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
            self._exporter.keep((self._places.place_of(one.pid), one) for one in collectives)
        if self._sampler and self._exporter:
            self._sample(self._sampler, self._exporter, collectives, now)
        with self.stats.lock:
            self.stats.add(rows, events)
        self._aux.add(rows, now)

    def _sample(
        self, sampler: StackSampler, exporter: TraceExporter, collectives: list[Collective], now: float
    ) -> None:
        """Sample call stacks while Fleet names this node for a late rank, and store them."""
        stacks = sampler.follow(collectives, exporter.verdict, now)
        if stacks:
            with suppress(sqlite3.OperationalError):
                self._store.stacks(stacks)
        self.stats.status.samplings = dict(sampler.outcomes)

    def _new_names(self) -> dict[int, str]:
        """Names of processes that were not there at the last poll."""
        fresh = {pid: command_of(pid) for pid in self._tracer.found if pid not in self._named}
        self._named = set(self._tracer.found)
        return fresh

    def _scale(self, counted: list[CallCount], on: dict[str, float], seconds: float) -> list[CallCount]:
        if not self._state.step:
            return counted
        by_group: dict[str, list[CallCount]] = defaultdict(list)
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

    def _govern(self, counted: list[CallCount], on: dict[str, float], now: float) -> None:
        self._rates.update(counted, on, self._tracer.found, self._tracer.single_stepped)
        full = self._rates.most_expensive(self._tracer.costs)
        full[SCHEDULER] = self._tracer.scheduler.share
        before, self._state = self._state, governor.advance(self._state, full, now, self._settings.budget)
        if before.step != self._state.step:
            self._window = DutyCycle(self._state.step, now)
            for scaler in self._scalers.values():
                scaler.restart()
            duties = {group: governor.duty(self._state.step, group) for group in GROUPS}
            log.info("budget", step=self._state.step, cost_always_on=round(sum(full.values()), 5), **duties)
        status = self.stats.status
        status.overhead, status.step = governor.cost_at(self._state.step, full), self._state.step
        status.duty = {group: governor.duty(self._state.step, group) for group in GROUPS}
        status.lost, status.modes = self._tracer.lost(), self._modes()
        status.period_seconds, status.sample_every = self.period, self._mask + 1

    def _modes(self) -> dict[str, str]:
        """The mode of each capability; docs/trace.md lists them."""
        tracer, scheduler = self._tracer, self._tracer.scheduler
        unwatched = "refused" if scheduler.why_not else "suspended"
        counts, returns = NOOP_MODE, NOOP_MODE
        if tracer.mode != NOOP_MODE:
            counts = "incomplete" if self.stats.status.lost else "complete"
            returns = "entry_only" if tracer.no_returns else "timed"
        return {
            "probes": tracer.mode,
            "programs": tracer.programs,
            "returns": returns,
            "scheduler": "watched" if scheduler.on else unwatched,
            "gpus": self._aux.gpu_mode,
            "counts": counts,
            "libraries": NOOP_MODE if tracer.blocked_reason else "some" if tracer.hidden_processes else "all",
            "processes": "selected" if self._settings.only_command or self._settings.exclude_command else "all",
        }

    def _record(self, collectives: list[Collective]) -> None:
        assert self._recorder
        for pid in self._tracer.found:
            if pid not in self._timeline.ranks:
                rank = rank_of(environment_of(pid))
                if rank is not None:
                    self._timeline.ranks[pid] = rank
        self._recorder.write(self._timeline.rows(collectives))

    def _slow_round(self, seconds: float) -> None:
        status = self.stats.status
        status.own_cpu, status.own_rss = self._own.share(), own_rss()
        load = status.own_cpu / self._settings.own_budget
        mask = self._mask if self._recorder else sample_mask(self._mask, self._seen_events / seconds, load)
        if mask != self._mask:
            self._mask = mask
            self._tracer.sample(mask)
        else:
            self._level = governor.reader_level(self._level, status.own_cpu, self._settings.own_budget)
        self._seen_events = 0
        self._tracer.scheduler.adjust(time.monotonic())
        self._aux.save_gpus(time.time())
        self._timeline.forget(set(self._tracer.found))
        if self._exporter:
            self._exporter.forget(self._tracer.found)
        self._named.clear()
        with self.stats.lock:
            self.stats.nccl_processes = nccl_processes(dict(self._tracer.found))
            status.database_bytes, status.pruned_rows = self._store.size, self._store.pruned_rows
        containers, jobs = self._places.refresh(self._tracer.found)
        with suppress(OSError, sqlite3.OperationalError):
            self._latest = host_snapshot(self._host)
            self._store.snapshot(self._latest, time.time())
            self._store.places(containers, jobs, time.time())

    def _export(self) -> None:
        if self._exporter:
            self.stats.status.unexported = self._exporter.given_up
            self._exporter.job = self._settings.job_id or self._places.job
            self._exporter.send(self.stats, self._latest, time.time_ns(), self._started_ns)
