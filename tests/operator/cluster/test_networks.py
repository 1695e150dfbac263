"""Requests that fail or whose answers are lost: operators of their own behind a network that the test spoils."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ingero_testing.between import Between, Fate, between
from ingero_testing.fleets import Fleets
from ingero_testing.processes import wait_until
from ingero_testing.taint_lab import Lab
from scripts.controlplane import ControlPlane
from tests.operator.cluster.test_obstacles import cluster, condition

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("cluster")]

MANAGED = "app.kubernetes.io/managed-by"


class Proxied:
    """An operator behind a network that a test can spoil."""

    def __init__(self, network: Between, start: Any, plane: ControlPlane) -> None:
        self.network, self._start, self._plane = network, start, plane

    @contextmanager
    def operator(self, *flags: str) -> Iterator[Any]:
        known = json.loads((self._plane.folder / "operator.kubeconfig").read_text())
        token = known["users"][0]["user"]["token"]
        file = self._plane.folder / f"proxied-{self.network.port}.kubeconfig"
        self._plane.write_kubeconfig(file, token, f"http://127.0.0.1:{self.network.port}")
        with self._start(*flags, KUBECONFIG=str(file)) as found:
            yield found


@pytest.fixture
def proxied(plane: ControlPlane, start: Any) -> Iterator[Proxied]:
    with between(f"https://127.0.0.1:{plane.port}") as network:
        yield Proxied(network, start, plane)


def writes_to(*parts: str, fate: Fate) -> Any:
    def choose(method: str, path: str) -> Fate:
        return fate if method == "PATCH" and all(part in path for part in parts) else "pass"

    return choose


def test_a_release_whose_answer_is_lost_is_our_own_and_nobodys_no(lab: Lab, proxied: Proxied) -> None:
    lab.begin()
    victim = lab.names[0]
    with proxied.operator():
        lab.says.stragglers = {victim}
        wait_until(lambda: lab.taint(victim) is not None, "the taint")
        proxied.network.fate = writes_to("/nodes/", fate="lose")
        lab.says.stragglers = set()
        wait_until(lambda: lab.marked() == set(), "the release")
        wait_until(lambda: len(lab.events("Released")) == 1, "the Event")
        wait_until(lambda: lab.status()["taints"]["used"].startswith("0/"), "the status")

        assert proxied.network.lost >= 1 and lab.events("TaintOverridden") == []
        assert not any("handsOffUntil" in row for row in lab.status()["taints"].get("nodes", []))
        proxied.network.fate = lambda method, path: "pass"
        lab.delete()


def test_neither_a_status_that_cannot_be_written_nor_another_node_holds_up_a_release(
    lab: Lab, proxied: Proxied
) -> None:
    lab.begin(interval="1ms")
    stuck, victim = lab.names[0], lab.names[1]
    with proxied.operator():
        lab.says.stragglers = {stuck, victim}
        wait_until(lambda: lab.marked() == {stuck, victim}, "the marks")
        refused = (f"/nodes/{stuck}", "/status")
        proxied.network.fate = lambda method, path: (
            "fail" if method == "PATCH" and any(part in path for part in refused) else "pass"
        )
        lab.says.stragglers = set()
        wait_until(lambda: lab.marked() == {stuck}, "the release")

        assert proxied.network.failed >= 2
        proxied.network.fate = lambda method, path: "pass"
        wait_until(lambda: lab.marked() == set(), "the other release")
        lab.delete()


def test_a_release_waits_for_no_secret_that_cannot_be_read(lab: Lab, proxied: Proxied) -> None:
    lab.begin()
    victim = lab.names[0]
    with proxied.operator("--secret-poll", "100ms"):
        lab.says.stragglers = {victim}
        wait_until(lambda: lab.taint(victim) is not None, "the taint")
        proxied.network.fate = lambda method, path: "fail" if "/secrets/" in path else "pass"
        lab.plane.patch("fc", "prod", {"spec": {"tlsSecret": "nowhere"}}, lab.namespace)
        wait_until(lambda: condition(lab.plane, lab.namespace)[1] == "RequestFailed", "the reason")
        lab.configure(mode="Observe")

        wait_until(lambda: lab.marked() == set(), "the release")
        proxied.network.fate = lambda method, path: "pass"
        lab.delete()


def test_a_child_that_lost_its_label_is_ours_again_at_once(
    plane: ControlPlane, start: Any, namespace: str, fleet_double: Fleets
) -> None:
    fleet_double.of(namespace, "prod")
    plane.apply(cluster(namespace))

    def label() -> str:
        found = plane.read("-n", namespace, "service", "prod-fleet")
        return str(found["metadata"]["labels"].get(MANAGED)) if found else ""

    with start("--resync", "1h"):
        wait_until(lambda: plane.read("-n", namespace, "ds", "prod-push") is not None, "the children")
        for value in ("somebody", None):
            plane.patch("service", "prod-fleet", {"metadata": {"labels": {MANAGED: value}}}, namespace)
            wait_until(lambda: label() == "ingero-operator", "the label")
        # It is watched as before: what is changed in it is put right.
        plane.patch("service", "prod-fleet", {"spec": {"selector": {"ingero.io/owner": "other"}}}, namespace)
        wait_until(
            lambda: (
                plane.read("-n", namespace, "service", "prod-fleet")["spec"]["selector"]["ingero.io/owner"] == "prod"
            ),
            "the repair",
        )
