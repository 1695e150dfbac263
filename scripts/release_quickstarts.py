"""Plays the quickstarts with the files of a release in fresh roots of Debian and Ubuntu.

A root is made by mmdebstrap with the packages that the pages name. The installation runs there with this machine's
network, the rest of a page in network and process namespaces of its own.
"""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from scripts import steps
from scripts.lab import laboratory
from scripts.pages import (
    NODES,
    RELEASE,
    Block,
    PageFailed,
    blocks_of,
    chosen,
    compare,
    namespaces,
    run,
    script,
    transcript,
)
from scripts.pod_lab import LAB, nodes
from scripts.release_images import architecture, image_name
from scripts.steps import step

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "docs/quickstart"
INSTALLATION: Final = "one-host"
"""The page that installs the programs of the others."""
PAGES: Final = (INSTALLATION, "collector", "slurm")
KUBERNETES: Final = "kubernetes"
IMAGES: Final = ("operator", "fleet", "sink", "agent")
"""What its page starts."""
PACKAGES: Final = ("python3", "python3-venv", "curl", "ca-certificates", "slurm-wlm", "munge")
"""What the pages say that they need."""
AUTHORITIES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
SECONDS: Final = 600.0
HOME: Final = "/root"


@dataclass(frozen=True)
class Suite:
    """A release of Debian or Ubuntu, and where the keys of its archive are."""

    name: str
    system: str
    keyring: Path
    options: tuple[str, ...] = ()


SUITES: Final = (
    Suite("bookworm", "Debian 12", Path("/usr/share/keyrings/debian-archive-keyring.gpg")),
    Suite(
        "noble",
        "Ubuntu 24.04",
        Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg"),
        ("--components=main,universe",),
    ),
)


@dataclass(frozen=True)
class Played:
    """What became of a page in a root."""

    what: str
    transcript: str
    problem: str = ""
    skipped: bool = False
    seconds: float = 0.0


def lacking() -> str:
    """Why no root can be used here; empty if one can."""
    if os.geteuid() != 0:
        return "root"
    missing = [name for name in ("mmdebstrap", "unshare", "chroot", "mount") if not shutil.which(name)]
    if missing:
        return missing[0]
    return "" if namespaces() else "network and process namespaces"


def environment(version: str) -> dict[str, str]:
    """That of a fresh login, with what this machine needs to reach package indexes."""
    kept = {name: value for name, value in os.environ.items() if re.fullmatch(r"(?i)(https?|no)_proxy", name)}
    paths = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return kept | {
        "HOME": HOME, "PATH": paths, "LANG": "C.UTF-8", "VERSION": version, "PIP_CERT": str(AUTHORITIES),
    }  # fmt: skip


@contextmanager
def fresh_root(suite: Suite, keyring: Path, release: Path) -> Iterator[Path]:
    """A root with the packages, the files of the release, and a Collector if `make collector` has built one."""
    with tempfile.TemporaryDirectory(prefix=f"ingero-{suite.name}-", ignore_cleanup_errors=True) as folder:
        root = Path(folder) / "root"
        with step(f"a fresh root of {suite.system}"):
            made = steps.command(
                ["mmdebstrap", "--quiet", "--variant=apt", f"--include={','.join(PACKAGES)}", f"--keyring={keyring}",
                 *suite.options, suite.name, str(root)], Path("/"), errors=subprocess.STDOUT,
            )  # fmt: skip
        if made.returncode:
            raise click.ClickException(f"no root of {suite.system}: {made.stdout[-1500:].strip()}")
        shutil.copy(AUTHORITIES, root / AUTHORITIES.relative_to("/"))  # as here: of a proxy too
        shutil.copytree(release, root / f"{HOME[1:]}/release")
        if (built := ROOT / ".tools/bin/otelcol").exists():
            shutil.copy(built, root / "usr/local/bin")
        yield root


def parts(page: str) -> tuple[list[Block], list[Block]]:
    """The installation from a release, with that of the first page; and the rest of the page."""
    blocks = chosen(blocks_of(FOLDER / f"{page}.md"), RELEASE)
    before = [] if page == INSTALLATION else blocks_of(FOLDER / f"{INSTALLATION}.md")
    installs = [block for block in [*before, *blocks] if block.condition == RELEASE]
    return installs, [block for block in blocks if block.condition != RELEASE]


def play(root: Path, suite: Suite, page: str, version: str) -> Played:
    """Play a page in a root; nothing that it started is left."""
    began = time.monotonic()
    installs, rest = parts(page)
    what = name(suite, page)
    if page == "collector" and not (root / "usr/local/bin/otelcol").exists():
        return Played(what, "", "needs otelcol (make collector)", skipped=True)
    # What the installation exports is there for the rest, as in one shell.
    commands = f"cd {HOME}/release\n{script(installs)}export -p > {HOME}/exported\n"
    text, problem = _execute(root, _inside(root, version, commands), installs, page)
    if not problem:
        within = shlex.join(_inside(root, version, f". {HOME}/exported\n{script(rest)}"))
        proc, sys = shlex.quote(str(root / "proc")), shlex.quote(str(root / "sys"))
        mounted = f"mount -t proc proc {proc} && mount --rbind /sys {sys} && exec {within}"
        more, problem = _execute(root, [*namespaces(), "sh", "-c", mounted], rest, page)
        text += f"\n{more}"
    shutil.rmtree(root / f"{HOME[1:]}/ingero-quickstart", ignore_errors=True)
    return Played(what, text, problem, seconds=time.monotonic() - began)


LEFT: Final = """
kubectl delete fleetclusters --all --all-namespaces --timeout=2m
helm uninstall ingero --namespace ingero-system --wait
kubectl delete namespace ingero ingero-trial ingero-system --ignore-not-found --timeout=3m
kubectl delete crd fleetclusters.ingero.io echostores.ingero.io --ignore-not-found
"""
"""Removes what the page for Kubernetes leaves, so that the next one finds a new cluster."""


def play_on_nodes(root: Path, suite: Suite, version: str, release: Path) -> Played:
    """Play the page for Kubernetes against a cluster without ingero, with the images of the release."""
    began = time.monotonic()
    blocks = chosen(blocks_of(FOLDER / f"{KUBERNETES}.md"), RELEASE, NODES)
    with laboratory("release-check") as lab, nodes(lab) as cluster:
        if _used(cluster.kubeconfig):
            return Played(name(suite, KUBERNETES), "", "needs a cluster without ingero", skipped=True)
        for program in (tool("helm"), tool("kubectl")):
            shutil.copy(str(program), root / "usr/local/bin")
        (root / f"{HOME[1:]}/.kube").mkdir(exist_ok=True)
        shutil.copy(cluster.kubeconfig, root / f"{HOME[1:]}/.kube/config")
        own = os.environ | fresh_storage(lab.folder)
        for image in IMAGES:
            archive, named = archive_of(image, version, release), f"localhost/ingero/{image}:{version}"
            pull = ["buildah", "pull", "--quiet", f"oci-archive:{archive}"]
            pulled = subprocess.run(pull, env=own, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
            subprocess.run(["buildah", "tag", pulled, named], env=own, check=True)
            cluster.load(named, env=own)
        commands = f"cd {HOME}/release\n{script(blocks)}"
        text, problem = _execute(root, _inside(root, version, commands), blocks, KUBERNETES)
        if os.environ.get("INGERO_LAB"):
            subprocess.run(_inside(root, version, LEFT), stdout=subprocess.DEVNULL)
    return Played(name(suite, KUBERNETES), text, problem, seconds=time.monotonic() - began)


def _used(kubeconfig: Path) -> bool:
    """Whether the cluster has what the page makes already, which is somebody's."""
    names = ["ingero", "ingero-trial", "ingero-system"]
    asked = ["get", "namespace", *names, "--ignore-not-found", "--output", "name"]
    command = [str(tool("kubectl")), "--kubeconfig", str(kubeconfig), *asked]
    return bool(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.strip())


def fresh_storage(folder: Path) -> dict[str, str]:
    """Root's buildah keeps nothing of other images, and leaves none; that of others needs its configured storage."""
    if os.geteuid() != 0:
        return {}
    driver = os.environ.get("STORAGE_DRIVER", "overlay")
    text = f'[storage]\ndriver = "{driver}"\ngraphroot = "{folder}/images"\nrunroot = "{folder}/run"\n'
    (folder / "storage.conf").write_text(text)
    return {"CONTAINERS_STORAGE_CONF": str(folder / "storage.conf")}


def archive_of(image: str, version: str, release: Path) -> Path:
    """The archive of an image for this machine."""
    return release / image_name(image, version, architecture())


def tool(program: str) -> str | None:
    """A program of this machine, or one that the repository has built."""
    return shutil.which(program, path=f"{os.environ['PATH']}{os.pathsep}{ROOT / '.tools/bin'}")


def no_nodes(version: str, release: Path) -> str:
    """Why the page for Kubernetes cannot be played; empty if it can."""
    if not all(archive_of(image, version, release).exists() for image in IMAGES):
        return "images in the release"
    if not os.environ.get("INGERO_LAB") and not LAB.exists():
        return "INGERO_LAB, a cluster with real nodes"
    if os.environ.get("INGERO_LAB") and not tool("kubectl"):
        return "kubectl"
    return "" if tool("helm") else "helm (make helm)"


def name(suite: Suite, page: str) -> str:
    """What the table calls it."""
    return f"{suite.system}: quickstart {page}"


def _inside(root: Path, version: str, commands: str) -> list[str]:
    settings = [f"{key}={value}" for key, value in environment(version).items()]
    return ["chroot", str(root), "env", "--ignore-environment", *settings, "bash", "-c", commands]


def _execute(root: Path, command: list[str], blocks: list[Block], page: str) -> tuple[str, str]:
    """Transcript, and what went wrong."""
    code, printed = run(command, Path("/"), os.environ, root.parent / "output", SECONDS)
    if code:
        logs = sorted((root / HOME[1:]).glob("ingero-quickstart/*.log"))
        ends = "".join(f"{file.name}: {file.read_text(errors='replace')[-1500:]}\n" for file in logs)
        return f"{transcript(blocks, printed)}\n{ends}", f"exit status {code}"
    try:
        compare(blocks, printed, page)
    except PageFailed as error:
        return transcript(blocks, printed), str(error).splitlines()[0]
    return transcript(blocks, printed), ""


def played(release: Path, version: str, keyring: Path | None, only: str) -> Iterator[Played]:
    """Every quickstart in a fresh root of every suite; those whose name contains a text."""
    for suite in SUITES:
        pages = [page for page in (*PAGES, KUBERNETES) if only in name(suite, page)]
        if not pages:
            continue
        keys = keyring if keyring and not suite.keyring.exists() else suite.keyring
        reason = lacking() or ("" if keys.exists() else f"{keys.name}: --keyring FILE")
        if not reason and KUBERNETES in pages and (absent := no_nodes(version, release)):
            pages.remove(KUBERNETES)
            yield Played(name(suite, KUBERNETES), "", f"needs {absent}", skipped=True)
        if reason:
            for page in pages:
                yield Played(name(suite, page), "", f"needs {reason}", skipped=True)
        elif pages:
            with fresh_root(suite, keys, release) as root:
                for page in pages:
                    yield (
                        play_on_nodes(root, suite, version, release)
                        if page == KUBERNETES
                        else play(root, suite, page, version)
                    )
