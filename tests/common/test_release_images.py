"""The images of a release for amd64 and arm64: which can be built, what is checked, and that one tag serves both."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ingero_testing.needs import find_helm, needs_root
from ingero_testing.registry import INDEX, registry
from scripts.release import IMAGES, ROOT, main, project_version
from scripts.release_archives import chart_package
from scripts.release_check import blocks, executed, repetitions
from scripts.release_images import ARCHITECTURES, architecture, image_name, no_images, no_start, require

VERSION = project_version()
PAGE = (ROOT / "docs/release.md").read_text()
(OTHER,) = set(ARCHITECTURES) - {architecture()}
REGISTERED = "enabled\ninterpreter /usr/libexec/qemu-binfmt/aarch64-binfmt-P\nflags: POF\noffset 0\n"
needs_buildah = pytest.mark.skipif(
    shutil.which("buildah") is None or find_helm() is None,
    reason="needs buildah and helm: apt-get install buildah; make helm",
)


@pytest.fixture
def emulators(tmp_path: Path) -> Path:
    """What the kernel lists, for both architectures."""
    for machine in ("x86_64", "aarch64"):
        (tmp_path / f"qemu-{machine}").write_text(REGISTERED)
    return tmp_path


def test_this_machine_starts_its_own_programs_without_emulation(tmp_path: Path) -> None:
    assert no_start(architecture(), tmp_path) is None


def test_a_registered_emulator_starts_those_of_another_architecture(emulators: Path) -> None:
    assert no_start(OTHER, emulators) is None


@pytest.mark.parametrize(
    "listed", ["", REGISTERED.replace("enabled", "disabled"), REGISTERED.replace("flags: POF", "flags: PO")]
)
def test_without_an_emulator_that_other_roots_can_use_the_package_is_named(emulators: Path, listed: str) -> None:
    for file in emulators.iterdir():
        file.write_text(listed)

    assert f"emulation of {OTHER} (apt-get install qemu-user-static)" == no_start(OTHER, emulators)


def test_images_that_are_asked_for_and_cannot_be_built_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")

    assert no_images("arm64") == "buildah (apt-get install buildah)"
    with pytest.raises(click.ClickException, match="no images for arm64: needs buildah"):
        require(["arm64"])


def test_images_are_not_asked_for_and_refused_at_once() -> None:
    done = CliRunner().invoke(main, ["--arch", "arm64", "--no-images"])

    assert done.exit_code == 2 and "exclude each other" in done.output


def test_every_image_of_a_release_is_started_whatever_its_architecture(tmp_path: Path) -> None:
    (block,) = (item for item in blocks(PAGE) if "for each IMAGE" in item.conditions)

    assert repetitions(block, tmp_path, VERSION) == []
    for name, each in (("fleet", "amd64"), ("sink", "arm64"), ("fleet", "arm64")):
        (tmp_path / image_name(name, VERSION, each)).touch()
    assert repetitions(block, tmp_path, VERSION) == [
        {"IMAGE": "fleet", "ARCH": "amd64"}, {"IMAGE": "fleet", "ARCH": "arm64"}, {"IMAGE": "sink", "ARCH": "arm64"},
    ]  # fmt: skip


@needs_buildah
def test_an_image_that_cannot_be_started_here_is_named_and_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "download"
    folder.mkdir()
    (folder / image_name("fleet", VERSION, OTHER)).touch()
    monkeypatch.setattr("scripts.release_check.no_start", lambda wanted: no_start(wanted, tmp_path))

    (row,) = executed(PAGE, folder, VERSION, "buildah")

    assert row.what.startswith(f"fleet {OTHER}: ")
    assert row.result == f"skipped: needs emulation of {OTHER} (apt-get install qemu-user-static)"


def buildah(*command: str) -> str:
    return subprocess.run(["buildah", *command], check=True, capture_output=True, text=True).stdout.strip()


def archive(file: Path, name: str, each: str) -> None:
    """An image of this architecture with one file that tells it."""
    content = file.with_suffix(".content")
    content.write_text(each)
    box = buildah("from", "scratch")
    try:
        buildah("copy", "--quiet", box, str(content), "/architecture")
        buildah("config", "--arch", each, "--os", "linux", box)
        buildah("commit", "--quiet", "--rm=false", box, f"oci-archive:{file}:ingero/{name}:{VERSION}")
    finally:
        buildah("rm", box)
        content.unlink()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The publishing program beside a release without images."""
    for name in ("pyproject.toml", "scripts/release-publish"):
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "tree" / name)
    folder = tmp_path / f"tree/dist/release-{VERSION}"
    folder.mkdir(parents=True)
    (folder / "SHA256SUMS").touch()
    return tmp_path / "tree"


def publish(tree: Path, address: str, *options: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([os.environ["PATH"], str(ROOT / ".tools/bin")])
    return subprocess.run(
        [tree / "scripts/release-publish", "--plain-http", "--no-sign", *options],
        env=os.environ | {"PATH": path, "REGISTRY": address},
        capture_output=True,
        text=True,
    )


def test_a_release_without_the_images_of_an_architecture_is_not_published(tree: Path) -> None:
    for name in IMAGES:
        (tree / f"dist/release-{VERSION}" / image_name(name, VERSION, "amd64")).touch()

    done = publish(tree, "127.0.0.1:9", "--yes")

    assert (done.returncode, done.stdout) == (1, "")
    assert image_name("echo", VERSION, "arm64") in done.stderr
    assert image_name("echo", VERSION, "amd64") not in done.stderr


@needs_root
@needs_buildah
def test_one_tag_gives_every_architecture_its_own_image(tree: Path) -> None:
    release = tree / f"dist/release-{VERSION}"
    for name in IMAGES:
        for each in ARCHITECTURES:
            archive(release / image_name(name, VERSION, each), name, each)
    (release / f"ingero-chart-{VERSION}.tgz").write_bytes(chart_package(ROOT / "charts/ingero", 1_700_000_000))

    with registry() as store:
        done = publish(tree, f"{store.address}/team", "--yes")
        assert done.returncode == 0, done.stdout + done.stderr

        for name in IMAGES:
            kind, content = store.manifests[f"team/ingero/{name}", VERSION]
            listed = {item["platform"]["architecture"]: item["digest"] for item in json.loads(content)["manifests"]}
            assert (kind, set(listed)) == (INDEX, set(ARCHITECTURES))
            for each, digest in listed.items():
                config = store.manifest(f"team/ingero/{name}", digest)["config"]["digest"]
                assert store.blob(config)["architecture"] == each
        assert store.manifest("team/charts/ingero", VERSION)["layers"]

        for each in ARCHITECTURES:
            image = f"{store.address}/team/ingero/fleet:{VERSION}"
            pulled = buildah("pull", "--quiet", "--tls-verify=false", "--arch", each, image)
            try:
                assert buildah("inspect", "--type", "image", "--format", "{{.OCIv1.Architecture}}", pulled) == each
            finally:
                buildah("rmi", pulled)
