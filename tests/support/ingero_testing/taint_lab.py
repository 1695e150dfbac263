"""A FleetCluster with six nodes of its own whose stragglers the test sets."""

import json
from typing import Any

from ingero_contract import attributes
from ingero_testing.fleets import Says
from ingero_testing.processes import wait_until
from scripts.controlplane import ControlPlane

KEY = "ingero.io/straggler"
POOL = "test.ingero.io/taints"
TEAM = {"key": "team", "value": "ml", "effect": "NoSchedule"}
QUICK = {
    "mode": "NoSchedule", "confirmFor": "600ms", "confirmWindows": 3, "recoverFor": "600ms", "interval": "100ms",
    "minNodeAge": "1ms", "quiet": "100ms", "stormCooldown": "1s", "minHealthyPercent": 50,
    "budget": {"maxNodes": 2, "maxPercent": 50},
}  # fmt: skip


def make_node(name: str) -> dict[str, Any]:
    labels = {POOL: name.rsplit("-", 1)[0], "nvidia.com/gpu.present": "true"}
    spec = {"taints": [TEAM], "providerID": f"lab://{name}"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": spec}


def ready(plane: ControlPlane, name: str) -> bool:
    conditions = (plane.read("node", name) or {}).get("status", {}).get("conditions", [])
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


class Lab:
    """A FleetCluster with six nodes of its own, and the answers of its Fleet."""

    def __init__(self, plane: ControlPlane, namespace: str, says: Says) -> None:
        self.plane, self.namespace, self.says = plane, namespace, says
        self.names = [f"{namespace}-{number}" for number in range(6)]

    def begin(self, **taints: Any) -> None:
        self.says.nodes = set(self.names)
        self.plane.apply(*(make_node(name) for name in self.names))
        wait_until(lambda: all(ready(self.plane, name) for name in self.names), "the nodes")
        self.configure(**taints)

    def configure(self, **taints: Any) -> None:
        spec = {
            "clusterId": "c",
            "taints": {**QUICK, **taints},
            "agents": {"nodeSelector": {POOL: self.namespace}},
            "fleet": {
                "forward": {"endpoint": "collector.example.com:4317"},
                "tolerations": [{"key": TEAM["key"], "operator": "Exists"}],
            },
        }
        metadata = {"name": "prod", "namespace": self.namespace}
        body = {"apiVersion": "ingero.io/v1alpha1", "kind": "FleetCluster", "metadata": metadata, "spec": spec}
        self.plane.apply(body)

    def delete(self) -> None:
        """Delete the FleetCluster and wait until it is gone; one with taints needs an operator for that."""
        self.plane.delete("fc", "prod", self.namespace)
        wait_until(lambda: self.plane.read("-n", self.namespace, "fc", "prod") is None, "the FleetCluster to go")

    def taint(self, name: str) -> dict[str, str] | None:
        taints = self.plane.read("node", name)["spec"].get("taints", [])
        return next((item for item in taints if item["key"] == KEY), None)

    def note(self, name: str) -> dict[str, Any] | None:
        text = self.plane.read("node", name)["metadata"].get("annotations", {}).get(KEY)
        return json.loads(text) if text else None

    def marked(self) -> set[str]:
        return {name for name in self.names if self.note(name) or self.taint(name)}

    def others_untouched(self) -> bool:
        return all(
            any(item["key"] == "team" for item in self.plane.read("node", name)["spec"]["taints"])
            for name in self.names
        )

    def status(self) -> dict[str, Any]:
        return (self.plane.read("-n", self.namespace, "fc", "prod") or {}).get("status") or {}

    def condition(self, kind: str) -> tuple[str, str]:
        """Status and reason."""
        found = {item["type"]: item for item in self.status().get("conditions", [])}
        return (found[kind]["status"], found[kind]["reason"]) if kind in found else ("", "")

    def allowed(self) -> str:
        return next((c["reason"] for c in self.status().get("conditions", []) if c["type"] == "TaintingAllowed"), "")

    def taint_events(self) -> list[tuple[str, str, str]]:
        """Action, node and event id of every record that its Fleet received."""
        found = []
        for request in self.says.log_requests:
            (block,) = request["resourceLogs"]
            (entry,) = block["scopeLogs"][0]["logRecords"]
            pairs = block["resource"]["attributes"] + entry["attributes"]
            facts = {item["key"]: item["value"]["stringValue"] for item in pairs}
            found.append((facts[attributes.TAINT_ACTION], facts[attributes.NODE_ID], facts[attributes.EVENT_ID]))
        return found

    def events(self, reason: str) -> list[str]:
        found = self.plane.read("-n", self.namespace, "events")["items"]
        return [item["message"] for item in found if item["reason"] == reason]
