"""The result of a replay."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ingero_analyze.replay.costs import HOUR, Presence, Presences
from ingero_analyze.replay.detector_judge import DetectorJudge
from ingero_analyze.replay.excuses import REASONS, Reason
from ingero_analyze.replay.published_rule import PublishedRuleJudge
from ingero_analyze.replay.recorded_history import RecordedHistory
from ingero_analyze.replay.silences import Silence, Silences
from ingero_analyze.replay.slow_hosts import SlowHosts
from ingero_analyze.replay.subjects import NOBODY
from ingero_contract.identifiers import NodeKey
from ingero_detect.nodes.episodes import Episode

Judge = DetectorJudge | PublishedRuleJudge


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


def _nothing_excused() -> dict[Reason, list[Episode]]:
    return {reason: [] for reason in REASONS}


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
    came_up: list[tuple[Episode, float]] = field(default_factory=list)
    """Accusations of nodes that came up after they had done nothing, and were soon as fast as usual, and since when
    they worked again, seconds."""
    excused: dict[Reason, list[Episode]] = field(default_factory=_nothing_excused)
    """Accusations that the whole history excuses."""
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
        """What an episode cost: the share that its node lost in each tick in which it reported; where the detector
        does not expect anything of the node by its own history, that of the episode in all of these."""
        presence = self._presence(episode)
        lost = episode.severity * presence.reported if presence.lost is None else presence.lost
        return lost / HOUR

    def _presence(self, episode: Episode) -> Presence:
        if self.slow_hosts and any(episode is one for one in self.of_hosts):
            return self.slow_hosts.presence(episode)
        return self.presences.of(episode)

    def summary(self) -> dict[str, Any]:
        """The summary as JSON, times in seconds."""
        reading = self.history.reading
        about: dict[str, Any] = {
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
            "came_up": [_excused(episode) | {"since": resumed} for episode, resumed in self.came_up],
            **{reason: list(map(_excused, self.excused[reason])) for reason in REASONS},
            "different_work": [{"cluster": cluster, "node": node} for cluster, node in self.different_work],
            "stuck": [
                {"cluster": node[0], "node": node[1], "rows": run.rows, "since": run.since, "until": run.until}
                for node, run in self.history.stuck()
            ],
            "other_unit": [
                {"cluster": node[0], "node": node[1], "factor": float(f"{one.factor:.9g}")}
                | {name: getattr(one, name) for name in ("rows", "since", "until")}
                for node, one in self.history.other_units()
            ],
            "timetables": self._timetables(),
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

    def _accused(self) -> set[NodeKey]:
        """Nodes with an episode."""
        return {episode.node for episode in self.episodes}

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

    def _timetables(self) -> list[dict[str, Any]]:
        """Nodes that lose work on a timetable, times in seconds."""
        tick = self.history.tick_seconds
        return [
            {"cluster": node[0], "node": node[1], "times": len(table.begins), "period": round(table.period * tick, 3),
             "length": table.length * tick, "severity": round(1 - math.exp(-table.loss), 4)}
            for node, table in self.history.timetables.items()
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
