"""The whole scenario in real pods: a job with a rank on every node, one rank late, named, its node tainted, freed.

Operator, Fleet, the agents with eBPF and Echo run as the pods that `manifests/base` and the operator make. Every row
is printed with what was expected, what was observed, and after how many seconds.
"""

import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ingero_contract.kubernetes import GROUP, STRAGGLER_CONDITION, STRAGGLER_TAINT
from scripts import pod_job
from scripts.controlplane import ControlPlane, find_assets
from scripts.lab import Lab, LabFailed, certificate

ROOT = Path(__file__).resolve().parents[1]
LAB = ROOT.parent / "shared/nodelab"
"""Starts real nodes on this machine, where it is installed."""
PROGRAMS = ("runc", "nft", "iptables", "ip", "openssl", "xz", "unshare", "nsenter", "cc", "buildah")
VERSION = version("ingero")
IMAGES = tuple(f"localhost/ingero/{name}:{VERSION}" for name in ("operator", "fleet", "echo", "sink", "agent"))
NODES = 3
HOME, NAMESPACE, CLUSTER, STORE, CLASS = "ingero-system", "ingero", "prod", "events", "demo-declared"
TOKEN = "demo-token"
TAINTS = {
    "mode": "PreferNoSchedule", "condition": True, "confirmFor": "5s", "confirmWindows": 3, "recoverFor": "10s",
    "interval": "1s", "minNodeAge": "1s", "quiet": "1s", "minHealthyPercent": 60,
    "budget": {"maxNodes": 1, "maxPercent": 34},
}  # fmt: skip
LEAST_SHARE = 0.1
"""Share of the job's time: on a busy machine a rank that is not slowed on purpose may really cost a few percent."""
INSIDE = (
    "id -u; sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status; touch /written 2>/dev/null && echo rw || echo ro"
)
"""What a container's process may: user, effective capabilities, whether the root file system can be written."""
CAPABILITIES = {
    "DAC_READ_SEARCH": 2, "SYS_PTRACE": 19, "SYS_RESOURCE": 24, "PERFMON": 38, "BPF": 39, "CHECKPOINT_RESTORE": 40,
}  # fmt: skip


@dataclass(frozen=True)
class Nodes:
    """A cluster with real nodes. `load`: command that puts images into them, if it is known."""

    kubeconfig: Path
    load: tuple[str, ...] = ()


def missing() -> str:
    """Why no cluster with real nodes can be used or started here; empty if one can."""
    if os.environ.get("INGERO_LAB"):
        return ""
    if not (LAB / "up").exists():
        return "INGERO_LAB names no cluster with real nodes"
    if platform.system() != "Linux" or os.geteuid() != 0:
        return "real nodes need root on Linux"
    absent = [program for program in PROGRAMS if not shutil.which(program)]
    if absent:
        return f"real nodes need {', '.join(absent)}"
    known = subprocess.run(["buildah", "images", "--format", "{{.Name}}:{{.Tag}}"], capture_output=True, text=True)
    if absent := sorted(set(IMAGES) - set(known.stdout.split())):
        return f"`make images BUILDER=buildah` has not built {', '.join(absent)}"
    return ""


@contextmanager
def nodes(lab: Lab) -> Iterator[Nodes]:
    """The cluster that `INGERO_LAB` names, or one that is started on this machine and ends with the block."""
    named = os.environ.get("INGERO_LAB")
    if named:
        load = Path(named) / "load-image"
        yield Nodes(Path(named) / "kubeconfig", (str(load),) if load.exists() else ())
        return
    folder = lab.folder / "nodes"
    programs = subprocess.run([LAB / "unpack"], capture_output=True, text=True, check=True).stdout.strip()
    os.environ["PATH"] = f"{programs}:{os.environ['PATH']}"
    os.environ |= {"NODES": str(NODES), "NODE_LABELS": "nvidia.com/gpu.present=true"}
    lab.start("nodes", str(LAB / "up"), str(folder))
    try:
        lab.wait("the nodes", (folder / "ready").exists, 180)
        yield Nodes(folder / "kubeconfig", (str(LAB / "load-image"), str(folder)))
    finally:
        process = lab.processes.pop("nodes")
        process.terminate()
        process.wait(300)


@dataclass
class PodStory:
    """One run. `secure`: with TLS and tokens between the components, otherwise with NetworkPolicies alone."""

    plane: ControlPlane
    lab: Lab
    cluster: Nodes
    secure: bool = True
    wrong: list[str] = field(default_factory=list)
    """Rows that are not as expected."""

    def row(self, what: str, expected: str, got: str, seconds: float) -> None:
        """Print one row of the table."""
        if got != expected:
            self.wrong.append(what)
        print(f"| {what} | {expected} | {got} | {seconds:.1f} |{'' if got == expected else ' differs'}", flush=True)

    def expect(
        self, what: str, expected: str, observe: Callable[[], str], since: float | None = None, limit: float = 120.0
    ) -> None:
        """Observe until the expected value is seen, or the limit is reached, and print a row.

        `since`: when that began which the row is about; by default now.
        """
        now, got = time.monotonic(), ""
        while True:
            with suppress(RuntimeError, KeyError, IndexError, TypeError, ValueError):
                got = observe()
            if got == expected or time.monotonic() - now > limit:
                break
            self.lab.check()
            time.sleep(0.2)
        self.row(what, expected, got, time.monotonic() - (now if since is None else since))

    def run(self) -> None:
        """Run every step."""
        labels = ",".join(f"{key}={value}" for key, value in pod_job.GPU.items())
        if (found := len(self.plane.read("node", "-l", labels)["items"])) != NODES:
            raise LabFailed(f"{NODES} nodes with the label {labels} are needed, the cluster has {found}")
        print("| what | expected | got | seconds |\n| --- | --- | --- | --- |", flush=True)
        if self.cluster.load:
            begun = time.monotonic()
            subprocess.run([*self.cluster.load, *IMAGES], check=True, capture_output=True)
            self.row("images in every node", str(len(IMAGES)), str(len(IMAGES)), time.monotonic() - begun)
        self.install()
        self.privileges()
        self.start_job()
        late = self.late_rank()
        self.echo(late)
        self.recovery(late)
        if self.wrong:
            self.keep_logs()
        self.delete()
        if self.wrong:
            raise LabFailed(f"not as expected: {'; '.join(self.wrong)}")

    def refuse_if_used(self) -> None:
        """Check that a cluster that stays has no objects of the demo, so that nothing in it is overwritten."""
        definitions = self.plane.request("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
        there = [item["metadata"]["name"] for item in definitions if item["spec"]["group"] == GROUP]
        there += [name for name in (HOME, NAMESPACE, pod_job.NAMESPACE) if self.plane.read("namespace", name)]
        if there:
            raise LabFailed(f"the demo needs a cluster without {', '.join(there)}")

    def keep_logs(self) -> None:
        """Write the pods' logs to the folder of the run."""
        for pod in [*self.pods(HOME), *self.pods(NAMESPACE), *self.pods(pod_job.NAMESPACE)]:
            name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
            text = self.plane.kubectl("-n", namespace, "logs", name, "--all-containers", "--prefix", check=False)
            self.lab.log(name).write_text(text)

    def install(self) -> None:
        """The operator from `manifests/base`, and one resource of each kind."""
        self.plane.kubectl("apply", "--server-side", "-k", str(ROOT / "manifests/base"))
        self.expect(
            "operator, from manifests/base", "2/2 ready", lambda: self.ready("deploy", HOME, "ingero-operator")
        )
        self.plane.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {
                "name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "privileged"}}},
            {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {
                "name": CLASS, "annotations": {
                    "ingero.io/encryption-at-rest": "declared",
                    "ingero.io/encryption-evidence": "a demo that stores nothing confidential"}},
             "provisioner": self.provisioner(), "volumeBindingMode": "WaitForFirstConsumer"},
            *({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE},
               "stringData": data} for name, data in self.secrets().items()),
            self.echo_store(), self.fleet_cluster(),
        )  # fmt: skip
        begun = time.monotonic()
        self.expect("Fleet", "1/1", lambda: str(self.status("fc", CLUSTER)["fleet"]["ready"]), begun)
        self.expect("EchoStore", "Healthy", lambda: str(self.status("echo", STORE)["summary"]), begun)
        tracers = f"{CLUSTER}-trace"
        self.expect("tracers, with their programs in the kernel", f"{NODES}/{NODES} ready",
                    lambda: self.ready("ds", NAMESPACE, tracers), begun)  # fmt: skip
        self.expect("FleetCluster", f"Ready True, agents {NODES}/{NODES}", self.health, begun)

    def health(self) -> str:
        """Whether the FleetCluster is ready, and how many of its agents."""
        return f"Ready {self.condition('Ready')}, agents {self.status('fc', CLUSTER)['agents']['ready']}"

    def quorum(self) -> str:
        """Active nodes of the expected ones, and whether that is enough."""
        return f"{self.status('fc', CLUSTER)['fleet']['nodes']} {self.condition('QuorumMet')}"

    def condition(self, name: str) -> str:
        """Status of a condition of the FleetCluster."""
        (found,) = [item["status"] for item in self.status("fc", CLUSTER)["conditions"] if item["type"] == name]
        return str(found)

    def provisioner(self) -> str:
        """The provisioner of the cluster's default StorageClass."""
        mark = "storageclass.kubernetes.io/is-default-class"
        for item in self.plane.read("storageclass")["items"]:
            if (item["metadata"].get("annotations") or {}).get(mark) == "true":
                return str(item["provisioner"])
        raise LabFailed("the cluster has no default StorageClass")

    def secrets(self) -> dict[str, dict[str, str]]:
        """A token and a certificate that names both Services."""
        names = (f"{CLUSTER}-fleet.{NAMESPACE}.svc", f"{STORE}-echo.{NAMESPACE}.svc", "localhost")
        return {"demo-token": {"token": TOKEN}, "demo-tls": certificate(self.lab.folder, *names)}

    def echo_store(self) -> dict[str, Any]:
        """The EchoStore that is applied."""
        spec = {"tokenSecret": {"name": "demo-token"}, "tlsSecret": "demo-tls",
                "storage": {"className": CLASS, "size": "2Gi", "encryption": {"policy": "Declared"}}}  # fmt: skip
        return {"apiVersion": "ingero.io/v1alpha1", "kind": "EchoStore",
                "metadata": {"name": STORE, "namespace": NAMESPACE}, "spec": spec}  # fmt: skip

    def fleet_cluster(self) -> dict[str, Any]:
        """The FleetCluster that is applied."""
        secured = {"tokenSecret": {"name": "demo-token"}, "tlsSecret": "demo-tls"} if self.secure else {}
        fleet = {"pushInterval": "2s", "quorum": {"statisticalMin": 3, "expectedNodes": NODES},
                 "collectives": {"actionable": True, "leastShare": LEAST_SHARE},
                 "forward": {"echoStore": STORE, "tokenSecret": {"name": "demo-token"}}}  # fmt: skip
        spec = {"clusterId": CLUSTER, "fleet": fleet, "taints": TAINTS, **secured}
        return {"apiVersion": "ingero.io/v1alpha1", "kind": "FleetCluster",
                "metadata": {"name": CLUSTER, "namespace": NAMESPACE}, "spec": spec}  # fmt: skip

    def status(self, kind: str, name: str) -> dict[str, Any]:
        """Status of a resource."""
        return (self.plane.read("-n", NAMESPACE, kind, name) or {}).get("status") or {}

    def ready(self, kind: str, namespace: str, name: str) -> str:
        """Ready pods of a Deployment or DaemonSet, of those that are wanted."""
        found = self.plane.read("-n", namespace, kind, name)
        status = found["status"]
        if kind == "ds":
            return f"{status.get('numberReady', 0)}/{status.get('desiredNumberScheduled', 0)} ready"
        return f"{status.get('readyReplicas', 0)}/{found['spec']['replicas']} ready"

    def pods(self, namespace: str, labels: str = "") -> list[dict[str, Any]]:
        """Pods of a namespace."""
        found = self.plane.read("-n", namespace, "pod", *(("-l", labels) if labels else ()))
        return [item for item in found["items"] if "deletionTimestamp" not in item["metadata"]]

    def inside(self, namespace: str, pod: str, container: str, command: str) -> str:
        """Output of a shell command in a container."""
        return self.plane.kubectl("-n", namespace, "exec", pod, "-c", container, "--", "sh", "-c", command).strip()

    def privileges(self) -> None:
        """What the process of each container may, by the kernel, against what the pod says that it shall."""
        seen: set[str] = set()
        for pod in [*self.pods(HOME), *self.pods(NAMESPACE)]:
            spec = pod["spec"]
            sidecars = [item for item in spec.get("initContainers", []) if item.get("restartPolicy") == "Always"]
            for container in [*sidecars, *spec["containers"]]:
                if container["name"] in seen:
                    continue
                seen.add(container["name"])
                security = container["securityContext"]
                user = security.get("runAsUser", (spec.get("securityContext") or {}).get("runAsUser"))
                added = set(security["capabilities"].get("add", [])) & self.possible()
                root = "ro" if security.get("readOnlyRootFilesystem") else "rw"
                begun = time.monotonic()
                uid, effective, written = self.inside(
                    pod["metadata"]["namespace"], pod["metadata"]["name"], container["name"], INSIDE
                ).split()
                names = {name for name, bit in CAPABILITIES.items() if int(effective, 16) >> bit & 1}
                names |= {"more"} if int(effective, 16) & ~sum(1 << CAPABILITIES[n] for n in names) else set()
                self.row(
                    f"{container['name']}: user, root file system, capabilities",
                    f"{user} {root} {' '.join(sorted(added)) or 'none'}",
                    f"{uid} {written} {' '.join(sorted(names)) or 'none'}",
                    time.monotonic() - begun,
                )

    def possible(self) -> set[str]:
        """Capabilities that nodes on this machine can give: some sandboxes withhold SYS_RESOURCE from root itself."""
        text = Path("/proc/self/status").read_text().split("CapBnd:")[1].split()[0]
        return {name for name, bit in CAPABILITIES.items() if int(text, 16) >> bit & 1}

    def start_job(self) -> None:
        """A rank on every node; the tracers see their collectives, and Fleet accuses nobody."""
        begun = time.monotonic()
        self.plane.apply(*pod_job.objects(pod_job.build(self.lab.folder), IMAGES[-1], NODES))
        self.expect("job, a rank on each node", f"{NODES} running on {NODES} nodes", self.job, begun)
        port = f"/dev/tcp/{CLUSTER}-fleet.{NAMESPACE}.svc/4318"
        connect = f"timeout 3 bash -c '<{port}' 2>/dev/null && echo open || echo closed"
        self.expect("NetworkPolicy: port 4318 of Fleet, for a pod of the job", "closed",
                    lambda: self.in_job(self.ranks()[0], connect))  # fmt: skip
        self.expect("job's communicator in Fleet", f"{NODES} ranks, verdict none", self.communicator, begun)
        self.expect("agents past their warm-up: active nodes, QuorumMet", f"{NODES}/{NODES} True", self.quorum, begun)
        self.expect("nodes with a late rank or a taint", "none", self.accused)

    def ranks(self) -> list[dict[str, Any]]:
        """Pods of the job, by rank."""
        index = "batch.kubernetes.io/job-completion-index"
        return sorted(self.pods(pod_job.NAMESPACE), key=lambda pod: int(pod["metadata"]["annotations"][index]))

    def job(self) -> str:
        """Where the job runs."""
        running = [pod for pod in self.ranks() if pod["status"]["phase"] == "Running"]
        return f"{len(running)} running on {len({pod['spec']['nodeName'] for pod in running})} nodes"

    def communicator(self) -> str:
        """Fleet's view of the job."""
        script = (
            "import urllib.request as r;"
            f"print(r.urlopen('http://127.0.0.1:8081/api/v1/collectives?cluster_id={CLUSTER}').read().decode())"
        )
        text = self.plane.kubectl("-n", NAMESPACE, "exec", f"deploy/{CLUSTER}-fleet", "--", "/opt/ingero/bin/python",
                                  "-c", script)  # fmt: skip
        (one,) = [item for item in json.loads(text)["communicators"] if item["judged"]]
        return f"{one['ranks']} ranks, verdict {one['verdict'].partition(':')[0]}"

    def accused(self) -> str:
        """Nodes that the status accuses, or that carry the operator's taint."""
        late = {item["node"] for item in self.status("fc", CLUSTER).get("lateRanks", [])}
        return " ".join(sorted(late | set(self.taints()))) or "none"

    def taints(self) -> dict[str, str]:
        """The effect of the operator's taint, by node."""
        return {
            item["metadata"]["name"]: taint["effect"]
            for item in self.plane.read("node")["items"]
            for taint in item["spec"].get("taints", [])
            if taint["key"] == STRAGGLER_TAINT
        }

    def tainted(self) -> str:
        """Nodes with the operator's taint."""
        return " ".join(f"{node}:{effect}" for node, effect in self.taints().items()) or "none"

    def conditions(self) -> str:
        """Nodes whose condition says that they straggle."""
        names = [
            item["metadata"]["name"]
            for item in self.plane.read("node")["items"]
            for one in item["status"]["conditions"]
            if (one["type"], one["status"]) == (STRAGGLER_CONDITION, "True")
        ]
        return " ".join(names) or "none"

    def in_job(self, pod: dict[str, Any], command: str) -> str:
        """Output of a shell command in a pod of the job."""
        return self.inside(pod_job.NAMESPACE, pod["metadata"]["name"], pod_job.NAME, command)

    def late_rank(self) -> dict[str, Any]:
        """The last rank computes half as long again; returns its pod."""
        pod = self.ranks()[-1]
        node, name = pod["spec"]["nodeName"], pod["metadata"]["name"]
        self.in_job(pod, "kill -USR1 1")
        begun = time.monotonic()

        def late() -> str:
            (one,) = self.status("fc", CLUSTER)["lateRanks"]
            return f"rank {one['rank']} on {one['node']}, {one.get('pod')}"

        def column() -> str:
            lines = self.plane.kubectl("-n", NAMESPACE, "get", "fleetclusters", CLUSTER).splitlines()
            return lines[1][lines[0].index("LATE-RANK-ON") :].split()[0]

        self.expect("slowed: status.lateRanks", f"rank {NODES - 1} on {node}, {name}", late, begun)
        self.expect("slowed: LATE-RANK-ON of kubectl get fleetclusters", node, column, begun)
        self.expect("slowed: taint, with confirmFor 5s", f"{node}:PreferNoSchedule", self.tainted, begun)
        self.expect("slowed: nodes with ingero.io/Straggler True", node, self.conditions, begun)
        self.expect("the job goes on, no pod is evicted", f"{NODES} running on {NODES} nodes, 0 restarts",
                    self.untouched)  # fmt: skip
        return pod

    def untouched(self) -> str:
        """Whether the job's pods still run as they did."""
        restarts = sum(one["restartCount"] for pod in self.ranks() for one in pod["status"]["containerStatuses"])
        return f"{self.job()}, {restarts} restarts"

    def ask(self, *question: str) -> list[Any]:
        """Rows of Echo's answer to a question."""
        where = ("--api", "https://localhost:8080", "--token-file", "/etc/ingero/token/token",
                 "--ca-file", "/etc/ingero/tls/tls.crt", "--json")  # fmt: skip
        text = self.plane.kubectl("-n", NAMESPACE, "exec", f"{STORE}-echo-0", "--", "ingero-echo", "ask", *question,
                                  *where)  # fmt: skip
        rows: list[Any] = json.loads(text)["rows"]
        return rows

    def echo(self, pod: dict[str, Any]) -> None:
        """Echo names the same rank."""

        def first() -> str:
            one = self.ask("find_stragglers", f"cluster_id={CLUSTER}")[0]
            return f"rank {one['rank']} on {one['node_id']}, {one['pod']}"

        name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
        self.expect("Echo, find_stragglers: first row", f"rank {NODES - 1} on {node}, {name}", first)

    def recovery(self, pod: dict[str, Any]) -> None:
        """The rank is as fast as the others again."""
        self.in_job(pod, "kill -USR2 1")
        begun = time.monotonic()
        self.expect("recovered: status.lateRanks", "[]",
                    lambda: str(self.status("fc", CLUSTER).get("lateRanks", [])), begun)  # fmt: skip
        self.expect("recovered: taint, with recoverFor 10s", "none", self.tainted, begun)
        self.expect("recovered: nodes with ingero.io/Straggler True", "none", self.conditions, begun)
        node = pod["spec"]["nodeName"]
        self.expect("Echo, events ingero.taint", f"{node} was tainted, {node} was released", self.taint_events)

    def taint_events(self) -> str:
        """The taint events that Echo has stored, each without its reason."""
        query = "SELECT message FROM events WHERE metric_name = 'ingero.taint' ORDER BY timestamp"
        return ", ".join(
            " ".join(row[0].split()[1:4]).rstrip(":") for row in self.ask("run_analysis", f"sql={query}")
        )

    def delete(self) -> None:
        """Both resources go, with everything that was made of them."""
        self.plane.delete("fc", CLUSTER, NAMESPACE)
        self.plane.delete("echo", STORE, NAMESPACE)
        kinds = "deploy,ds,sts,svc,sa,netpol,pdb"

        def left() -> str:
            found = self.plane.read("-n", NAMESPACE, kinds, "-l", f"ingero.io/owner in ({CLUSTER},{STORE})")["items"]
            return str(len(found) + len(self.taints()))

        self.expect("children and taints left after both resources are deleted", "0", left)

    def clean(self) -> None:
        """Remove everything from a cluster that stays."""
        self.plane.kubectl(
            "delete", "fleetclusters,echostores", "--all", "-n", NAMESPACE, "--timeout=60s", check=False
        )
        self.plane.kubectl("delete", "namespace", NAMESPACE, pod_job.NAMESPACE, "--ignore-not-found", check=False)
        self.plane.kubectl("delete", "storageclass", CLASS, "--ignore-not-found", check=False)
        self.plane.kubectl("delete", "-k", str(ROOT / "manifests/base"), "--ignore-not-found", check=False)


def run(lab: Lab, secure: bool) -> None:
    """The scenario, in the cluster that `INGERO_LAB` names or in one that is started for it."""
    with nodes(lab) as cluster:
        plane = ControlPlane(lab.folder / "plane", find_assets("kubectl") or Path("/nowhere"), full=False)
        try:
            plane.attach(kubeconfig=cluster.kubeconfig)
            story = PodStory(plane, lab, cluster, secure)
            stays = bool(os.environ.get("INGERO_LAB"))
            if stays:
                story.refuse_if_used()
            try:
                story.run()
            finally:
                if stays:
                    story.clean()
        finally:
            plane.stop()
