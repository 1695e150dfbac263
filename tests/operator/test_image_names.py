"""`make images` builds what the manifests name; the builder here only writes down what it is asked for."""

import os
import subprocess
from importlib import metadata
from pathlib import Path

from ingero_operator.render.install import everything

ROOT = Path(__file__).parents[2]


def test_the_operator_image_that_is_built_is_the_one_that_the_manifests_run(tmp_path: Path) -> None:
    asked, builder = tmp_path / "asked", tmp_path / "docker"
    builder.write_text(f'#!/bin/sh\necho "$@" >> {asked}\n[ "$1" != image ] || echo 1\n')
    builder.chmod(0o755)
    work = tmp_path / "work"
    (work / "scripts").mkdir(parents=True)
    for name in ("pyproject.toml", "scripts/images"):
        (work / name).write_text((ROOT / name).read_text())
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "NAMES": "operator", "BUILDER": "docker"}
    environment.pop("TAG", None)
    subprocess.run(["bash", str(work / "scripts/images")], check=True, env=environment, capture_output=True)

    deployment = next(item for item in everything(metadata.version("ingero")) if item["kind"] == "Deployment")
    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    assert f"-t {image} ." in asked.read_text()
