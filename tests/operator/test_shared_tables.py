"""Shared tables of an EchoStore: what is rendered, and that no event enters a bucket that is not declared."""

from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from ingero_echo.settings import PASSWORD_IN_URL, SECRET_NAME, EchoConfig, cached_files
from ingero_operator.api.shared_tables import PASSWORD_IN_ADDRESS, SECRET_PROPERTY, TableSpec
from ingero_operator.api.v1alpha1 import EchoStoreSpec, Policy
from ingero_operator.render import desired, echo, readers
from ingero_operator.render.common import Owner, Platform
from ingero_operator.table_gate import judge_table

STORE = Owner(kind="EchoStore", namespace="ml", name="prod", uid="u-2")
PLATFORM = Platform(service_monitors=True)
AROUND = echo.EchoInputs(claim_uid="0f7c41d2-9d3e-4f2b-8a8f-6f0d5d1f2a3b", bucket_encrypted=True)
TABLE = {
    "catalog": [{"name": "type", "value": "sql"}, {"name": "s3.endpoint", "value": "https://s3.example.com"}],
    "credentialsSecret": {"name": "catalog", "key": "catalog.yaml"},
    "warehouse": "s3://telemetry/ingero",
    "encryption": "Declared",
    "retention": "365d",
    "egress": [
        {"port": 443},
        {"port": 5432, "peer": {"namespace": "db", "labels": {"app": "postgres"}}},
        {"port": 9000, "cidr": "10.1.0.0/16"},
    ],
}
READERS = {"replicas": 3, "tokenSecret": {"name": "writer", "key": "token"}, "cache": "20Gi"}


def store(**change: Any) -> EchoStoreSpec:
    tree = {"tlsSecret": "tls", "tokenSecret": {"name": "t"}, "table": TABLE, "readers": READERS, **change}
    return EchoStoreSpec.model_validate(tree)


def rendered(spec: EchoStoreSpec, around: echo.EchoInputs = AROUND) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (child["kind"], child["metadata"]["name"]): child
        for child in desired.of_echo_store(STORE, spec, PLATFORM, around)
    }


def files(child: dict[str, Any]) -> set[str]:
    """Every file that a pod has from Secrets whose keys are named."""
    pod = child["spec"]["template"]["spec"]
    mounts = {item["name"]: item["mountPath"] for item in pod["containers"][0]["volumeMounts"]}
    return {
        f"{mounts[volume['name']]}/{item['path']}"
        for volume in pod["volumes"]
        for item in volume.get("secret", {}).get("items", [])
    }


def test_writer_and_readers_accept_their_settings_and_have_their_secrets_as_files() -> None:
    found = rendered(store())
    writer, reader = (
        EchoConfig.model_validate(yaml.safe_load(found["ConfigMap", name]["data"]["echo.yaml"]))
        for name in ("prod-echo", "prod-readers")
    )

    assert writer.table and reader.table and reader.read
    assert writer.table.catalog == reader.table.catalog == {"type": "sql", "s3.endpoint": "https://s3.example.com"}
    assert (writer.table.every, writer.table.keep, writer.table.retention) == (60, 3600, 365 * 86400)
    assert reader.read.shards == {writer.table.shard: "https://prod-echo.ml.svc:8080"}
    assert (reader.ingest.grpc_endpoint, reader.ingest.http_endpoint) == (None, None)
    stateful_set, deployment = found["StatefulSet", "prod-echo"], found["Deployment", "prod-readers"]
    assert {str(writer.table.credentials_file), str(writer.auth.tokens_file)} == files(stateful_set)
    assert {str(reader.table.credentials_file), str(reader.read.token_file), str(reader.auth.tokens_file)} == files(
        deployment
    )


def test_memory_and_disk_of_a_reader_are_not_given_away_twice() -> None:
    spec = store()
    found = EchoConfig.model_validate(readers.config(STORE, spec, AROUND))
    pod = rendered(spec)["Deployment", "prod-readers"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    cache = next(item for item in pod["volumes"] if item["name"] == "cache")

    assert found.read and cache["emptyDir"] == {"sizeLimit": "20Gi"}
    assert found.read.cache_mb + found.store.spill_limit_mb + 4000 < 20 * 1073
    assert cached_files(found.read).is_relative_to("/var/cache/ingero")
    assert found.store.memory_limit_mb + found.query.sql_at_once * found.query.sql_memory_mb <= 1074 - 400
    assert container["args"][0] == "read" and container["securityContext"]["readOnlyRootFilesystem"]
    assert rendered(spec)["Deployment", "prod-readers"]["spec"]["replicas"] == 3


@pytest.mark.parametrize("memory", ["1Gi", "2Gi", "8Gi"])
def test_sealing_takes_its_memory_from_the_engine_and_not_from_the_pod(memory: str) -> None:
    spec = store(resources={"memory": memory})
    found = EchoConfig.model_validate(echo.config(STORE, spec, AROUND))

    assert found.table
    given = found.store.memory_limit_mb + found.table.memory_mb + found.query.sql_at_once * found.query.sql_memory_mb
    assert given <= int(memory.removesuffix("Gi")) * 1074 - 400


@pytest.mark.parametrize("around", [echo.EchoInputs(), echo.EchoInputs(claim_uid="u"), None])
def test_nothing_is_sealed_and_nobody_reads_without_the_gate(around: echo.EchoInputs | None) -> None:
    spec = store(table={**TABLE, "encryption": None}) if around is None else store()
    verdict = judge_table(spec, Policy.DECLARED)
    allowed = around or echo.EchoInputs(claim_uid="u", bucket_encrypted=bool(verdict and verdict.holds))
    found = rendered(spec, allowed)

    assert "table" not in yaml.safe_load(found["ConfigMap", "prod-echo"]["data"]["echo.yaml"])
    assert not [name for name in found if name[1] == "prod-readers"]
    assert found["NetworkPolicy", "prod-echo"]["spec"]["egress"] == []
    assert files(found["StatefulSet", "prod-echo"]) == {"/etc/ingero/token/token"}


def test_a_bucket_must_be_declared_encrypted_and_that_must_be_enough() -> None:
    declared, silent = store(), store(table={**TABLE, "encryption": None})
    verdicts = [
        judge_table(declared, Policy.DECLARED), judge_table(silent, Policy.DECLARED),
        judge_table(declared, Policy.PROVIDER_DEFAULT), judge_table(declared, Policy.PROVEN),
    ]  # fmt: skip

    assert [verdict and (verdict.status, verdict.reason) for verdict in verdicts] == [
        ("True", "Declared"), ("False", "EncryptionNotDeclared"),
        ("False", "DeclarationNotEnough"), ("False", "DeclarationNotEnough"),
    ]  # fmt: skip
    assert judge_table(store(table=None, readers=None), Policy.PROVEN) is None


def test_another_volume_is_another_writer_of_the_tables() -> None:
    long = Owner(kind="EchoStore", namespace="ml", name="n" * 40, uid="u")
    uids = ["0f7c41d2-9d3e-4f2b-8a8f-6f0d5d1f2a3b", "1f7c41d2-9d3e-4f2b-8a8f-6f0d5d1f2a3b"]
    names = {echo.shard(owner, uid) for owner in (STORE, long) for uid in uids}

    assert len(names) == 4
    for name in names:
        EchoConfig.model_validate({"insecure": True, "table": {"catalog": {}, "warehouse": "s3://b", "shard": name}})


def test_policies_admit_readers_to_the_writer_and_both_to_catalog_and_bucket() -> None:
    found = rendered(store(peers=[{"labels": {"app": "notebook"}}]))
    writer, reader = (found["NetworkPolicy", name]["spec"] for name in ("prod-echo", "prod-readers"))
    labels = {"app.kubernetes.io/name": "ingero-readers", "ingero.io/owner": "prod"}

    assert {
        "from": [{"podSelector": {"matchLabels": labels}}],
        "ports": [{"port": 8080, "protocol": "TCP"}],
    } in writer["ingress"]
    assert [rule["ports"][0]["port"] for rule in writer["egress"]] == [443, 5432, 9000, 53]
    assert writer["egress"][2]["to"] == [{"ipBlock": {"cidr": "10.1.0.0/16"}}]
    assert writer["egress"][1]["to"][0]["podSelector"] == {"matchLabels": {"app": "postgres"}}
    assert reader["egress"][1:] == writer["egress"] and reader["egress"][0]["ports"][0]["port"] == 8080
    assert {"app": "notebook"} in [
        peer["podSelector"]["matchLabels"]
        for rule in reader["ingress"]
        for peer in rule["from"]
        if "podSelector" in peer
    ]


def test_the_schema_refuses_the_secrets_that_echo_refuses() -> None:
    assert f"(?i){SECRET_NAME.pattern}" == SECRET_PROPERTY
    assert f"^{PASSWORD_IN_URL.pattern}" == PASSWORD_IN_ADDRESS
    with pytest.raises(ValidationError, match="warehouse"):
        TableSpec.model_validate({**TABLE, "warehouse": "file:///var/lib/ingero/tables"})
