"""A real API server for this folder's tests; without its programs they are skipped with the reason."""

import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from ingero_operator.render.crds import all_definitions
from ingero_operator.render.install import NAMESPACE, OPERATOR, everything
from ingero_testing.fleets import Fleets, fleets
from ingero_testing.needs import CONTROL_PLANE
from ingero_testing.processes import BIN, Running, process, wait_until
from ingero_testing.taint_lab import Lab
from scripts.controlplane import ControlPlane, control_plane


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The control plane, with CRDs, rights and policies of the operator."""
    try:
        with control_plane(tmp_path_factory.mktemp("plane"), definitions=all_definitions()) as found:
            found.apply(*(item for item in everything("0.1.0") if item["kind"] != "Deployment"))
            token = found.kubectl("-n", NAMESPACE, "create", "token", OPERATOR, "--duration=2h").strip()
            found.write_kubeconfig(found.folder / "operator.kubeconfig", token)
            yield found
    except FileNotFoundError:
        pytest.skip(CONTROL_PLANE)


@pytest.fixture(scope="session")
def fleet_double() -> Iterator[Fleets]:
    with fleets() as found:
        yield found


@dataclass
class Instance:
    """A running operator."""

    running: Running

    def page(self) -> dict[str, float]:
        """Its metrics."""
        with urllib.request.urlopen(self.running.url("http", "/metrics"), timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line[:1] != "#"}

    def writes(self) -> float:
        """Requests so far that change something, leaving out the Lease (PUT)."""
        page = self.page()
        return sum(
            page.get(f'ingero_operator_api_requests_total{{method="{method}"}}', 0.0)
            for method in ("PATCH", "POST", "DELETE")
        )

    def settle(self, sweeps: int = 2) -> None:
        """Wait until it has compared everything so many times more and nothing waits."""
        goal = self.page()["ingero_operator_resyncs_total"] + sweeps
        wait_until(
            lambda: (
                (page := self.page())["ingero_operator_resyncs_total"] >= goal
                and page["ingero_operator_queue_length"] <= 1
            ),
            "the operator to settle",
        )

    def rest(self) -> None:
        """Wait until it compares everything once without a write: it writes nothing again and again."""

        def wrote_nothing() -> bool:
            before = self.writes()
            self.settle(1)
            return self.writes() == before

        wait_until(wrote_nothing, "a comparison without a write")


Start = Callable[..., AbstractContextManager[Instance]]


@pytest.fixture(scope="session")
def start(plane: ControlPlane, fleet_double: Fleets, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Starts operators with their own account's rights; every wait in them is short."""

    @contextmanager
    def begin(
        *flags: str, election: bool = False, prefix: tuple[str, ...] = (), **environment: str
    ) -> Iterator[Instance]:
        folder = tmp_path_factory.mktemp("operator")
        ports = folder / "ports.json"
        with process(
            folder / "operator.log", *prefix, str(BIN / "ingero-operator"), "run", "--listen", "127.0.0.1:0",
            "--ports-file", str(ports), "--fleet-url", fleet_double.template,
            "--fleet-otlp-url", fleet_double.template, "--echo-url", fleet_double.template,
            "--resync", "500ms", "--poll", "200ms",
            "--identity", folder.name, "--polls-per-second", "100",
            *([] if election else ["--no-leader-election"]), *flags,
            **{"KUBECONFIG": str(plane.folder / "operator.kubeconfig"), **environment},
        ) as running:  # fmt: skip
            wait_until(lambda: ports.exists() or running.process.poll() is not None, "the operator to listen")
            assert running.process.poll() is None, running.words()
            running.ports = json.loads(ports.read_text())
            yield Instance(running)

    return begin


@pytest.fixture(scope="module")
def operator(start: Start) -> Iterator[Instance]:
    """One operator for a module's tests."""
    with start() as found:
        yield found
        assert "Traceback" not in found.running.words()


@pytest.fixture
def namespace(plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of its own, removed afterwards."""
    name = f"t-{abs(hash(request.node.nodeid)) % 10**10}"
    plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    for kind in ("fc", "echo"):
        plane.delete(kind, namespace=name)
    plane.delete("namespace", name)


def resource(kind: str, namespace: str, name: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "ingero.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": spec,
    }


@pytest.fixture
def lab(plane: ControlPlane, namespace: str, fleet_double: Fleets) -> Iterator[Lab]:
    found = Lab(plane, namespace, fleet_double.of(namespace, "prod"))
    yield found
    found.delete()
    for name in found.names:
        plane.delete("node", name)
