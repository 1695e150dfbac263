"""Starting: in a container without a user name, and before there is an API server to talk to."""

import json
from pathlib import Path
from typing import Any

import pytest

from ingero_testing.needs import needs_util_linux
from ingero_testing.processes import BIN, answer, process, wait_until
from ingero_testing.taint_lab import Lab

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("cluster")]

UNNAMED = ("unshare", "--user", "--map-user=65532", "--map-group=65532")
NOBODY = {"LOGNAME": "", "USER": "", "LNAME": "", "USERNAME": ""}


@needs_util_linux
def test_a_user_that_has_no_name_may_lead(lab: Lab, start: Any) -> None:
    with start(election=True, prefix=UNNAMED, **NOBODY) as instance:
        lab.begin()
        wait_until(lambda: instance.page()["ingero_operator_reconciles_total"] > 0, "the first reconcile")

        assert answer(instance.running.url("http", "/readyz")) == (200, "leading\n")
    assert instance.running.process.returncode == 0, instance.running.words()


def test_a_replica_that_cannot_reach_the_api_server_is_alive_and_not_ready(tmp_path: Path) -> None:
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "none",
        "clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "none", "user": {"token": "none"}}],
        "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}],
    }  # fmt: skip
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    ports = tmp_path / "ports.json"
    command = (str(BIN / "ingero-operator"), "run", "--listen", "127.0.0.1:0", "--ports-file", str(ports))
    with process(tmp_path / "log", *command, KUBECONFIG=str(tmp_path / "kubeconfig")) as running:
        wait_until(lambda: ports.exists() or running.process.poll() is not None, "the operator to listen")
        running.ports = json.loads(ports.read_text())
        wait_until(lambda: "api_server_unreachable" in running.words(), "the first try")

        assert answer(running.url("http", "/readyz"))[0] == 503
        assert answer(running.url("http", "/healthz"))[0] == 200
