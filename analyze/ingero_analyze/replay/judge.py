"""Runs a history through a rule: the detector that Fleet runs live, or the published one for comparison."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, Self

import numpy as np
import numpy.typing as npt

from ingero_analyze.replay.columns import is_level
from ingero_analyze.replay.companions import Companions
from ingero_analyze.replay.costs import HOUR, Presence, Presences
from ingero_analyze.replay.drains import drained
from ingero_analyze.replay.first_work import FirstWork
from ingero_analyze.replay.grace import Grace
from ingero_analyze.replay.job_mates import JobMates, lost_with_job
from ingero_analyze.replay.mirrored_gains import MirroredGains
from ingero_analyze.replay.other_jobs import OtherJobs
from ingero_analyze.replay.own_work import OwnWork
from ingero_analyze.replay.published_rule import PublishedRuleJudge
from ingero_analyze.replay.reading import DIFFERENT_WORK, LOCKSTEP, OTHER_WORK
from ingero_analyze.replay.recorded_history import NotInOrder, NotRegular, RecordedHistory, RecordedTick
from ingero_analyze.replay.routines import routines
from ingero_analyze.replay.shared_losses import SharedLosses
from ingero_analyze.replay.silences import Silence, Silences
from ingero_analyze.replay.slow_hosts import SlowHosts
from ingero_analyze.replay.slowdowns import Slowdowns
from ingero_analyze.replay.starts import Start, Starts
from ingero_analyze.replay.stops import ends_of_jobs, pauses
from ingero_analyze.replay.subjects import NOBODY
from ingero_contract.identifiers import NodeKey, node_key
from ingero_detect.column_store import ColumnStore
from ingero_detect.detector import Detector
from ingero_detect.episodes import Episode, Episodes, in_order
from ingero_detect.fingerprint import processor_text, state_hash
from ingero_detect.observation import Edge, JobSlow
from ingero_detect.parameters import Parameters
from ingero_detect.verdicts import Verdict
from ingero_fleet.recording import MAX_STATES_BYTES, STATES_SUFFIX


@dataclass
class RecordedStates:
    """State hash and processor by digest, and how many of them were compared and differ."""

    known: dict[str, tuple[str, str]] = field(default_factory=dict)
    compared: int = 0
    differ: int = 0
    recorded_with: str = ""

    @classmethod
    def read(cls, files: Iterable[str]) -> Self:
        """The states next to these files; lines that cannot be read are left out."""
        found = cls()
        for file in files:
            with suppress(OSError), Path(file + STATES_SUFFIX).open(encoding="utf-8", errors="replace") as stream:
                for line in stream.read(2 * MAX_STATES_BYTES).splitlines():
                    digest, _, rest = line.partition(",")
                    hashed, _, processor = rest.partition(",")
                    if hashed and processor:
                        found.known[digest] = hashed, processor
        return found

    def compare(self, digest: str, memory: ColumnStore) -> None:
        """Compare the state after a tick, if it was recorded."""
        if digest in self.known:
            recorded, processor = self.known[digest]
            self.compared += 1
            if recorded != state_hash(memory):
                self.differ += 1
                self.recorded_with = self.recorded_with or processor

    def summary(self) -> dict[str, Any] | None:
        """What was compared; `None` if nothing was recorded."""
        if not self.compared:
            return None
        return {
            "compared": self.compared, "differ": self.differ, "recorded_with": self.recorded_with or None,
            "replayed_with": processor_text(),
        }  # fmt: skip


MOST_FALSE: Final = 0.01
"""False accusations that are allowed for a whole history, unless a budget is given."""

LEAST_BUDGET: Final = 1e-9

RuleName = Literal["ingero", "mad"]
"""The detector, or the published rule."""


@dataclass
class Watch:
    """Data for a plot: for some ticks the speed of every node relative to the expected one."""

    most_cells: int = 4_000_000
    stride: int = 1
    times: list[float] = field(default_factory=list)
    speeds: list[npt.NDArray[np.float32]] = field(default_factory=list)

    def note(self, tick: int, now: float, speed: npt.NDArray[np.float32]) -> None:
        """Keep a tick; every second one is dropped when there are too many."""
        if tick % self.stride:
            return
        self.times.append(now)
        self.speeds.append(speed)
        if len(self.times) * max(1, len(speed)) > self.most_cells:
            self.times, self.speeds = self.times[::2], self.speeds[::2]
            self.stride *= 2


class DetectorJudge:
    """The detector that Fleet runs."""

    def __init__(self, parameters: Parameters, mergeable: tuple[int, ...], counts: bool = True) -> None:
        self.detector = Detector(parameters, mergeable, counts=counts)
        self.digest = ""
        self.states = RecordedStates()
        self.jobs: dict[tuple[str, ...], JobSlow] = {}

    @property
    def node_hours(self) -> float:
        """Node-hours judged."""
        return self.detector.node_hours

    def tick(self, moment: RecordedTick) -> list[Edge]:
        """Judge one tick."""
        outcome = self.detector.tick(moment.now, moment.seen)
        self.digest = outcome.digest
        self.states.compare(outcome.digest, self.detector.memory)
        for job in outcome.jobs:
            self.jobs.setdefault((*job.cohort, str(job.since)), job)
        return outcome.edges

    def open_verdicts(self, nodes: list[NodeKey]) -> Iterator[Verdict]:
        """The present verdicts of nodes that are accused."""
        for node in nodes:
            slot = self.detector.memory.slot(node)
            if slot is not None:
                yield self.detector.verdict(slot)

    def names(self) -> list[NodeKey]:
        """Nodes by slot."""
        return self.detector.memory.names

    def speeds(self) -> npt.NDArray[np.float32]:
        """Value over expectation."""
        memory = self.detector.memory
        with np.errstate(divide="ignore", over="ignore"):
            speed = memory.node("value") / np.exp(memory.node("expected"))
        found: npt.NDArray[np.float32] = np.where(memory.node("absent") > 0, np.nan, speed).astype(np.float32)
        return found

    def summary(self) -> dict[str, Any]:
        """Budget, estimates, parameters, digest, jobs that slowed down as a whole."""
        estimates = self.detector.estimates()
        rate = max(estimates["own_tail"], estimates["mirror"])
        return {
            "budget": self.detector.parameters.budget,
            "estimated_false_alarms": float(f"{rate * self.node_hours:.4g}"),
            "parameters": asdict(self.detector.parameters),
            "digest": self.digest,
            "state_hash": state_hash(self.detector.memory),
            "recorded_states": self.states.summary(),
            "small_cohorts": self._small_cohorts(),
            "job_slow": [
                {"cohort": "/".join(filter(None, job.cohort)), "since": job.since, "severity": round(job.severity, 4)}
                for job in self.jobs.values()
            ],
        }

    def _small_cohorts(self) -> dict[str, int]:
        """By cohort the number of its nodes, for cohorts whose nodes are too few to be compared at the end."""
        memory = self.detector.memory
        sizes = zip(memory.groups, memory.group("size").tolist(), strict=True)
        fewest = self.detector.parameters.min_peers
        return {"/".join(filter(None, key)): size for key, size in sizes if 0 < size < fewest}


Judge = DetectorJudge | PublishedRuleJudge


@dataclass
class Replay:
    """The result of a replay."""

    history: RecordedHistory
    judge: Judge
    episodes: list[Episode]
    ticks: int
    nodes: int
    last: float
    silences: Silences
    presences: Presences
    watch: Watch | None
    drained: list[Silence] = field(default_factory=list)
    """Nodes that were accused while their load fell to nothing, after which they were silent."""
    came_up: list[tuple[Episode, Start]] = field(default_factory=list)
    """Accusations of nodes that came up after they had done nothing, and were soon as fast as usual."""
    shared: list[Episode] = field(default_factory=list)
    """Accusations of losses that half of the peers have had as well, as deep and as long."""
    uneven: list[Episode] = field(default_factory=list)
    """Accusations of several nodes in one slowdown of their whole cohort, which were well when it had ended."""
    other_job: list[Episode] = field(default_factory=list)
    """Accusations of nodes that had been silent together, and came back together at other levels than before."""
    rollout: list[Episode] = field(default_factory=list)
    """Accusations of a change that most of the cohort made alike, one node after another."""
    routine: list[Episode] = field(default_factory=list)
    """Accusations of losses that half of the cohort has again and again, each node at its own time."""
    pause: list[Episode] = field(default_factory=list)
    """The only accusations of their nodes, of losses that ended by themselves within a few ticks."""
    job_end: list[Episode] = field(default_factory=list)
    """Accusations of nodes that stopped together, or one after another as most do, where no column tells jobs."""
    together: list[Episode] = field(default_factory=list)
    """Accusations of nodes that lost for a while what many others of their cohort did, where no column tells jobs."""
    slow_hosts: SlowHosts | None = None
    of_hosts: list[Episode] = field(default_factory=list)
    """The episodes that are of GPUs of slow hosts."""
    different_work: list[NodeKey] = field(default_factory=list)
    """Nodes that nobody can judge, because most of their cohort change what they do, each at its own time."""

    def lasted(self, episode: Episode) -> float:
        """Seconds that an episode lasted, until the last report of its node if it has not ended."""
        since = episode.first.since or 0.0
        end = episode.end if episode.ended else self._presence(episode).last_report
        return max(0.0, (since if end is None else end) - since)

    def fell_silent(self, episode: Episode) -> bool:
        """Whether the node of an episode that has not ended reports no longer."""
        node = episode.node
        return not episode.ended and self.silences.silent(node)

    def lost_node_hours(self, episode: Episode) -> float:
        """What an episode cost: the share that its node lost, times the hours in which it reported."""
        return episode.severity * self._presence(episode).reported / HOUR

    def _presence(self, episode: Episode) -> Presence:
        if self.slow_hosts and any(episode is one for one in self.of_hosts):
            return self.slow_hosts.presence(episode)
        return self.presences.of(episode)

    def summary(self) -> dict[str, Any]:
        """The summary as JSON, times in seconds."""
        reading = self.history.reading
        about = {
            "nodes": self.nodes,
            "ticks": self.ticks,
            "rows": reading.rows,
            "node_hours": round(self.judge.node_hours, 6),
            "episodes": len(self.episodes),
            "lost_node_hours": round(sum(map(self.lost_node_hours, self.episodes)), 6),
            **self.judge.summary(),
            "drifts": self._drifts(),
            "behind": self._behind(),
            "drained": [_silence(one) for one in self.drained],
            "came_up": [_excused(episode) | {"since": start.resumed} for episode, start in self.came_up],
            "shared": [_excused(episode) for episode in self.shared],
            "uneven": [_excused(episode) for episode in self.uneven],
            "other_job": [_excused(episode) for episode in self.other_job],
            "rollout": [_excused(episode) for episode in self.rollout],
            "routine": [_excused(episode) for episode in self.routine],
            "pause": [_excused(episode) for episode in self.pause],
            "job_end": [_excused(episode) for episode in self.job_end],
            "together": [_excused(episode) for episode in self.together],
            "different_work": [{"cluster": cluster, "node": node} for cluster, node in self.different_work],
            "stuck": [
                {"cluster": node[0], "node": node[1], "rows": run.rows, "since": run.since, "until": run.until}
                for node, run in self.history.stuck()
            ],
            "cohorts": len(self.history.subjects.cohorts),
            "columns": {"used": reading.used, "ignored": reading.ignored},
            "doubts": reading.doubts,
            "notes": reading.notes,
            "without_value": {"count": reading.missing, "first": reading.first_missing or None},
            "problems": reading.problems.answer(),
            "silent": {
                "at_end": [_silence(one) for one in self.silences.at_end()],
                "always": [{"cluster": cluster, "node": node} for cluster, node in self._never_reported()],
                "ended": {"count": self.silences.count, "first": [_silence(one) for one in self.silences.ended]},
            },
        }
        about["parameters"] = {**about["parameters"], "tick_seconds": self.history.tick_seconds}
        if reading.recorded and reading.problems.count:
            about["digest"], about["recorded_states"] = "", None
        return about

    def _accused(self) -> set[tuple[str, str]]:
        """Clusters and nodes with an episode."""
        return {(episode.first.cluster, episode.first.node) for episode in self.episodes}

    def _drifts(self) -> list[dict[str, Any]]:
        """Nodes that fell behind their peers too slowly to be accused."""
        accused = self._accused()
        return [
            {"cluster": node[0], "node": node[1], "severity": round(drift.lost, 4), "since": drift.since,
             "until": drift.until}
            for node, drift in self.history.drifts() if node not in accused
        ]  # fmt: skip

    def _behind(self) -> list[dict[str, Any]]:
        """Nodes that are behind in job after job and were accused in none."""
        accused = self._accused()
        return [
            {"cluster": node[0], "node": node[1], "severity": round(one.lost, 4), "jobs": one.jobs,
             "since": one.since}
            for node, one in self.history.behind() if node not in accused
        ]  # fmt: skip

    def _never_reported(self) -> list[NodeKey]:
        """Nodes all of whose rows lack a value."""
        return [node for node in self.history.subjects.nodes if node != NOBODY and not self.silences.knows(node)]


def _silence(one: Silence) -> dict[str, Any]:
    cluster, node = one.node
    return {
        "cluster": cluster, "node": node, "last_report": one.last_report, "since": one.since, "until": one.until,
    }  # fmt: skip


def _excused(episode: Episode) -> dict[str, Any]:
    first = episode.first
    return {"cluster": first.cluster, "node": first.node, "since": first.since, "until": episode.end}


def replay(
    history: RecordedHistory, rule: RuleName, parameters: Parameters, watch: Watch | None = None, live: bool = False,
    most_false: float | None = None,
) -> Replay:  # fmt: skip
    """Judge a whole history; the tick is the history's. `TableError` when nothing of it can be used.

    Unless the question is what a live Fleet does, histories of few ticks are judged again with shorter ones if rows
    are close enough, cohorts whose nodes turn out to be several groups with these, and histories with accusations of
    which the budget allows more than `most_false` with a smaller budget.
    """
    try:
        done = _replay(history, rule, parameters, watch, live)
    except (NotInOrder, NotRegular):
        watch = watch and Watch(watch.most_cells)
        done = _replay(history.sorted(), rule, parameters, watch, live)
    if live or rule != "ingero":
        return done
    if finer := done.history.with_shorter_ticks(done.ticks):
        done = _replay(finer.sorted(), rule, parameters, watch and Watch(watch.most_cells), live)
    again = done.history.with_groups()
    if most_false is not None and done.episodes and done.judge.node_hours * parameters.budget > most_false:
        parameters = replace(parameters, budget=max(LEAST_BUDGET, most_false / done.judge.node_hours))
        again = again or done.history.again()
    return _replay(again, rule, parameters, watch and Watch(watch.most_cells), live) if again else done


def _replay(
    history: RecordedHistory, rule: RuleName, parameters: Parameters, watch: Watch | None, live: bool
) -> Replay:
    judge: Judge | None = None
    slow_hosts: SlowHosts | None = None
    first_work: FirstWork | None = None
    episodes, silences = Episodes(), Silences(parameters.silent_ticks)
    starts, shared = Starts(parameters.silent_ticks), SharedLosses()
    companions, mirrored, job_mates = Companions(), MirroredGains(), JobMates()
    slowdowns, other_jobs = Slowdowns(parameters.tick_seconds), OtherJobs(parameters.tick_seconds)
    presences, grace = Presences(silences, parameters.tick_seconds), Grace(parameters.tick_seconds)
    ticks, last = 0, 0.0
    for moment in history.ticks():
        if judge is None:
            if rule == "ingero":
                counts = not any(map(is_level, history.reading.used.get("rate", ())))
                judge = DetectorJudge(
                    replace(parameters, tick_seconds=history.tick_seconds), history.reading.mergeable, counts
                )
                judge.states = RecordedStates.read(history.files)
                if not live and not history.reading.recorded:
                    first_work = FirstWork(parameters.warmup, history.tick_seconds)
                    slow_hosts = SlowHosts(
                        judge.detector.parameters, history.reading.mergeable, history.subjects.host_of, silences,
                        first_work, counts,
                    )  # fmt: skip
            else:
                judge = PublishedRuleJudge(history.reading.measure, history.tick_seconds, parameters.warmup)
            presences, slowdowns = Presences(silences, history.tick_seconds), Slowdowns(history.tick_seconds)
            other_jobs, grace = OtherJobs(history.tick_seconds), Grace(history.tick_seconds)
        edges = judge.tick(moment)
        if first_work:
            first_work.note(moment.now, moment.seen)
            edges = [first_work.onset(moment.now, edge) for edge in edges]
        episodes.add(edges)
        silences.note(moment.now, moment.seen)
        if slow_hosts:
            slow_hosts.note(moment.now, moment.seen)
        starts.note(moment.now, moment.seen)
        other_jobs.note(moment.now, moment.seen)
        if isinstance(judge, DetectorJudge):
            shared.note(moment.now, judge.detector.memory, edges)
            companions.note(moment.now, judge.detector.memory, edges)
            mirrored.note(judge.detector.memory)
            job_mates.note(judge.detector.memory)
            slowdowns.note(moment.now, judge.detector.memory, edges)
            grace.note(moment.now, judge.detector.memory, edges)
            starts.judged(moment.now, judge.detector.memory, parameters.own_band)
        presences.note(moment.now, edges)
        if watch is not None:
            watch.note(ticks, moment.now, judge.speeds())
        ticks, last = ticks + 1, moment.now
    assert judge is not None, "a history without rows is an error before this"
    episodes.refresh(judge.open_verdicts(list(episodes.open)))
    if history.lockstep.seen() and not (episodes.done or episodes.open):
        history.reading.doubt(LOCKSTEP)
    nodes = len(history.subjects.nodes) - 1
    tick = history.tick_seconds
    different_work = history.different_work() | other_jobs.mixed()
    if different_work:
        history.reading.doubt(DIFFERENT_WORK)
    kept: list[Episode] = []
    done = Replay(history, judge, kept, ticks, nodes, last, silences, presences, watch)
    done.different_work = sorted(different_work)
    uneven, rollouts = slowdowns.explained(episodes.all()), history.rollouts()
    repeated = routines(episodes.all(), last, tick)
    brief = set() if live else pauses(episodes.all(), tick)
    jobs_known = live or history.reading.tells_jobs
    hosts = history.subjects.host_of
    rests = history.by_cohort(starts.rests())
    gains = {} if live else history.gains()
    for cohort, more in mirrored.found().items():
        gains.setdefault(cohort, []).extend(more)
    own_work = OwnWork(gains, episodes.all(), rests, tick, jobs_known=jobs_known)
    ended = set() if jobs_known else ends_of_jobs(episodes.all(), rests, hosts, last, tick)
    mates = {} if jobs_known or not episodes.all() else job_mates.found(hosts)
    by_node: dict[NodeKey, list[Episode]] = {}
    for episode in episodes.all() if mates else ():
        by_node.setdefault(episode.node, []).append(episode)
    for episode in episodes.all():
        node = episode.node
        if node in different_work:
            continue
        if gone := drained(episode, silences, tick):
            done.drained.append(gone)
        elif start := starts.came_up(episode, tick):
            done.came_up.append((episode, start))
        elif (node, episode.first.since or 0.0) in uneven:
            done.uneven.append(episode)
        elif other_jobs.explained(episode):
            done.other_job.append(episode)
        elif not live and own_work.explains(episode):
            done.other_job.append(episode)
            history.reading.doubt(OTHER_WORK)
        elif (rollout := rollouts.get(node)) and rollout.explains(episode, tick):
            done.rollout.append(episode)
        elif (node, episode.first.since or 0.0) in repeated:
            done.routine.append(episode)
        elif shared.shared(episode):
            done.shared.append(episode)
        elif (node, episode.first.since) in brief:
            done.pause.append(episode)
        elif (node, episode.first.since) in ended:
            done.job_end.append(episode)
        elif not jobs_known and (
            companions.together(episode, hosts, tick)
            or lost_with_job(episode, mates.get(node, ()), companions.of(episode), by_node, last, tick)
        ):
            done.together.append(episode)
        else:
            kept.append(episode if live or history.reading.recorded else _begun(episode, grace, presences))
    if slow_hosts:
        done.slow_hosts = slow_hosts
        done.of_hosts = [
            one for one in slow_hosts.episodes(episodes.all())
            if one.node not in different_work
        ]  # fmt: skip
        kept[:] = in_order([*kept, *done.of_hosts])
    return done


def _begun(episode: Episode, grace: Grace, presences: Presences) -> Episode:
    """An episode whose node was not judged for some ticks because it began again, since it was slow in these."""
    first = episode.first
    times = grace.begun.get((node_key(first.cluster, first.node), first.since or 0.0))
    if not times:
        return episode
    presences.begin_earlier(episode, times[0], len(times))
    return replace(episode, first=replace(first, since=times[0]))
