"""Makes the artifacts of a release from the commit checked out, into dist/release-VERSION; it publishes nothing.

By default a key that exists only during the run signs: that shows the flow and proves no origin. `--key` signs with a
key of yours, `--keyless` with the identity of the workflow in which cosign runs.
"""

import json
import os
import re
import shutil
import tempfile
import time
import tomllib
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import click
import yaml

from scripts import steps
from scripts.release_archives import chart_image, chart_package
from scripts.release_images import ARCHITECTURES, architecture, image_name, no_images, require
from scripts.release_requirements import EXTRAS, locked, read_lock, requirements
from scripts.release_sbom import Artifact, Part, Relation, image_parts, parts_of, problems, sbom
from scripts.release_signature import SigningKey, bundle, new_key, provenance, public_pem, read_key, sign
from scripts.steps import step

ROOT: Final = Path(__file__).parents[1]
IMAGES: Final = ("operator", "fleet", "echo", "sink", "agent")
PACKAGES: Final = ("agent", "fleet", "operator")
"""Of Debian."""
_LIBRARY: Final = re.compile(r"/([^/]+)-([^/-]+)\.dist-info/$", re.MULTILINE)
SUMS: Final = "SHA256SUMS"


def run(*command: str, cwd: Path = ROOT, **environment: str) -> str:
    """Standard output of a command; a failure ends the run with what it wrote."""
    done = steps.command(list(command), cwd, os.environ | environment)
    if done.returncode:
        raise click.ClickException(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def program(name: str) -> str | None:
    """A program of the machine, or the one that this repository has built."""
    built = ROOT / ".tools/bin" / name
    return shutil.which(name) or (str(built) if built.exists() else None)


def file_digest(file: Path) -> str:
    """SHA-256 in hexadecimal."""
    digest = sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def project_version(root: Path = ROOT) -> str:
    """The one place where the version is written."""
    return str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])


class Build:
    """One run: sources in `source`, artifacts in `out`; each method adds artifacts and their SBOMs."""

    def __init__(self, source: Path, out: Path, version: str, commit: str, epoch: int) -> None:
        self.source, self.out, self.version, self.commit, self.epoch = source, out, version, commit, epoch
        self.lock = read_lock((source / "requirements.lock").read_text())

    def _sbom(self, file: str, purpose: Any, parts: list[Part], relation: Relation = "DEPENDS_ON") -> None:
        artifact = Artifact(file, self.version, file_digest(self.out / file), purpose)
        document = sbom(artifact, parts, relation, self.epoch)
        if wrong := problems(document):
            raise click.ClickException(f"{file}: the SBOM is not valid: {wrong[0]}")
        (self.out / f"{file}.spdx.json").write_text(json.dumps(document, indent=1) + "\n")

    @step("wheel, sdist, requirements of each program")
    def packages(self) -> None:
        """Wheel, sdist, and a file of requirements for each program."""
        uv = program("uv")
        assert uv, "make setup brings uv"
        run(
            uv, "build", "--quiet", "--python", str(ROOT / ".venv/bin/python"), "--require-hashes",
            "--build-constraints", "requirements.lock", "--out-dir", str(self.out),
            cwd=self.source, SOURCE_DATE_EPOCH=str(self.epoch),
        )  # fmt: skip
        (self.out / ".gitignore").unlink(missing_ok=True)
        wheel = f"ingero-{self.version}-py3-none-any.whl"
        everything = parts_of(locked(tuple(extra for extras in EXTRAS.values() for extra in extras), self.lock))
        self._sbom(wheel, "LIBRARY", everything)
        self._sbom(f"ingero-{self.version}.tar.gz", "SOURCE", everything)
        for name, extras in EXTRAS.items():
            file = f"ingero-{self.version}-requirements-{name}.txt"
            packages = locked(extras, self.lock)
            (self.out / file).write_text(requirements(wheel, file_digest(self.out / wheel), packages))
            self._sbom(file, "INSTALL", parts_of(packages))

    @step("Helm chart")
    def chart(self) -> None:
        """The chart, for Helm and as an OCI artifact for registries."""
        folder = self.source / "charts/ingero"
        about = yaml.safe_load((folder / "Chart.yaml").read_text())
        if about["version"] != self.version:
            raise click.ClickException(f"charts/ingero is of {about['version']}: make generate")
        package = chart_package(folder, self.epoch)
        names = (f"ingero-chart-{self.version}.tgz", f"ingero-chart-{self.version}.oci.tar")
        for name, content in zip(names, (package, chart_image(package, about, self.epoch)), strict=True):
            (self.out / name).write_bytes(content)
            images = [
                Part(f"ingero/{image}", self.version, f"pkg:oci/{image}?tag={self.version}") for image in IMAGES
            ]
            self._sbom(name, "INSTALL", images)

    def images(self, wanted: str) -> None:
        """The images of an architecture as OCI archives; another one than the machine's is built under emulation."""
        tag, settings = self.version, {"SOURCE_DATE_EPOCH": str(self.epoch), "BUILDER": "buildah", "PULL_NEVER": "1"}
        settings["REVISION"] = self.commit
        if wanted != architecture():
            tag = f"{self.version}-{wanted}"
            settings |= {"PLATFORMS": f"linux/{wanted}"}
        for name in IMAGES:
            file = image_name(name, self.version, wanted)
            target = f"oci-archive:{self.out / file}:ingero/{name}:{self.version}"
            with step(f"image {name} for {wanted}: build, archive"):
                run("scripts/images", cwd=self.source, TAG=tag, NAMES=name, **settings)
                run("buildah", "push", "--quiet", f"localhost/ingero/{name}:{tag}", target)
                listing = json.loads((self.source / f"dist/sbom/{name}.cdx.json").read_text())
                self._sbom(file, "CONTAINER", image_parts(listing, self.lock), "CONTAINS")

    def debian(self) -> None:
        """The packages for the Debian release and the architecture of this machine."""
        environment = {"SOURCE_DATE_EPOCH": str(self.epoch), "OUT": str(self.out)}
        path = os.pathsep.join([os.environ["PATH"], str(ROOT / ".tools/bin")])
        for name in PACKAGES:
            file = package_name(name, self.version)
            with step(f"Debian package {name}"):
                run("scripts/deb", cwd=self.source, PATH=path, NAMES=name, **environment)
                listing = python_libraries(run("dpkg-deb", "--contents", str(self.out / file)))
                self._sbom(file, "INSTALL", image_parts(listing, self.lock), "CONTAINS")


def package_name(name: str, version: str) -> str:
    """The file of a Debian package for this machine's architecture."""
    return f"ingero-{name}_{version}_{architecture()}.deb"


def python_libraries(contents: str) -> dict[str, Any]:
    """The libraries whose metadata a list of files has, as components of CycloneDX; this project is none."""
    found = [(name.replace("_", "-").lower(), version) for name, version in _LIBRARY.findall(contents)]
    components = [
        {"name": name, "version": version, "purl": f"pkg:pypi/{name}@{version}"}
        for name, version in sorted(set(found))
        if name != "ingero"
    ]
    return {"components": components}


def no_packages() -> str | None:
    """Why Debian packages cannot be built here, if so."""
    missing = [name for name in ("dpkg-deb", "/usr/bin/python3") if not shutil.which(name)]
    return f"{missing[0]} is not installed" if missing else None


def describe(out: Path, version: str, commit: str, epoch: int) -> None:
    """Provenance of all artifacts, and the checksums of all files."""
    server, repository = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
    site = f"{server}/{repository}" if server and repository else None
    statement = provenance(
        {file.name: file_digest(file) for file in out.iterdir() if not file.name.endswith(".spdx.json")},
        version=version,
        commit=commit,
        epoch=epoch,
        builder=f"{site}/.github/workflows/release.yml" if site else "urn:ingero:local",
        source=f"git+{site}" if site else "urn:ingero:local",
    )
    (out / f"ingero-{version}.provenance.json").write_text(json.dumps(statement, indent=1) + "\n")
    lines = [f"{file_digest(file)}  {file.name}\n" for file in sorted(out.iterdir())]
    (out / SUMS).write_text("".join(lines))


def signing_key(file: Path | None) -> SigningKey:
    """The key of this file, or a new one that only this run has."""
    try:
        return read_key(file.read_bytes()) if file else new_key()
    except (ValueError, TypeError) as error:
        raise click.ClickException(f"{file}: {error}") from error


def sign_sums(out: Path, key: SigningKey | None) -> None:
    """One signature, of the checksums, which cover every file; without a key it is cosign's."""
    sums = out / SUMS
    if key is None:
        run(program("cosign") or "cosign", "sign-blob", "--yes", "--bundle", f"{sums}.sigstore.json", str(sums))
        return
    signature = sign(key, sums.read_bytes())
    Path(f"{sums}.sig").write_bytes(signature)
    Path(f"{sums}.sigstore.json").write_text(bundle(key, sums.read_bytes(), signature))
    (out / "release.pub").write_bytes(public_pem(key))


def make(
    out: Path,
    version: str,
    *,
    images: bool | None,
    architectures: Sequence[str] = (),
    added: Path | None = None,
    commit: str = "HEAD",
) -> None:
    """All artifacts of a commit into an empty folder.

    Images are built for each of `architectures`, all by default; `images=None` leaves out those that cannot be.
    """
    wanted = () if images is False else architectures or ARCHITECTURES
    require(wanted if images else ())
    commit = run("git", "rev-parse", f"{commit}^{{commit}}").strip()
    epoch = int(run("git", "log", "-1", "--format=%ct", commit))
    click.echo(f"version {version} of commit {commit}")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="ingero-release-") as folder:
        source = Path(folder)
        run("git", "archive", "--output", str(source / "source.tar"), commit)
        run("tar", "-xf", "source.tar", cwd=source)
        (source / "source.tar").unlink()
        build = Build(source, out, version, commit, epoch)
        build.packages()
        build.chart()
        if lacking := no_packages():
            click.echo(f"no Debian packages: {lacking}")
        else:
            build.debian()
        for each in wanted:
            with step(f"what images for {each} need"):
                missing = no_images(each)
            if images is None and missing:
                click.echo(
                    f"no images for {each}: needs {missing}; those of a machine that has it are taken by --add"
                )
                continue
            if missing:  # here too: a base that was pulled for another architecture has taken the name
                raise click.ClickException(f"no images for {each}: needs {missing}")
            build.images(each)
    for file in sorted(added.iterdir()) if added else ():
        if (out / file.name).exists():
            raise click.ClickException(f"{file} was built here too")
        shutil.copyfile(file, out / file.name)
    with step("provenance and checksums"):
        describe(out, version, commit, epoch)


@click.command()
@click.option("--version", "wanted", default="", help="Refuse to run unless pyproject.toml names this version.")
@click.option(
    "--images/--no-images", default=None, help="Build the images or fail. [default: those that can be built here]"
)
@click.option(
    "--arch",
    "architectures",
    multiple=True,
    type=click.Choice(ARCHITECTURES),
    help="Build the images for it or fail; may be repeated. [default: all]",
)
@click.option(
    "--add",
    "added",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Add the files of this folder: images of another architecture with their SBOMs.",
)
@click.option("--key", type=click.Path(exists=True, path_type=Path), help="Sign with this PEM key on P-256.")
@click.option("--keyless", is_flag=True, help="Sign with cosign and the identity of the workflow.")
def main(
    wanted: str,
    images: bool | None,
    architectures: tuple[str, ...],
    added: Path | None,
    key: Path | None,
    keyless: bool,
) -> None:
    """Make the artifacts of a release; nothing is published."""
    version = project_version()
    if wanted and wanted.removeprefix("v") != version:
        raise click.ClickException(
            f"pyproject.toml names {version}, not {wanted}: change it there, then make generate"
        )
    if key and keyless:
        raise click.UsageError("--key and --keyless exclude each other")
    if architectures and images is False:
        raise click.UsageError("--arch and --no-images exclude each other")
    if changed := run("git", "status", "--porcelain", "--untracked-files=no").strip():
        if key or keyless:
            raise click.ClickException(f"the tree differs from the commit, which is what is built:\n{changed}")
        click.echo("the tree differs from the commit; the commit is built")
    if keyless and program("cosign") is None:
        raise click.ClickException("a keyless signature needs cosign: make cosign")
    signer = None if keyless else signing_key(key)
    out = ROOT / f"dist/release-{version}"
    steps.end_by_signals()
    began = time.monotonic()
    make(out, version, images=True if architectures else images, architectures=architectures, added=added)
    sign_sums(out, signer)
    for file in sorted(out.iterdir()):
        click.echo(f"{file.stat().st_size / 1e6:9.2f} MB  {file.name}")
    click.echo(f"{out.relative_to(ROOT)}: made in {time.monotonic() - began:.0f} s")
    if not (key or keyless):
        click.echo("signed with a key of this run only; nothing is published")


if __name__ == "__main__":
    main()
