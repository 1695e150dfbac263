"""What a replay notes of every tick beside the verdicts; excuses and costs rest on it. Pure."""

from collections.abc import Sequence

from ingero_analyze.replay.companions import Companions
from ingero_analyze.replay.costs import Presences
from ingero_analyze.replay.grace import Grace
from ingero_analyze.replay.job_mates import JobMates
from ingero_analyze.replay.late_values import LateValues
from ingero_analyze.replay.mirrored_gains import MirroredGains
from ingero_analyze.replay.other_jobs import OtherJobs
from ingero_analyze.replay.returning_dips import ReturningDips
from ingero_analyze.replay.shared_losses import SharedLosses
from ingero_analyze.replay.shared_noise import SharedNoise
from ingero_analyze.replay.silences import Silences
from ingero_analyze.replay.slowdowns import Slowdowns
from ingero_analyze.replay.starts import Starts, longest_start
from ingero_analyze.replay.warm_ups import warms_up
from ingero_detect.nodes.column_store import ColumnStore
from ingero_detect.nodes.episodes import Episode
from ingero_detect.nodes.observation import Edge, Observation
from ingero_detect.nodes.parameters import Parameters
from ingero_detect.nodes.sequential_tests import DIP_TICKS
from ingero_detect.nodes.verdicts import Axis


class Observers:
    """The observers of one replay. Those of residuals know nothing where the published rule judges."""

    def __init__(self, parameters: Parameters, tick_seconds: float) -> None:
        self.silences, self.starts = Silences(parameters.silent_ticks), Starts(parameters.silent_ticks)
        self.presences = Presences(self.silences, tick_seconds)
        self.other_jobs = OtherJobs(tick_seconds)
        self.shared, self.companions, self.mirrored = SharedLosses(), Companions(), MirroredGains()
        self.job_mates, self.shared_noise = JobMates(), SharedNoise()
        self.slowdowns, self.grace = Slowdowns(tick_seconds), Grace(tick_seconds)
        self.late = LateValues(tick_seconds)
        self._own_band, self.dips = parameters.own_band, ReturningDips(parameters.own_band)

    def note(self, now: float, seen: Observation, edges: list[Edge]) -> None:
        """Note what nodes did in a tick (`now` in seconds), and which accusations began and ended."""
        self.silences.note(now, seen)
        self.starts.note(now, seen)
        self.other_jobs.note(now, seen)
        self.late.note(now, seen)
        self.presences.note(now, edges)

    def came_up(self, episode: Episode, onsets: Sequence[float], tick_seconds: float) -> float | None:
        """Since when an accused node worked again, seconds, if it only came up: after it had done nothing, or after a
        restart that its reports hardly show, if there is no other one soon. `onsets`: of its accusations, seconds."""
        if start := self.starts.came_up(episode, tick_seconds):
            return start.resumed
        first, well, longest = episode.first, episode.last.recovered, longest_start(tick_seconds)
        if first.since is None or first.axis is not Axis.OWN or well is None or well - first.since > longest:
            return None
        if sum(abs(one - first.since) <= DIP_TICKS * tick_seconds for one in onsets) > 1:
            return None
        times, lost = self.late.losses(episode)
        ticks = warms_up(lost, self._own_band)
        return first.since if ticks is not None and times[ticks] - times[0] <= longest else None

    def judged(self, now: float, memory: ColumnStore, edges: list[Edge]) -> None:
        """Note what the detector remembers after the tick that was noted last."""
        self.presences.judged(now, memory)
        self.shared.note(now, memory, edges)
        self.companions.note(now, memory, edges)
        self.mirrored.note(memory)
        self.job_mates.note(memory)
        self.shared_noise.note(memory)
        self.dips.note(memory)
        self.grace.note(now, memory, edges)
        self.slowdowns.note(now, memory, edges, self.grace.begun)
        self.starts.judged(now, memory, self._own_band)
