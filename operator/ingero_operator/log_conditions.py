"""The log that Fleet's replicas share, by their own answers: conditions with the cure, and figures. Pure."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from ingero_operator.api.status import SharedLog
from ingero_operator.conditions import Condition, no, unknown, yes

READY: Final = "LogReady"
CONSISTENT: Final = "LogConsistent"
AGREE: Final = "ReplicasAgree"
LOG_CONDITIONS: Final = (READY, CONSISTENT, AGREE)
_Name = Annotated[str, Field(max_length=253)]
_Count = Annotated[int, Field(ge=0, le=10**15)]


class ReplicaLog(BaseModel):
    """One replica's answer about the log."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    replica: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9._-]+$")]
    state: Literal["ok", "away", "catching_up", "reseeding"]
    away_since: Annotated[str, Field(max_length=32, pattern=r"^[0-9TZ:.+-]+$")] | None = None
    lag: _Count
    state_hash: Annotated[str, Field(max_length=128, pattern=r"^[0-9a-z]*$")]
    state_hash_tick: _Count
    rules: Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9.-]*$")]
    parked: bool
    rewound: bool = False


def log_conditions(answers: Sequence[ReplicaLog]) -> tuple[Condition, ...]:
    """LogReady, LogConsistent and ReplicasAgree."""
    if not answers:
        message = "no replica of Fleet says how it follows the log: see FleetAvailable and EvidenceFresh"
        return tuple(unknown(kind, "NotAnswered", message) for kind in LOG_CONDITIONS)
    return _ready(answers), _consistent(answers), _agree(answers)


def taint_problem(conditions: Sequence[Condition]) -> str:
    """Why the log does not allow new taints; empty when it does."""
    for item in conditions:
        if (item.type == READY and not item.holds) or (item.type == AGREE and item.reason == "StatesDiffer"):
            return item.message
    return ""


def log_figures(answers: Sequence[ReplicaLog], wanted: int) -> dict[str, Any]:
    """`status.log`."""
    if not answers:
        return {"state": "unknown", "answering": f"0/{wanted}"}
    states = [item.state for item in answers]
    state = next(
        (name for name in ("away", "reseeding") if name in states), "ok" if "ok" in states else "catching up"
    )
    latest = max(answers, key=lambda item: item.state_hash_tick)
    shown = SharedLog(
        state=state, answering=f"{len(answers)}/{wanted}", lag=max(item.lag for item in answers),
        state_tick=latest.state_hash_tick, state_hash=latest.state_hash or None,
        rules=", ".join(sorted({item.rules for item in answers}))[:256],
    )  # fmt: skip
    return shown.model_dump(by_alias=True, exclude_none=True)


def _ready(answers: Sequence[ReplicaLog]) -> Condition:
    away = [item for item in answers if item.state == "away"]
    if away:
        since = min((item.away_since for item in away if item.away_since), default="")
        message = (
            f"NATS does not answer {_names(away)}{f' since {since}' if since else ''}; pushes are answered from "
            "the last results. See whether the NATS pods run and have a JetStream leader, spec.fleet.log.nats, its "
            "Secrets, and the NetworkPolicies between"
        )
        return no(READY, "LogAway", message)
    level = [item for item in answers if item.state == "ok"]
    if not level:
        message = (
            "no replica of Fleet has applied all of the log yet: wait; if it lasts, see the logs of Fleet's pods"
        )
        return no(READY, "CatchingUp", message)
    return yes(
        READY, "AsExpected", f"{len(level)} of {len(answers)} replicas that answer have applied all of the log"
    )


def _consistent(answers: Sequence[ReplicaLog]) -> Condition:
    rewound = [item for item in answers if item.rewound]
    if rewound:
        message = (
            f"{_names(rewound)} found the log deleted or restored from an older copy; the replicas keep their state "
            "and go on. Do not delete or restore the stream while Fleet runs"
        )
        return no(CONSISTENT, "LogRewound", message)
    loading = [item for item in answers if item.state == "reseeding"]
    if loading:
        message = (
            f"{_names(loading)} loads a snapshot, as it starts, missed messages or had another state: wait; if it "
            "lasts, see its log, and max_age and max_bytes of the stream"
        )
        return no(CONSISTENT, "Reseeding", message)
    return yes(CONSISTENT, "AsExpected", "no replica misses a part of the log")


def _agree(answers: Sequence[ReplicaLog]) -> Condition:
    by_tick: dict[int, set[str]] = {}
    for item in answers:
        if item.state_hash:
            by_tick.setdefault(item.state_hash_tick, set()).add(item.state_hash)
    differing = [tick for tick, hashes in by_tick.items() if len(hashes) > 1]
    if differing:
        message = (
            f"the states of Fleet's replicas differ after tick {max(differing)}; the one that differs from most "
            "loads another's state. If it lasts, use one image and one kind of processor for all, and see "
            "the logs of Fleet's pods"
        )
        return no(AGREE, "StatesDiffer", message)
    parked = [item for item in answers if item.parked]
    if parked or len({item.rules for item in answers}) > 1:
        message = (
            f"replicas judge by different versions or settings{f'; {_names(parked)} waits' if parked else ''}: an "
            "upgrade is in progress, or all pods of Fleet need the same image and settings"
        )
        return no(AGREE, "RulesDiffer", message)
    if not by_tick:
        return unknown(AGREE, "NotCompared", "no state was hashed yet: Fleet does it every 12 push intervals")
    return yes(AGREE, "AsExpected", "no two replicas that answer have different states after one tick")


def _names(answers: Sequence[ReplicaLog]) -> str:
    return ", ".join(sorted(item.replica for item in answers))
