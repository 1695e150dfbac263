"""Shared tables of an EchoStore: what is rendered, and that no event enters a bucket that is not declared."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ingero_echo.settings import PASSWORD_IN_URL, SECRET_NAME, EchoConfig, cached_files
from ingero_fleet.settings import FleetConfig
from ingero_operator import gate
from ingero_operator.api.shared_tables import PASSWORD_IN_ADDRESS, SECRET_PROPERTY, TableSpec
from ingero_operator.api.v1alpha1 import EchoStoreSpec, FleetClusterSpec, Policy
from ingero_operator.conditions import no, unknown, yes
from ingero_operator.echo_shards import (
    ObservedShard,
    kept_children,
    recorded_shard,
    routed_shards,
    with_shard,
    worst_of,
)
from ingero_operator.render import desired, echo, fleet, readers
from ingero_operator.render.common import Owner, Platform
from ingero_operator.render.shards import shard_of
from ingero_operator.table_gate import judge_table

STORE = Owner(kind="EchoStore", namespace="ml", name="prod", uid="u-2")
PLATFORM = Platform(service_monitors=True)
UIDS = ("0f7c41d2-9d3e-4f2b-8a8f-6f0d5d1f2a3b", "1f7c41d2-9d3e-4f2b-8a8f-6f0d5d1f2a3b")


def volumes(*uids: str, encrypted: bool = True) -> echo.EchoInputs:
    found = {index: echo.VolumeInputs(claim_uid=uid) for index, uid in enumerate(uids)}
    return echo.EchoInputs(volumes=found, bucket_encrypted=encrypted)


AROUND = volumes(UIDS[0])
PROOF = echo.Proof(volume="v", volume_uid="vu", class_name="c", class_uid="cu", level="Proven")
KEPT = {"prod": 0, "dev": 1, "research": 2}
"""Clusters with their shard of three, which no version may change: their repeats would be stored twice."""
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


@pytest.mark.parametrize("around", [echo.EchoInputs(), volumes("u", encrypted=False), None])
def test_nothing_is_sealed_and_nobody_reads_without_the_gate(around: echo.EchoInputs | None) -> None:
    spec = store(table={**TABLE, "encryption": None}) if around is None else store()
    verdict = judge_table(spec, Policy.DECLARED)
    allowed = around or volumes("u", encrypted=bool(verdict and verdict.holds))
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
    names = {echo.shard(owner, store(), uid) for owner in (STORE, long) for uid in UIDS}

    assert len(names) == 4
    for name in names:
        EchoConfig.model_validate({"insecure": True, "table": {"catalog": {}, "warehouse": "s3://b", "shard": name}})


SOURCE = {
    "nats": {
        "servers": ["tls://nats-0.nats:4222", "nats-1.nats:5222"], "stream": "prod", "maxSize": "1Gi",
        "credentialsSecret": {"name": "echo-nats", "key": "seed"},
        "tls": {"caSecret": "nats-ca", "clientSecret": "me"},
    },
}  # fmt: skip


def test_each_writer_reads_a_stream_of_its_own_and_keeps_its_name_on_another_volume() -> None:
    spec = store(shards=2, source=SOURCE)
    found, moved = rendered(spec, volumes(*UIDS)), rendered(spec, volumes(*reversed(UIDS)))

    shards = set()
    for name, stream in (("prod-echo", "prod"), ("prod-echo-1", "prod-1")):
        writer, other = (
            EchoConfig.model_validate(yaml.safe_load(children["ConfigMap", name]["data"]["echo.yaml"]))
            for children in (found, moved)
        )
        assert writer.source and writer.source.nats.tls and writer.table and other.table
        assert other.source == writer.source and other.table.shard == writer.table.shard
        source, tls = writer.source.nats, writer.source.nats.tls
        assert (source.stream, source.max_bytes) == (stream, 1 << 30)
        assert source.servers == ("tls://nats-0.nats:4222", "nats://nats-1.nats:5222")
        assert {str(source.credentials_file), str(tls.ca_file)} <= files(found["StatefulSet", name])
        mounts = found["StatefulSet", name]["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
        assert str(tls.key_file and tls.key_file.parent) in {mount["mountPath"] for mount in mounts}
        egress = found["NetworkPolicy", name]["spec"]["egress"]
        assert [port["port"] for port in egress[-1]["ports"]] == [4222, 5222]
        shards.add(writer.table.shard)
    reader = EchoConfig.model_validate(yaml.safe_load(found["ConfigMap", "prod-readers"]["data"]["echo.yaml"]))
    assert reader.read and set(reader.read.shards) == shards and reader.source is None


def test_a_store_that_gets_a_stream_names_the_shard_that_its_volume_had() -> None:
    before, after = (
        EchoConfig.model_validate(yaml.safe_load(rendered(spec)["ConfigMap", "prod-echo"]["data"]["echo.yaml"])).table
        for spec in (store(), store(source=SOURCE))
    )

    assert before and after and before.former_shard is None
    assert after.former_shard == before.shard != after.shard


def test_no_stream_is_read_without_the_gate() -> None:
    found = rendered(store(source=SOURCE), volumes(UIDS[0], encrypted=False))

    assert "source" not in yaml.safe_load(found["ConfigMap", "prod-echo"]["data"]["echo.yaml"])
    assert "source" not in str(found["StatefulSet", "prod-echo"]["spec"]["template"]["spec"]["volumes"])


def test_fleet_publishes_to_the_stream_of_its_shard() -> None:
    owner = Owner(kind="FleetCluster", namespace="ml", name="f", uid="u")
    forward = {"echoStore": "prod", "nats": {"credentialsSecret": {"name": "fleet-nats", "key": "seed"}}}
    spec = FleetClusterSpec.model_validate({"clusterId": "c", "fleet": {"forward": forward}})
    store_spec = store(shards=2, source=SOURCE)
    assert store_spec.source
    around = fleet.FleetInputs(echo_shard=1, echo_stream=store_spec.source.nats)
    found = {
        (child["kind"], child["metadata"]["name"]): child
        for child in desired.of_fleet_cluster(owner, spec, PLATFORM, around)
    }

    tree = yaml.safe_load(found["ConfigMap", "f-fleet"]["data"]["fleet.yaml"])
    config = FleetConfig.model_validate(tree)
    assert config.exporters.nats and config.exporters.otlp is None
    assert config.exporters.nats.stream == "prod-1"
    assert {str(config.exporters.nats.credentials_file)} == files(found["Deployment", "f-fleet"])
    assert tree["service"]["pipelines"]["logs"] == {"exporters": ["nats"]}
    egress = found["NetworkPolicy", "f-fleet"]["spec"]["egress"]
    assert [port["port"] for port in egress[0]["ports"]] == [4222, 5222]

    pushed = fleet.config(owner, spec, fleet.FleetInputs(echo_shard=1))
    assert pushed["exporters"]["otlp"]["endpoint"] == "prod-echo-1.ml.svc:4317"


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


# Shards.


def sharded(**change: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return rendered(store(shards=2, **change), volumes(*UIDS))


def test_each_writer_has_its_own_volume_proof_name_and_service() -> None:
    found = sharded()

    for index, name in enumerate(("prod-echo", "prod-echo-1")):
        workload = found["StatefulSet", name]["spec"]
        pod = workload["template"]["spec"]
        volumes_by_name = {item["name"]: item for item in pod["volumes"]}
        config = EchoConfig.model_validate(yaml.safe_load(found["ConfigMap", name]["data"]["echo.yaml"]))
        assert workload["replicas"] == 1 and pod["serviceAccountName"] == name
        assert volumes_by_name["data"]["persistentVolumeClaim"] == {"claimName": name}
        assert volumes_by_name["volume-proof"]["configMap"]["name"] == f"prod-{echo.proof_name(index)}"
        assert config.table and config.table.shard == echo.shard(STORE, store(), UIDS[index])
        assert found["Service", name]["spec"]["selector"] == workload["selector"]["matchLabels"]
        assert {("PodDisruptionBudget", name), ("NetworkPolicy", name), ("ServiceMonitor", name)} <= set(found)
    assert echo.proof(STORE, PROOF, 1)["metadata"]["name"] == "prod-volume-proof-1"


def test_no_service_spreads_over_writers_and_the_first_is_as_without_shards() -> None:
    many, one = sharded(), rendered(store())
    selectors = [
        tuple(sorted(child["spec"]["selector"].items())) for key, child in many.items()
        if key[0] == "Service" and not key[1].endswith("-pods")
    ]  # fmt: skip

    assert len(set(selectors)) == len(selectors) == 3
    for kind in ("StatefulSet", "Service", "ConfigMap", "NetworkPolicy"):
        assert many[kind, "prod-echo"] == one[kind, "prod-echo"]


def test_readers_ask_all_writers_and_may_reach_them() -> None:
    found = sharded()
    reader = EchoConfig.model_validate(yaml.safe_load(found["ConfigMap", "prod-readers"]["data"]["echo.yaml"]))
    egress = found["NetworkPolicy", "prod-readers"]["spec"]["egress"][0]["to"]

    assert reader.read and reader.read.shards == {
        echo.shard(STORE, store(), UIDS[0]): "https://prod-echo.ml.svc:8080",
        echo.shard(STORE, store(), UIDS[1]): "https://prod-echo-1.ml.svc:8080",
    }
    assert [item["podSelector"]["matchLabels"]["app.kubernetes.io/name"] for item in egress] == [
        "ingero-echo", "ingero-echo-1",
    ]  # fmt: skip


def test_from_outside_the_readers_answer_for_all_writers() -> None:
    outside = {"host": "e.example.com", "tlsSecret": "public", "namespace": {"kubernetes.io/metadata.name": "edge"}}
    found = sharded(ingress=outside)
    admitted = {
        name: str(found["NetworkPolicy", name]["spec"]["ingress"]).count("edge")
        for name in ("prod-echo", "prod-echo-1", "prod-readers")
    }

    assert ("Ingress", "prod-readers") in found and ("Ingress", "prod-echo") not in found
    assert admitted == {"prod-echo": 0, "prod-echo-1": 0, "prod-readers": 1}
    assert ("Ingress", "prod-echo") in rendered(store(ingress=outside))


@given(st.text(min_size=1, max_size=40), st.integers(1, 15))
def test_one_more_shard_takes_clusters_over_and_moves_none_between_the_others(cluster: str, shards: int) -> None:
    before, after = shard_of(cluster, shards), shard_of(cluster, shards + 1)

    assert after in (before, shards)


def test_clusters_are_distributed_and_a_cluster_keeps_its_shard() -> None:
    found = [shard_of(f"cluster-{number}", 4) for number in range(400)]

    assert all(70 < found.count(index) < 130 for index in range(4))
    assert {name: shard_of(name, 3) for name in KEPT} == KEPT


def test_fleet_sends_to_the_shard_of_its_cluster() -> None:
    owner = Owner(kind="FleetCluster", namespace="ml", name="f", uid="u")
    spec = FleetClusterSpec.model_validate({"clusterId": "c", "fleet": {"forward": {"echoStore": "prod"}}})
    around = fleet.FleetInputs(echo_shard=1)
    found = {
        (child["kind"], child["metadata"]["name"]): child
        for child in desired.of_fleet_cluster(owner, spec, PLATFORM, around)
    }

    assert fleet.config(owner, spec, around)["exporters"]["otlp"]["endpoint"] == "prod-echo-1.ml.svc:4317"
    assert "ingero-echo-1" in str(found["NetworkPolicy", "f-fleet"]["spec"]["egress"])


@pytest.mark.parametrize(
    ("wanted", "routed", "shards"), [(None, None, 1), (3, None, 3), (3, 1, 1), (3, 3, 3), (1, 3, 1)]
)
def test_clusters_move_once_the_new_shard_serves(wanted: int | None, routed: int | None, shards: int) -> None:
    resource = {"spec": {"shards": wanted} if wanted else {}, "status": {"routedShards": routed} if routed else {}}

    assert routed_shards(resource) == shards


def test_the_conditions_of_a_store_are_those_of_the_shard_that_lacks_most() -> None:
    bound, settled = yes("StorageBound", "Bound", "bound"), no("ResizePending", "AsRequested", "as requested")
    found = worst_of(
        [
            (0, [bound, settled, unknown("Available", "Pending", "waits")]),
            (1, [no("StorageBound", "ClaimPending", "pending"), settled, no("Available", "Locked", "locked")]),
        ]
    )

    assert [(item.type, item.status, item.message) for item in found] == [
        ("StorageBound", "False", "shard 1: pending"),
        ("ResizePending", "False", "as requested"),
        ("Available", "False", "shard 1: locked"),
    ]


def test_the_record_of_one_shard_changes_no_other() -> None:
    status = with_shard(with_shard({"summary": "x"}, 2, {"encryption": {"level": "b"}}), 1, {"encryption": {}})
    status = with_shard(with_shard(status, 2, {"storage": {"claimUID": "u"}}), 0, {"encryption": {"level": "a"}})

    assert recorded_shard(status, 2) == {"shard": 2, "encryption": {"level": "b"}, "storage": {"claimUID": "u"}}
    assert recorded_shard(status, 0)["encryption"] == {"level": "a"} and recorded_shard(status, 3) == {}


def test_claims_and_what_may_not_be_made_now_are_never_deleted() -> None:
    decision = gate.GateDecision(record={}, lock=True)
    first, second = (ObservedShard(index=index, claim=None, decision=decision, recorded={}) for index in range(2))
    live: dict[tuple[str, str], Any] = {
        ("PersistentVolumeClaim", "prod-echo-7"): {"metadata": {}},
        ("StatefulSet", "prod-echo-1"): {"metadata": {"labels": {"app.kubernetes.io/name": "ingero-echo-1"}}},
        ("ConfigMap", "prod-volume-proof-1"): {"metadata": {"labels": {"app.kubernetes.io/name": "ingero-echo-1"}}},
        ("ConfigMap", "prod-volume-proof"): {"metadata": {"labels": {"app.kubernetes.io/name": "ingero-echo"}}},
    }

    assert kept_children(STORE, (first, second), [first], live) == {
        ("PersistentVolumeClaim", "prod-echo-7"), ("StatefulSet", "prod-echo-1"),
    }  # fmt: skip
