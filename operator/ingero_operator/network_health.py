"""Whether a part of the network slows collectives down, by Fleet's own answer. Pure."""

from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ingero_operator.conditions import Condition, no, unknown, yes
from ingero_operator.taints.nodes import moment
from ingero_operator.taints.state import timestamp_seconds

NETWORK: Final = "NetworkHealthy"

SHOWN: Final = 8
"""Most parts that a message names."""

_Text = Annotated[str, Field(min_length=1, max_length=256)]


class _Element(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    kind: _Text
    name: _Text


class _NetworkVerdict(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    since: _Text
    elements: Annotated[list[_Element], Field(max_length=64)]
    possible: Annotated[list[Annotated[list[_Element], Field(max_length=64)]], Field(max_length=64)]


class _NetworkAnswer(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    compared: Annotated[int, Field(ge=0, le=10**9)]
    verdict: _NetworkVerdict | None = None
    missing_nodes: Annotated[list[_Text], Field(max_length=64)] = []
    missing_node_count: Annotated[int, Field(ge=0, le=10**9)] = 0


@dataclass(frozen=True, kw_only=True)
class NetworkState:
    """What Fleet knows of the network. `since` is empty while no part is slow."""

    compared: bool = False
    """Whether there are groups that can be compared."""
    since: str = ""
    slow: tuple[str, ...] = ()
    """Kind and name of the slow parts; empty where the cause is not known."""
    possible: tuple[str, ...] = ()
    """What may be the cause, where it is not known."""
    missing: str = ""
    """Nodes that the topology lacks, in words."""


def parse_network(payload: Any) -> NetworkState | None:
    """The state in Fleet's answer; `None` without a topology, or where it cannot be read.

    An unreadable state must not hide a straggler.
    """
    try:
        answer = _NetworkAnswer.model_validate(payload)
    except ValidationError:
        return None
    verdict = answer.verdict
    names = tuple("".join(filter(str.isprintable, name)) for name in answer.missing_nodes)
    missing = _listed(names, answer.missing_node_count) if names else ""
    if verdict is None:
        return NetworkState(compared=answer.compared > 0, missing=missing)
    since = moment(verdict.since)
    causes = dict.fromkeys(_name(element) for cause in verdict.possible for element in cause)
    return NetworkState(
        compared=True, since=timestamp_seconds(since) if since else "an unknown time",
        slow=tuple(map(_name, verdict.elements)), possible=tuple(causes),
    )  # fmt: skip


def network_healthy(state: NetworkState | None) -> Condition | None:
    """Whether all parts of the network are as fast as like ones; no condition where Fleet has no topology."""
    if state is None:
        return None
    if state.slow:
        message = (
            f"slow since {state.since}: {_listed(state.slow, len(state.slow))}. Collectives that cross it take "
            "longer than like ones; check cables, counters and firmware. No node is tainted for it"
        )
        return no(NETWORK, "SlowPart", message)
    if state.since:
        message = f"some collectives take longer than like ones since {state.since}, and the cause is not certain"
        listed = (
            f": one of {_listed(state.possible, len(state.possible))}"
            if state.possible
            else ": nothing in the topology explains it"
        )
        return unknown(NETWORK, "CauseUnknown", message + listed)
    if state.missing:
        message = f"the topology lacks {state.missing}: collectives of these nodes are not compared; add them to it"
        return unknown(NETWORK, "NodesMissing", message)
    if not state.compared:
        message = "no four communicators of equal size run the same operation with messages of one known size"
        return unknown(NETWORK, "NothingCompared", message)
    return yes(NETWORK, "NoSlowPart", "like collectives take the same time everywhere")


def _name(element: _Element) -> str:
    return "".join(filter(str.isprintable, f"{element.kind} {element.name}"))


def _listed(names: tuple[str, ...], count: int) -> str:
    """The first of so many names, and how many more there are."""
    more = count - len(names[:SHOWN])
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
