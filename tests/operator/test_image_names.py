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


def test_an_image_notes_the_commit_of_its_sources_and_whether_they_were_changed(tmp_path: Path) -> None:
    asked, builder, work = tmp_path / "asked", tmp_path / "docker", tmp_path / "work"
    builder.write_text(f'#!/bin/sh\necho "$@" >> {asked}\n[ "$1" != image ] || echo 1\n')
    builder.chmod(0o755)
    (work / "scripts").mkdir(parents=True)
    for name in ("pyproject.toml", "scripts/images"):
        (work / name).write_text((ROOT / name).read_text())
    person = ["git", "-C", str(work), "-c", "user.name=t", "-c", "user.email=t@example.com"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*person, *words], check=True)
    commit = subprocess.run([*person, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "NAMES": "fleet", "BUILDER": "docker"}

    def label() -> str:
        asked.unlink(missing_ok=True)
        subprocess.run(["bash", str(work / "scripts/images")], check=True, env=environment, capture_output=True)
        return asked.read_text().partition("org.opencontainers.image.revision=")[2].split()[0]

    assert label() == commit
    with (work / "pyproject.toml").open("a") as stream:
        stream.write("# more\n")
    assert label() == f"{commit}-changed"
