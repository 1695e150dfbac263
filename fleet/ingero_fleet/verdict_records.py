"""Changes of verdicts as OTLP log records, for Echo or any collector. Pure."""

import json
import uuid
from collections.abc import Collection, Iterable
from typing import Any, Final

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, SeverityNumber

from ingero_contract import attributes, metrics
from ingero_contract.identifiers import NodeKey, node_key
from ingero_contract.values import VerdictState
from ingero_detect.nodes.observation import Edge
from ingero_detect.nodes.verdicts import Verdict
from ingero_kit.clock import rfc3339
from ingero_kit.otlp_encode import pairs

_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_URL, "urn:ingero:verdict")
_EVIDENCE: Final = (
    "axis", "value", "expected", "residual", "scale", "evidence", "level", "cohort_size", "merged", "detected",
    "recovered",
)  # fmt: skip


def encode(edges: Iterable[Edge], several_agents: Collection[NodeKey] = ()) -> bytes | None:
    """One request with a record for every change; `None` without changes.

    `several_agents`: nodes as which several agents report; their records say so, as nothing may act on them.
    """
    found = []
    for edge in edges:
        verdict = edge.verdict
        mixed = node_key(verdict.cluster, verdict.node) in several_agents
        resource = pairs({attributes.NODE_ID: verdict.node, attributes.CLUSTER_ID: verdict.cluster})
        found.append((resource, _record(edge, mixed=mixed)))
    return log_request(found) if found else None


def log_request(records: Iterable[tuple[list[KeyValue], LogRecord]]) -> bytes:
    """A request with records, each with the attributes of its resource."""
    request = ExportLogsServiceRequest()
    for resource, record in records:
        block = request.resource_logs.add()
        block.resource.attributes.extend(resource)
        block.scope_logs.add(scope=InstrumentationScope(name="ingero-fleet"), log_records=[record])
    return request.SerializeToString()


def _record(edge: Edge, *, mixed: bool) -> LogRecord:
    verdict = edge.verdict
    facts = verdict.to_json()
    evidence = {"edge": edge.what, **{name: facts[name] for name in _EVIDENCE}}
    sentence = _sentence(edge.what, verdict)
    if mixed:
        evidence["several_agents"] = True
        sentence += "; several agents report as this node, so nothing acts on it"
    accused = edge.what in ("accused", "relapsed")
    return verdict_record(
        verdict.time,
        sentence,
        {
            attributes.EVENT_ID: _event_id(edge),
            attributes.VERDICT_STATE: str(verdict.state),
            attributes.VERDICT_KIND: str(verdict.kind),
            attributes.VERDICT_SINCE: rfc3339(verdict.since) if verdict.since else "",
            attributes.VERDICT_SEVERITY: round(verdict.severity, 6),
            attributes.VERDICT_COHORT: verdict.cohort,
            attributes.VERDICT_EVIDENCE: json.dumps(evidence, separators=(",", ":")),
            attributes.VERDICT_DIGEST: verdict.digest,
        },
        accused=accused,
    )


def verdict_record(
    seconds: float, sentence: str, found: dict[str, Any], *, accused: bool, event: str = metrics.VERDICT_EVENT
) -> LogRecord:
    """The record of a verdict's change, from any source; `seconds` since the epoch, `accused`: whether a node is."""
    nanoseconds = int(seconds * 1e9)
    return LogRecord(
        time_unix_nano=nanoseconds,
        observed_time_unix_nano=nanoseconds,
        severity_number=SeverityNumber.SEVERITY_NUMBER_WARN if accused else SeverityNumber.SEVERITY_NUMBER_INFO,
        event_name=event,
        body=AnyValue(string_value=sentence),
        attributes=pairs(found),
    )


def _event_id(edge: Edge) -> str:
    """An id that is equal for the same change of the same inputs, so that a record sent twice is recognised."""
    verdict = edge.verdict
    return str(uuid.uuid5(_NAMESPACE, "\0".join((verdict.digest, verdict.cluster, verdict.node, edge.what))))


def _sentence(what: str, verdict: Verdict) -> str:
    if what in ("accused", "relapsed"):
        return f"{verdict.node} is {verdict.state} ({verdict.kind}), {100 * verdict.severity:.0f} % of its rate lost"
    if what == "recovering":
        return f"{verdict.node} seems to recover"
    if what == "cleared" and verdict.state is VerdictState.LEARNING:
        return f"{verdict.node} has been silent for too long, and nothing is known of it any more"
    if what == "cleared":
        return f"{verdict.node} is healthy again"
    return f"{verdict.node} is {verdict.state} ({verdict.kind})"
