"""Is this node a straggler, and on whose word? Fleet's verdict first, its threshold second, own history third."""

from dataclasses import dataclass, replace
from typing import Final

from ingero_contract.values import DecisionSource, DetectionMode, VerdictState
from ingero_contract.verdicts import VerdictLine

CACHE_SECONDS: Final = 300.0
"""Age up to which an old threshold still serves."""

LOCAL_THRESHOLD: Final = 0.85
"""Own score below which a node on its own calls itself slow; its score is relative to its own normal."""

_EPSILON: Final = 1e-9


def fresh_seconds(interval: float) -> float:
    """Age up to which what Fleet said counts as current: never shorter than two and a half pushes."""
    return max(20.0, 2.5 * interval)


@dataclass(frozen=True)
class FleetWord:
    """The latest that Fleet said, and when (seconds); `None` where it said nothing yet."""

    threshold: float | None = None
    quorum: bool = False
    threshold_at: float = 0.0
    verdict: VerdictLine | None = None
    verdict_at: float = 0.0
    reachable: bool = True


@dataclass(frozen=True)
class Rule:
    """How this tick is decided."""

    mode: DetectionMode
    source: DecisionSource
    threshold: float | None = None
    verdict: VerdictLine | None = None


def choose(word: FleetWord, now: float, interval: float, warm: bool) -> Rule:
    """Pick the best word there is. A clock that stepped back makes what was said count as old."""
    fresh = fresh_seconds(interval)
    verdict_age = now - word.verdict_at
    if word.verdict is not None and word.reachable and 0 <= verdict_age <= fresh:
        return Rule(DetectionMode.FLEET, DecisionSource.VERDICT, word.threshold, word.verdict)
    if word.threshold is not None:
        age = now - word.threshold_at
        if 0 <= age <= fresh and word.quorum:
            return Rule(DetectionMode.FLEET, DecisionSource.THRESHOLD, word.threshold)
        if 0 <= age <= CACHE_SECONDS:
            if not word.reachable:
                return Rule(DetectionMode.LOCAL_CACHED, DecisionSource.THRESHOLD, word.threshold)
            return Rule(DetectionMode.FLEET_CACHED, DecisionSource.THRESHOLD, word.threshold)
    if warm and not word.reachable:
        return Rule(DetectionMode.LOCAL_BASELINE, DecisionSource.HISTORY, LOCAL_THRESHOLD)
    return Rule(DetectionMode.NONE, DecisionSource.NONE)


@dataclass(frozen=True)
class Standing:
    """Whether the node is accused at present."""

    straggler: bool = False


def judge(standing: Standing, rule: Rule, score: float, active: bool, hysteresis: float) -> Standing:
    """Decide this tick. Leaving the active phase resolves, unless Fleet says that the work stopped."""
    if not active and (rule.verdict is None or rule.verdict.state is not VerdictState.STOPPED):
        return replace(standing, straggler=False)
    if rule.verdict is not None:
        return replace(standing, straggler=rule.verdict.is_straggler)
    if rule.threshold is None:
        return replace(standing, straggler=False)
    line = rule.threshold + (hysteresis if standing.straggler else 0.0)
    return replace(standing, straggler=score + _EPSILON < line)
