"""One tick of `fleet-push`: a poll becomes a phase, a baseline, a score, a classification and a push."""

import asyncio
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ingero_agent.baseline_file import load_baseline, save_baseline
from ingero_agent.devices import BackgroundDevices, GpuReading, ReadGpus
from ingero_agent.event_socket import EventSocket
from ingero_agent.health import classification, early_push, phase, score
from ingero_agent.health.baseline import Baseline
from ingero_agent.health.classification import DecisionRule
from ingero_agent.health.phase import Phase, PhaseState
from ingero_agent.health.signals import SignalReading, sanitise
from ingero_agent.health.throttle import Throttling
from ingero_agent.push import FleetClient
from ingero_agent.settings import AgentSettings
from ingero_agent.slurm import SlurmJob, find_slurm_job, with_slurm_job
from ingero_agent.sources import ReadFailed, SignalSource
from ingero_agent.sources.poll_buffer import PollBuffer
from ingero_agent.throttle_metrics import encode_throttling
from ingero_contract.events import Event, StragglerResolvedEvent, StragglerStateEvent
from ingero_contract.signals import RATIOS
from ingero_contract.values import DecisionSource, DetectionMode, NodeState
from ingero_kit.clock import Clock, Every, rfc3339
from ingero_kit.health_report import HealthReport
from ingero_kit.logs import get
from ingero_kit.otlp_encode import encode_event, encode_report
from ingero_kit.write_watch import WriteWatch

if TYPE_CHECKING:
    from ingero_agent.causal_chains import CausalChains

log = get(__name__)

POLLS_PER_INTERVAL: Final = 10
"""Early polls in a push interval."""

MIN_EARLY_POLL_INTERVAL: Final = 1.0
"""Push interval below which there are no early polls, seconds."""

NVML_SECONDS: Final = 2.0
"""How long a tick waits for the GPU driver."""

WIRE_STATES: Final = {
    Phase.CALIBRATING: NodeState.CALIBRATING,
    Phase.ACTIVE: NodeState.ACTIVE,
    Phase.IDLE: NodeState.IDLE,
}


@dataclass
class LoopCounters:
    """Counters of the loop since the start."""

    ticks: int = 0
    failed_polls: int = 0
    saved: int = 0
    out_of_range: int = 0
    early: int = 0


@dataclass(frozen=True)
class LatestPoll:
    """The latest poll that succeeded."""

    observation: SignalReading
    score: score.Score
    gpus: GpuReading


class PushLoop:
    """Runs ticks until it is stopped.

    `latest` is absent before the first poll and while the source cannot be read; `ticked_at` is in seconds. Public
    attributes are replaced, never changed, so that other threads can read them.
    """

    def __init__(
        self,
        config: AgentSettings,
        source: SignalSource,
        gpus: ReadGpus,
        client: FleetClient,
        socket: EventSocket | None,
        clock: Clock,
        *,
        provider: str = "",
        cgroup_hash: str = "",
    ) -> None:
        self.counters = LoopCounters()
        self.straggler = False
        self.throttling = Throttling()
        self._config = config
        self._source = source
        self._polls = PollBuffer()
        self._early_push = early_push.EarlyPush()
        self._devices = BackgroundDevices(gpus, NVML_SECONDS)
        self._client = client
        self._socket = socket
        self._clock = clock
        self.identity = HealthReport(
            node_id=config.fleet_node_id, cluster_id=config.fleet_cluster_id, job_id=config.fleet_job_id,
            stage=config.fleet_stage, workload_type=config.fleet_workload_type, cgroup_path_hash=cgroup_hash,
            world_size=config.fleet_world_size, rank=config.fleet_node_rank if config.fleet_world_size else None,
            provider=provider, instance_id=str(uuid.uuid4()),
        )  # fmt: skip
        self.after_decision: Callable[[], None] | None = None
        """Called when the state of the node has been decided anew."""
        self._slurm_job: SlurmJob | None = None
        self.chains: CausalChains | None = None
        if config.signal_db_path:
            from ingero_agent import causal_chains  # only where there is a database to search

            self.chains = causal_chains.CausalChains(config.signal_db_path, config.only_pid, self.identity, client)
        self.baseline = Baseline()
        self.phase = PhaseState(warmup=config.warmup_samples)
        self.rule = DecisionRule(DetectionMode.NONE, DecisionSource.NONE)
        self.latest: LatestPoll | None = None
        self.ticked_at = clock()
        self._saving = WriteWatch("baseline", config.fleet_persist_path)
        self._save_due = Every(config.fleet_persist_interval, self.ticked_at + config.fleet_persist_interval)
        self._restore()

    def _restore(self) -> None:
        config = self._config
        loaded, outcome = load_baseline(config.fleet_persist_path, self._clock(), config.fleet_persist_stale_age)
        if loaded is not None:
            self.baseline, self.phase = loaded, PhaseState.restored(config.warmup_samples)
        log.info("baseline", outcome=outcome, samples=self.baseline.samples)

    async def run(self, ended: asyncio.Event) -> None:
        """Tick until `ended` is set, then save the baseline."""
        threshold_task = asyncio.create_task(self._follow_threshold_api(ended))
        try:
            while not ended.is_set():
                await self.tick()
                pause = self._config.fleet_push_interval * random.uniform(0.9, 1.1) + self._client.retry_after
                await self._between(ended, pause)
        finally:
            threshold_task.cancel()
            if self.straggler:
                self._publish(self._resolved(self._clock(), str(uuid.uuid4())))
            self._save(self._clock())
            if self.chains:
                await self.chains.close()

    async def _between(self, ended: asyncio.Event, pause: float) -> None:
        """Wait for the next tick, with early polls in between unless Fleet asked to wait."""
        interval, due = self._config.fleet_push_interval, time.monotonic() + pause
        if interval < MIN_EARLY_POLL_INTERVAL or self._client.retry_after:
            await _wait(ended, pause)
        while not ended.is_set() and (left := due - time.monotonic()) > 0:
            await _wait(ended, min(left, interval / POLLS_PER_INTERVAL))
            if time.monotonic() < due and not ended.is_set():
                await self.early_poll()

    async def early_poll(self) -> None:
        """Poll between two ticks, and push now if the throughput of the last interval fell far.

        Phase and baseline count ticks only, so early polls do not change them.
        """
        now, interval, before = self._clock(), self._config.fleet_push_interval, self.latest
        try:
            self._polls.read(self._source, now)
        except ReadFailed:
            return
        seen, normal = self._polls.recent(now, interval), self.baseline.normal()
        known = self.phase.phase is Phase.ACTIVE and self.baseline.samples >= self.phase.warmup
        if seen is None or normal is None or before is None or not known:
            return
        self._early_push, push = early_push.advance(
            self._early_push, seen.rate, normal.throughput, now, interval, named=self.straggler
        )
        if push:
            self.counters.early += 1
            await self._judge(now, self._with_gpus(seen, before.gpus), before.gpus, push=True)

    async def _follow_threshold_api(self, ended: asyncio.Event) -> None:
        asked_away = 0.0
        while not ended.is_set():
            await _wait(ended, self._config.fleet_poll_interval * random.uniform(0.8, 1.2) + asked_away)
            asked_away = 0.0
            response, now = self._client.response, self._clock()
            if response.threshold is None or now - response.threshold_at > classification.fresh_seconds(
                self._config.fleet_push_interval
            ):
                asked_away = await self._client.ask(now)

    async def tick(self) -> None:
        """One poll and what follows from it."""
        self.counters.ticks += 1
        now = self.ticked_at = self._clock()
        try:
            self._polls.read(self._source, now)
        except ReadFailed as error:
            self.counters.failed_polls += 1
            if self.phase.failures == 0:
                log.warning("poll_failed", reason=str(error))
            self.phase = phase.fail(self.phase)
            if self.phase.phase is Phase.STALE:
                self.latest = None
                await self._decide(now, None, score.compute(_NOTHING, None), active=False)
            return
        seen = self._polls.drain()
        if seen is None:
            return
        if self._config.detect_slurm and not self._config.fleet_job_id:
            self._follow_slurm()
        gpus = await self._devices.read()
        was_throttled, self.throttling = self.throttling.active, self.throttling.advance(gpus.throttle)
        observation = self._with_gpus(seen, gpus)
        step = phase.advance(self.phase, observation.launches)
        self.phase = step.state
        if step.reset:
            self.baseline = Baseline()
        await self._judge(now, observation, gpus, push=step.push)
        if was_throttled or self.throttling.active:
            await self._client.send_event(encode_throttling(self.throttling, self.identity, int(now * 1e9)))
        suspect = self._early_push.suspect(now, self._config.fleet_push_interval)
        if not self.straggler and not suspect and self.phase.phase is not Phase.IDLE:
            self.baseline = self.baseline.advance(observation)
        if self._save_due.due(now):
            self._save(now)

    def _follow_slurm(self) -> None:
        """Take over the identity of the Slurm job. A node without processes of a job keeps the last job, so that one
        that ends before the others stays in their cohort; another job is learnt from the beginning."""
        job, before = find_slurm_job(self._source.pids()), self._slurm_job
        if job is None or job == before:
            return
        self._slurm_job = job
        self.identity = with_slurm_job(
            self.identity, job, self._config.fleet_world_size, self._config.fleet_node_rank
        )
        if self.chains:
            self.chains.node = self.identity
        log.info("slurm job", job=job.job_id, nodes=job.nodes, rank=job.node_rank)
        if before is not None and before.job_id != job.job_id:
            self.baseline, self.phase = Baseline(), PhaseState(warmup=self._config.warmup_samples)

    def _with_gpus(self, observation: SignalReading, gpus: GpuReading) -> SignalReading:
        """The observation with the GPUs' memory, every number in its range."""
        if gpus.memory_headroom is not None:
            observation = replace(observation, memory=gpus.memory_headroom)
        observation, wrong = sanitise(observation)
        self.counters.out_of_range += len(wrong)
        return observation

    async def _judge(self, now: float, observation: SignalReading, gpus: GpuReading, *, push: bool) -> None:
        """Score an observation, push it, and classify the node."""
        current = score.compute(observation, self.baseline.normal())
        self.latest = LatestPoll(observation, current, gpus)
        report = self._report(self.latest, now) if push else None
        await self._decide(now, report, current, self.phase.phase is Phase.ACTIVE)

    async def _decide(self, now: float, report: HealthReport | None, current: score.Score, active: bool) -> None:
        """Push first, so that the answer to this push decides this tick."""
        if report is not None:
            await self._client.push(encode_report(report), now)
        was = self._classify(now, current, active)
        if self.after_decision:
            self.after_decision()
        if was or self.straggler:
            await self._announce(now, current)

    def _classify(self, now: float, current: score.Score, active: bool) -> bool:
        """Decide whether the node is a straggler, and return whether it was."""
        rule = classification.choose_rule(
            self._client.response, now, self._config.fleet_push_interval, self.baseline.samples >= self.phase.warmup
        )
        if rule.mode is not self.rule.mode:
            log.info("detection mode transition", old=str(self.rule.mode), new=str(rule.mode))
        self.rule = rule
        was, hysteresis = self.straggler, self._config.fleet_classifier_hysteresis
        self.straggler = classification.is_straggler(was, rule, current.value, active, hysteresis)
        if self.chains:
            self.chains.follow(self.straggler or bool(rule.verdict and rule.verdict.collectives), now)
        if was != self.straggler:
            log.info(
                "straggler_state transition", straggler=self.straggler, score=round(current.value, 4),
                threshold=rule.threshold, mode=str(rule.mode), source=str(rule.source), signal=str(current.dominant),
                throttled=",".join(sorted(self.throttling.active)),
            )  # fmt: skip
        return was

    async def _announce(self, now: float, current: score.Score) -> None:
        rule, node, event_id = self.rule, self.identity, str(uuid.uuid4())
        event = StragglerStateEvent(
            node_id=node.node_id, cluster_id=node.cluster_id, rank=node.rank, world_size=node.world_size or None,
            threshold=rule.threshold if rule.threshold is not None else classification.LOCAL_THRESHOLD,
            score=round(current.value, 6), detection_mode=str(rule.mode), dominant_signal=str(current.dominant),
            timestamp=rfc3339(now), event_id=event_id,
        )  # fmt: skip
        self._publish(event if self.straggler else self._resolved(now, event_id))
        await self._client.send_event(encode_event(event, straggler=self.straggler, time_unix_nano=int(now * 1e9)))

    def _report(self, latest: LatestPoll, now: float) -> HealthReport:
        response, observation = self._client.response, latest.observation
        return replace(
            self.identity, state=WIRE_STATES[self.phase.phase], score=latest.score.value,
            throughput=latest.score.ratios.throughput, rate=observation.rate, degraded=self.baseline.degraded(),
            detection_mode=str(self.rule.mode), decision_source=str(self.rule.source),
            fleet_reachable=response.reachable, last_verdict=response.verdict.format() if response.verdict else "",
            gpu_model=latest.gpus.model, gpu_count=latest.gpus.count, time_unix_nano=int(now * 1e9),
            **{name: getattr(observation, name) for name in RATIOS},
        )  # fmt: skip

    def _resolved(self, now: float, event_id: str) -> StragglerResolvedEvent:
        node = self.identity
        return StragglerResolvedEvent(
            node_id=node.node_id, cluster_id=node.cluster_id, rank=node.rank, world_size=node.world_size or None,
            timestamp=rfc3339(now), event_id=event_id,
        )  # fmt: skip

    def _publish(self, event: Event) -> None:
        if self._socket:
            self._socket.publish(event)

    def _save(self, now: float) -> None:
        if self.baseline.samples < self.phase.warmup:
            return
        try:
            save_baseline(self._config.fleet_persist_path, self.baseline, now)
        except OSError as error:
            self._saving.failed(error)
        else:
            self.counters.saved += 1
            self._saving.succeeded()


_NOTHING: Final = SignalReading(rate=0.0, compute=0.0, memory=0.0, cpu=0.0)


async def _wait(ended: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(ended.wait(), seconds)
    except TimeoutError:
        return
