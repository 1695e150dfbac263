"""What `make release` writes, and that the commands of docs/release.md accept it and refuse what was changed."""

import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from scripts.release import (
    describe,
    file_digest,
    main,
    package_name,
    project_version,
    python_libraries,
    sign_sums,
    signing_key,
)
from scripts.release_archives import chart_image, chart_package
from scripts.release_check import blocks, origin, repetitions, skipped
from scripts.release_requirements import EXTRAS, locked, needed, read_lock, requirements
from scripts.release_sbom import Artifact, Part, image_parts, parts_of, problems, sbom
from scripts.release_signature import bundle, new_key, public_pem, read_key, sign

ROOT = Path(__file__).parents[2]
LOCK = read_lock((ROOT / "requirements.lock").read_text())
PAGE = (ROOT / "docs/release.md").read_text()
EPOCH = 1_700_000_000
VERSION = "1.2.3"
WHEEL = f"ingero-{VERSION}-py3-none-any.whl"


def entry(name: str, digit: str, marker: str = "") -> str:
    return f"{name}==1.0{marker} \\\n    --hash=sha256:{digit * 64} \\\n    --hash=sha256:{'f' * 64}\n"


def test_a_lock_may_have_two_versions_of_a_package_for_different_interpreters() -> None:
    text = entry("Some.Thing", "a", " ; python_full_version < '3.12'") + entry("some-thing", "b")

    found = read_lock(text)

    assert [item.hashes for item in found["some-thing"]] == [("a" * 64, "f" * 64), ("b" * 64, "f" * 64)]
    assert "".join(item.text for item in found["some-thing"]) == text


def test_a_line_of_the_lock_that_is_not_understood_is_named() -> None:
    with pytest.raises(ValueError, match=r"requirements\.lock:4: "):
        read_lock(entry("one", "a") + "git+https://example.com/two\n")


def test_every_extra_is_covered_by_a_file_of_requirements() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert {extra for extras in EXTRAS.values() for extra in extras} == set(project["optional-dependencies"])
    assert set(project["scripts"]) == {"ingero", *(f"ingero-{name}" for name in EXTRAS)}


def test_requirements_are_what_the_program_needs_and_nothing_of_development() -> None:
    everything = {name for extras in EXTRAS.values() for name in needed(extras)}

    assert "httptools" in needed(EXTRAS["sink"])
    assert "duckdb" in needed(EXTRAS["echo"])
    assert "duckdb" not in needed(EXTRAS["sink"])
    assert not everything & {"pytest", "mypy", "spdx-tools", "hatchling", "ingero"}
    for extras in EXTRAS.values():
        assert all(item.hashes for item in locked(extras, LOCK))


def test_the_first_requirement_is_the_wheel_next_to_the_file() -> None:
    text = requirements(WHEEL, "a" * 64, locked(("sink",), LOCK))

    assert text.splitlines()[0] == f"./{WHEEL} --hash=sha256:{'a' * 64}"
    assert set(read_lock(text.partition("\n")[2])) == needed(("sink",))


def a_sbom(**changed: Any) -> dict[str, Any]:
    parts = [*parts_of(locked(("sink",), LOCK)), Part("libc6", "2.36-9+deb12u1", "pkg:deb/debian/libc6@2.36")]
    artifact = Artifact(**{"file": WHEEL, "version": VERSION, "digest": "a" * 64, "purpose": "LIBRARY"} | changed)
    return sbom(artifact, parts, "DEPENDS_ON", EPOCH)


def test_the_sbom_is_valid_and_names_every_hash() -> None:
    document = a_sbom()
    packages = {item["name"]: item for item in document["packages"]}
    (locked_click,) = LOCK["click"]

    assert problems(document) == []
    assert packages["ingero"]["checksums"] == [{"algorithm": "SHA256", "checksumValue": "a" * 64}]
    assert {item["checksumValue"] for item in packages["click"]["checksums"]} == set(locked_click.hashes)
    assert packages["click"]["externalRefs"][0]["referenceLocator"] == f"pkg:pypi/click@{locked_click.version}"
    assert packages["click"]["licenseDeclared"] == "BSD-3-Clause"
    assert packages["libc6"]["licenseDeclared"] == "NOASSERTION"
    assert len(document["relationships"]) == len(document["packages"])


def test_the_same_artifact_has_the_same_sbom_and_another_one_another_name() -> None:
    assert a_sbom() == a_sbom()
    assert a_sbom()["documentNamespace"] != a_sbom(digest="b" * 64)["documentNamespace"]


def test_the_validator_finds_what_is_wrong() -> None:
    document = a_sbom()
    document["relationships"][1]["relatedSpdxElement"] = "SPDXRef-nothing"

    assert problems(document) != []


def test_packages_inside_of_an_image_have_the_hashes_of_the_lock_where_the_version_is_the_same() -> None:
    (locked_click,) = LOCK["click"]
    listing = {
        "components": [
            {"name": "click", "version": locked_click.version, "purl": f"pkg:pypi/click@{locked_click.version}"},
            {"name": "pyyaml", "version": "0.1", "purl": "pkg:pypi/pyyaml@0.1"},
            {"name": "click", "version": locked_click.version, "purl": "pkg:deb/debian/click@1"},
        ]
    }

    assert [part.hashes for part in image_parts(listing, LOCK)] == [locked_click.hashes, (), ()]


def test_the_libraries_of_a_debian_package_are_read_from_its_files() -> None:
    (locked_yaml,) = LOCK["pyyaml"]
    folder = "drwxr-xr-x root/root 0 2026-01-01 00:00 ./usr/lib/ingero/agent/lib/python3.11/site-packages"
    lines = [f"{folder}/{name}" for name in (f"PyYAML-{locked_yaml.version}.dist-info/", "ingero-0.1.0.dist-info/")]
    listing = python_libraries("\n".join([*lines, f"{folder}/yaml/", f"{lines[0]}METADATA"]))

    assert [(part.name, part.hashes) for part in image_parts(listing, LOCK)] == [("pyyaml", locked_yaml.hashes)]


def test_each_debian_package_of_a_release_is_installed_in_a_fresh_root(tmp_path: Path) -> None:
    (block,) = (item for item in blocks(PAGE) if "for each PACKAGE" in item.conditions)

    assert block.needs == "mmdebstrap"
    assert repetitions(block, tmp_path, VERSION) == []
    (tmp_path / package_name("agent", VERSION)).touch()
    assert repetitions(block, tmp_path, VERSION) == [{"PACKAGE": "agent"}]


def test_the_chart_is_packed_with_the_same_bytes_at_any_time(tmp_path: Path) -> None:
    folder = tmp_path / "ingero"
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text("name: ingero\n")
    (folder / "templates/one.yaml").write_text("kind: One\n")
    first = chart_package(folder, EPOCH)
    os.utime(folder / "Chart.yaml", (1, 1))
    (folder / "Chart.yaml").chmod(0o600)

    assert chart_package(folder, EPOCH) == first
    with tarfile.open(fileobj=io.BytesIO(first)) as archive:
        assert archive.getnames() == ["ingero/Chart.yaml", "ingero/templates/one.yaml"]
        assert {item.mtime for item in archive} == {EPOCH}


def test_the_chart_as_an_oci_layout_names_its_blobs_by_their_hashes() -> None:
    image = chart_image(b"package", {"name": "ingero", "version": VERSION}, EPOCH)
    with tarfile.open(fileobj=io.BytesIO(image)) as archive:
        files = {name: archive.extractfile(name).read() for name in archive.getnames()}  # type: ignore[union-attr]
    blobs = {name.rpartition("/")[2]: content for name, content in files.items() if name.startswith("blobs/")}
    (tagged,) = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(blobs[tagged["digest"].removeprefix("sha256:")])

    assert all(sha256(content).hexdigest() == name for name, content in blobs.items())
    assert tagged["annotations"]["org.opencontainers.image.ref.name"] == VERSION
    assert blobs[manifest["layers"][0]["digest"].removeprefix("sha256:")] == b"package"
    assert json.loads(blobs[manifest["config"]["digest"].removeprefix("sha256:")])["version"] == VERSION


def test_the_bundle_carries_a_signature_that_the_public_key_accepts() -> None:
    key = new_key()
    public = serialization.load_pem_public_key(public_pem(key))
    signature = sign(key, b"content")
    document = json.loads(bundle(key, b"content", signature))

    assert isinstance(public, ec.EllipticCurvePublicKey)
    public.verify(signature, b"content", ec.ECDSA(hashes.SHA256()))
    with pytest.raises(InvalidSignature):
        public.verify(signature, b"other", ec.ECDSA(hashes.SHA256()))
    assert set(document) == {"mediaType", "verificationMaterial", "messageSignature"}


def test_a_key_of_another_kind_is_refused() -> None:
    pem = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )

    with pytest.raises(ValueError, match="P-256"):
        read_key(pem)


def test_a_key_file_that_cannot_be_used_is_named_before_anything_is_built(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("no key")

    with pytest.raises(click.ClickException, match=r"key\.pem"):
        signing_key(tmp_path / "key.pem")


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A folder as `make release` leaves it, with one artifact."""
    (tmp_path / WHEEL).write_bytes(b"a wheel")
    (tmp_path / f"{WHEEL}.spdx.json").write_text(json.dumps(a_sbom(digest=file_digest(tmp_path / WHEEL))))
    describe(tmp_path, VERSION, "c" * 40, EPOCH)
    sign_sums(tmp_path, new_key())
    return tmp_path


def refused_by(release: Path) -> list[str]:
    """The commands of the page, of those that need no special program, that fail on this folder."""
    refused = []
    for block in blocks(PAGE):
        if block.part.startswith("Verify") and skipped(block, True, os.defpath) is None:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.commands],
                cwd=release,
                env={"PATH": os.environ["PATH"], "VERSION": VERSION},
                capture_output=True,
            )
            refused += [block.commands.split()[0]] if done.returncode else []
    return refused


def test_the_documented_commands_accept_a_release(release: Path) -> None:
    assert refused_by(release) == []


@pytest.mark.parametrize(
    ("file", "refused"),
    [
        (WHEEL, ["sha256sum", "for"]),
        (f"{WHEEL}.spdx.json", ["sha256sum"]),
        (f"ingero-{VERSION}.provenance.json", ["sha256sum"]),
        ("SHA256SUMS", ["openssl", "sha256sum"]),
    ],
)
def test_the_documented_commands_refuse_a_changed_file(release: Path, file: str, refused: list[str]) -> None:
    with (release / file).open("a") as stream:
        stream.write(" \n")

    assert refused_by(release) == [name for name in refused if name != "openssl" or openssl()]


def openssl() -> bool:
    return any(block.needs == "openssl" and skipped(block, True, os.defpath) is None for block in blocks(PAGE))


def test_provenance_names_the_commit_and_every_artifact(release: Path) -> None:
    statement = json.loads((release / f"ingero-{VERSION}.provenance.json").read_text())

    assert statement["subject"] == [{"name": WHEEL, "digest": {"sha256": file_digest(release / WHEEL)}}]
    (source,) = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert source["digest"] == {"gitCommit": "c" * 40}
    assert origin(release) == (VERSION, "c" * 40)


def test_the_chart_has_the_version_of_the_project() -> None:
    about = yaml.safe_load((ROOT / "charts/ingero/Chart.yaml").read_text())

    assert about["version"] == about["appVersion"] == project_version()


WORKFLOWS = {file.name: yaml.safe_load(file.read_text()) for file in (ROOT / ".github/workflows").iterdir()}


def steps(workflow: str) -> list[dict[str, Any]]:
    return [step for job in WORKFLOWS[workflow]["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("name", sorted(WORKFLOWS))
def test_a_workflow_runs_pinned_actions_with_few_rights(name: str) -> None:
    uses = [step["uses"] for step in steps(name) if "uses" in step]

    assert uses
    assert [action for action in uses if not re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", action)] == []
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}
    assert "secrets." not in (ROOT / ".github/workflows" / name).read_text()
    # An expression inside of a command would be code of whoever names a branch.
    assert [step["run"] for step in steps(name) if "${{" in step.get("run", "")] == []


@pytest.mark.parametrize("name", sorted(WORKFLOWS))
def test_a_workflow_runs_what_the_repository_has(name: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    commands = [line for step in steps(name) for line in step.get("run", "").splitlines()]
    targets = {
        word
        for line in commands
        if line.startswith(("make ", "sudo make "))
        for word in re.sub(r'"[^"]*"', "", line.partition("make ")[2].partition("#")[0]).split()
        if re.fullmatch("[a-z][a-z-]*", word)
    }

    assert targets >= {"release", "release-check"}
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []
    for path in (line for line in commands if line.startswith((".ci/", "scripts/"))):
        assert os.access(ROOT / path.split()[0], os.X_OK)


def test_the_workflow_of_a_release_takes_the_options_that_the_command_has() -> None:
    options = {option for parameter in main.params for option in (*parameter.opts, *parameter.secondary_opts)}
    used = [
        word for step in steps("release.yml") for word in re.findall(r"make release .*(--.*)\"", step.get("run", ""))
    ]

    assert used
    assert {option for text in used for option in re.findall(r"--[a-z-]+", text)} <= options


def test_publishing_prints_its_commands_and_needs_a_registry(release: Path, tmp_path: Path) -> None:
    for name in ("pyproject.toml", "scripts/release-publish"):
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "tree" / name)
    folder = tmp_path / f"tree/dist/release-{project_version()}"
    folder.mkdir(parents=True)
    for name in ("SHA256SUMS", f"ingero-fleet-{project_version()}-amd64.oci.tar"):
        (folder / name).touch()

    def publish(**environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [tmp_path / "tree/scripts/release-publish"],
            env={"PATH": os.environ["PATH"]} | environment,
            capture_output=True,
            text=True,
        )

    printed = publish(REGISTRY="registry.example.com").stdout

    assert f"docker://registry.example.com/ingero/fleet:{project_version()}" in printed
    assert "cosign sign --yes registry.example.com/ingero/fleet@DIGEST" in printed
    assert "helm push" in printed
    assert publish().returncode == 2
