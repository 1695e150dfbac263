"""Taint events as OTLP log records in JSON: what was done to a node, and on which evidence. Pure."""

import json
import uuid
from typing import Final

from ingero_contract import attributes, metrics
from ingero_operator.kinds import Manifest
from ingero_operator.taints.model import Step
from ingero_operator.taints.patches import annotation

_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_URL, "urn:ingero:taint")
_WARNING, _INFORMATION = 13, 9
"""Severity numbers of OpenTelemetry."""


def log_request(step: Step, *, cluster: str, owner: str, message: str, identity: str, now: float) -> Manifest:
    """One OTLP logs request. `now` is in seconds since the epoch.

    The event's id is derived from `identity` and the owner's uid, so that the receiver recognises a record that is
    sent twice, after a restart or a lost response."""
    nanoseconds = str(int(now * 1e9))
    model = {
        attributes.EVENT_ID: str(uuid.uuid5(_NAMESPACE, f"{owner}\0{identity}")),
        attributes.TAINT_ACTION: step.verb,
        attributes.TAINT_REASON: step.reason,
        attributes.TAINT_VERDICT: step.verdict,
        attributes.TAINT_EFFECT: step.taint.effect if step.taint else "",
        attributes.TAINT_EVIDENCE: annotation(step.taint) if step.taint else json.dumps({"owner": owner}),
    }
    entry = {
        "timeUnixNano": nanoseconds,
        "observedTimeUnixNano": nanoseconds,
        "severityNumber": _WARNING if step.strengthens else _INFORMATION,
        "eventName": metrics.TAINT_EVENT,
        "body": {"stringValue": message},
        "attributes": _pairs(model),
    }
    resource = {"attributes": _pairs({attributes.NODE_ID: step.node, attributes.CLUSTER_ID: cluster})}
    scope = {"scope": {"name": "ingero-operator"}, "logRecords": [entry]}
    return {"resourceLogs": [{"resource": resource, "scopeLogs": [scope]}]}


def _pairs(model: dict[str, str]) -> list[Manifest]:
    return [{"key": key, "value": {"stringValue": value}} for key, value in model.items()]
