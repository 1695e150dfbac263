"""The whole scenario in real pods: a job with a rank on every node, one rank late, named, its node tainted, freed.

Operator, Fleet, the agents with eBPF and Echo run as the pods that `manifests/base` and the operator make. Every row
is printed with what was expected, what was observed, and after how many seconds.
"""

import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ingero_contract.kubernetes import GROUP
from scripts import pod_job
from scripts.controlplane import ControlPlane, find_assets
from scripts.lab import Lab, LabFailed
from scripts.pod_faults import NEXT_TOKEN, TOKEN, PodFaults
from scripts.pod_lab import CLUSTER, HOME, IMAGES, NODES, ROOT, STORE, nodes

CLASS = "demo-declared"
TAINTS = {
    "mode": "PreferNoSchedule", "condition": True, "confirmFor": "5s", "confirmWindows": 3, "recoverFor": "10s",
    "interval": "1s", "minNodeAge": "1s", "quiet": "1s", "minHealthyPercent": 60,
    "budget": {"maxNodes": 1, "maxPercent": 34},
}  # fmt: skip
LEAST_SHARE = 0.1
"""Share of the job's time: on a busy machine a rank that is not slowed on purpose may really cost a few percent."""
STACK = "load_batch"
"""What the late rank spends its time in."""
INSIDE = (
    "id -u; sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status; touch /written 2>/dev/null && echo rw || echo ro"
)
"""What a container's process may: user, effective capabilities, whether the root file system can be written."""
CAPABILITIES = {
    "DAC_READ_SEARCH": 2, "SYS_PTRACE": 19, "SYS_RESOURCE": 24, "PERFMON": 38, "BPF": 39, "CHECKPOINT_RESTORE": 40,
}  # fmt: skip


class PodStory(PodFaults):
    """The scenario."""

    def run(self) -> None:
        """Run every step."""
        self.refuse_other_nodes()
        self.install_operator()
        self.install()
        self.privileges()
        rotation = self.rotate() if self.secure else None
        self.start_job()
        if rotation:
            self.rotated(*rotation)
        late = self.late_rank()
        self.echo_away()
        self.echo_back()
        self.echo(late)
        self.recovery(late)
        node = late["spec"]["nodeName"]
        self.expect("Echo, events ingero.taint", f"{node} was tainted, {node} was released", self.taint_events)
        if rotation:
            self.old_token(rotation[0])
        self.fleet_deleted()
        if self.wrong:
            self.keep_logs()
        self.delete()
        if self.wrong:
            raise LabFailed(f"not as expected: {'; '.join(self.wrong)}")

    def refuse_other_nodes(self) -> None:
        """Check the number of nodes, and begin the table."""
        labels = ",".join(f"{key}={value}" for key, value in pod_job.GPU.items())
        if (found := len(self.plane.read("node", "-l", labels)["items"])) != NODES:
            raise LabFailed(f"{NODES} nodes with the label {labels} are needed, the cluster has {found}")
        print("| what | expected | got | seconds |\n| --- | --- | --- | --- |", flush=True)

    def refuse_if_used(self) -> None:
        """Check that a cluster that stays has no objects of the demo, so that nothing in it is overwritten."""
        definitions = self.plane.request("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
        there = [item["metadata"]["name"] for item in definitions if item["spec"]["group"] == GROUP]
        there += [name for name in (HOME, self.namespace, pod_job.NAMESPACE) if self.plane.read("namespace", name)]
        if there:
            raise LabFailed(f"the demo needs a cluster without {', '.join(there)}")

    def install_operator(self, images: Sequence[str] = IMAGES[1:]) -> None:
        """The operator from `manifests/base`, while the other images are put into the nodes."""
        begun = time.monotonic()
        self.cluster.load(IMAGES[0])
        with ThreadPoolExecutor(1) as background:
            loading = background.submit(self.cluster.load, *images)
            self.plane.kubectl("apply", "--server-side", "-k", str(ROOT / "manifests/base"))
            self.expect(
                "operator, from manifests/base", "2/2 ready", lambda: self.ready("deploy", HOME, "ingero-operator")
            )
            loading.result()
        count = str(1 + len(images))
        self.row("images in every node", count, count, time.monotonic() - begun)

    def install(self) -> None:
        """One resource of each kind."""
        self.plane.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {
                "name": self.namespace, "labels": {"pod-security.kubernetes.io/enforce": "privileged"}}},
            {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {
                "name": CLASS, "annotations": {
                    "ingero.io/encryption-at-rest": "declared",
                    "ingero.io/encryption-evidence": "a demo that stores nothing confidential"}},
             "provisioner": self.provisioner(), "volumeBindingMode": "WaitForFirstConsumer"},
            *({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": self.namespace},
               "stringData": data} for name, data in self.secrets().items()),
            self.echo_store(), self.fleet_cluster(),
        )  # fmt: skip
        begun = time.monotonic()
        self.expect("Fleet", "1/1", lambda: str(self.status("fc", CLUSTER)["fleet"]["ready"]), begun)
        self.expect("EchoStore", "Healthy", lambda: str(self.status("echo", STORE)["summary"]), begun)
        tracers = f"{CLUSTER}-trace"
        self.expect("tracers, with their programs in the kernel", f"{NODES}/{NODES} ready",
                    lambda: self.ready("ds", self.namespace, tracers), begun)  # fmt: skip
        self.expect("FleetCluster", f"Ready True, agents {NODES}/{NODES}", self.health, begun)

    def health(self) -> str:
        """Whether the FleetCluster is ready, and how many of its agents."""
        return f"Ready {self.condition('Ready')}, agents {self.status('fc', CLUSTER)['agents']['ready']}"

    def quorum(self) -> str:
        """Active nodes of the expected ones, and whether that is enough."""
        return f"{self.status('fc', CLUSTER)['fleet']['nodes']} {self.condition('QuorumMet')}"

    def provisioner(self) -> str:
        """The provisioner of the cluster's default StorageClass."""
        mark = "storageclass.kubernetes.io/is-default-class"
        for item in self.plane.read("storageclass")["items"]:
            if (item["metadata"].get("annotations") or {}).get(mark) == "true":
                return str(item["provisioner"])
        raise LabFailed("the cluster has no default StorageClass")

    def secrets(self) -> dict[str, dict[str, str]]:
        """Two tokens, of which clients send the first, and a certificate that names both Services."""
        return {"demo-token": {"token": f"{TOKEN}\n{NEXT_TOKEN}"}, "demo-tls": self.new_certificate()}

    def echo_store(self) -> dict[str, Any]:
        """The EchoStore that is applied."""
        spec = {"tokenSecret": {"name": "demo-token"}, "tlsSecret": "demo-tls",
                "storage": {"className": CLASS, "size": "2Gi", "encryption": {"policy": "Declared"}}}  # fmt: skip
        return {"apiVersion": "ingero.io/v1alpha1", "kind": "EchoStore",
                "metadata": {"name": STORE, "namespace": self.namespace}, "spec": spec}  # fmt: skip

    def fleet_cluster(self) -> dict[str, Any]:
        """The FleetCluster that is applied."""
        secured = {"tokenSecret": {"name": "demo-token"}, "tlsSecret": "demo-tls"} if self.secure else {}
        fleet = {"pushInterval": f"{self.interval}s", "quorum": {"statisticalMin": 3, "expectedNodes": NODES},
                 "snapshots": {"size": "1Gi"},
                 "collectives": {"actionable": True, "leastShare": LEAST_SHARE},
                 "forward": {"echoStore": STORE, "tokenSecret": {"name": "demo-token"}}}  # fmt: skip
        spec = {"clusterId": CLUSTER, "fleet": fleet, "taints": TAINTS, **secured}
        return {"apiVersion": "ingero.io/v1alpha1", "kind": "FleetCluster",
                "metadata": {"name": CLUSTER, "namespace": self.namespace}, "spec": spec}  # fmt: skip

    def privileges(self) -> None:
        """What the process of each container may, by the kernel, against what the pod says that it shall."""
        seen: set[str] = set()
        for pod in [*self.pods(HOME), *self.pods(self.namespace)]:
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
        port = f"/dev/tcp/{CLUSTER}-fleet.{self.namespace}.svc/4318"
        connect = f"timeout 3 bash -c '<{port}' 2>/dev/null && echo open || echo closed"
        self.expect("NetworkPolicy: port 4318 of Fleet, for a pod of the job", "closed",
                    lambda: self.in_job(self.ranks()[0], connect))  # fmt: skip
        self.expect("job's communicator in Fleet", f"{NODES} ranks, verdict none", self.communicator, begun)
        self.expect("agents past their warm-up: active nodes, QuorumMet", f"{NODES}/{NODES} True", self.quorum, begun,
                    self.warmup_limit)  # fmt: skip
        self.expect("nodes with a late rank or a taint", "none", self.accused)

    def communicator(self) -> str:
        """Fleet's view of the job."""
        script = (
            "import urllib.request as r;"
            f"print(r.urlopen('http://127.0.0.1:8081/api/v1/collectives?cluster_id={CLUSTER}').read().decode())"
        )
        text = self.python(f"deploy/{CLUSTER}-fleet", "fleet", script)
        (one,) = [item for item in json.loads(text)["communicators"] if item["judged"]]
        return f"{one['ranks']} ranks, verdict {one['verdict'].partition(':')[0]}"

    def late_rank(self) -> dict[str, Any]:
        """The last rank computes half as long again; returns its pod."""
        pod = self.ranks()[-1]
        node, name = pod["spec"]["nodeName"], pod["metadata"]["name"]
        self.in_job(pod, "kill -USR1 1")
        begun = time.monotonic()

        def late() -> str:
            (one,) = self.status("fc", CLUSTER)["lateRanks"]
            return f"rank {one['rank']} on {one['node']}, {one.get('pod')}"

        self.expect("slowed: status.lateRanks", f"rank {NODES - 1} on {node}, {name}", late, begun)
        self.expect(
            "slowed: LATE-RANK-ON of kubectl get fleetclusters", node, lambda: self.column("LATE-RANK-ON"), begun
        )
        self.expect("slowed: taint, with confirmFor 5s", f"{node}:PreferNoSchedule", self.tainted, begun)
        self.expect("slowed: nodes with ingero.io/Straggler True", node, self.conditions, begun)
        self.expect("the job goes on, no pod is evicted", f"{NODES} running on {NODES} nodes, 0 restarts",
                    self.untouched)  # fmt: skip
        return pod

    def echo(self, pod: dict[str, Any]) -> None:
        """Echo names the same rank."""

        def first() -> str:
            one = self.ask("find_stragglers", f"cluster_id={CLUSTER}")[0]
            return f"rank {one['rank']} on {one['node_id']}, {one['pod']}"

        name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
        self.expect("Echo, find_stragglers: first row", f"rank {NODES - 1} on {node}, {name}", first)

        def function() -> str:
            (one,) = [row for row in self.ask("causal_chains", f"cluster_id={CLUSTER}") if STACK in row["found"]]
            return f"{STACK}, {' '.join(one['nodes'])}"

        self.expect("Echo, causal_chains: function in which the rank is late", f"{STACK}, {node}", function)

    def recovery(self, pod: dict[str, Any]) -> None:
        """The rank is as fast as the others again."""
        self.in_job(pod, "kill -USR2 1")
        begun = time.monotonic()
        self.expect("recovered: status.lateRanks", "[]",
                    lambda: str(self.status("fc", CLUSTER).get("lateRanks", [])), begun)  # fmt: skip
        self.expect("recovered: taint, with recoverFor 10s", "none", self.tainted, begun)
        self.expect("recovered: nodes with ingero.io/Straggler True", "none", self.conditions, begun)

    def taint_events(self) -> str:
        """The taint events that Echo has stored, each without its reason."""
        query = "SELECT message FROM events WHERE metric_name = 'ingero.taint' ORDER BY timestamp"
        return ", ".join(
            " ".join(row[0].split()[1:4]).rstrip(":") for row in self.ask("run_analysis", f"sql={query}")
        )

    def delete(self) -> None:
        """Both resources go, with everything that was made of them."""
        self.plane.delete("fc", CLUSTER, self.namespace)
        self.plane.delete("echo", STORE, self.namespace)
        kinds = "deploy,ds,sts,svc,sa,netpol,pdb"

        def left() -> str:
            owners = f"ingero.io/owner in ({CLUSTER},{STORE})"
            found = self.plane.read("-n", self.namespace, kinds, "-l", owners)["items"]
            return str(len(found) + len(self.taints()))

        self.expect("children and taints left after both resources are deleted", "0", left)

    def clean(self) -> None:
        """Remove everything from a cluster that stays."""
        self.plane.kubectl(
            "delete", "fleetclusters,echostores", "--all", "-n", self.namespace, "--timeout=60s", check=False
        )
        self.plane.kubectl(
            "delete", "namespace", self.namespace, pod_job.NAMESPACE, "--ignore-not-found", check=False
        )
        self.plane.kubectl("delete", "storageclass", CLASS, "--ignore-not-found", check=False)
        self.plane.kubectl("delete", "-k", str(ROOT / "manifests/base"), "--ignore-not-found", check=False)


def run(lab: Lab, kind: "type[PodStory]", **options: Any) -> None:
    """A scenario, in the cluster that `INGERO_LAB` names or in one that is started for it."""
    with nodes(lab) as cluster:
        plane = ControlPlane(lab.folder / "plane", find_assets("kubectl") or Path("/nowhere"), full=False)
        try:
            plane.attach(kubeconfig=cluster.kubeconfig)
            story = kind(plane, lab, cluster, **options)
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
