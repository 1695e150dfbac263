"""The images, built for real: `INGERO_IMAGES=1` with buildah, and `make images` done before."""

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import pytest

from ingero_contract import echo, routes
from ingero_testing.needs import needs_images, needs_root
from ingero_testing.processes import ECHO, FLEET, FREE, Running, process, wait_until

TAG = os.environ.get("TAG", metadata.version("ingero"))
COMMANDS = {
    "operator": ["ingero-operator", "run", "--help"],
    "fleet": ["ingero-fleet", "serve", "--help"],
    "echo": ["ingero-echo", "--help"],
    "sink": ["ingero-sink", "--help"],
    "agent": ["ingero-agent", "fleet-push", "--help"],
}
FOREIGN = {
    "operator": {"duckdb", "numpy", "fastapi"},
    "fleet": {"kopf", "duckdb", "mcp"},
    "echo": {"kopf", "nvidia-ml-py"},
    "sink": {"kopf", "duckdb", "numpy", "grpcio"},
    "agent": {"kopf", "duckdb", "fastapi"},
}

pytestmark = needs_images


PORTS = ["--ports-file", "/tmp/ports.json"]
SERVICES = {
    "operator": (["ingero-operator", "run", "--listen", FREE, *PORTS], "http", "/healthz"),
    "fleet": (
        ["ingero-fleet", "serve", "--config", "/tmp/fleet.yaml", *PORTS], "health", routes.FLEET_HEALTH
    ),
    "echo": (["ingero-echo", "serve", "--config", "/tmp/echo.yaml", *PORTS], "api", echo.HEALTH),
    "sink": (["ingero-sink", "--socket-path", "/tmp/agent.sock", "--listen", FREE, *PORTS], "metrics", "/healthz"),
    "agent": (
        ["ingero-agent", "fleet-push", "--stub", "--fleet-endpoint", "127.0.0.1:9", "--fleet-insecure",
         "--fleet-cluster-id", "c", "--metrics-listen", FREE, "--no-detect-provider",
         "--fleet-persist-path", "/tmp/state.json", *PORTS],
        "metrics", "/healthz",
    ),
}  # fmt: skip
"""Command, name of its port, and path of its health; all that it may write to is /tmp."""
FILES = {
    "kubeconfig": {
        "apiVersion": "v1", "kind": "Config", "current-context": "none",
        "clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "none", "user": {"token": "none"}}],
        "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}],
    },
    "fleet.yaml": FLEET,
    "echo.yaml": {**ECHO, "store": {"path": "/tmp/echo.duckdb"}},
}  # fmt: skip
LOCKED = """
mount --bind "$0" "$0" && mount --bind "$1" "$0/tmp" && mount --rbind /proc "$0/proc" &&
mount --rbind /dev "$0/dev" &&
mount -o remount,bind,ro "$0" && root=$0 && shift && cd / &&
exec chroot --userspec=65532:65532 "$root" /usr/bin/env -i PATH=/opt/ingero/bin:/usr/bin:/bin \
  PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 TZ=UTC KUBECONFIG=/tmp/kubeconfig "$@"
"""


@contextmanager
def locked_down(name: str, writable: Path) -> Iterator[Running]:
    """An image's service as its pod has it: the root file system read-only, no capability, not root."""
    box = subprocess.run(
        ["buildah", "from", "--pull-never", f"ingero/{name}:{TAG}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    try:
        mounted = subprocess.run(["buildah", "mount", box], capture_output=True, text=True, check=True)
        root, command = mounted.stdout.strip(), SERVICES[name][0]
        log = writable.with_suffix(".log")
        with process(
            log, "unshare", "--mount", "--propagation", "private", "sh", "-c", LOCKED, root, str(writable), *command
        ) as running:
            wait_until(
                lambda: (writable / "ports.json").exists() or running.process.poll() is not None, f"{name} to listen"
            )
            assert running.process.poll() is None, running.words()
            running.ports = json.loads((writable / "ports.json").read_text())
            yield running
    finally:
        subprocess.run(["buildah", "rm", box], capture_output=True)


@needs_root
@pytest.mark.parametrize("name", SERVICES)
def test_an_image_serves_its_health_read_only_and_without_privilege(name: str, tmp_path: Path) -> None:
    writable = tmp_path / "writable"
    writable.mkdir()
    for file, tree in FILES.items():
        (writable / file).write_text(json.dumps(tree))
    for path in (writable, *writable.iterdir()):
        os.chown(path, 65532, 65532)

    with locked_down(name, writable) as running:
        _, port, route = SERVICES[name]
        with urllib.request.urlopen(running.url(port, route), timeout=60) as answer:
            status = answer.status
        facts = Path(f"/proc/{running.process.pid}")
        lines = dict(line.split(":\t", 1) for line in (facts / "status").read_text().splitlines())
        read_only = os.statvfs(facts / "root/opt").f_flag & os.ST_RDONLY

    assert status == 200
    assert lines["Uid"].split() == ["65532"] * 4 and int(lines["CapEff"], 16) == 0
    assert read_only


def inside(name: str, *command: str) -> subprocess.CompletedProcess[str]:
    box = subprocess.run(
        ["buildah", "from", "--pull-never", f"ingero/{name}:{TAG}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    try:
        return subprocess.run(["buildah", "run", box, "--", *command], capture_output=True, text=True)
    finally:
        subprocess.run(["buildah", "rm", box], capture_output=True)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_image_answers_without_being_root(name: str) -> None:
    done = inside(name, "sh", "-c", f"{' '.join(COMMANDS[name])} && id -u")

    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout and done.stdout.strip().endswith("65532")


@pytest.mark.parametrize("name", COMMANDS)
def test_an_image_holds_no_other_components_dependencies(name: str) -> None:
    listing = (
        "import importlib.metadata as m, json; "
        "print(json.dumps(sorted({d.metadata['Name'].lower() for d in m.distributions()})))"
    )
    done = inside(name, "/opt/ingero/bin/python", "-c", listing)

    assert done.returncode == 0, done.stderr
    assert not FOREIGN[name] & set(json.loads(done.stdout))


def test_the_agents_image_loads_its_programs_without_a_compiler() -> None:
    code = "from ingero_agent.trace.prebuilt import open_library; print(open_library().libbpf_major_version())"
    done = inside("agent", "/opt/ingero/bin/python", "-c", code)
    compilers = inside("agent", "sh", "-c", "ls /usr/lib/*/libclang* /usr/lib/*/libLLVM* 2>/dev/null | wc -l")

    assert (done.stdout.strip(), compilers.stdout.strip()) == ("1", "0"), done.stderr
