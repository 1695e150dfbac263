"""Failures as values: what is reported, when it is retried, and what is forgotten."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero_operator.api_client import ApiError
from ingero_operator.errors import ReconcileError
from ingero_operator.failures import Failures, Operation, OperationKind

OWNER = ("FleetCluster", "ml", "prod")
WHAT = Operation(OperationKind.CHILD, "Service prod-fleet")
HOOK = ApiError(500, "InternalError", "failed calling webhook")


class Clock:
    """A clock that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def found(clock: Clock) -> Failures:
    return Failures(clock, chance=lambda: 0.0)


def fail(failures: Failures, error: ApiError = HOOK) -> None:
    with failures.guarded(OWNER, WHAT):
        raise error


def test_what_may_pass_by_itself_is_reported_when_it_is_met_twice_in_a_row() -> None:
    failures = found(Clock())
    fail(failures)
    assert failures.errors(OWNER) == [] and failures.retry_after(OWNER) == 1.0
    fail(failures)

    (error,) = failures.errors(OWNER)
    assert (error.reason, error.stalls) == ("RequestFailed", False)
    assert error.message.startswith("Service prod-fleet: failed calling webhook")
    with failures.guarded(OWNER, WHAT):
        pass
    assert failures.errors(OWNER) == [] and failures.retry_after(OWNER) is None and failures.owners() == frozenset()


def test_what_is_refused_is_reported_at_once() -> None:
    failures = found(Clock())
    fail(failures, ApiError(403, "Forbidden", "exceeded quota: q"))

    assert [item.reason for item in failures.errors(OWNER)] == ["QuotaExceeded"]


def test_pauses_grow_and_something_else_may_be_tried_at_once() -> None:
    clock = Clock()
    failures, pauses = found(clock), []
    for _ in range(8):
        failures.add(OWNER, WHAT, ReconcileError("Rejected", "x"), attempt="a")
        pauses.append(failures.retry_after(OWNER))
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]

    assert failures.backs_off(OWNER, WHAT, "a") and not failures.backs_off(OWNER, WHAT, "b")
    clock.now += 30
    assert not failures.backs_off(OWNER, WHAT, "a") and failures.errors(OWNER) != []


def test_what_is_no_longer_asked_for_is_forgotten() -> None:
    failures = found(Clock())
    for name in ("Service a", "Service b"):
        failures.add(OWNER, Operation(OperationKind.CHILD, name), ReconcileError("Rejected", name))
    failures.add(OWNER, Operation(OperationKind.TAINT, "n1"), ReconcileError("TaintRefused", "n1"))
    failures.retain(OWNER, OperationKind.CHILD, {"Service b"})

    assert [item.message for item in failures.errors(OWNER)] == ["Service b", "n1"]
    failures.forget(OWNER)
    assert failures.owners() == frozenset()


@pytest.mark.parametrize("error", [ValueError("a fault"), KeyError("x")])
def test_only_the_api_server_is_forgiven(error: Exception) -> None:
    failures = found(Clock())
    with pytest.raises(type(error)), failures.guarded(OWNER, WHAT):
        raise error


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.floats(0, 40)), max_size=60))
def test_reported_is_exactly_what_failed_last_and_is_not_new(history: list[tuple[str, bool, float]]) -> None:
    clock = Clock()
    failures, counts = found(clock), dict.fromkeys("abc", 0)
    for name, well, passed in history:
        clock.now += passed
        counts[name] = 0 if well else counts[name] + 1
        with failures.guarded(OWNER, Operation(OperationKind.CHILD, name)):
            if not well:
                raise ApiError(503, "", "busy")

        assert {item.message[0] for item in failures.errors(OWNER)} == {key for key in counts if counts[key] > 1}
        assert (failures.retry_after(OWNER) is None) is not any(counts.values())
