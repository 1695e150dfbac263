"""Whether this node is a straggler, by the best source: Fleet's verdict, its threshold, or own history."""

from dataclasses import dataclass
from typing import Final

from ingero_contract.values import DecisionSource, DetectionMode, VerdictState
from ingero_contract.verdicts import VerdictLine

CACHE_SECONDS: Final = 300.0
"""Age up to which a cached threshold is used."""

LOCAL_THRESHOLD: Final = 0.85
"""Score below which a node without Fleet calls itself slow. The score is relative to its own normal."""

_EPSILON: Final = 1e-9


def fresh_seconds(interval: float) -> float:
    """Age up to which Fleet's answer is current, seconds: at least two and a half push intervals."""
    return max(20.0, 2.5 * interval)


@dataclass(frozen=True)
class FleetResponse:
    """Fleet's latest answer and its time (seconds); `None` where there is none yet."""

    threshold: float | None = None
    quorum: bool = False
    threshold_at: float = 0.0
    verdict: VerdictLine | None = None
    verdict_at: float = 0.0
    reachable: bool = True


@dataclass(frozen=True)
class DecisionRule:
    """How this tick is decided."""

    mode: DetectionMode
    source: DecisionSource
    threshold: float | None = None
    verdict: VerdictLine | None = None


def choose_rule(response: FleetResponse, now: float, interval: float, warm: bool) -> DecisionRule:
    """Pick the best source. After the clock stepped back, earlier answers count as old.

    A Fleet that has too few nodes for a threshold leaves each node to its own history, as one that is away does.
    """
    fresh = fresh_seconds(interval)
    verdict_age = now - response.verdict_at
    if response.verdict is not None and response.reachable and 0 <= verdict_age <= fresh:
        return DecisionRule(DetectionMode.FLEET, DecisionSource.VERDICT, response.threshold, response.verdict)
    if response.threshold is not None:
        age = now - response.threshold_at
        if 0 <= age <= fresh and response.quorum:
            return DecisionRule(DetectionMode.FLEET, DecisionSource.THRESHOLD, response.threshold)
        if 0 <= age <= CACHE_SECONDS:
            if not response.reachable:
                return DecisionRule(DetectionMode.LOCAL_CACHED, DecisionSource.THRESHOLD, response.threshold)
            return DecisionRule(DetectionMode.FLEET_CACHED, DecisionSource.THRESHOLD, response.threshold)
    if warm and not (response.reachable and response.quorum):
        return DecisionRule(DetectionMode.LOCAL_BASELINE, DecisionSource.HISTORY, LOCAL_THRESHOLD)
    return DecisionRule(DetectionMode.NONE, DecisionSource.NONE)


def is_straggler(straggler: bool, rule: DecisionRule, score: float, active: bool, hysteresis: float) -> bool:
    """Whether the node is a straggler from this tick on; `straggler`: whether it was until now.

    Leaving the active phase resolves, unless Fleet says that the work stopped.
    """
    if not active and (rule.verdict is None or rule.verdict.state is not VerdictState.STOPPED):
        return False
    if rule.verdict is not None:
        return rule.verdict.is_straggler
    if rule.threshold is None:
        return False
    return score + _EPSILON < rule.threshold + (hysteresis if straggler else 0.0)
