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

from scripts.pages import (
    RELEASE,
    REPOSITORY,
    Block,
    PageFailed,
    blocks_of,
    compare,
    namespaces,
    run,
    script,
    transcript,
)

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "docs/quickstart"
INSTALLATION: Final = "one-host"
"""The page that installs the programs of the others."""
PAGES: Final = (INSTALLATION, "collector", "slurm")
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
        subprocess.run(
            [
                "mmdebstrap", "--quiet", "--variant=apt", f"--include={','.join(PACKAGES)}", f"--keyring={keyring}",
                *suite.options, suite.name, str(root),
            ],
            check=True,
        )  # fmt: skip
        shutil.copy(AUTHORITIES, root / AUTHORITIES.relative_to("/"))  # as here: of a proxy too
        shutil.copytree(release, root / f"{HOME[1:]}/release")
        if (built := ROOT / ".tools/bin/otelcol").exists():
            shutil.copy(built, root / "usr/local/bin")
        yield root


def parts(page: str) -> tuple[list[Block], list[Block]]:
    """The installation from a release, with that of the first page; and the rest of the page."""
    blocks = [block for block in blocks_of(FOLDER / f"{page}.md") if block.installation != REPOSITORY]
    before = [] if page == INSTALLATION else blocks_of(FOLDER / f"{INSTALLATION}.md")
    installs = [block for block in [*before, *blocks] if block.installation == RELEASE]
    return installs, [block for block in blocks if block.installation != RELEASE]


def play(root: Path, suite: Suite, page: str, version: str) -> Played:
    """Play a page in a root; nothing that it started is left."""
    began = time.monotonic()
    installs, rest = parts(page)
    what = f"{suite.system}: quickstart {page}"
    if page == "collector" and not (root / "usr/local/bin/otelcol").exists():
        return Played(what, "", "needs otelcol (make collector)", skipped=True)
    inside = ["env", "--ignore-environment", *(f"{key}={value}" for key, value in environment(version).items())]
    output = root.parent / "output"

    def execute(command: list[str], blocks: list[Block]) -> tuple[str, str]:
        code, printed = run(command, Path("/"), os.environ, output, SECONDS)
        if code:
            logs = sorted((root / HOME[1:]).glob("ingero-quickstart/*.log"))
            ends = "".join(f"{file.name}: {file.read_text(errors='replace')[-1500:]}\n" for file in logs)
            return f"{transcript(blocks, printed)}\n{ends}", f"exit status {code}"
        try:
            compare(blocks, printed, page)
        except PageFailed as error:
            return transcript(blocks, printed), str(error).splitlines()[0]
        return transcript(blocks, printed), ""

    # What the installation exports is there for the rest, as in one shell.
    commands = f"cd {HOME}/release\n{script(installs)}export -p > {HOME}/exported\n"
    text, problem = execute(["chroot", str(root), *inside, "bash", "-c", commands], installs)
    if not problem:
        commands = f". {HOME}/exported\n{script(rest)}"
        within = shlex.join(["chroot", str(root), *inside, "bash", "-c", commands])
        proc, sys = shlex.quote(str(root / "proc")), shlex.quote(str(root / "sys"))
        mounted = f"mount -t proc proc {proc} && mount --rbind /sys {sys} && exec {within}"
        more, problem = execute([*namespaces(), "sh", "-c", mounted], rest)
        text += f"\n{more}"
    shutil.rmtree(root / f"{HOME[1:]}/ingero-quickstart", ignore_errors=True)
    return Played(what, text, problem, seconds=time.monotonic() - began)


def played(release: Path, version: str, keyring: Path | None, only: str) -> Iterator[Played]:
    """Every quickstart in a fresh root of every suite; those whose name contains a text."""
    for suite in SUITES:
        pages = [page for page in PAGES if only in f"{suite.system}: quickstart {page}"]
        if not pages:
            continue
        keys = keyring if keyring and not suite.keyring.exists() else suite.keyring
        reason = lacking() or ("" if keys.exists() else f"{keys.name}: --keyring FILE")
        if reason:
            for page in pages:
                yield Played(f"{suite.system}: quickstart {page}", "", f"needs {reason}", skipped=True)
            continue
        with fresh_root(suite, keys, release) as root:
            for page in pages:
                yield play(root, suite, page, version)
