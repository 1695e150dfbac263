"""A cluster with real nodes for demos, and the table of what was expected and observed in it."""

import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import trustme

from ingero_contract.kubernetes import STRAGGLER_CONDITION, STRAGGLER_TAINT
from scripts import pod_job
from scripts.controlplane import ControlPlane
from scripts.lab import Lab, LabFailed

ROOT = Path(__file__).resolve().parents[1]
LAB = ROOT.parent / "shared/nodelab"
"""Starts real nodes on this machine, where it is installed."""
PROGRAMS = ("runc", "nft", "iptables", "ip", "openssl", "xz", "unshare", "nsenter", "cc", "buildah")
VERSION = version("ingero")
IMAGES = tuple(f"localhost/ingero/{name}:{VERSION}" for name in ("operator", "fleet", "echo", "sink", "agent"))
REVISION = "org.opencontainers.image.revision"
CHANGED = "-changed"
"""Ends a revision whose tree differed from its commit."""
SOURCES = re.findall(r"^sources=\((.*)\)$", (ROOT / "scripts/images").read_text(), re.MULTILINE)[0].split()
"""What images are built from."""
NODES = 3
HOME, CLUSTER, STORE = "ingero-system", "prod", "events"
PYTHON = "/opt/ingero/bin/python"
"""The interpreter in every image of the product."""


@dataclass(frozen=True)
class Nodes:
    """A cluster with real nodes. `loader`: command that puts images into them, if it is known."""

    kubeconfig: Path
    loader: tuple[str, ...] = ()

    def load(self, *images: str, env: Mapping[str, str] | None = None) -> None:
        """Put images into every node, where that is known how. Raises `LabFailed` with what the command printed."""
        if not self.loader:
            return
        loaded = subprocess.run([*self.loader, *images], env=env, capture_output=True, text=True, errors="replace")
        if loaded.returncode:
            printed = loaded.stderr.strip() or loaded.stdout.strip() or "nothing"
            raise LabFailed(f"{self.loader[0]} did not load {', '.join(images)}; it printed: {printed[-1000:]}")


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


def image_revisions() -> dict[str, str]:
    """The commit of each image, as `make images` noted it; empty text where an image does not say."""
    label = f'{{{{index .OCIv1.Config.Labels "{REVISION}"}}}}'
    found = {}
    for image in IMAGES:
        asked = ["buildah", "inspect", "--type", "image", "--format", label, image]
        found[image] = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    return found


def origin_of_images(revisions: Mapping[str, str], root: Path = ROOT) -> list[str]:
    """Of which commits the images are, and whether the working tree at `root` differs from that; in sentences."""

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *words, "--", *SOURCES], cwd=root, capture_output=True, text=True)

    lines = []
    for revision in sorted(set(revisions.values())):
        names = ", ".join(image.rpartition("/")[2] for image, one in revisions.items() if one == revision)
        commit = revision.removesuffix(CHANGED)
        listed = git("diff", "--name-only", commit or "unknown")
        files = len((listed.stdout + git("ls-files", "--others", "--exclude-standard").stdout).splitlines())
        if not commit:
            state = "they do not say of which commit they are, so they may be old: make images"
        elif listed.returncode:
            state = f"of commit {commit[:12]}, which this repository does not know: make images"
        elif revision != commit:
            state = f"of commit {commit[:12]} with changes, so they may differ from the working tree: make images"
        elif files:
            state = f"of commit {commit[:12]}, and {files} files of the working tree differ from it: make images"
        else:
            state = f"of commit {commit[:12]}, like the working tree"
        lines.append(f"{names}: {state}")
    return lines


@contextmanager
def nodes(lab: Lab) -> Iterator[Nodes]:
    """The cluster that `INGERO_LAB` names, or one that is started on this machine and ends with the block.

    Raises `LabFailed` when the folder that is named has no kubeconfig.
    """
    named = os.environ.get("INGERO_LAB")
    if named:
        kubeconfig, loader = Path(named) / "kubeconfig", Path(named) / "load-image"
        if not kubeconfig.exists():
            raise LabFailed(f"INGERO_LAB names the folder of a running cluster, and there is no {kubeconfig}")
        yield Nodes(kubeconfig, (str(loader),) if loader.exists() else ())
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


def tls_secret(authority: trustme.CA, *names: str) -> dict[str, str]:
    """Data of a TLS Secret: a new certificate for these names."""
    issued = authority.issue_cert(*names)
    return {
        "tls.crt": "".join(part.bytes().decode() for part in issued.cert_chain_pems),
        "tls.key": issued.private_key_pem.bytes().decode(),
        "ca.crt": authority.cert_pem.bytes().decode(),
    }


@dataclass
class PodLab:
    """One run on a cluster with real nodes: rows of a table, and questions to the cluster.

    `secure`: with TLS and tokens between the components, otherwise with NetworkPolicies alone.
    """

    plane: ControlPlane
    lab: Lab
    cluster: Nodes
    secure: bool = True
    interval: int = 2
    """Seconds between two pushes."""
    namespace: str = "ingero"
    authority: trustme.CA = field(default_factory=trustme.CA)
    tls: dict[str, str] = field(default_factory=dict)
    """The newest certificate, as data of a Secret."""
    wrong: list[str] = field(default_factory=list)
    """Rows that are not as expected."""

    @property
    def warmup_limit(self) -> float:
        """Seconds within which 30 reports, the warm-up of an agent and of a node in Fleet, have come."""
        return 60.0 + 45.0 * self.interval

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

    def new_certificate(self) -> dict[str, str]:
        """Issue a certificate that names the Services of Fleet and Echo."""
        self.tls = tls_secret(
            self.authority, f"{CLUSTER}-fleet.{self.namespace}.svc", f"{STORE}-echo.{self.namespace}.svc", "localhost"
        )
        return self.tls

    def keep_logs(self) -> None:
        """Write the pods' logs to the folder of the run."""
        for pod in [*self.pods(HOME), *self.pods(self.namespace), *self.pods(pod_job.NAMESPACE)]:
            name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
            text = self.plane.kubectl("-n", namespace, "logs", name, "--all-containers", "--prefix", check=False)
            self.lab.log(name).write_text(text)

    def column(self, name: str) -> str:
        """The FleetCluster's value in a column of `kubectl get`."""
        lines = self.plane.kubectl("-n", self.namespace, "get", "fleetclusters", CLUSTER).splitlines()
        return lines[1][lines[0].index(name) :].split()[0]

    def condition(self, name: str) -> str:
        """Status of a condition of the FleetCluster."""
        (found,) = [item["status"] for item in self.status("fc", CLUSTER)["conditions"] if item["type"] == name]
        return str(found)

    def status(self, kind: str, name: str) -> dict[str, Any]:
        """Status of a resource."""
        return (self.plane.read("-n", self.namespace, kind, name) or {}).get("status") or {}

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

    def ranks(self) -> list[dict[str, Any]]:
        """Pods of the job, by rank."""
        index = "batch.kubernetes.io/job-completion-index"
        return sorted(self.pods(pod_job.NAMESPACE), key=lambda pod: int(pod["metadata"]["annotations"][index]))

    def job(self) -> str:
        """Where the job runs."""
        running = [pod for pod in self.ranks() if pod["status"]["phase"] == "Running"]
        return f"{len(running)} running on {len({pod['spec']['nodeName'] for pod in running})} nodes"

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

    def untouched(self) -> str:
        """Whether the job's pods still run as they did."""
        restarts = sum(one["restartCount"] for pod in self.ranks() for one in pod["status"]["containerStatuses"])
        return f"{self.job()}, {restarts} restarts"

    def ask(self, *question: str) -> list[Any]:
        """Rows of Echo's answer to a question."""
        where = ("--api", "https://localhost:8080", "--token-file", "/etc/ingero/token/token",
                 "--ca-file", "/etc/ingero/tls/ca.crt", "--json")  # fmt: skip
        pod = f"{STORE}-echo-0"
        text = self.plane.kubectl("-n", self.namespace, "exec", pod, "--", "ingero-echo", "ask", *question, *where)
        rows: list[Any] = json.loads(text)["rows"]
        return rows
