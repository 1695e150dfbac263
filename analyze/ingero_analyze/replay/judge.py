"""Runs a history through a rule: the detector that Fleet runs live, or the published one for comparison."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Final, Literal

from ingero_analyze.replay.column_names import is_level
from ingero_analyze.replay.common_levels import CommonLevels
from ingero_analyze.replay.costs import Presences
from ingero_analyze.replay.detector_judge import DetectorJudge, RecordedStates
from ingero_analyze.replay.drains import drained
from ingero_analyze.replay.excuses import OF_JOBS, Excuses, OfJobs
from ingero_analyze.replay.first_work import FirstWork
from ingero_analyze.replay.grace import Grace
from ingero_analyze.replay.load_shares import LoadShares, even
from ingero_analyze.replay.observers import Observers
from ingero_analyze.replay.published_rule import PublishedRuleJudge
from ingero_analyze.replay.reading import DIFFERENT_WORK, LOCKSTEP, MISSING, SHARES
from ingero_analyze.replay.recorded_history import NotInOrder, NotRegular, RecordedHistory, RecordedTick
from ingero_analyze.replay.result import Judge, Replay, Watch
from ingero_analyze.replay.slow_hosts import SlowHosts
from ingero_detect.nodes.cohorts import CohortKey
from ingero_detect.nodes.episodes import Episode, Episodes, in_order
from ingero_detect.nodes.parameters import Parameters

MOST_FALSE: Final = 0.01
"""False accusations that are allowed for a whole history, unless a budget is given."""

LEAST_BUDGET: Final = 1e-9

RuleName = Literal["ingero", "mad"]
"""The detector, or the published rule."""


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
    groups = done.history.groups()
    timetables = done.history.timetables_of({episode.node for episode in done.episodes})
    again = done.history.again(groups, timetables) if groups or timetables else None
    counted = isinstance(done.judge, DetectorJudge) and done.judge.counted()
    shares = {} if groups or counted else done.history.load_shares()
    if shares and (again := again or done.history.again()):
        again.reading.note(SHARES)
    if most_false is not None and done.episodes and done.judge.node_hours * parameters.budget > most_false:
        parameters = replace(parameters, budget=max(LEAST_BUDGET, most_false / done.judge.node_hours))
        again = again or done.history.again()
    if again is None:
        return done
    of_jobs = {reason: done.excused[reason] for reason in OF_JOBS} if groups else {}
    return _replay(again, rule, parameters, watch and Watch(watch.most_cells), live, shares, of_jobs)


def _replay(
    history: RecordedHistory, rule: RuleName, parameters: Parameters, watch: Watch | None, live: bool,
    shares: Mapping[CohortKey, LoadShares] | None = None, of_jobs: OfJobs | None = None,
) -> Replay:  # fmt: skip
    moments = history.ticks()
    first = next(moments)
    run = _Run(history, rule, parameters, watch, live, evened=bool(shares))
    for moment in chain((first,), moments):
        run.note(replace(moment, seen=even(moment.seen, shares)) if shares else moment)
    return run.result(of_jobs or {})


class _Run:
    """One pass over a history whose first tick has been read: its columns and the length of a tick are known."""

    def __init__(
        self, history: RecordedHistory, rule: RuleName, parameters: Parameters, watch: Watch | None, live: bool,
        *, evened: bool,
    ) -> None:  # fmt: skip
        self._history, self._watch, self._live = history, watch, live
        self._as_recorded = live or history.reading.recorded
        if not self._as_recorded:
            parameters = _with_silence_by_chance(parameters, history)
        self._seen = Observers(parameters, history.tick_seconds)
        self._seen.late.evened = evened
        self._episodes = Episodes()
        self._ticks, self._last = 0, 0.0
        self._judge: Judge
        self._first_work: FirstWork | None = None
        self._slow_hosts: SlowHosts | None = None
        if rule == "ingero":
            self._judge = self._detector(parameters)
        else:
            self._judge = PublishedRuleJudge(history.reading.measure, history.tick_seconds, parameters.warmup)

    def _detector(self, parameters: Parameters) -> DetectorJudge:
        """The detector, and beside it what finds nodes and hosts that were slow from the start."""
        history = self._history
        counts = not any(map(is_level, history.reading.used.get("rate", ())))
        parameters = replace(parameters, tick_seconds=history.tick_seconds)
        judge = DetectorJudge(parameters, history.reading.mergeable, counts)
        judge.states = RecordedStates.read(history.files)
        if not self._as_recorded:
            judge.levels = CommonLevels(parameters.settle_ticks)
            self._first_work = FirstWork(parameters.warmup, history.tick_seconds)
            self._slow_hosts = SlowHosts(
                judge.detector.parameters, history.reading.mergeable, history.subjects.host_of, self._seen.silences,
                self._first_work, counts,
            )  # fmt: skip
        return judge

    def note(self, moment: RecordedTick) -> None:
        """Judge a tick."""
        edges = self._judge.tick(moment)
        if self._first_work:
            self._first_work.note(moment.now, moment.seen)
            edges = [self._first_work.onset(moment.now, edge) for edge in edges]
        self._episodes.add(edges)
        self._seen.note(moment.now, moment.seen, edges)
        if self._slow_hosts:
            self._slow_hosts.note(moment.now, moment.seen)
        if isinstance(self._judge, DetectorJudge):
            self._seen.judged(moment.now, self._judge.detector.memory, edges)
        if self._watch is not None:
            self._watch.note(self._ticks, moment.now, self._judge.speeds())
        self._ticks, self._last = self._ticks + 1, moment.now

    def result(self, of_jobs_before: OfJobs) -> Replay:
        """The accusations that stay when all ticks are known, and why the others do not. `of_jobs_before`: what jobs
        excused by reason before nodes were compared by groups."""
        history, seen, tick = self._history, self._seen, self._history.tick_seconds
        self._episodes.refresh(self._judge.open_verdicts(list(self._episodes.open)))
        episodes = self._episodes.all()
        if not episodes and history.lockstep.seen():
            history.reading.doubt(LOCKSTEP)
        different_work = history.different_work() | seen.other_jobs.mixed()
        if different_work:
            history.reading.doubt(DIFFERENT_WORK)
        nodes = len(history.subjects.nodes) - 1
        done = Replay(
            history, self._judge, [], self._ticks, nodes, self._last, seen.silences, seen.presences, self._watch
        )
        done.different_work = sorted(different_work)
        excuses = Excuses(episodes, seen, history, self._last, self._live)
        accused: list[Episode] = []
        for episode in episodes:
            if episode.node in different_work:
                continue
            if gone := drained(episode, seen.silences, tick):
                done.drained.append(gone)
            elif (resumed := seen.came_up(episode, excuses.onsets_of(episode.node), tick)) is not None:
                done.came_up.append((episode, resumed))
            elif reason := excuses.reason(episode):
                done.excused[reason].append(episode)
            else:
                accused.append(episode)
        with_others = excuses.with_others(accused, done.excused, of_jobs_before)
        for episode in accused:
            if reason := with_others.get(episode.key):
                done.excused[reason].append(episode)
            elif self._as_recorded:
                done.episodes.append(episode)
            else:
                episode = _begun(episode, seen.grace, seen.presences)
                done.episodes.append(_begun_later(episode, excuses.onset(episode), seen.presences, tick))
        for reason in set(with_others.values()):
            done.excused[reason] = in_order(done.excused[reason])
        if self._slow_hosts:
            done.slow_hosts = self._slow_hosts
            done.of_hosts = [one for one in self._slow_hosts.episodes(episodes) if one.node not in different_work]
            done.episodes = in_order([*done.episodes, *done.of_hosts])
        return done


def _with_silence_by_chance(parameters: Parameters, history: RecordedHistory) -> Parameters:
    """The parameters, with silence that is longer than rows missing at random, or left out, explain."""
    if history.silent_by_chance > parameters.silent_ticks:
        history.reading.note(MISSING.format(history.silent_by_chance))
    return replace(parameters, silent_ticks=max(parameters.silent_ticks, history.silent_by_chance, history.left_out))


def _begun(episode: Episode, grace: Grace, presences: Presences) -> Episode:
    """An episode whose node was not judged for some ticks because it began again, since it was slow in these."""
    times = grace.begun.get(episode.key)
    if not times:
        return episode
    presences.begin_earlier(episode, times[0], len(times))
    return replace(episode, first=replace(episode.first, since=times[0]))


def _begun_later(episode: Episode, onset: float | None, presences: Presences, tick: float) -> Episode:
    """An episode that began with what chance explains, and with a loss at a later onset."""
    first = episode.first
    if onset is None or first.since is None or onset <= first.since:
        return episode
    presences.begin_earlier(episode, onset, -round((onset - first.since) / tick))
    return replace(episode, first=replace(first, since=onset, detected=max(onset, first.detected or onset)))
