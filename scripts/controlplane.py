"""A real Kubernetes control plane on this machine for tests, demo and bench, with kwok playing the kubelets.

The programs come from the folder that KUBEBUILDER_ASSETS names (docs/operator.md says how to fill it). Only etcd and
kube-apiserver must be there; kube-controller-manager, kube-scheduler and kwok are used where they are.
"""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STAGES = Path(__file__).with_name("kwok-stages.yaml")
REQUIRED = ("etcd", "kube-apiserver")
CONTROLLERS = ("kube-controller-manager", "kube-scheduler")


def find_assets() -> Path | None:
    """The folder of the control plane's programs, if there is one."""
    named = os.environ.get("KUBEBUILDER_ASSETS")
    if named:
        folder = Path(named)
        return folder if all((folder / program).exists() for program in REQUIRED) else None
    for parent in Path(__file__).resolve().parents:
        unpack = parent / "shared/kubelab/unpack"
        if unpack.exists():
            return Path(subprocess.run([unpack], capture_output=True, text=True, check=True).stdout.strip())
    return None


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [item.getsockname()[1] for item in sockets]


@dataclass
class ControlPlane:
    """A running control plane. `stop_server` and `start_server` play an outage."""

    folder: Path
    assets: Path
    full: bool
    port: int = 0
    token: str = ""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _commands: dict[str, list[str]] = field(default_factory=dict)

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of an administrator."""
        return self.folder / "kubeconfig"

    def start(self) -> None:
        """Bring everything up; returns when the API server answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        folder, self.token = self.folder, secrets.token_hex(16)
        etcd, peer, self.port, kcm, scheduler = free_ports(5)
        (folder / "tokens.csv").write_text(f"{self.token},admin,admin,system:masters\n")
        self.write_kubeconfig(self.kubeconfig, self.token)
        key = folder / "sa.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        public = ["openssl", "rsa", "-in", key, "-pubout", "-out", folder / "sa.pub"]
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
            "--service-account-key-file", f"{folder}/sa.pub", "--service-account-signing-key-file", f"{key}",
            "--service-cluster-ip-range", "10.0.0.0/16", "--endpoint-reconciler-type", "none",
            "--max-requests-inflight", "2000", "--max-mutating-requests-inflight", "1000",
        )  # fmt: skip
        self.wait()
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

    def write_kubeconfig(self, file: Path, token: str) -> None:
        """A kubeconfig with a bearer token."""
        server = {"server": f"https://127.0.0.1:{self.port}", "insecure-skip-tls-verify": True}
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
            self.processes[name] = subprocess.Popen(self._commands[name], stdout=log, stderr=log)

    def wait(self, seconds: float = 60.0) -> None:
        """Wait until the API server is ready."""
        import ssl

        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        request = urllib.request.Request(
            f"https://127.0.0.1:{self.port}/readyz", headers={"Authorization": f"Bearer {self.token}"}
        )
        deadline = time.monotonic() + seconds
        while True:
            for name, process in self.processes.items():
                if process.poll() is not None:
                    words = (self.folder / f"{name}.log").read_text(errors="replace")[-500:]
                    raise RuntimeError(f"{name} ended: {words}")
            with contextlib.suppress(urllib.error.URLError, OSError):
                if urllib.request.urlopen(request, context=context, timeout=2).status == 200:
                    return
            if time.monotonic() > deadline:
                raise RuntimeError(f"the API server was not ready in {seconds} s; see {self.folder}/*.log")
            time.sleep(0.1)

    def stop_server(self) -> None:
        """Take the API server away."""
        process = self.processes["kube-apiserver"]
        process.kill()
        process.wait()

    def start_server(self) -> None:
        """Bring the API server back."""
        self._launch("kube-apiserver")
        self.wait()

    def stop(self) -> None:
        """End everything: a throwaway control plane has nothing to drain."""
        for process in reversed(self.processes.values()):
            process.send_signal(signal.SIGKILL)
        for process in self.processes.values():
            process.wait()

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """kubectl as the administrator; its output, or its complaint where that is asked for."""
        kubectl = self.assets / "kubectl"
        done = subprocess.run(
            [str(kubectl) if kubectl.exists() else "kubectl", "--kubeconfig", str(self.kubeconfig), *arguments],
            input=stdin, capture_output=True, text=True,
        )  # fmt: skip
        if check and done.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout if check else done.stdout + done.stderr

    def apply(self, *objects: dict[str, Any]) -> None:
        """Server-side apply as a person does it."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)

    def read(self, *arguments: str) -> Any:
        """`kubectl get ... -o json`; nothing where there is no such object."""
        text = self.kubectl("get", *arguments, "-o", "json", "--ignore-not-found")
        return json.loads(text) if text.strip() else None


@contextmanager
def control_plane(folder: Path, *, full: bool = True) -> Iterator[ControlPlane]:
    """A control plane that ends with the block. Raises `FileNotFoundError` in words when there are no programs."""
    assets = find_assets()
    if assets is None:
        raise FileNotFoundError("no control plane: set KUBEBUILDER_ASSETS (docs/operator.md says how to fill it)")
    plane = ControlPlane(folder, assets, full)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()
