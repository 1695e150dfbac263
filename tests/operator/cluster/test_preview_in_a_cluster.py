"""The preview of a policy where a cluster can be asked: present policy, nodes, and what it takes to ask Echo."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import trustme
from click.testing import CliRunner

from ingero_contract import routes
from ingero_contract.values import LATE_RANK
from ingero_fleet.collectives.export import encode_rank_edges
from ingero_fleet.collectives.straggler_ranks import RankEdge
from ingero_kit.clock import rfc3339
from ingero_operator.cli import main
from ingero_testing.processes import echo as start_echo
from ingero_testing.taint_lab import POOL, make_node
from ingero_testing.web import web
from scripts.controlplane import ControlPlane

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("cluster")]

TOKEN = "let-me-in"


def resource(kind: str, namespace: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "ingero.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def fleet_cluster(namespace: str, mode: str) -> dict[str, Any]:
    spec = {
        "clusterId": "prod",
        "taints": {"mode": mode},
        "agents": {"nodeSelector": {POOL: namespace}},
        "fleet": {"forward": {"echoStore": "store"}, "collectives": {"actionable": True}},
    }
    return resource("FleetCluster", namespace, "prod", spec)


def late_rank(node: str, at: float) -> bytes:
    item: Any = {
        "cluster_id": "prod", "node_id": node, "pod": "train-3", "comm": "c", "ranks": 8, "rank": 3, "share": 0.1,
        "lag_ms": 5.0, "lasts": 0.9, "collectives": 100, "chance": 0.0, "nvml": None, "kind": LATE_RANK,
        "since": rfc3339(at), "why": "",
    }  # fmt: skip
    return encode_rank_edges([RankEdge("accused", item, at)])


def test_policy_nodes_token_and_authority_come_from_the_cluster(
    plane: ControlPlane, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "key")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "crt")
    tokens = f"the-writer scopes=ingest\n{TOKEN} scopes=read,sql\n"
    (tmp_path / "tokens").write_text(tokens)
    names = [f"{namespace}-{number}" for number in range(3)]
    secrets = [("tokens", {"token": tokens}), ("tls", {"ca.crt": authority.cert_pem.bytes().decode()})]
    plane.apply(
        *(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": name, "namespace": namespace},
                "stringData": data,
            }
            for name, data in secrets
        ),
        resource("EchoStore", namespace, "store", {"tlsSecret": "tls", "tokenSecret": {"name": "tokens"}}),
        fleet_cluster(namespace, "Observe"),
        *(make_node(name) for name in names),
    )
    (tmp_path / "proposed.yaml").write_text(json.dumps(fleet_cluster(namespace, "NoSchedule")))
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    change = {
        "insecure": False, "tls": {"cert_file": str(tmp_path / "crt"), "key_file": str(tmp_path / "key")},
        "auth": {"tokens_file": str(tmp_path / "tokens")},
    }  # fmt: skip
    with start_echo(tmp_path, change) as store:
        url = f"https://127.0.0.1:{store.ports['api']}"
        headers = {"content-type": "application/x-protobuf", "authorization": "Bearer the-writer"}
        pushed = web.post(
            f"https://127.0.0.1:{store.ports['otlp/http']}{routes.OTLP_LOGS}",
            content=late_rank(names[0], time.time() - 3600), headers=headers,
        )  # fmt: skip
        assert pushed.status_code == 200
        done = CliRunner().invoke(main, ["preview", str(tmp_path / "proposed.yaml"), "--echo", url, "--json"])

    assert done.exit_code == 0, done.output
    tree = json.loads(done.output)
    assert (tree["present"]["mode"], tree["proposed"]["mode"]) == ("Observe", "NoSchedule")
    assert (tree["nodes"], tree["accusations"]) == (3, 1)
    assert [item["node"] for item in tree["proposed"]["accused"]] == [names[0]]
    assert any(note.startswith("labels, GPUs and ages of nodes are those of now") for note in tree["notes"])
    for name in names:
        plane.delete("node", name)
