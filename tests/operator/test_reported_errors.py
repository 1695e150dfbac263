"""Obstacles as words: what the API server refuses, and what then becomes of a status. Pure."""

from typing import Any

import pytest

from ingero_operator import status
from ingero_operator.api_client import ApiError
from ingero_operator.errors import ReconcileError
from ingero_operator.failures import explain

WORDS = 'secrets "x" is forbidden: User "u" cannot get resource "secrets" in API group ""'


@pytest.mark.parametrize(
    ("code", "reason", "message", "named"),
    [
        (403, "Forbidden", "exceeded quota: q, requested: pods=1", "QuotaExceeded"),
        (403, "Forbidden", "unable to create new content in namespace a because it is being terminated",
         "NamespaceTerminating"),
        (403, "Forbidden", WORDS, "Forbidden"),
        (401, "Unauthorized", "Unauthorized", "Forbidden"),
        (404, "NotFound", "the server could not find the requested resource", "KindMissing"),
        (409, "Conflict", "the object has been modified", "Conflict"),
        (403, "Forbidden", "only dynamically provisioned pvc can be resized and the storageclass that provisions the "
         "pvc must support resize", "ClassCannotExpand"),
        (422, "Invalid", "spec.resources.requests.storage: Forbidden: field can not be less than status.capacity",
         "VolumeCannotShrink"),
        (422, "Invalid", "spec: Forbidden: spec is immutable after creation except resources.requests and "
         "volumeAttributesClassName for bound claims", "ClaimCannotChange"),
        (422, "Invalid", "spec.selector: field is immutable", "Rejected"),
        (500, "InternalError", "failed to create typed patch object (a/b; apps/v1): .spec.x: field not declared",
         "Rejected"),
    ],
)  # fmt: skip
def test_a_refusal_is_named_with_its_words(code: int, reason: str, message: str, named: str) -> None:
    error = explain("Deployment a-fleet", ApiError(code, reason, message))

    assert error.reason == named and error.message.startswith("Deployment a-fleet: ")
    assert error.stalls is (named in ("Rejected", "ClassCannotExpand", "VolumeCannotShrink", "ClaimCannotChange"))


@pytest.mark.parametrize(
    ("code", "message", "again"),
    [(0, "no answer", True), (409, "", True), (429, "", True), (500, "etcdserver: request timed out", True),
     (500, "failed to create typed patch object (a/b; apps/v1): .spec.x: field not declared in schema", False),
     (403, WORDS, False), (422, "", False)],
)  # fmt: skip
def test_only_what_may_pass_by_itself_is_tried_again_unsaid(code: int, message: str, again: bool) -> None:
    assert ApiError(code, "", message).transient is again


def test_what_stands_before_the_first_poll_wipes_nothing_that_was_reported() -> None:
    before: dict[str, Any] = {
        "observedGeneration": 1, "summary": "Healthy", "message": "x", "version": "1", "effective": {"a": "b"},
        "taints": {"nodes": [{"node": "n", "uid": "u", "verdict": "0" * 8}]},
        "conditions": [{"type": "QuorumMet", "status": "True", "reason": "QuorumMet", "message": "m",
                        "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    }  # fmt: skip
    error = ReconcileError("InvalidSpec", "spec.fleet.pushInterval: no duration")

    conditions, rest = status.with_error(before, ("FleetAvailable", "QuorumMet"), error)
    after = status.assemble(conditions, before, 2, "2026-01-02T00:00:00Z", False, rest)

    assert {key: after[key] for key in ("version", "effective", "taints")} == {
        key: before[key] for key in ("version", "effective", "taints")
    }
    by_type = {item["type"]: item for item in after["conditions"]}
    assert (after["summary"], by_type["Stalled"]["message"]) == ("InvalidSpec", error.message)
    assert by_type["QuorumMet"] == {**before["conditions"][0], "observedGeneration": 2}
    assert by_type["FleetAvailable"]["status"] == "Unknown"
    assert None not in status.patch(before, after).values()
