"""Rules that name stragglers, run over histories of many clusters at once, and their scores.

Each cluster is a separate cohort. A detector that judges hundreds of them in one tick therefore judges each as if it
were alone, and they share the cost of the tick.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from families import TICK, WARMUP, History
from ingero_analyze.replay.detector_judge import DetectorJudge
from ingero_analyze.replay.published_rule import PublishedRuleJudge
from ingero_analyze.replay.recorded_history import RecordedTick
from ingero_analyze.replay.result import Judge
from ingero_contract.identifiers import node_key
from ingero_detect.nodes.observation import ABSENT, ACTIVE, IDLE, Observation
from ingero_detect.nodes.parameters import Parameters


@dataclass
class Result:
    """The result of a rule on one history: alarms and their ends as (tick, node), and node-hours judged."""

    alarms: list[tuple[int, int]] = field(default_factory=list)
    cleared: list[tuple[int, int]] = field(default_factory=list)
    hours: float = 0.0


Rule = Callable[[Sequence[History], float], list[Result]]
"""A rule: takes histories of the same length and a budget, returns a result for each history."""


def _judged(judge: Judge, histories: Sequence[History]) -> list[Result]:
    """Run a rule over clusters together, tick by tick."""
    sizes = [history.rate.shape[1] for history in histories]
    names = [node_key(f"{number:04d}", f"{node:05d}") for number, size in enumerate(sizes) for node in range(size)]
    cohort, cohorts = np.repeat(np.arange(len(sizes)), sizes), [(f"{number:04d}", "") for number in range(len(sizes))]
    results = [Result() for _ in histories]
    rates = np.concatenate([history.rate for history in histories], axis=1)
    idle = None
    if any(history.idle is not None for history in histories):
        idle = np.concatenate(
            [np.zeros(one.rate.shape, bool) if one.idle is None else one.idle for one in histories], axis=1
        )
    for tick, value in enumerate(rates):
        state = np.where(np.isnan(value), ABSENT, ACTIVE).astype(np.uint8)
        if idle is not None:
            state[idle[tick]] = IDLE
        for edge in judge.tick(RecordedTick(tick * TICK, Observation(names, cohort, cohorts, value, state))):
            result, node = results[int(edge.verdict.cluster)], int(edge.verdict.node)
            if edge.what in ("accused", "cleared"):
                (result.alarms if edge.what == "accused" else result.cleared).append((tick, node))
    for result, size in zip(results, sizes, strict=True):
        result.hours = judge.node_hours * size / len(names)
    return results


def ours(histories: Sequence[History], budget: float) -> list[Result]:
    """The detector, with defaults except for the budget."""
    return _judged(DetectorJudge(Parameters(tick_seconds=TICK, budget=budget, warmup=WARMUP), ()), histories)


def published(histories: Sequence[History], _: float) -> list[Result]:
    """The published rule as `replay --rule mad` has it."""
    return _judged(PublishedRuleJudge("rate", TICK, WARMUP), histories)


def _relative(history: History, share: float, best: bool) -> Result:
    ticks, nodes = history.rate.shape
    result, was = Result(), np.zeros(nodes, bool)
    for tick in range(WARMUP, ticks):
        rate = history.rate[tick]
        here = np.isfinite(rate)
        if not here.any():
            continue
        slow = here & (rate < share * (np.nanmax(rate) if best else np.nanmedian(rate)))
        result.alarms += [(tick, node) for node in np.flatnonzero(slow & ~was).tolist()]
        result.cleared += [(tick, node) for node in np.flatnonzero(was & ~slow).tolist()]
        was = slow
        result.hours += float(here.sum()) * TICK / 3600
    return result


def twice_median(histories: Sequence[History], _: float) -> list[Result]:
    """Accuse nodes slower than half of the median."""
    return [_relative(history, 0.5, best=False) for history in histories]


def relative_to_best(histories: Sequence[History], _: float) -> list[Result]:
    """Accuse nodes below 0.75 of the best."""
    return [_relative(history, 0.75, best=True) for history in histories]


OURS = "ingero"
RULES: dict[str, Rule] = {
    OURS: ours, "published": published, "2x median": twice_median, "0.75 of best": relative_to_best,
}  # fmt: skip


@dataclass
class Score:
    """A rule's score: delays of the faults found, in ticks; faults missed; alarms on nodes without a fault."""

    delays: list[int] = field(default_factory=list)
    missed: int = 0
    false: int = 0
    repeated: int = 0
    hours: float = 0.0

    def add(self, other: "Score") -> None:
        """Sum up."""
        self.delays += other.delays
        self.missed += other.missed
        self.false += other.false
        self.repeated += other.repeated
        self.hours += other.hours


def judge(history: History, result: Result) -> Score:
    """Compare alarms with the truth. An alarm up to a minute after a fault ended still belongs to it.

    A node that was accused before its fault began, and still is, counts as found at once.
    """
    score = Score(hours=result.hours)
    used: set[int] = set()
    ends = sorted(result.cleared)
    for node, spells in history.guilty.items():
        starts = [(number, tick) for number, (tick, who) in enumerate(result.alarms) if who == node]
        for start, stop in spells:
            mine = [(number, tick) for number, tick in starts if start <= tick < stop + 12]
            earlier = [tick for _, tick in starts if tick < start]
            standing = bool(earlier) and not any(who == node and earlier[-1] < tick <= start for tick, who in ends)
            used.update(number for number, _ in mine)
            if standing:
                score.delays.append(1)
            elif mine:
                score.delays.append(mine[0][1] - start + 1)
            else:
                score.missed += 1
            score.repeated += max(0, len(mine) - (0 if standing else 1))
    score.false = len(result.alarms) - len(used)
    return score
