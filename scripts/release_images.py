"""For which architectures this machine can build images, and what it lacks for another one."""

import platform
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import click

BASE: Final = "docker.io/library/debian:bookworm-slim"
MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}
"""Each architecture of a release, in the words of OCI, and what the kernel and qemu call it."""
ARCHITECTURES: Final = tuple(MACHINES)
EMULATORS: Final = Path("/proc/sys/fs/binfmt_misc")
SECONDS_OF_A_PULL: Final = 120
_USABLE: Final = re.compile(r"\Aenabled\n(?:.*\n)*flags: \w*F")
"""Started, and opened when it was registered: a root of the other architecture does not have it."""


def architecture() -> str:
    """This machine's."""
    return {machine: name for name, machine in MACHINES.items()}.get(platform.machine(), platform.machine())


def image_name(name: str, version: str, wanted: str) -> str:
    """The file of an image for an architecture."""
    return f"ingero-{name}-{version}-{wanted}.oci.tar"


def no_start(wanted: str, emulators: Path = EMULATORS) -> str | None:
    """Why programs of this architecture do not start here, if so."""
    if wanted == architecture():
        return None
    registered = emulators / f"qemu-{MACHINES[wanted]}"
    if registered.exists() and _USABLE.match(registered.read_text()):
        return None
    return f"emulation of {wanted} (apt-get install qemu-user-static)"


def no_base(wanted: str) -> str | None:
    """Why there is no base image of this architecture, if so; one that buildah does not have is pulled."""
    if _has_base(wanted):
        return None
    pull = ["buildah", "pull", "--quiet", "--arch", wanted, BASE]
    try:
        subprocess.run(pull, capture_output=True, timeout=SECONDS_OF_A_PULL, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return f"{BASE} for {wanted}, which cannot be pulled ({' '.join(pull)})"
    return None


def _has_base(wanted: str) -> bool:
    """Buildah takes a base of another architecture too if that has the name, so this asks what it has taken."""
    taken = subprocess.run(
        ["buildah", "from", "--quiet", "--pull-never", "--arch", wanted, BASE], capture_output=True, text=True
    )
    if taken.returncode:
        return False
    box = taken.stdout.strip()
    about = ["buildah", "inspect", "--format", "{{.OCIv1.Architecture}}", box]
    try:
        return subprocess.run(about, capture_output=True, text=True, check=True).stdout.strip() == wanted
    finally:
        subprocess.run(["buildah", "rm", box], capture_output=True)


def no_images(wanted: str) -> str | None:
    """What is missing to build images for this architecture here, if anything is."""
    if not shutil.which("buildah"):
        return "buildah (apt-get install buildah)"
    return no_start(wanted) or no_base(wanted)


def require(architectures: Iterable[str]) -> None:
    """Refuse if images for one of these cannot be built here."""
    for wanted in architectures:
        if missing := no_images(wanted):
            raise click.ClickException(f"no images for {wanted}: needs {missing}")
