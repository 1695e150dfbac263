"""An EchoStore on a real control plane: nothing starts before its volume is proven encrypted."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import trustme
import yaml

from ingero_operator.render.shards import shard_of
from ingero_testing.fleets import Fleets
from ingero_testing.processes import wait_until
from scripts.controlplane import ControlPlane

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("cluster")]

DRIVER = "csi.scaleway.com"
AUTHORITY = trustme.CA()
BY_HAND = {"test.ingero.io/mounts": "by-hand"}
CLASSES: dict[str, dict[str, Any]] = {
    "test-encrypted": {"parameters": {"encrypted": "true"}, "allowVolumeExpansion": False},
    "test-growing": {"parameters": {"encrypted": "true"}, "allowVolumeExpansion": True},
    "test-plain": {"parameters": {}},
    "test-late": {"parameters": {"encrypted": "true"}, "volumeBindingMode": "WaitForFirstConsumer"},
}


def storage_class(name: str) -> dict[str, Any]:
    body = {"provisioner": DRIVER, "reclaimPolicy": "Retain", **CLASSES[name]}
    return {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}, **body}


@pytest.fixture(scope="module", autouse=True)
def classes(plane: ControlPlane) -> Iterator[None]:
    plane.apply(*(storage_class(name) for name in CLASSES))
    # Nothing else may come to the node whose kubelet the test plays: it would wait there for ever.
    apart = {"taints": [{"key": key, "effect": "NoSchedule"} for key in BY_HAND]}
    for name, labels, spec in (("storage-0", {}, {}), ("by-hand", BY_HAND, apart)):
        metadata = {"name": name, "labels": labels}
        plane.apply({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec})
    yield
    for name in ("storage-0", "by-hand"):
        plane.delete("node", name)
    for name in CLASSES:
        plane.delete("storageclass", name)


class Store:
    """One EchoStore, and the provisioner that a lab has not."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace
        self.volume = f"pv-{namespace}"

    def apply(
        self,
        class_name: str | None = "test-encrypted",
        secret: bool = True,
        node_selector: Any = None,
        table: bool = False,
        **storage: Any,
    ) -> None:
        if secret:
            self.plane.apply(
                {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "t", "namespace": self.namespace},
                 "stringData": {"token": "x"}}
            )  # fmt: skip
            self.secret("tls")
        volume = {**({"className": class_name} if class_name else {}), "size": "10Gi", **storage}
        metadata = {"name": "store", "namespace": self.namespace}
        spec: dict[str, Any] = {"tlsSecret": "tls", "tokenSecret": {"name": "t"}, "storage": volume}
        if table:
            spec |= sealing()
            spec["table"]["encryption"] = "Declared"
        if node_selector:
            spec["nodeSelector"] = node_selector
            spec["tolerations"] = [{"key": key, "operator": "Exists"} for key in node_selector]
        body = {"apiVersion": "ingero.io/v1alpha1", "kind": "EchoStore", "metadata": metadata, "spec": spec}
        self.plane.apply(body)

    def secret(self, name: str) -> None:
        metadata = {"name": name, "namespace": self.namespace}
        services = (f"store-{part}.{self.namespace}.svc" for part in ("echo", "echo-1", "readers"))
        chain = AUTHORITY.issue_cert(*services).cert_chain_pems[0]
        data = {"tls.crt": chain.bytes().decode(), "tls.key": "x", "ca.crt": AUTHORITY.cert_pem.bytes().decode()}
        self.plane.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data})

    def pod(self) -> Any:
        return self.plane.read("-n", self.namespace, "pod", "store-echo-0")

    def unmounted(self) -> list[str]:
        """What the pod mounts and must be there, and is not: while there is any, a kubelet starts no container."""
        desired = []
        for volume in self.pod()["spec"]["volumes"]:
            for kind, key in (("configMap", "name"), ("secret", "secretName")):
                if kind in volume and not volume[kind].get("optional"):
                    desired.append((kind.lower(), volume[kind][key]))
        return [name for kind, name in desired if self.plane.read("-n", self.namespace, kind, name) is None]

    def mount(self) -> None:
        """The kubelet has mounted everything."""
        change = {"metadata": {"annotations": {"kwok/mounted": "true"}}}
        self.plane.patch("pod", "store-echo-0", change, self.namespace)

    def provision(
        self,
        *,
        encrypted: str = "true",
        by: str | None = DRIVER,
        class_name: str = "test-encrypted",
        name: str = "store-echo",
    ) -> None:
        """Make and bind a volume as the driver would."""
        wait_until(lambda: self.claim(name) is not None, "the claim")
        claim, made = self.claim(name), self.volume + name.removeprefix("store-echo")
        reference = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": name,
                     "namespace": self.namespace, "uid": claim["metadata"]["uid"]}  # fmt: skip
        spec = {
            "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": class_name,
            "persistentVolumeReclaimPolicy": "Retain", "claimRef": reference,
            "csi": {"driver": DRIVER, "volumeHandle": made, "volumeAttributes": {"encrypted": encrypted}},
        }  # fmt: skip
        annotations = {"pv.kubernetes.io/provisioned-by": by} if by else {}
        metadata = {"name": made, "annotations": annotations}
        self.plane.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec})

    def claim(self, name: str = "store-echo") -> Any:
        return self.plane.read("-n", self.namespace, "pvc", name)

    def proof(self) -> Any:
        return self.plane.read("-n", self.namespace, "cm", "store-volume-proof")

    def workload(self) -> Any:
        return self.plane.read("-n", self.namespace, "sts", "store-echo")

    def status(self) -> dict[str, Any]:
        return (self.plane.read("-n", self.namespace, "echo", "store") or {}).get("status") or {}

    def summary(self) -> str:
        return str(self.status().get("summary", ""))

    def condition(self, kind: str) -> tuple[str, str]:
        found = {item["type"]: item for item in self.status().get("conditions", [])}
        return (found[kind]["status"], found[kind]["reason"]) if kind in found else ("", "")


@pytest.fixture
def store(plane: ControlPlane, namespace: str) -> Iterator[Store]:
    found = Store(plane, namespace)
    yield found
    plane.delete("pv", found.volume)
    plane.delete("pv", f"{found.volume}-1")


def test_an_encrypted_volume_is_proven_and_echo_starts(plane: ControlPlane, operator: Any, store: Store) -> None:
    store.apply()
    wait_until(lambda: store.workload() is not None, "the StatefulSet")
    assert store.status()["encryption"]["level"] == "Proven" and store.proof() is None
    store.provision()
    wait_until(lambda: store.summary() == "Healthy", "the store to be healthy")

    row = plane.kubectl("-n", store.namespace, "get", "echo").splitlines()[1].split()
    assert row[:7] == ["store", "True", "Healthy", "Proven", "test-encrypted", "10Gi", "30d"]
    assert store.proof()["data"] == {
        "class": "test-encrypted", "class-uid": store.status()["encryption"]["classUID"], "level": "Proven",
        "volume": store.volume, "volume-uid": plane.read("pv", store.volume)["metadata"]["uid"],
    }  # fmt: skip
    assert "ownerReferences" not in store.claim()["metadata"]


def test_a_pod_that_no_node_takes_is_replaced_when_the_spec_is_corrected(operator: Any, store: Store) -> None:
    store.apply()
    store.provision()
    wait_until(lambda: store.summary() == "Healthy", "Echo to run")

    store.apply(node_selector={"test.ingero.io/pool": "none"})
    wait_until(lambda: store.condition("Available") == ("False", "Unschedulable"), "the scheduler's words")
    store.apply()

    wait_until(lambda: store.summary() == "Healthy", "another pod")


def test_an_ingress_comes_and_goes_with_its_field(plane: ControlPlane, operator: Any, store: Store) -> None:
    def written() -> Any:
        return plane.read("-n", store.namespace, "ingress", "store-echo")

    store.apply()
    wanted = {"host": "echo.example.com", "tlsSecret": "public", "annotations": {"example.com/protocol": "HTTPS"}}
    plane.patch("echo", "store", {"spec": {"ingress": wanted}}, store.namespace)
    wait_until(lambda: written() is not None, "the Ingress")
    assert written()["metadata"]["annotations"]["example.com/protocol"] == "HTTPS"
    operator.rest()

    plane.patch("echo", "store", {"spec": {"ingress": None}}, store.namespace)
    wait_until(lambda: written() is None, "the Ingress to go")


def test_readers_come_when_the_bucket_is_declared_encrypted_and_go_when_it_is_not(
    plane: ControlPlane, operator: Any, store: Store
) -> None:
    def settings() -> str:
        return str((plane.read("-n", store.namespace, "configmap", "store-echo") or {}).get("data"))

    def readers() -> Any:
        return plane.read("-n", store.namespace, "deployment", "store-readers")

    store.apply()
    table = {
        "catalog": [{"name": "uri", "value": "sqlite://"}],
        "warehouse": "s3://bucket",
        "egress": [{"port": 443, "cidr": "10.0.0.0/8"}],
    }
    change = {"spec": {"table": table, "readers": {"tokenSecret": {"name": "t"}}}}
    plane.patch("echo", "store", change, store.namespace)
    wait_until(lambda: store.condition("TableEncrypted") == ("False", "EncryptionNotDeclared"), "the refusal")
    assert store.status()["summary"] == "EncryptionNotDeclared"
    assert readers() is None and "s3://bucket" not in settings()

    plane.patch("echo", "store", {"spec": {"table": {"encryption": "Declared"}}}, store.namespace)
    wait_until(lambda: readers() is not None and "s3://bucket" in settings(), "the readers")
    assert store.claim()["metadata"]["uid"][:12] in settings()
    assert plane.read("-n", store.namespace, "service", "store-readers")
    wait_until(lambda: store.condition("ReadersAvailable")[0] == "True", "the readers' pods to be ready")
    operator.rest()

    for field, value in (("warehouse", "s3://other"), ("namespace", "other")):
        moved = plane.kubectl(
            "-n", store.namespace, "patch", "echo", "store", "--type=merge", "-p",
            json.dumps({"spec": {"table": {field: value}}}), check=False,
        )  # fmt: skip
        assert f"spec.table.{field} cannot be changed" in moved
    plane.patch("echo", "store", {"spec": {"table": {"encryption": None}}}, store.namespace)
    wait_until(lambda: readers() is None and "s3://bucket" not in settings(), "the readers to go")


def test_a_second_shard_takes_clusters_over_once_its_own_volume_is_proven(
    plane: ControlPlane, operator: Any, store: Store
) -> None:
    def endpoint() -> str:
        settings = (plane.read("-n", store.namespace, "configmap", "f-fleet") or {}).get("data", {})
        return next(
            (line.split()[1] for line in str(settings.get("fleet.yaml")).splitlines() if "store-echo" in line), ""
        )

    store.apply(table=True)
    plane.patch("echo", "store", {"spec": {"readers": {"tokenSecret": {"name": "t"}}}}, store.namespace)
    store.provision()
    wait_until(lambda: store.status().get("routedShards") == 1, "the store to serve")
    cluster = next(name for name in "abcdefgh" if shard_of(name, 2) == 1)
    spec = {"clusterId": cluster, "fleet": {"forward": {"echoStore": "store"}}}
    metadata = {"name": "f", "namespace": store.namespace}
    plane.apply({"apiVersion": "ingero.io/v1alpha1", "kind": "FleetCluster", "metadata": metadata, "spec": spec})
    wait_until(lambda: endpoint().startswith("store-echo."), "Fleet to send to the first shard")
    first = store.proof()["metadata"]["uid"]

    plane.patch("echo", "store", {"spec": {"shards": 2}}, store.namespace)
    wait_until(lambda: store.condition("EncryptionVerified")[0] == "Unknown", "the second volume to be waited for")
    wait_until(lambda: plane.read("-n", store.namespace, "sts", "store-echo-1") is not None, "the second writer")
    locked = plane.read("-n", store.namespace, "cm", "store-volume-proof-1")
    assert locked is None and store.proof()["metadata"]["uid"] == first
    assert store.status()["routedShards"] == 1 and endpoint().startswith("store-echo.")

    store.provision(name="store-echo-1")
    wait_until(lambda: store.status().get("routedShards") == 2, "both shards to serve")
    wait_until(lambda: endpoint().startswith("store-echo-1."), "Fleet to send to the second shard")
    wait_until(lambda: store.condition("Ready")[0] == "True", "the store to be ready")
    (second,) = store.status()["shards"]
    assert second["shard"] == 1 and second["encryption"]["volume"] == f"{store.volume}-1"
    readers = str(plane.read("-n", store.namespace, "configmap", "store-readers")["data"])
    assert all(f"https://store-{part}.{store.namespace}.svc:8080" in readers for part in ("echo", "echo-1"))
    plane.patch("fc", "f", {"spec": {"fleet": {"forward": {"nats": {}}}}}, store.namespace)
    wait_until(
        lambda: "EchoStore store has no spec.source" in str(plane.read("-n", store.namespace, "fc", "f")["status"]),
        "the missing stream to be named",
    )
    source = {"nats": {"servers": ["nats.ml:4222"], "stream": "store"}}
    plane.patch("echo", "store", {"spec": {"source": source}}, store.namespace)
    wait_until(
        lambda: "stream: store-1" in str(plane.read("-n", store.namespace, "cm", "f-fleet")["data"]),
        "Fleet to publish to the stream of its shard",
    )
    wait_until(
        lambda: "stream: store-1" in str(plane.read("-n", store.namespace, "cm", "store-echo-1")["data"]),
        "the writer to read it",
    )
    patch = ("-n", store.namespace, "patch", "echo", "store", "--type=merge", "-p")
    renamed = '{"spec": {"source": {"nats": {"stream": "other"}}}}'
    assert "spec.source.nats.stream cannot be changed" in plane.kubectl(*patch, renamed, check=False)
    removed = '{"spec": {"source": null}}'
    assert "spec.source cannot be removed" in plane.kubectl(*patch, removed, check=False)
    assert "spec.shards can only grow" in plane.kubectl(*patch, '{"spec": {"shards": 1}}', check=False)


def sealing(name: str = "uri", value: str = "sqlite://") -> dict[str, Any]:
    return {"table": {"catalog": [{"name": name, "value": value}], "warehouse": "s3://bucket"}}


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def list_of(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item, "x-kubernetes-list-type": "atomic"}


def http_routes() -> dict[str, Any]:
    """A CRD with the fields and defaults of HTTPRoute v1 that a route to a Service has; all others are dropped."""
    group = "gateway.networking.k8s.io"
    text, number = {"type": "string"}, {"type": "integer"}
    path = object_of(type={**text, "default": "PathPrefix"}, value={**text, "default": "/"})
    backend = object_of(
        group={**text, "default": ""}, kind={**text, "default": "Service"}, name=text, namespace=text, port=number,
        weight={**number, "default": 1},
    )  # fmt: skip
    parent = object_of(
        group={**text, "default": group}, kind={**text, "default": "Gateway"}, name=text, namespace=text,
        sectionName=text, port=number,
    )  # fmt: skip
    rule = object_of(matches=list_of(object_of(path=path)), backendRefs=list_of(backend))
    spec = object_of(parentRefs=list_of(parent), hostnames=list_of(text), rules=list_of(rule))
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": object_of(spec=spec)}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"httproutes.{group}",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/gateway-api"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "kind": "HTTPRoute", "plural": "httproutes", "singular": "httproute", "listKind": "HTTPRouteList",
            },
            "versions": [version],
        },
    }  # fmt: skip


def test_an_http_route_is_made_where_the_gateway_api_is_and_goes_with_its_field(
    plane: ControlPlane, operator: Any, store: Store
) -> None:
    def created() -> tuple[str, str] | None:
        conditions = {item["type"]: item for item in store.status().get("conditions", [])}
        found = conditions.get("RouteCreated")
        return (found["status"], found["reason"]) if found else None

    path = f"/apis/gateway.networking.k8s.io/v1/namespaces/{store.namespace}/httproutes"

    def routes() -> list[dict[str, Any]]:
        return list((plane.request("GET", path) or {}).get("items", []))

    store.apply()
    wanted = {
        "hostname": "echo.example.com", "parentRefs": [{"name": "public", "namespace": "edge"}],
        "namespace": {"kubernetes.io/metadata.name": "edge"},
    }  # fmt: skip
    plane.patch("echo", "store", {"spec": {"gateway": wanted}}, store.namespace)
    wait_until(lambda: created() == ("False", "GatewayAPIMissing"), "the condition")

    plane.apply(http_routes())
    name = "crd/httproutes.gateway.networking.k8s.io"
    plane.kubectl("wait", "--for=condition=Established", name, "--timeout=30s")
    wait_until(lambda: len(routes()) == 1, "the HTTPRoute")
    wait_until(lambda: created() == ("True", "AsExpected"), "the condition to hold")
    assert routes()[0]["spec"]["rules"][0]["backendRefs"][0]["port"] == 8080
    operator.rest()

    plane.patch("echo", "store", {"spec": {"gateway": None}}, store.namespace)
    wait_until(lambda: routes() == [] and created() is None, "the HTTPRoute to go")


def test_get_reports_how_full_the_volume_is_and_until_when_events_are_sealed(
    plane: ControlPlane, operator: Any, store: Store, fleet_double: Fleets
) -> None:
    polled = fleet_double.of(store.namespace, "store")
    polled.volume_used, polled.sealing = 0.63, {"until": time.time() - 4000, "files": 7, "failure": "shard_taken"}
    store.apply(table=True)
    store.provision()
    wait_until(lambda: store.condition("Ready")[0] == "True", "the store to be ready")
    # What moves by itself is written at once only together with something else.
    plane.patch("echo", "store", {"spec": {"retention": "31d"}}, store.namespace)

    wait_until(lambda: store.status()["storage"].get("usedBand") == "60%", "the band")
    heads, line = plane.kubectl("-n", store.namespace, "get", "echo").splitlines()
    assert line[heads.index("USED") :].split()[0] == "60%"
    assert store.status()["sealing"]["files"] == 7
    heads, line = plane.kubectl("-n", store.namespace, "get", "echo", "-o", "wide").splitlines()
    assert line[heads.index("SEALED") :].split()[0] in ("66m", "67m", "68m")
    wait_until(lambda: store.condition("SealingCurrent") == ("False", "ShardTaken"), "the condition")
    assert store.condition("Ready") == ("True", "ShardTaken")


def placed_by_hand(store: Store, encrypted: str) -> None:
    """An Echo on the node whose kubelet the test plays, with a class that waits for its pod, and a volume."""
    store.secret("tls")
    store.apply("test-late", node_selector=BY_HAND)
    chosen = "volume.kubernetes.io/selected-node"
    wait_until(
        lambda: (store.claim() or {"metadata": {}})["metadata"].get("annotations", {}).get(chosen) == "by-hand",
        "the scheduler to choose a node before there is a proof",
    )
    assert store.proof() is None
    store.provision(encrypted=encrypted, class_name="test-late")
    wait_until(lambda: (store.pod() or {"spec": {}})["spec"].get("nodeName") == "by-hand", "the pod to be placed")


def test_no_container_can_start_before_the_proof_and_echo_serves_after_it(operator: Any, store: Store) -> None:
    placed_by_hand(store, "true")
    wait_until(lambda: store.unmounted() == [], "everything to be there that the pod mounts")
    assert store.condition("EncryptionVerified")[0] == "True" and store.condition("Available")[0] == "False"
    store.mount()

    wait_until(lambda: store.summary() == "Healthy", "the store to be healthy")


def test_a_pod_on_an_unproven_volume_lacks_its_proof_and_nothing_else(operator: Any, store: Store) -> None:
    placed_by_hand(store, "false")
    wait_until(lambda: store.condition("Available") == ("False", "Locked"), "the lock")
    operator.settle(1)

    assert store.unmounted() == ["store-volume-proof"]
    assert store.pod()["status"]["phase"] == "Pending"


def test_a_plain_class_is_refused_with_the_fix_and_can_be_corrected(
    plane: ControlPlane, operator: Any, store: Store
) -> None:
    store.apply("test-plain")
    wait_until(lambda: store.summary() == "ClassNotEncrypted", "the refusal")

    message = store.status()["message"]
    assert "class test-plain" in message and 'encrypted: "true"' in message and "spec.storage.className" in message
    assert store.status()["encryption"]["verdict"] == "Refused" and store.condition("Stalled")[0] == "True"
    assert (store.claim(), store.workload(), store.proof()) == (None, None, None)

    store.apply("test-encrypted")
    store.provision()
    wait_until(lambda: store.summary() == "Healthy", "the store to be healthy")
    with pytest.raises(RuntimeError, match=r"spec\.storage\.className cannot be changed once a claim exists"):
        store.apply("test-plain")
    with pytest.raises(RuntimeError, match=r"spec\.storage\.encryption\.policy can only be tightened"):
        store.apply(encryption={"policy": "Declared"})
    with pytest.raises(RuntimeError, match=r"spec\.storage\.size can only grow"):
        store.apply(size="5Gi")


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"encrypted": "false"}, "VolumeNotEncrypted"), ({"by": None}, "StaticVolume")],
)
def test_a_volume_that_is_not_what_was_judged_stays_locked(
    operator: Any, store: Store, change: dict[str, Any], reason: str
) -> None:
    store.apply()
    store.provision(**change)

    wait_until(lambda: store.condition("EncryptionVerified") == ("False", reason), "the refusal")
    operator.settle(1)
    assert store.proof() is None and store.status()["encryption"]["verdict"] == "Refused"


def test_a_class_made_anew_under_its_name_does_not_unlock(plane: ControlPlane, operator: Any, store: Store) -> None:
    store.apply()
    wait_until(lambda: store.claim() is not None, "the claim")
    plane.delete("storageclass", "test-encrypted")
    plane.apply(storage_class("test-encrypted"))
    store.provision()

    wait_until(lambda: store.condition("EncryptionVerified") == ("False", "ClassReplaced"), "the refusal")
    assert store.proof() is None


def test_a_proven_volume_stays_proven_when_its_class_goes(plane: ControlPlane, operator: Any, store: Store) -> None:
    store.apply()
    store.provision()
    wait_until(lambda: store.summary() == "Healthy", "the store to be healthy")
    plane.delete("storageclass", "test-encrypted")
    try:
        operator.settle(2)
        assert store.condition("EncryptionVerified") == ("True", "Proven")
    finally:
        plane.apply(storage_class("test-encrypted"))


def test_a_missing_class_and_a_missing_secret_are_named(operator: Any, store: Store) -> None:
    store.apply("test-nowhere", secret=False)
    wait_until(lambda: store.summary() == "StorageClassMissing", "the reason")
    assert "there is no StorageClass test-nowhere" in store.status()["message"]
    store.apply("test-encrypted", secret=False)
    wait_until(lambda: store.summary() == "SecretMissing", "the reason")
    assert "spec.tokenSecret: there is no Secret t with the key token" in store.status()["message"]
    token = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "t", "namespace": store.namespace}}
    store.plane.apply({**token, "stringData": {"token": "x"}})
    wait_until(lambda: "spec.tlsSecret" in store.status()["message"], "the other Secret to be missed")


def test_a_claim_of_somebody_else_is_not_taken(plane: ControlPlane, operator: Any, store: Store) -> None:
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim",
             "metadata": {"name": "store-echo", "namespace": store.namespace},
             "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "test-plain",
                      "resources": {"requests": {"storage": "1Gi"}}}}  # fmt: skip
    plane.apply(claim)
    store.apply()

    wait_until(lambda: store.summary() == "ForeignClaim", "the reason")
    assert store.proof() is None


def test_growth_that_the_class_forbids_is_said(operator: Any, store: Store) -> None:
    store.apply()
    store.provision()
    wait_until(lambda: store.summary() == "Healthy", "the store to be healthy")
    store.apply(size="20Gi")

    wait_until(lambda: store.condition("ResizePending") == ("True", "ClassCannotExpand"), "the reason")
    assert store.claim()["spec"]["resources"]["requests"]["storage"] == "10Gi"


def test_a_claim_that_lost_its_labels_stays_the_stores_and_locks_nothing(
    plane: ControlPlane, operator: Any, store: Store
) -> None:
    store.apply()
    store.provision()
    wait_until(lambda: store.summary() == "Healthy", "the store to be healthy")
    proof, recorded = store.proof()["metadata"]["uid"], store.status()["encryption"]
    for label, value in (("app.kubernetes.io/managed-by", "somebody"), ("ingero.io/owner", "other")):
        plane.patch("pvc", "store-echo", {"metadata": {"labels": {label: value}}}, store.namespace)
        wait_until(lambda: store.claim()["metadata"]["labels"][label] not in ("somebody", "other"), "the label")  # noqa: B023
    operator.settle(1)

    assert store.proof()["metadata"]["uid"] == proof and store.status()["encryption"] == recorded
    wait_until(lambda: store.summary() == "Healthy", "the store to be healthy again")


def owned(store: Store) -> bool:
    return "ownerReferences" in store.claim()["metadata"]


def kept_megabytes(plane: ControlPlane, store: Store) -> int:
    text = plane.read("-n", store.namespace, "cm", "store-echo")["data"]["echo.yaml"]
    return int(yaml.safe_load(text)["retention"]["size_mb"])


@pytest.mark.parametrize("class_name", ["test-encrypted", "test-growing"])
def test_a_claim_is_let_go_of_while_its_growth_is_refused_and_echo_keeps_what_fits(
    plane: ControlPlane, operator: Any, store: Store, class_name: str
) -> None:
    store.apply(class_name, onDelete="Delete")
    store.provision(class_name=class_name)
    wait_until(lambda: store.summary() == "Healthy", "the store to be healthy")
    assert owned(store) and store.status()["storage"]["onDelete"] == "Delete"
    before = kept_megabytes(plane, store)
    # One class cannot expand; where it can, a quota refuses.
    plane.apply(
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": store.namespace},
         "spec": {"hard": {"requests.storage": "10Gi"}}}
    )  # fmt: skip
    counted = ("-n", store.namespace, "resourcequota", "q")
    wait_until(lambda: bool((plane.read(*counted).get("status") or {}).get("used")), "the quota to count")
    store.apply(class_name, onDelete="Delete", size="20Gi")
    wait_until(lambda: store.condition("ResizePending")[0] == "True", "the resize")
    assert kept_megabytes(plane, store) == before

    store.apply(class_name, onDelete="Retain", size="20Gi")

    wait_until(lambda: not owned(store), "the claim to outlive its store")
    wait_until(lambda: store.status()["storage"]["onDelete"] == "Retain", "the status")
    assert store.claim()["spec"]["resources"]["requests"]["storage"] == "10Gi"
    assert kept_megabytes(plane, store) == before


def test_a_claim_grows_and_echo_keeps_more_when_the_volume_has_grown(
    plane: ControlPlane, operator: Any, store: Store
) -> None:
    store.apply("test-growing")
    store.provision(class_name="test-growing")
    wait_until(lambda: store.summary() == "Healthy", "the store to be healthy")
    before = kept_megabytes(plane, store)
    store.apply("test-growing", size="20480Mi")
    wait_until(lambda: store.claim()["spec"]["resources"]["requests"]["storage"] == "20Gi", "the claim to ask")
    wait_until(lambda: store.condition("ResizePending") == ("True", "Resizing"), "the reason")
    assert kept_megabytes(plane, store) == before

    plane.patch("pvc", "store-echo", {"status": {"capacity": {"storage": "20Gi"}}}, store.namespace, "/status")

    wait_until(lambda: kept_megabytes(plane, store) == 2 * before, "Echo to get the new limit")
    wait_until(lambda: store.summary() == "Healthy", "the store to be healthy")


def test_a_size_that_is_edited_before_the_claim_is_bound_is_taken_up_afterwards(
    plane: ControlPlane, operator: Any, store: Store
) -> None:
    store.apply("test-growing")
    wait_until(lambda: store.claim() is not None, "the claim")
    store.apply("test-growing", size="20Gi")
    wait_until(lambda: store.condition("ResizePending") == ("True", "ClaimPending"), "the reason")
    assert store.condition("Stalled") == ("", "")
    store.provision(class_name="test-growing")

    wait_until(lambda: store.claim()["spec"]["resources"]["requests"]["storage"] == "20Gi", "the claim to ask")


def test_the_claim_outlives_its_store_and_serves_the_next_one(
    plane: ControlPlane, operator: Any, store: Store
) -> None:
    store.apply()
    wait_until(lambda: older_than_now(plane.read("storageclass", "test-encrypted")), "the class to be older")
    store.provision()
    wait_until(lambda: store.summary() == "Healthy", "the store to be healthy")
    uid = store.claim()["metadata"]["uid"]
    plane.delete("echo", "store", store.namespace)
    wait_until(lambda: store.workload() is None, "the StatefulSet to go")
    assert store.claim()["metadata"]["uid"] == uid

    store.apply()
    wait_until(lambda: store.summary() == "Healthy", "the store to be back on its volume")
    assert store.claim()["metadata"]["uid"] == uid


def test_a_deleted_claim_is_named_while_its_pod_runs_and_when_it_is_gone(
    plane: ControlPlane, operator: Any, store: Store
) -> None:
    store.apply()
    store.provision()
    wait_until(lambda: store.summary() == "Healthy", "Echo to run")
    uid = store.claim()["metadata"]["uid"]

    plane.kubectl("-n", store.namespace, "delete", "pvc", "store-echo", "--wait=false")
    wait_until(lambda: store.condition("StorageBound") == ("False", "ClaimDeleted"), "the warning")
    before = store.workload()
    store.apply(node_selector={"pool": "other"})

    def seen() -> bool:
        found = plane.read("-n", store.namespace, "echo", "store")
        return bool(found["status"]["observedGeneration"] == found["metadata"]["generation"])

    wait_until(seen, "the change to be seen")
    assert (store.workload() or {})["spec"] == (before or {})["spec"], "no rollout replaces the pod"
    plane.delete("pod", "store-echo-0", store.namespace)
    kept = {"metadata": {"uid": uid}}
    wait_until(lambda: (store.claim() or kept)["metadata"]["uid"] != uid, "another claim")

    def words() -> str:
        return plane.kubectl("-n", store.namespace, "get", "events", "--field-selector", "reason=ClaimGone")

    wait_until(lambda: f"volume {store.volume} has the former events" in words(), "the Event")


def older_than_now(body: Any) -> bool:
    """Whether a volume made now is younger than this object, by times that have whole seconds."""
    return bool(body["metadata"]["creationTimestamp"] < datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))


def test_what_an_earlier_store_left_goes_without_the_garbage_collector(
    plane: ControlPlane, operator: Any, store: Store
) -> None:
    store.apply()
    wait_until(lambda: older_than_now(plane.read("storageclass", "test-encrypted")), "the class to be older")
    store.provision()
    wait_until(lambda: store.summary() == "Healthy", "the store to be healthy")
    before, claim = store.proof(), store.claim()["metadata"]["uid"]
    with plane.frozen("kube-controller-manager"):
        plane.delete("echo", "store", store.namespace)
        store.apply()
        wait_until(lambda: (store.proof() or before)["metadata"]["uid"] != before["metadata"]["uid"], "a new proof")

        children = plane.read("-n", store.namespace, "cm,svc,sa,sts,netpol", "-l", "ingero.io/owner=store")["items"]
        owner = plane.read("-n", store.namespace, "echo", "store")["metadata"]["uid"]
        assert len(children) == 7 and {item["metadata"]["ownerReferences"][0]["uid"] for item in children} == {owner}
        assert store.claim()["metadata"]["uid"] == claim
    wait_until(lambda: store.summary() == "Healthy", "the store to be healthy again")


def test_a_store_can_be_deleted_without_what_belongs_to_it(plane: ControlPlane, operator: Any, store: Store) -> None:
    store.apply()
    wait_until(lambda: older_than_now(plane.read("storageclass", "test-encrypted")), "the class to be older")
    store.provision()
    wait_until(lambda: store.summary() == "Healthy", "the store to be healthy")

    plane.kubectl("-n", store.namespace, "delete", "echo", "store", "--cascade=orphan", "--wait=false")
    wait_until(lambda: plane.read("-n", store.namespace, "echo", "store") is None, "the store to go")

    assert "ownerReferences" not in store.proof()["metadata"] and store.workload() is not None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"storage": {"size": "10GB"}}, "spec.storage.size must be a quantity such as 50Gi"),
        ({"storage": {"size": "0"}}, "spec.storage.size must be at least 100Mi"),
        ({"storage": {"size": "-5Gi"}}, "spec.storage.size must be at least 100Mi"),
        ({"resources": {"memory": "9999m"}}, "memory must be at least 32Mi"),
        ({"retention": "999999d"}, "spec.retention"),
        ({"peers": [{"namespace": "a.b", "labels": {"a": "b"}}]}, "spec.peers[0].namespace"),
        ({"storage": {"encryption": {"policy": "None"}}}, "spec.storage.encryption.policy"),
        ({"retention": "for ever"}, "spec.retention"),
        ({"storage": {"onDelete": "Shred"}}, "spec.storage.onDelete"),
        ({"storage": {"className": "Not A Name"}}, "spec.storage.className"),
        ({"tlsSecret": None}, "spec.tlsSecret"),
        ({"peers": [{"labels": {}}]}, "spec.peers[0].labels"),
        ({"image": ""}, "spec.image"),
        ({"tokenSecret": None}, "spec.tokenSecret"),
        ({"readers": {"tokenSecret": {"name": "t"}}}, "spec.readers need spec.table"),
        ({"shards": 2}, "spec.shards: more than one need spec.table and spec.readers"),
        ({"source": {"nats": {"servers": ["n:4222"], "stream": "s"}}}, "spec.source needs spec.table"),
        (
            {**sealing(), "source": {"nats": {"servers": ["n:4222"], "stream": "s", "maxSize": "1k"}}},
            "spec.source.nats.maxSize must be a quantity of 1Mi or more",
        ),
        (sealing(name="s3.secret-access-key"), "use spec.table.credentialsSecret"),
        (sealing(value="postgresql://me:mine@db/catalog"), "this address has a password"),
        ({**sealing(), "readers": {"tokenSecret": {"name": "t"}, "cache": "1Mi"}}, "must be at least 1Gi"),
    ],
)
def test_a_bad_spec_is_refused_by_the_api_server_with_its_field(
    plane: ControlPlane, namespace: str, change: dict[str, Any], words: str
) -> None:
    spec = {
        key: value
        for key, value in {"tlsSecret": "tls", "tokenSecret": {"name": "t"}, **change}.items()
        if value is not None
    }
    bad = {"apiVersion": "ingero.io/v1alpha1", "kind": "EchoStore", "metadata": {"name": "x"}, "spec": spec}

    answer = plane.kubectl("-n", namespace, "create", "-f", "-", stdin=json.dumps(bad), check=False)

    assert words in answer and "created" not in answer


def test_an_echo_that_runs_and_never_becomes_ready_is_degraded_until_it_is(
    plane: ControlPlane, operator: Any, store: Store
) -> None:
    placed_by_hand(store, "true")
    wait_until(lambda: store.unmounted() == [], "everything to be there that the pod mounts")
    since = "2026-01-01T00:00:00Z"
    running = {
        "name": "echo", "image": "x", "imageID": "", "ready": False, "restartCount": 0,
        "state": {"running": {"startedAt": since}},
    }  # fmt: skip
    unready = {
        "containerStatuses": [running],
        "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": since}],
    }  # fmt: skip
    plane.patch("pod", "store-echo-0", {"status": unready}, store.namespace, "/status")

    wait_until(lambda: store.condition("Degraded") == ("True", "PodNotReady"), "the condition")
    assert store.condition("Available") == ("False", "PodNotReady") and store.summary() == "PodNotReady"
    assert "not ready since" in store.status()["message"] and "kubectl logs store-echo-0" in store.status()["message"]

    store.mount()
    wait_until(lambda: store.summary() == "Healthy", "the store to be healthy")
    assert store.condition("Degraded")[0] == "False"
