"""Whether what Fleet forwards is delivered, by Fleet's own answer. Pure."""

from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ingero_operator.api.v1alpha1 import Forward
from ingero_operator.conditions import Condition, no, yes
from ingero_operator.taints.nodes import moment
from ingero_operator.taints.state import timestamp_seconds

FORWARDED: Final = "ForwardAvailable"
_Count = Annotated[int, Field(ge=0, le=10**15)]


class _ExporterAnswer(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    queue_full: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
    dropped: Annotated[dict[str, _Count], Field(max_length=16)]
    failing_since: Annotated[str, Field(max_length=64)] | None = None
    failure: Annotated[str, Field(max_length=64)] = ""
    detail: Annotated[str, Field(max_length=1024)] = ""


@dataclass(frozen=True, kw_only=True)
class Forwarding:
    """The state of the exporter that forwards, in steps, so that it does not change with every poll."""

    since: str = ""
    """Since when nothing is delivered; empty while exports succeed."""
    failure: str = ""
    detail: str = ""
    full_percent: int = 0
    """How full the queue is, rounded down to tens."""
    dropped: int = 0
    """Pushes that were dropped since Fleet started, rounded down to one digit."""

    def visible(self) -> tuple[Any, ...]:
        """All but the detail, which may change with every attempt."""
        return self.since, self.failure, self.full_percent, self.dropped


def parse_exporters(payload: Any) -> Forwarding | None:
    """The state in Fleet's answer of the exporter that fails longest; `None` without one that can be read.

    An unreadable state must not hide a straggler.
    """
    found = []
    for item in list(payload.values())[:8] if isinstance(payload, dict) else ():
        try:
            exporter = _ExporterAnswer.model_validate(item)
        except ValidationError:
            continue
        since = moment(exporter.failing_since)
        found.append(
            Forwarding(
                since=timestamp_seconds(since) if since else "",
                failure=_printable(exporter.failure) if since else "",
                detail=_printable(exporter.detail) if since else "",
                full_percent=min(100, int(exporter.queue_full * 10 + 1e-9) * 10),
                dropped=_one_digit(sum(exporter.dropped.values())),
            )
        )
    return min(found, key=lambda item: (not item.since, item.since, -item.dropped), default=None)


def forward_available(forward: Forward | None, state: Forwarding | None) -> Condition | None:
    """Whether Fleet delivers; no condition where nothing is forwarded or Fleet does not say."""
    if forward is None or state is None:
        return None
    lost = f"{state.dropped:,} pushes or more were dropped since Fleet started" if state.dropped else ""
    if not state.since:
        message = f"what Fleet forwards is delivered to {_target(forward)}"
        return yes(FORWARDED, "Delivered", f"{message}; {lost}" if lost else message)
    reason, cure = _cure(forward, state.failure)
    waiting = f"the queue is {state.full_percent}% full"
    parts = [waiting, lost or "nothing is lost so far", cure]
    detail = f" ({state.detail})" if state.detail else ""
    message = f"{_target(forward)} takes nothing since {state.since}{detail}: {'; '.join(parts)}"
    return no(FORWARDED, reason, message)


def _target(forward: Forward) -> str:
    store = f"EchoStore {forward.echo_store}" if forward.echo_store else str(forward.endpoint)
    return f"the stream of {store}" if forward.nats else store


def _cure(forward: Forward, failure: str) -> tuple[str, str]:
    """Reason of the condition, and what helps."""
    match failure:
        case "unreachable" | "timeout" if forward.nats:
            cure = (
                "see whether the servers in spec.source of the EchoStore run and accept what spec.fleet.forward.nats "
                f"names, and the conditions of EchoStore {forward.echo_store}, which makes the stream"
            )
            return "ReceiverUnreachable", cure
        case "busy" if forward.nats:
            full = "the stream is full, or its servers elect a leader"
            return "ReceiverBusy", f"{full}: see SealingCurrent of EchoStore {forward.echo_store}"
        case "unauthenticated":
            source = "spec.fleet.forward.tokenSecret"
            owner = f"spec.tokenSecret of EchoStore {forward.echo_store}" if forward.echo_store else "the receiver"
            return "TokenRefused", f"the token in {source} is refused: it must be one that {owner} accepts"
        case "token":
            return "TokenUnreadable", "the Secret in spec.fleet.forward.tokenSecret holds no usable token: correct it"
        case "unreachable" | "timeout":
            if forward.echo_store:
                return "ReceiverUnreachable", f"see the conditions of EchoStore {forward.echo_store}"
            where = "see whether it runs, its certificate, and the NetworkPolicies between"
            return "ReceiverUnreachable", f"spec.fleet.forward.endpoint does not answer: {where}"
        case "busy" | "server_error":
            return "ReceiverBusy", "the receiver asks to wait: see its log, its volume and its resources"
        case "internal":
            return "ExportFails", "Fleet itself fails to send: see the log of its pod"
        case _:
            return "ReceiverRefuses", "the receiver refuses the data: see its log"


def _one_digit(count: int) -> int:
    step = int("1" + "0" * (len(str(count)) - 1))
    return count // step * step


def _printable(text: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())[:200]
