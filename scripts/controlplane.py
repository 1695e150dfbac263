"""A real Kubernetes control plane on this machine for tests, demo and benches; kwok simulates the kubelets.

The programs come from the directory that KUBEBUILDER_ASSETS names (docs/operator.md says how to fill it), or from
where `make cluster-assets` puts them. Only etcd and kube-apiserver are required; kube-controller-manager,
kube-scheduler and kwok are used if present.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

STAGES = Path(__file__).with_name("kwok-stages.yaml")
MORTAL = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
"""Prefix of a command: the kernel ends the process when its parent is gone, however that ended."""
REQUIRED = ("etcd", "kube-apiserver")
PLAYED = "demo.ingero.io/played"
"""Label of the nodes that kwok simulates in an existing cluster."""
_CORE, _APPS, _OURS = "/api/v1", "/apis/apps/v1", "/apis/ingero.io/v1alpha1"
PATHS = {
    "fc": (_OURS, "fleetclusters"), "fleetcluster": (_OURS, "fleetclusters"), "echo": (_OURS, "echostores"),
    "echostore": (_OURS, "echostores"), "node": (_CORE, "nodes"), "svc": (_CORE, "services"),
    "service": (_CORE, "services"), "cm": (_CORE, "configmaps"), "configmap": (_CORE, "configmaps"),
    "sa": (_CORE, "serviceaccounts"), "pod": (_CORE, "pods"), "pvc": (_CORE, "persistentvolumeclaims"),
    "pv": (_CORE, "persistentvolumes"), "events": (_CORE, "events"), "resourcequota": (_CORE, "resourcequotas"),
    "deploy": (_APPS, "deployments"), "deployment": (_APPS, "deployments"), "ds": (_APPS, "daemonsets"),
    "sts": (_APPS, "statefulsets"), "netpol": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "ingress": ("/apis/networking.k8s.io/v1", "ingresses"),
    "hpa": ("/apis/autoscaling/v2", "horizontalpodautoscalers"),
    "pdb": ("/apis/policy/v1", "poddisruptionbudgets"), "lease": ("/apis/coordination.k8s.io/v1", "leases"),
    "storageclass": ("/apis/storage.k8s.io/v1", "storageclasses"), "namespace": (_CORE, "namespaces"),
    "secret": (_CORE, "secrets"),
}  # fmt: skip
SHORT = {"PersistentVolume": "pv", "PersistentVolumeClaim": "pvc", "FleetCluster": "fc", "EchoStore": "echo"}


def find_assets(*needed: str) -> Path | None:
    """The directory with the control plane's programs, or with the needed ones, if there is one."""
    named = os.environ.get("KUBEBUILDER_ASSETS")
    if named:
        folder = Path(named)
        return folder if all((folder / program).exists() for program in needed or REQUIRED) else None
    downloaded = Path(__file__).parents[1] / ".tools/cluster"
    if all((downloaded / program).exists() for program in needed or REQUIRED):
        return downloaded
    for parent in Path(__file__).resolve().parents:
        unpack = parent / "shared/kubelab/unpack"
        if unpack.exists():
            return Path(subprocess.run([unpack], capture_output=True, text=True, check=True).stdout.strip())
    return None


def free_ports(count: int) -> list[int]:
    """Free TCP ports."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [item.getsockname()[1] for item in sockets]


@dataclass
class ControlPlane:
    """A running control plane. `stop_server` and `start_server` simulate an outage."""

    folder: Path
    assets: Path
    full: bool
    definitions: list[dict[str, Any]] = field(default_factory=list)
    """CRDs to apply before the controllers start: a garbage collector that discovers a kind later takes up to two
    minutes for its first deletions."""
    flags: tuple[str, ...] = ()
    """Further flags of the API server."""
    port: int = 0
    token: str = ""
    server: dict[str, Any] = field(default_factory=dict)
    """The kubeconfig context of an existing cluster; empty for a control plane started here."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _commands: dict[str, list[str]] = field(default_factory=dict)
    _client: httpx.Client | None = None

    @property
    def kubeconfig(self) -> Path:
        """An administrator's kubeconfig."""
        return self.folder / "kubeconfig"

    def start(self) -> None:
        """Start everything; returns when the API server answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        folder, self.token = self.folder, secrets.token_hex(16)
        etcd, peer, self.port, kcm, scheduler = free_ports(5)
        (folder / "tokens.csv").write_text(f"{self.token},admin,admin,system:masters\n")
        self.write_kubeconfig(self.kubeconfig, self.token)
        key, public_key = str(folder / "sa.key"), str(folder / "sa.pub")
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        public = ["openssl", "rsa", "-in", key, "-pubout", "-out", public_key]
        subprocess.run(public, check=True, capture_output=True)
        self._run(
            "etcd", "--data-dir", f"{folder}/etcd", "--unsafe-no-fsync", "--log-level", "error",
            "--listen-client-urls", f"http://127.0.0.1:{etcd}", "--advertise-client-urls", f"http://127.0.0.1:{etcd}",
            "--listen-peer-urls", f"http://127.0.0.1:{peer}",
            "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
            "--initial-cluster", f"default=http://127.0.0.1:{peer}",
        )  # fmt: skip
        self._run(
            "kube-apiserver", "--etcd-servers", f"http://127.0.0.1:{etcd}", "--bind-address", "127.0.0.1",
            "--secure-port", str(self.port), "--cert-dir", f"{folder}/certs",
            "--token-auth-file", f"{folder}/tokens.csv", "--authorization-mode", "Node,RBAC",
            "--allow-privileged=true", "--service-account-issuer", "https://kubernetes.default.svc",
            "--service-account-key-file", public_key, "--service-account-signing-key-file", key,
            "--service-cluster-ip-range", "10.0.0.0/16", "--endpoint-reconciler-type", "none",
            "--max-requests-inflight", "2000", "--max-mutating-requests-inflight", "1000", *self.flags,
        )  # fmt: skip
        self.wait()
        if self.definitions:
            self.apply(*self.definitions)
            self.established()
        if not self.full:
            return
        admin = str(self.kubeconfig)
        common = ["--kubeconfig", admin, "--authentication-kubeconfig", admin, "--authorization-kubeconfig", admin,
                  "--bind-address", "127.0.0.1", "--leader-elect=false"]  # fmt: skip
        if (self.assets / "kube-controller-manager").exists():
            self._run(
                "kube-controller-manager", *common, "--service-account-private-key-file", f"{key}",
                "--root-ca-file", f"{folder}/certs/apiserver.crt", "--secure-port", str(kcm),
                "--cert-dir", f"{folder}/certs-kcm",
                "--kube-api-qps", "200", "--kube-api-burst", "400",
            )  # fmt: skip
        if (self.assets / "kube-scheduler").exists():
            self._run(
                "kube-scheduler", *common, "--secure-port", str(scheduler), "--cert-dir", f"{folder}/certs-scheduler"
            )
        if (self.assets / "kwok").exists():
            self._run(
                "kwok", "--kubeconfig", admin, "--manage-all-nodes=true", "--node-lease-duration-seconds", "40",
                "--config", str(STAGES),
            )  # fmt: skip

    def attach(self, context: str = "", kubeconfig: Path | None = None) -> None:
        """Use an existing cluster, named by a context of the user's kubeconfig, with that user's rights.

        kwok simulates only nodes with the label `PLAYED`. With a kubeconfig of its own the cluster has real nodes,
        and kwok is not used. Raises `RuntimeError` when there is no such context.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        which = ["--kubeconfig", str(kubeconfig)] if kubeconfig else ["--context", context]
        view = ["config", "view", "--raw", "--minify", "--flatten", "-o", "json", *which]
        done = subprocess.run([self.kubectl_program(), *view], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(which)}: {done.stderr.strip()}")
        self.kubeconfig.touch(0o600)
        self.kubeconfig.write_text(done.stdout)
        self.server = json.loads(done.stdout)["clusters"][0]["cluster"]
        (self.port,) = free_ports(1)
        admin = ["--kubeconfig", str(self.kubeconfig)]
        self._commands["kubectl"] = [self.kubectl_program(), *admin, "proxy", "--port", str(self.port)]
        self._launch("kubectl")
        self.wait()
        if kubeconfig:
            return
        selector = f"{PLAYED}=true"
        self._run("kwok", *admin, "--manage-all-nodes=false", "--manage-nodes-with-label-selector", selector,
                  "--node-lease-duration-seconds", "40", "--config", str(STAGES))  # fmt: skip

    def write_kubeconfig(self, file: Path, token: str, address: str = "") -> None:
        """A kubeconfig with a bearer token; `address` is that of a proxy before the API server."""
        server = (
            {"server": address}
            if address
            else self.server or {"server": f"https://127.0.0.1:{self.port}", "insecure-skip-tls-verify": True}
        )
        tree = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "clusters": [{"name": "lab", "cluster": server}],
            "users": [{"name": "lab", "user": {"token": token}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
        }
        file.write_text(json.dumps(tree))
        file.chmod(0o600)

    def _run(self, name: str, *arguments: str) -> None:
        self._commands[name] = [str(self.assets / name), *arguments]
        self._launch(name)

    def _launch(self, name: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen([*MORTAL, *self._commands[name]], stdout=log, stderr=log)

    def wait(self, seconds: float = 60.0) -> None:
        """Wait until the API server is ready."""
        deadline = time.monotonic() + seconds
        while True:
            for name, process in self.processes.items():
                if process.poll() is not None:
                    words = (self.folder / f"{name}.log").read_text(errors="replace")[-500:]
                    raise RuntimeError(f"{name} ended: {words}")
            with contextlib.suppress(httpx.HTTPError, RuntimeError, ValueError):
                self.request("GET", "/version")
                if self._client is not None and self._client.get("/readyz", headers=self._admin()).text == "ok":
                    return
            if time.monotonic() > deadline:
                raise RuntimeError(f"the API server was not ready in {seconds} s; see {self.folder}/*.log")
            time.sleep(0.1)

    def established(self, seconds: float = 60.0) -> None:
        """Wait until every CRD is served; `kubectl wait` fails on a CRD that has no status yet."""
        deadline = time.monotonic() + seconds
        while True:
            items = self.request("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
            if all(_is_established(item) for item in items):
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"the CRDs were not served in {seconds} s")
            time.sleep(0.1)

    def stop_server(self) -> None:
        """Stop the API server."""
        process = self.processes["kube-apiserver"]
        process.kill()
        process.wait()

    def start_server(self) -> None:
        """Start the API server again."""
        self._launch("kube-apiserver")
        self.wait()

    @contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """Suspend one of the programs while the block runs."""
        self.processes[name].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.processes[name].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Kill everything: a throwaway control plane has nothing to drain."""
        if self._client is not None:
            self._client.close()
        for process in reversed(self.processes.values()):
            process.send_signal(signal.SIGKILL)
        for process in self.processes.values():
            process.wait()

    def kubectl_program(self) -> str:
        """The kubectl of the assets, or the one on the path."""
        own = self.assets / "kubectl"
        return str(own) if own.exists() else "kubectl"

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl as the administrator; returns its output, or its error text on request."""
        done = subprocess.run(
            [self.kubectl_program(), "--kubeconfig", str(self.kubeconfig), *arguments],
            input=stdin, capture_output=True, text=True,
        )  # fmt: skip
        if check and done.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout if check else done.stdout + done.stderr

    def apply(self, *objects: dict[str, Any]) -> None:
        """Server-side apply; uses kubectl for kinds that are not in the table."""
        others = []
        for item in objects:
            place = next(
                (PATHS[name] for name in (item["kind"].lower(), SHORT.get(item["kind"])) if name in PATHS), None
            )
            if place is None:
                others.append(item)
                continue
            metadata = item["metadata"]
            scope = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
            path = f"{place[0]}{scope}/{place[1]}/{metadata['name']}?fieldManager=person&force=true"
            self.request("PATCH", path, item, "application/apply-patch+yaml")
        if others:
            text = json.dumps({"apiVersion": "v1", "kind": "List", "items": others})
            self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)

    def patch(self, kind: str, name: str, body: dict[str, Any], namespace: str | None = None, sub: str = "") -> Any:
        """JSON merge patch."""
        prefix, plural = PATHS[kind]
        scope = f"/namespaces/{namespace}" if namespace else ""
        path = f"{prefix}{scope}/{plural}/{name}{sub}?fieldManager=person"
        return self.request("PATCH", path, body, "application/merge-patch+json")

    def delete(self, kind: str, name: str = "", namespace: str | None = None) -> None:
        """Delete one object, or all of a kind in a namespace; does not wait."""
        prefix, plural = PATHS[kind]
        scope = f"/namespaces/{namespace}" if namespace else ""
        self.request("DELETE", f"{prefix}{scope}/{plural}" + (f"/{name}" if name else ""))

    def request(self, method: str, path: str, body: Any = None, content: str = "application/json") -> Any:
        """One request as the administrator; `None` for 404. Raises `RuntimeError` with the server's message."""
        headers = {**self._admin(), "Content-Type": content}
        if self._client is None:
            self._client = httpx.Client(
                base_url=f"{'http' if self.server else 'https'}://127.0.0.1:{self.port}",
                verify=False,
                timeout=30,
                trust_env=False,
            )
        data = None if body is None else json.dumps(body).encode()
        for _ in range(30):
            answer = self._client.request(method, path, content=data, headers=headers)
            if answer.status_code != 429:
                break
            time.sleep(float(answer.headers.get("retry-after", 1)))  # as every client of the API does
        if answer.status_code == 404:
            return None
        if answer.status_code >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.json().get('message', answer.text)}")
        return answer.json()

    def _admin(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def read(self, *arguments: str) -> Any:
        """Read objects, with the arguments of `kubectl get`: [-n NAMESPACE] KINDS [NAME] [-l LABELS]."""
        words, flags = [], {}
        queue = list(arguments)
        while queue:
            word = queue.pop(0)
            if word in ("-n", "-l"):
                flags[word] = queue.pop(0)
            else:
                words.append(word)
        scope = f"/namespaces/{flags['-n']}" if "-n" in flags else ""
        query = f"?labelSelector={flags['-l']}" if "-l" in flags else ""
        if len(words) > 1:
            prefix, plural = PATHS[words[0]]
            return self.request("GET", f"{prefix}{scope}/{plural}/{words[1]}")
        items = []
        for kind in words[0].split(","):
            prefix, plural = PATHS[kind]
            items += self.request("GET", f"{prefix}{scope}/{plural}{query}")["items"]
        return {"items": items}


def _is_established(definition: dict[str, Any]) -> bool:
    conditions = (definition.get("status") or {}).get("conditions") or []
    return any(item["type"] == "Established" and item["status"] == "True" for item in conditions)


@contextmanager
def control_plane(
    folder: Path, *, full: bool = True, definitions: list[dict[str, Any]] | None = None, context: str | None = None
) -> Iterator[ControlPlane]:
    """A control plane that ends with the block or, given a context, an existing one that stays.

    Raises `FileNotFoundError` with an explanation when the programs are missing.
    """
    assets = find_assets("kwok") if context else find_assets()
    if assets is None:
        raise FileNotFoundError(
            "no control plane: `make cluster-assets` downloads one; or set KUBEBUILDER_ASSETS (docs/operator.md)"
        )
    plane = ControlPlane(folder, assets, full, definitions or [])
    try:
        if context:
            plane.attach(context)
        else:
            plane.start()
        yield plane
    finally:
        plane.stop()
