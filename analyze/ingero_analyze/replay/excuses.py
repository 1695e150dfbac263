"""Why an accusation is not kept when the whole history is known, where a live Fleet had to name the node."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

from ingero_analyze.replay.job_mates import lost_with_job
from ingero_analyze.replay.observers import Observers
from ingero_analyze.replay.own_work import OwnWork
from ingero_analyze.replay.reading import OTHER_WORK
from ingero_analyze.replay.recorded_history import RecordedHistory
from ingero_analyze.replay.routines import routines
from ingero_analyze.replay.same_events import excused_before, excused_with_others
from ingero_analyze.replay.stops import ends_of_jobs, pauses
from ingero_contract.identifiers import NodeKey
from ingero_detect.nodes.episodes import Episode
from ingero_detect.nodes.verdicts import Axis, Kind

Reason = Literal["uneven", "other_job", "rollout", "routine", "shared", "pause", "job_end", "together", "late"]
REASONS: Final[tuple[Reason, ...]] = (
    "uneven", "shared", "other_job", "rollout", "routine", "pause", "job_end", "together", "late",
)  # fmt: skip
"""Reasons why an accusation is not kept, in the order in which they are told."""

OF_JOBS: Final[tuple[Reason, ...]] = ("other_job", "job_end", "together")
"""Those that hold for all nodes of a job."""

OfJobs = Mapping[Reason, Sequence[Episode]]
"""Accusations that jobs explain."""

Onset = tuple[NodeKey, float]
"""Node and onset, seconds: an accusation."""


class Excuses:
    """The excuses that a whole history has for its accusations, each tried in turn."""

    def __init__(
        self, episodes: Sequence[Episode], seen: Observers, history: RecordedHistory, last: float, live: bool
    ) -> None:
        """`last`: the time of the last tick, seconds. `live`: judge as a live Fleet does, whose columns are known."""
        tick = history.tick_seconds
        self._seen, self._reading, self._live, self._tick = seen, history.reading, live, tick
        self._hosts, self._rollouts = history.subjects.host_of, history.rollouts()
        self._jobs_known = live or history.reading.tells_jobs
        rests = history.by_cohort(seen.starts.rests())
        gains = {} if live else history.gains()
        for cohort, more in seen.mirrored.found().items():
            gains.setdefault(cohort, []).extend(more)
        self._own_work = OwnWork(gains, episodes, rests, tick, jobs_known=self._jobs_known)
        self._groups = history.has_groups
        self._episodes, self._onsets = episodes, dict[Onset, float | None]()
        self._last, self._by_node = last, dict[NodeKey, list[Episode]]()
        for episode in episodes:
            self._by_node.setdefault(episode.node, []).append(episode)
        self._mates = {} if self._jobs_known or not episodes else seen.job_mates.found(self._hosts)
        short = set[Onset]() if live else pauses(episodes, tick)
        ended = set() if self._jobs_known else ends_of_jobs(episodes, rests, self._hosts, last, tick)
        self._tests: Final[tuple[tuple[Reason, Callable[[Episode], bool]], ...]] = (
            ("uneven", self._uneven(seen.slowdowns.explained(episodes), short)),
            ("other_job", seen.other_jobs.explained),
            ("other_job", self._own_work.given_more),
            ("other_job", seen.late.does_a_part),
            ("other_job", self._has_own_work),
            ("other_job", self._of_another_group),
            ("rollout", self._rolled_out),
            ("routine", _one_of(routines(episodes, last, tick))),
            ("shared", seen.shared.shared),
            ("shared", lambda one: one.first.since is not None and self.onset(one) is None),
            ("pause", lambda one: one.key in short and not seen.dips.seen(one.node)),
            ("job_end", _one_of(ended)),
            ("together", self._lost_together),
            ("late", lambda one: seen.late.explains(one, seen.grace.slow_since(one))),
        )

    def reason(self, episode: Episode) -> Reason | None:
        """The first that holds; `None`: the accusation stays."""
        return next((reason for reason, holds in self._tests if holds(episode)), None)

    def onsets_of(self, node: NodeKey) -> list[float]:
        """When the losses began that a node is accused of, seconds."""
        return [episode.first.since or 0.0 for episode in self._by_node[node]]

    def with_others(
        self, accused: Sequence[Episode], excused: Mapping[Reason, Sequence[Episode]], before: OfJobs
    ) -> dict[Onset, Reason]:
        """Why accusations that stay by themselves do not stay either: they are of events that jobs explain for others
        that are `excused`, or did `before` nodes were compared by groups."""
        if self._jobs_known:
            return {}
        found = excused_before(accused, before, self._hosts, self._last, self._tick)
        of_jobs = {reason: excused[reason] for reason in OF_JOBS}
        return found | excused_with_others(
            accused, of_jobs, self._hosts, self._last, self._tick, "job_end", several_jobs=self._groups
        )

    def _has_own_work(self, episode: Episode) -> bool:
        if self._live or not self._own_work.explains(episode):
            return False
        self._reading.doubt(OTHER_WORK)
        return True

    def _uneven(self, explained: set[Onset], short: set[Onset]) -> Callable[[Episode], bool]:
        """Whether moves explain an episode; one such short loss of several is none of them."""
        return lambda one: one.key in explained and not (one.key in short and self._seen.dips.seen(one.node))

    def _of_another_group(self, episode: Episode) -> bool:
        """Whether a node that is slower than its group does what others do: what nodes change by tells their group,
        and that of a node with a loss not for certain."""
        return self._groups and episode.first.axis is Axis.PEERS and self._seen.late.like_another_cohort(episode)

    def onset(self, episode: Episode) -> float | None:
        """Since when an accused node was slow, seconds: later than it was accused if its load wandered until then as
        those of its peers do; `None` if it only did that."""
        first = episode.first
        if self._live or first.axis is not Axis.OWN or first.kind is not Kind.SLOW:
            return first.since
        if episode.key not in self._onsets:
            self._onsets[episode.key] = self._seen.late.beyond_wandering(episode, self._episodes)
        return self._onsets[episode.key]

    def _rolled_out(self, episode: Episode) -> bool:
        rollout = self._rollouts.get(episode.node)
        return rollout is not None and rollout.explains(episode, self._tick)

    def _lost_together(self, episode: Episode) -> bool:
        if self._jobs_known:
            return False
        companions = self._seen.companions
        return companions.together(episode, self._hosts, self._tick) or any(
            lost_with_job(episode, mates, companions.of(episode), self._by_node, self._last, self._tick)
            for mates in (self._mates.get(episode.node, ()), self._of_like_noise(episode))
        )

    def _of_like_noise(self, episode: Episode) -> list[NodeKey]:
        """The nodes of other hosts that lost alike, if the node shares its noise with them."""
        node = episode.node
        host = self._hosts.get(node, node)
        others = [one for one in self._seen.companions.of(episode) if self._hosts.get(one, one) != host]
        return others if self._seen.shared_noise.shared(node, others) else []


def _one_of(accusations: set[Onset]) -> Callable[[Episode], bool]:
    """Whether an episode is one of these accusations."""
    return lambda episode: episode.key in accusations
