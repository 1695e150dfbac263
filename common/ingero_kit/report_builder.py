"""Builds a health report from the points of one OTLP resource block in either encoding."""

from typing import Any, Final, NamedTuple

from opentelemetry.proto.metrics.v1.metrics_pb2 import NumberDataPoint

from ingero_contract import attributes, metrics
from ingero_contract.values import NodeState
from ingero_kit.health_report import FUTURE_SECONDS, MAX_INSTANCE, MAX_LABEL, DecodedReports, HealthReport, check_name
from ingero_kit.otlp_values import attribute_value

RESOURCE_STRINGS: Final = {
    attributes.PROVIDER: "provider",
    attributes.JOB_ID: "job_id",
    attributes.STAGE: "stage",
    attributes.LAST_VERDICT: "last_verdict",
    attributes.GPU_MODEL: "gpu_model",
    attributes.WORKLOAD_TYPE: "workload_type",
}
_STATES: Final = {str(state): state for state in NodeState}
_ACTIVE: Final = NodeState.ACTIVE


class ReportIdentity(NamedTuple):
    """The report fields that a resource block defines.

    `shared`, which includes the cluster's name, is one dictionary for all nodes with equal values.
    """

    node_id: str
    rank: int | None
    instance_id: str
    shared: dict[str, Any]

    def fields(self) -> dict[str, Any]:
        """All of them in a new dictionary."""
        return {**self.shared, "node_id": self.node_id, "rank": self.rank, "instance_id": self.instance_id}


MAX_COUNT: Final = 2**31 - 1
"""Largest rank, world size and number of GPUs."""

IdentityOrError = ReportIdentity | str
"""The fields that a resource block defines, or the reason why it names no node."""


class ReportBuilder:
    """Collects the points of one resource block into a report."""

    __slots__ = ("_decoded", "_now", "_problem", "_scored", "fields")

    def __init__(self, template: IdentityOrError, decoded: DecodedReports, now: float, cluster: str) -> None:
        self._decoded = decoded
        self._now = now
        self._scored = False
        self._problem = ""
        if isinstance(template, str):
            self._problem = template
            self.fields: dict[str, Any] = {}
        else:
            self.fields = template.fields()
            if cluster:
                self.fields["cluster_id"] = cluster

    def point(self, name: str, number: float, point: NumberDataPoint) -> None:
        """Add a number point that is not one of the plain signals."""
        fields = self.fields
        if self._problem:
            self.reject(self._problem)
        elif name == metrics.HEALTH_SCORE:
            self._score(number, point.time_unix_nano, _attributes(point))
        elif name == metrics.FLEET_REACHABLE:
            fields["fleet_reachable"] = number != 0
        elif name == metrics.DEGRADATION_WARNING:
            fields["degraded"] = number != 0
        elif name == metrics.WORLD_SIZE_GAUGE:
            fields["world_size"] = fields["world_size"] or _world_size(number)
        elif name == metrics.DETECTION_MODE:
            found = _attributes(point)
            fields["detection_mode"] = _text(found.get(attributes.DETECTION_MODE_VALUE))
            fields["decision_source"] = _text(found.get(attributes.DECISION_SOURCE))
        elif name == metrics.NODE_INFO:
            found = _attributes(point)
            fields["gpu_model"] = _text(found.get(attributes.GPU_MODEL)) or fields["gpu_model"]
            fields["gpu_count"] = _count(found.get(attributes.GPU_COUNT)) or 0
        elif name == metrics.STRAGGLER_EVENT:
            self._decoded.events.append((fields["node_id"], fields["cluster_id"], number != 0))
        else:
            self._decoded.other_points += 1

    def _score(self, number: float, time_unix_nano: int, found: dict[str, Any]) -> None:
        if not 0.0 <= number <= 1.0:
            self.reject(f"{metrics.HEALTH_SCORE} is not between 0 and 1")
            return
        if time_unix_nano < 0 or time_unix_nano > (self._now + FUTURE_SECONDS) * 1e9:
            self.reject("the time lies more than an hour in the future or before 1970")
            return
        state = _STATES.get(_text(found.get(attributes.NODE_STATE)) or _ACTIVE)
        if state is None:
            self.reject(f"{attributes.NODE_STATE} is none of calibrating, active, idle")
            return
        fields = self.fields
        if self._scored and time_unix_nano < fields["time_unix_nano"]:
            self._decoded.other_points += 1
            return
        fields["score"] = float(number)
        fields["state"] = state
        fields["time_unix_nano"] = time_unix_nano
        fields["workload_type"] = _text(found.get(attributes.WORKLOAD_TYPE)) or fields["workload_type"]
        fields["cgroup_path_hash"] = _text(found.get(attributes.CGROUP_PATH_HASH))
        self._scored = True

    def reject_signal(self, name: str) -> None:
        """Leave out a signal that is negative or not finite."""
        self.reject(self._problem or f"{name} is not a number from 0")

    def reject(self, reason: str) -> None:
        """Count a point that is left out."""
        self._decoded.reject(reason)

    def finish(self) -> None:
        """Add the report to the decoded ones if it has a score and names its cluster."""
        if not self._scored:
            return
        problem = check_name(self.fields["cluster_id"])
        if problem:
            self.reject(f"the cluster id {problem}")
        else:
            self._decoded.reports.append(HealthReport(**self.fields))


def read_identity(found: dict[str, Any]) -> IdentityOrError:
    node, cluster = _raw_text(found.get(attributes.NODE_ID)), _raw_text(found.get(attributes.CLUSTER_ID))
    for key, name, optional in ((attributes.NODE_ID, node, False), (attributes.CLUSTER_ID, cluster, True)):
        problem = check_name(name)
        if problem and (name or not optional):
            return f"the resource attribute {key} {problem}"
    shared: dict[str, Any] = {attribute: _text(found.get(key)) for key, attribute in RESOURCE_STRINGS.items()}
    shared["world_size"] = _world_size(found.get(attributes.WORLD_SIZE))
    shared["cluster_id"] = cluster
    instance = _text(found.get(attributes.INSTANCE_ID))[:MAX_INSTANCE]
    return ReportIdentity(node, _count(found.get(attributes.NODE_RANK)), instance, shared)


def _attributes(point: NumberDataPoint) -> dict[str, Any]:
    return {pair.key: pair.value.string_value or attribute_value(pair.value) for pair in point.attributes}


def _raw_text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        return ""
    if len(value) > MAX_LABEL or not value.isprintable():
        return "".join(letter for letter in value[:MAX_LABEL] if letter.isprintable())
    return value


def _count(value: Any) -> int | None:
    """A number from 0 to `MAX_COUNT`; `None` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_COUNT:
        return None
    return int(value)


def _world_size(value: Any) -> int:
    """A number of nodes, 0 for none. A larger one becomes `MAX_COUNT`, so that its user can refuse it."""
    found = _count(value)
    if found is None and isinstance(value, int | float) and value > MAX_COUNT:
        return MAX_COUNT
    return found or 0
