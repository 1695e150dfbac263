"""Writes that fail or are undone on a real control plane: nothing else waits for them, and all of it is said."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ingero_testing.fleets import Fleets
from ingero_testing.processes import wait_until
from ingero_testing.taint_lab import KEY, Lab
from scripts.controlplane import ControlPlane
from tests.operator.cluster.test_obstacles import cluster, condition

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("cluster")]


@contextmanager
def broken_webhook(plane: ControlPlane, namespace: str, *kinds: str) -> Iterator[None]:
    """Every write of these kinds in a namespace ends in 500: nobody listens where the webhook should be."""
    name = f"broken-{namespace}"
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": list(kinds)}
    hook = {
        "name": "broken.test.ingero.io", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "failurePolicy": "Fail", "clientConfig": {"url": "https://127.0.0.1:1/"}, "rules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
    }  # fmt: skip
    api = "admissionregistration.k8s.io/v1"
    plane.apply(
        {"apiVersion": api, "kind": "ValidatingWebhookConfiguration", "metadata": {"name": name}, "webhooks": [hook]}
    )
    probe = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "probe", "namespace": namespace}}

    def refuses() -> bool:
        try:
            plane.apply({**probe, "kind": "Service", "spec": {"ports": [{"port": 1}]}})
        except RuntimeError as error:
            return "failed calling webhook" in str(error)
        return False

    try:
        wait_until(refuses, "the webhook to be in force")
        yield
    finally:
        plane.kubectl("delete", "validatingwebhookconfiguration", name)


def test_a_child_that_cannot_be_written_holds_up_no_release_and_is_said(lab: Lab, operator: Any) -> None:
    lab.begin()
    victim, plane = lab.names[0], lab.plane
    lab.says.stragglers = {victim}
    wait_until(lambda: lab.taint(victim) is not None, "the taint")
    with broken_webhook(plane, lab.namespace, "services"):
        plane.delete("service", "prod-fleet", lab.namespace)
        wait_until(lambda: condition(plane, lab.namespace)[1] == "RequestFailed", "the reason")
        lab.says.stragglers = set()

        wait_until(lambda: lab.marked() == set(), "the release")
        message = condition(plane, lab.namespace)[2]
        assert message.startswith("Service prod-fleet: ") and "failed calling webhook" in message
        assert condition(plane, lab.namespace, "Ready")[:2] == ("False", "RequestFailed")
    wait_until(lambda: condition(plane, lab.namespace)[0] == "False", "the child to be there")
    assert plane.read("-n", lab.namespace, "service", "prod-fleet") is not None


def test_a_taint_that_could_not_be_written_for_a_while_is_written_afterwards(lab: Lab, operator: Any) -> None:
    lab.begin(maxPerDay=1)
    victim, plane = lab.names[0], lab.plane
    wait_until(lambda: lab.allowed() == "Allowed", "evidence")
    with broken_webhook(plane, lab.namespace, "services", "nodes"):
        lab.says.stragglers = {victim}
        wait_until(lambda: condition(plane, lab.namespace)[1] == "RequestFailed", "two tries to taint")
        message = condition(plane, lab.namespace)[2]
        assert message.startswith(f"Node {victim}: ") and "failed calling webhook" in message

    wait_until(lambda: lab.taint(victim) is not None, "the taint")
    lab.says.stragglers = set()


def test_a_new_resource_of_which_a_child_cannot_be_written_says_so_and_gets_the_others(
    plane: ControlPlane, operator: Any, namespace: str, fleet_double: Fleets
) -> None:
    fleet_double.of(namespace, "prod")
    with broken_webhook(plane, namespace, "services"):
        plane.apply(cluster(namespace))
        wait_until(lambda: condition(plane, namespace)[1] == "RequestFailed", "the reason")

        assert condition(plane, namespace, "Ready")[0] == "False"
        wait_until(lambda: plane.read("-n", namespace, "ds", "prod-push") is not None, "the other children")
        operator.settle(1)
        before = operator.writes()
        operator.settle(3)
        assert operator.writes() - before <= 4  # tried again now and then
    wait_until(lambda: plane.read("-n", namespace, "service", "prod-fleet") is not None, "the Service")


def test_whoever_takes_only_the_annotation_has_said_no_and_the_taint_goes_too(lab: Lab, operator: Any) -> None:
    lab.begin()
    victim = lab.names[1]
    lab.says.stragglers = {victim}
    wait_until(lambda: lab.taint(victim) is not None, "the taint")
    wait_until(lambda: lab.status()["taints"].get("nodes") is not None, "the record")

    lab.plane.patch("node", victim, {"metadata": {"annotations": {KEY: None}}})

    wait_until(lambda: len(lab.events("TaintOverridden")) == 1, "the Event")
    wait_until(lambda: lab.marked() == set(), "the rest of the mark to go")
    wait_until(lambda: lab.status()["taints"]["used"] == "0/2", "the status")
    (row,) = lab.status()["taints"]["nodes"]
    assert row["handsOffUntil"] and "verdict" not in row and lab.others_untouched()


def test_another_taint_of_our_key_hides_no_taint_and_stays(lab: Lab, operator: Any) -> None:
    lab.begin()
    victim = lab.names[1]
    theirs = {"key": KEY, "value": "Mine", "effect": "NoExecute"}
    lab.says.stragglers = {victim}
    wait_until(lambda: lab.taint(victim) is not None, "the taint")
    lab.plane.kubectl("taint", "node", victim, f"{KEY}=Mine:NoExecute")
    lab.says.stragglers = set()

    wait_until(lambda: lab.note(victim) is None, "the release")
    taints = lab.plane.read("node", victim)["spec"]["taints"]
    assert theirs in [{key: item[key] for key in theirs} for item in taints] and lab.events("TaintOverridden") == []
    assert sum(item["key"] == KEY for item in taints) == 1 and lab.others_untouched()
