"""Whether Fleet delivers what it forwards: Fleet's answer as a condition with the cure."""

from typing import Any

import pytest

from ingero_operator.api.base import SecretKey
from ingero_operator.api.nats import NatsAccess
from ingero_operator.api.v1alpha1 import Forward
from ingero_operator.conditions import Condition
from ingero_operator.forwarding import Forwarding, forward_available, parse_exporters
from ingero_operator.workloads import stuck

ECHO = Forward(echo_store="kept", token_secret=SecretKey(name="out", key="token"))
SINCE = "2026-08-02T10:00:00Z"


def exporter(**change: Any) -> dict[str, Any]:
    return {"otlp": {"waiting": 1234, "queue_full": 0.37, "dropped": {}, **change}}


def shown(payload: Any, forward: Forward | None = ECHO) -> Condition:
    found = forward_available(forward, parse_exporters(payload))
    assert found is not None
    return found


def failing(failure: str, **change: Any) -> dict[str, Any]:
    return exporter(failing_since=SINCE, failure=failure, **change)


def test_what_is_delivered_is_true_and_says_what_was_lost_before() -> None:
    assert shown(exporter()).message == "what Fleet forwards is delivered to EchoStore kept"
    found = shown(exporter(dropped={"queue_full": 4321, "permanent": 1}))

    assert found.holds and "4,000 pushes or more were dropped since Fleet started" in found.message


@pytest.mark.parametrize(
    ("failure", "reason", "cure"),
    [
        ("unreachable", "ReceiverUnreachable", "see the conditions of EchoStore kept"),
        ("timeout", "ReceiverUnreachable", "see the conditions of EchoStore kept"),
        ("unauthenticated", "TokenRefused", "one that spec.tokenSecret of EchoStore kept accepts"),
        ("token", "TokenUnreadable", "spec.fleet.forward.tokenSecret holds no usable token"),
        ("busy", "ReceiverBusy", "its volume"),
        ("refused", "ReceiverRefuses", "see its log"),
    ],
)
def test_what_is_not_delivered_says_since_when_what_waits_what_is_lost_and_the_cure(
    failure: str, reason: str, cure: str
) -> None:
    found = shown(failing(failure, detail="no\nroute", dropped={"queue_full": 12}))

    assert (found.status, found.reason) == ("False", reason)
    for words in (f"since {SINCE} (no route)", "the queue is 30% full", "10 pushes or more were dropped", cure):
        assert words in found.message
    assert stuck([found]) == []  # Ready shows it, and the verdicts stay valid


@pytest.mark.parametrize(
    ("failure", "reason", "cure"),
    [
        ("unreachable", "ReceiverUnreachable", "EchoStore kept, which makes the stream"),
        ("busy", "ReceiverBusy", "SealingCurrent of EchoStore kept"),
    ],
)
def test_a_stream_that_takes_nothing_says_where_to_look(failure: str, reason: str, cure: str) -> None:
    found = shown(failing(failure), Forward(echo_store="kept", nats=NatsAccess()))

    assert (found.status, found.reason) == ("False", reason)
    assert found.message.startswith("the stream of EchoStore kept takes nothing") and cure in found.message


def test_a_receiver_of_another_kind_is_named_as_in_the_spec() -> None:
    found = shown(failing("unreachable"), Forward(endpoint="collector.ml:4317"))

    assert "collector.ml:4317 takes nothing since" in found.message and "nothing is lost so far" in found.message


def test_figures_move_in_steps_and_a_changing_detail_is_no_news() -> None:
    one, other = (
        parse_exporters(failing("busy", queue_full=full, dropped={"queue_full": lost}, detail=detail))
        for full, lost, detail in ((0.31, 101, "a"), (0.39, 199, "b"))
    )

    assert one is not None and other is not None and one.visible() == other.visible()


def test_of_several_exporters_the_one_that_fails_longest_is_shown() -> None:
    later = {**failing("busy")["otlp"], "failing_since": "2026-08-02T11:00:00Z"}

    assert parse_exporters({"a": later, **failing("timeout"), "b": exporter()["otlp"]}) == Forwarding(
        since=SINCE, failure="timeout", full_percent=30
    )


@pytest.mark.parametrize("payload", [None, [], {}, {"otlp": 3}, failing("x", queue_full=float("nan"))])
def test_a_state_that_cannot_be_read_is_none(payload: Any) -> None:
    assert parse_exporters(payload) is None and forward_available(ECHO, None) is None
    assert forward_available(None, Forwarding()) is None
