"""The whole scenario on a real control plane: apply, get, straggler, taint, proof, release, upgrade, delete.

API server, controllers and scheduler are real; kwok simulates the kubelets. Real Fleet, Echo and agent processes
watch real workloads, one of which is slowed down. Ends by itself; exit status 0 only if every step was observed.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from ingero_contract import echo, metrics, routes
from ingero_contract.values import VerdictState
from ingero_operator.render.crds import all_definitions
from ingero_operator.render.install import NAMESPACE as HOME
from ingero_operator.render.install import OPERATOR, everything
from scripts import demo_pods, pod_lab
from scripts.controlplane import PLAYED, ControlPlane, control_plane
from scripts.demo import LEARNT
from scripts.demo_pods import PodStory
from scripts.demo_pods_ha import SharedLogStory
from scripts.demo_pods_tables import TablesStory
from scripts.lab import BIN, FREE, Lab, LabFailed, Site, certificate, laboratory

NAMESPACE = "ingero"
HERE = {PLAYED: "true"}
"""Label of the demo's nodes: no other node of the cluster is read or used."""
CLUSTER = "demo"
INTERVAL = 1.0
NODES = tuple(f"gpu-{number}" for number in range(5))
QUICK = {
    "mode": "NoSchedule", "confirmFor": "3s", "confirmWindows": 3, "recoverFor": "3s", "interval": "1s",
    "minNodeAge": "1s", "quiet": "1s", "minHealthyPercent": 60, "budget": {"maxNodes": 1, "maxPercent": 20},
}  # fmt: skip
TOKEN = "demo-token"
STORE = "events"
DRIVER = "csi.scaleway.com"
VOLUME = "ingero-demo"
CLUSTER_WIDE = {
    "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", "PriorityClass", "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}  # fmt: skip


@dataclass
class Story:
    """One run: each step is checked, and printed when it is observed."""

    plane: ControlPlane
    lab: Lab
    folder: Path
    echo: dict[str, int] = field(default_factory=dict)
    chapters: int = 0
    site: Site = field(init=False)

    def __post_init__(self) -> None:
        self.site = Site(self.lab, CLUSTER, INTERVAL, NODES)

    def say(self, text: str) -> None:
        """Print one line."""
        print(text, flush=True)

    def chapter(self, title: str, *sentences: str) -> None:
        """Print a step of the scenario and what it means."""
        self.chapters += 1
        self.say(f"\n{self.chapters}. {title}")
        for sentence in sentences:
            self.say(f"   {sentence}")

    def show(self, *arguments: str) -> None:
        """Print the command that a user would type, and its output."""
        self.say(f"   $ kubectl {' '.join(arguments)}")
        for line in self.plane.kubectl(*arguments).rstrip().splitlines():
            self.say(f"     {line}".rstrip())

    def status(self) -> dict[str, Any]:
        """Status of the FleetCluster."""
        return (self.plane.read("-n", NAMESPACE, "fc", CLUSTER) or {}).get("status") or {}

    def taint(self, name: str) -> dict[str, str] | None:
        """The operator's taint on a node."""
        taints = self.plane.read("node", name)["spec"].get("taints", [])
        return next((item for item in taints if item["key"] == "ingero.io/straggler"), None)

    def fleet_cluster(self, store: str | None = STORE, **change: Any) -> dict[str, Any]:
        """The resource that a user applies."""
        fleet: dict[str, Any] = {"pushInterval": "1s", "quorum": {"statisticalMin": 3}, "nodeSelector": dict(HERE)}
        if store:
            fleet["forward"] = {"echoStore": store, "tokenSecret": {"name": "fleet-token"}}
        spec = {
            "clusterId": CLUSTER, "tokenSecret": {"name": "fleet-token"}, "fleet": fleet,
            "agents": {"nodeSelector": dict(HERE)}, "taints": QUICK, **change,
        }  # fmt: skip
        metadata = {"name": CLUSTER, "namespace": NAMESPACE}
        return {"apiVersion": "ingero.io/v1alpha1", "kind": "FleetCluster", "metadata": metadata, "spec": spec}

    def refuse_if_used(self) -> None:
        """Check that an existing cluster has no objects of the demo, so that nothing in it is overwritten."""
        definitions = self.plane.request("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
        there = [item["metadata"]["name"] for item in definitions if item["spec"]["group"] == "ingero.io"]
        there += [name for name in (NAMESPACE, HOME) if self.plane.read("namespace", name)]
        there += [name for name in NODES if self.plane.read("node", name)]
        if there:
            raise LabFailed(f"the demo wants a cluster without {', '.join(there)}")

    def clean(self) -> None:
        """Remove all objects of the demo from an existing cluster, whatever the outcome of the run."""
        objects = [*everything("0.1.0"), *all_definitions()]
        named = [(item["kind"].lower(), item["metadata"]["name"]) for item in objects if item["kind"] in CLUSTER_WIDE]
        named += [("node", name) for name in NODES]
        named += [("pv", VOLUME), ("storageclass", "demo-plain"), ("storageclass", "demo-encrypted")]
        named += [("namespace", NAMESPACE), ("namespace", HOME)]
        for kind, name in named:
            self.plane.kubectl("delete", kind, name, "--ignore-not-found", "--wait=false", check=False)

    def install(self) -> None:
        """Install CRDs, rights, policies and nodes, and start the operator with only its own account's rights."""
        self.plane.apply(*all_definitions())
        self.plane.apply(*(item for item in everything("0.1.0") if item["kind"] != "Deployment"))
        self.plane.established()
        labels = {"pod-security.kubernetes.io/enforce": "privileged"}
        tls = certificate(self.folder, f"{STORE}-echo.{NAMESPACE}.svc")
        self.plane.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}},
            {"apiVersion": "v1", "kind": "Secret", "stringData": {"token": TOKEN},
             "metadata": {"name": "fleet-token", "namespace": NAMESPACE}},
            {"apiVersion": "v1", "kind": "Secret", "stringData": tls,
             "metadata": {"name": "echo-tls", "namespace": NAMESPACE}},
            *({"apiVersion": "v1", "kind": "Node",
               "metadata": {"name": name, "labels": {"nvidia.com/gpu.present": "true", **HERE}}} for name in NODES),
        )  # fmt: skip
        token = self.plane.kubectl("-n", HOME, "create", "token", OPERATOR, "--duration=1h").strip()
        kubeconfig = self.folder / "operator.kubeconfig"
        self.plane.write_kubeconfig(kubeconfig, token)
        os.environ["KUBECONFIG"] = str(kubeconfig)

    def store(self) -> None:
        """An EchoStore: refused on a plain class, then proven on an encrypted one; the demo acts as CSI driver."""
        for name, parameters in (("demo-plain", {}), ("demo-encrypted", {"encrypted": "true"})):
            self.plane.apply(
                {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
                 "provisioner": DRIVER, "parameters": parameters}
            )  # fmt: skip

        def ask(class_name: str) -> None:
            spec = {"tokenSecret": {"name": "fleet-token"}, "tlsSecret": "echo-tls", "nodeSelector": dict(HERE),
                    "storage": {"className": class_name, "size": "10Gi"}}  # fmt: skip
            metadata = {"name": STORE, "namespace": NAMESPACE}
            self.plane.apply(
                {"apiVersion": "ingero.io/v1alpha1", "kind": "EchoStore", "metadata": metadata, "spec": spec}
            )

        def summary() -> str:
            found = self.plane.read("-n", NAMESPACE, "echo", STORE) or {}
            return str((found.get("status") or {}).get("summary", ""))

        ask("demo-plain")
        self.lab.wait("the refusal", lambda: summary() == "ClassNotEncrypted")
        self.say("   Its StorageClass does not encrypt, so no volume is made and the message names the cure:")
        self.show("-n", NAMESPACE, "get", "echo", "-o", "custom-columns=NAME:.metadata.name,WHY:.status.message")
        ask("demo-encrypted")
        self.say("   Corrected to an encrypted class; the volume is proven before any container may start:")
        self.lab.wait("the claim", lambda: self.plane.read("-n", NAMESPACE, "pvc", f"{STORE}-echo"))
        claim = self.plane.read("-n", NAMESPACE, "pvc", f"{STORE}-echo")["metadata"]
        reference = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": claim["name"],
                     "namespace": NAMESPACE, "uid": claim["uid"]}  # fmt: skip
        csi = {"driver": DRIVER, "volumeHandle": "demo", "volumeAttributes": {"encrypted": "true"}}
        self.plane.apply(
            {"apiVersion": "v1", "kind": "PersistentVolume",
             "metadata": {"name": VOLUME, "annotations": {"pv.kubernetes.io/provisioned-by": DRIVER}},
             "spec": {"capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"], "claimRef": reference,
                      "storageClassName": "demo-encrypted", "csi": csi}}
        )  # fmt: skip
        self.lab.wait("the store", lambda: summary() == "Healthy")
        self.show("-n", NAMESPACE, "get", "echo")

    def start_echo(self) -> None:
        """Start a real Echo for the EchoStore, on ports of this machine."""
        ports = self.folder / "echo-ports.json"
        places = ("ingest.grpc_endpoint", "ingest.http_endpoint", "api.endpoint")
        self.lab.start(
            "echo", str(BIN / "ingero-echo"), "serve", "--insecure", "--ports-file", str(ports),
            "--set", f"store.path={self.folder / 'echo.duckdb'}",
            *(word for place in places for word in ("--set", f"{place}=127.0.0.1:0")),
        )  # fmt: skip
        self.lab.wait("Echo to listen", ports.exists)
        self.echo = json.loads(ports.read_text())

    def used(self) -> str | None:
        """How full Echo's volume is, by the status of the EchoStore."""
        status = (self.plane.read("-n", NAMESPACE, "echo", STORE) or {}).get("status") or {}
        used: str | None = status.get("storage", {}).get("usedBand")
        return used

    def taints_in_echo(self) -> list[str]:
        """The taint events that Echo has stored."""
        text = f"SELECT message FROM events WHERE metric_name = '{metrics.TAINT_EVENT}' ORDER BY timestamp"
        url = f"http://127.0.0.1:{self.echo['api']}{echo.SQL}"
        answer = httpx.post(url, json={"sql": text}, timeout=10, trust_env=False)
        return [str(row[0]) for row in answer.raise_for_status().json()["rows"]]

    def start_fleet(self) -> None:
        """Start a real Fleet with the settings that the operator rendered, on ports of this machine."""

        def rendered() -> Any:
            return yaml.safe_load(self.plane.read("-n", NAMESPACE, "cm", f"{CLUSTER}-fleet")["data"]["fleet.yaml"])

        self.lab.wait("the settings that forward", lambda: "otlp" in rendered()["exporters"])
        tree = rendered()
        token = self.folder / "token"
        token.write_text(TOKEN)
        auth = {"auth": {"bearer_token_file": str(token)}}
        for protocol in ("grpc", "http"):
            tree["receivers"]["otlp"]["protocols"][protocol] |= {"endpoint": FREE, **auth}
        tree["extensions"]["ingero_threshold"] |= {
            "agent_endpoint": FREE, "admin_endpoint": FREE, **auth
        }  # fmt: skip
        tree["extensions"]["healthee"] |= {"endpoint": FREE, **auth}
        tree["extensions"]["zpages"] = {"endpoint": FREE}
        tree["processors"]["ingero"]["detector"] = {"warmup_ticks": LEARNT}
        tree["exporters"]["otlp"] = {"endpoint": f"127.0.0.1:{self.echo['otlp/grpc']}", "tls": {"insecure": True}}
        tree["exporters"]["prometheus"]["endpoint"] = FREE
        tree["service"]["telemetry"]["metrics"]["address"] = FREE
        file, ports = self.folder / "fleet.yaml", self.folder / "fleet-ports.json"
        file.write_text(yaml.safe_dump(tree))
        self.lab.start("fleet", str(BIN / "ingero-fleet"), "serve", "--config", str(file), "--ports-file", str(ports))
        self.lab.wait("Fleet to listen", ports.exists)
        self.site.ports = json.loads(ports.read_text())

    def learnt(self) -> bool:
        """Whether Fleet has learnt every node's usual rate; a rate learnt while the node is slow would be wrong."""
        answer = httpx.get(
            f"http://127.0.0.1:{self.site.ports['threshold']}{routes.FLEET_VERDICTS}", timeout=5, trust_env=False,
            params={routes.CLUSTER_PARAMETER: CLUSTER}, headers={"Authorization": f"Bearer {TOKEN}"},
        )  # fmt: skip
        states = [str((node.get("verdict") or {}).get("state")) for node in answer.raise_for_status().json()["nodes"]]
        return len(states) == len(NODES) and VerdictState.LEARNING not in states

    def start_agents(self) -> None:
        """Start a real workload and a real agent for every node."""
        self.site.start_workloads()
        self.site.start_agents(8, "--fleet-token-file", str(self.folder / "token"))

    def start_operator(self) -> None:
        """Start the operator, with leader election."""
        ports = self.folder / "operator-ports.json"
        url = f"http://127.0.0.1:{self.site.ports.get('threshold', 1)}"
        self.lab.start(
            "operator", str(BIN / "ingero-operator"), "run", "--listen", FREE, "--fleet-url", url,
            "--fleet-otlp-url", f"http://127.0.0.1:{self.site.ports.get('otlp/http', 1)}",
            "--echo-url", f"http://127.0.0.1:{self.echo.get('api', 1)}",
            "--ports-file", str(ports), "--poll", "500ms", "--resync", "5s",
        )  # fmt: skip
        self.lab.wait("the operator to listen", ports.exists)

    def run(self) -> None:
        """Run every step."""
        whose = (
            "The cluster that was named" if self.plane.server else "A Kubernetes control plane of this machine's own"
        )
        self.say(f"{whose}: API server, controllers and scheduler are real, kwok plays the kubelets of")
        self.say("five GPU nodes. Real Fleet, Echo and agent processes run behind it.")
        self.install()
        self.site.ports = {"threshold": 9}
        self.start_operator()
        self.chapter(
            "apply", "CRDs, rights, admission policies and the operator are there. A FleetCluster is applied:"
        )
        spec = self.fleet_cluster(None)
        for line in yaml.safe_dump(spec, sort_keys=False).splitlines():
            self.say(f"     {line}")
        self.plane.apply(spec)
        seconds = self.lab.wait("the children", lambda: self.status().get("agents", {}).get("ready") == "5/5")
        self.say(f"   After {seconds:.1f} s the operator has made everything of it, an agent on every GPU node:")
        self.show("-n", NAMESPACE, "get", "deploy,ds,svc")
        self.chapter("store", "An EchoStore keeps what Fleet finds, on a volume that is encrypted, or not at all.")
        self.store()
        self.plane.apply(self.fleet_cluster())
        self.say("   Fleet forwards to it: spec.fleet.forward.echoStore: events")
        self.start_echo()
        self.start_fleet()
        self.start_agents()
        self.restart_operator()
        self.lab.wait("the threshold", lambda: self.status().get("fleet", {}).get("threshold"), 90)
        self.lab.wait("Fleet to have learnt every node", self.learnt, 120)
        self.lab.wait("no node to be accused", lambda: self.status()["stragglers"]["accused"] == 0, 90)
        self.lab.wait("the store that Fleet forwards to", lambda: self.status()["summary"] == "Healthy")
        self.chapter("get", "One line tells the whole story. All five nodes work alike, nobody is accused:")
        self.show("-n", NAMESPACE, "get", "fc")
        self.straggler(NODES[-1])
        self.upgrade()
        self.delete()

    def restart_operator(self) -> None:
        """Restart the operator, now that Fleet and Echo have addresses; it resumes from the recorded state."""
        self.lab.stop("operator")
        (self.folder / "operator-ports.json").unlink()
        self.start_operator()

    def straggler(self, victim: str) -> None:
        """One node: workload stopped, node tainted, workload resumed, recovery proven, taint removed."""
        self.site.hurt(signal.SIGUSR1, victim)
        self.chapter("straggler", f"The workload of {victim} is slowed to half its speed.")
        seconds = self.lab.wait("the taint", lambda: self.taint(victim), 300)
        wrong = [name for name in NODES if name != victim and self.taint(name)]
        if wrong:
            raise LabFailed(f"marked {wrong} as well")
        taint = self.taint(victim) or {}
        self.chapter(
            "taint",
            f"After {seconds:.1f} s {victim}, and no other node, gets no new pods (nothing that runs is touched):",
            f"  {taint['key']}={taint['value']}:{taint['effect']}",
            "The evidence is in the annotation of the same name:",
        )
        note = json.loads(self.plane.read("node", victim)["metadata"]["annotations"]["ingero.io/straggler"])
        self.say(f"     {json.dumps({key: value for key, value in note.items() if key not in ('owner', 'node')})}")
        self.lab.wait("the status", lambda: self.status()["taints"]["used"] == "1/1")
        self.show("-n", NAMESPACE, "get", "fc")
        self.site.hurt(signal.SIGUSR2, victim)
        self.chapter(
            "proof", f"The workload of {victim} is healed. The taint stays until the node is proven healthy:",
            f"active and not accused in fresh statistics for {QUICK['recoverFor']} (10 minutes by default).",
        )  # fmt: skip
        seconds = self.lab.wait("the release", lambda: not self.taint(victim), 300)
        self.chapter("release", f"After {seconds:.1f} s the node is free again. It is recorded in three places:")
        items = self.plane.read("-n", NAMESPACE, "events")["items"]
        for item in sorted(items, key=lambda item: str(item["firstTimestamp"])):
            if item["reason"] in ("Tainted", "Released"):
                self.say(f"     Event {item['reason']}: {item['message']}")
        self.lab.wait("Echo to have both marks", lambda: len(self.taints_in_echo()) >= 2)
        for message in self.taints_in_echo():
            self.say(f"     Echo keeps: {message}")
        for line in self.status()["taints"]["history"]:
            self.say(f"     status.taints.history: {line}")

    def upgrade(self) -> None:
        """Upgrade: a new version is rolled out to the receiver first, then to the agents."""
        self.plane.apply(self.fleet_cluster(version="0.2.0"))

        def upgraded() -> bool:
            found = self.plane.read("-n", NAMESPACE, "deploy,ds")["items"]
            images = {item["spec"]["template"]["spec"]["containers"][0]["image"] for item in found}
            return all(image.endswith(":0.2.0") for image in images) and self.status().get("summary") == "Healthy"

        seconds = self.lab.wait("the upgrade", upgraded, 120)
        lines = (self.folder / "operator.log").read_text().splitlines()
        order = [json.loads(line)["name"] for line in lines if "0.2.0" in line and '"apply"' in line]
        self.chapter(
            "upgrade", "spec.version is set to 0.2.0: one after the other, so that the cluster is never blind.",
            f"Done after {seconds:.1f} s, in this order: {', '.join(order)}",
        )  # fmt: skip
        self.show("-n", NAMESPACE, "get", "fc", "-o", "wide")
        self.lab.wait("the operator to report Echo's volume usage", self.used, 90)
        self.show("-n", NAMESPACE, "get", "echo")

    def delete(self) -> None:
        """Delete everything, and check that nothing is left."""
        self.plane.delete("fc", CLUSTER, NAMESPACE)
        self.plane.delete("echo", STORE, NAMESPACE)
        kinds = "deploy,ds,sts,svc,cm,sa,netpol,pdb"

        def gone() -> bool:
            owners = f"ingero.io/owner in ({CLUSTER},{STORE})"
            left = self.plane.read("-n", NAMESPACE, kinds, "-l", owners)["items"]
            return not left and not any(self.taint(name) for name in NODES)

        seconds = self.lab.wait("everything to go", gone, 120)
        self.chapter("delete", f"Both resources are deleted; after {seconds:.1f} s no child and no taint is left.")
        self.say("   The volume stays, because spec.storage.onDelete is Retain:")
        self.show("-n", NAMESPACE, "get", "pvc")


def main() -> int:
    """Parse the flags, run, report the result."""
    parser = argparse.ArgumentParser(prog="make demo-cluster ARGS=...", description=__doc__)
    parser.add_argument("--context", help="a cluster that is there already (kind, minikube), by its kubectl context; "
                                          "without ingero, and without it again afterwards")  # fmt: skip
    parser.add_argument("--kwok", action="store_true", help="simulated kubelets, also where real nodes can run")
    parser.add_argument("--plain", action="store_true", help="with real nodes: Fleet without TLS and token")
    parser.add_argument(
        "--ha", action="store_true", help="with real nodes: three Fleets on NATS; one of each is deleted"
    )
    parser.add_argument(
        "--tables", action="store_true", help="with real nodes: Echo's shared tables, two writers and two readers"
    )
    parser.add_argument("--interval", type=int, default=2, help="with real nodes: seconds between pushes (default 2)")
    flags = parser.parse_args()
    context = flags.context
    simulated = "--context" if context else "--kwok" if flags.kwok else pod_lab.missing()
    try:
        if not simulated:
            print("Real nodes: every component is the pod that the operator makes.", flush=True)
            for line in pod_lab.origin_of_images(pod_lab.image_revisions()):
                print(f"Images {line}", flush=True)
            with laboratory("demo-cluster") as lab:
                if flags.tables:
                    demo_pods.run(lab, TablesStory)
                elif flags.ha:
                    demo_pods.run(lab, SharedLogStory, interval=flags.interval)
                else:
                    demo_pods.run(lab, PodStory, secure=not flags.plain, interval=flags.interval)
            print("\nevery row is as expected")
            return 0
        if flags.ha or flags.tables:
            raise LabFailed(f"--ha and --tables need real nodes: {simulated}")
        print(f"Simulated nodes ({simulated}): kwok plays the kubelets.", flush=True)
        with (
            laboratory("demo-cluster") as lab,
            control_plane(lab.folder / "plane", context=context) as plane,
            contextlib.ExitStack() as first,
        ):
            first.callback(lab.stop)  # clients of the API server end before it does
            story = Story(plane, lab, lab.folder)
            if context:
                story.refuse_if_used()
                first.callback(story.clean)
                first.callback(lab.stop)
            story.run()
    except LabFailed as error:
        print(f"demo-cluster: {error}", file=sys.stderr)
        return 1
    except (FileNotFoundError, RuntimeError) as error:
        print(f"demo-cluster: {error}", file=sys.stderr)
        return 2
    print("\nevery step was seen")
    return 0


if __name__ == "__main__":
    sys.exit(main())
