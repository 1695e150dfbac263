"""The images, built for real: `INGERO_IMAGES=1` with buildah, and `make images` done before."""

import json
import os
import shutil
import subprocess

import pytest

TAG = os.environ.get("TAG", "dev")
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

pytestmark = pytest.mark.skipif(
    not (os.environ.get("INGERO_IMAGES") and shutil.which("buildah")),
    reason="needs buildah and INGERO_IMAGES=1 after `make images`",
)


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


def test_the_agents_image_brings_the_compiler() -> None:
    done = inside("agent", "/usr/bin/python3", "-c", "import bcc; print('bcc')")

    assert done.stdout.strip() == "bcc", done.stderr
