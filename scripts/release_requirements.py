"""What each program needs: the closure of its extras in requirements.lock, with versions and hashes."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, requires
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT: Final = "ingero"
EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "operator": ("operator", "kubeconfig"),
    "fleet": ("fleet", "fleet-log"),
    "agent": ("agent", "agent-mcp"),
    "sink": ("sink",),
    "echo": ("echo", "echo-lake", "echo-source"),
    "analyze": ("analyze",),
}
"""For each program, the extras that its file of requirements covers."""
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
MACHINES: Final = ("x86_64", "aarch64")
_ENTRY: Final = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^\s;]+)(?: ; (?P<marker>[^\\\n]+?))? \\$")


@dataclass(frozen=True)
class LockedPackage:
    """One distribution of the lock: any file of it has one of these SHA-256 hashes."""

    name: str
    version: str
    hashes: tuple[str, ...]
    text: str


Lock = Mapping[str, Sequence[LockedPackage]]
"""Entries by name; a name has several where interpreters need different versions."""


def read_lock(text: str) -> Lock:
    """The packages of a lock by name; a line that is not understood raises `ValueError` with its number."""
    found: defaultdict[str, list[LockedPackage]] = defaultdict(list)
    entry: re.Match[str] | None = None
    lines: list[str] = []

    def close() -> None:
        if entry is not None:
            hashes = tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", "\n".join(lines)))
            name = canonicalize_name(entry["name"])
            found[name].append(LockedPackage(name, entry["version"], hashes, "\n".join(lines) + "\n"))

    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("    --hash=sha256:") and entry is not None:
            lines.append(line)
        elif started := _ENTRY.match(line):
            close()
            entry, lines = started, [line]
        elif line.strip():
            raise ValueError(f"requirements.lock:{number}: neither a version with hashes nor a hash: {line!r}")
    close()
    return dict(found)


def _environments(extra: str) -> Iterator[dict[str, str]]:
    for python in PYTHONS:
        for machine in MACHINES:
            yield {
                "python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux",
                "platform_system": "Linux", "os_name": "posix", "platform_machine": machine,
                "implementation_name": "cpython", "platform_python_implementation": "CPython", "extra": extra,
            }  # fmt: skip


def _applies(requirement: Requirement, extra: str) -> bool:
    """Whether it is needed on Linux with any of the supported interpreters."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate(environment) for environment in _environments(extra))


@cache
def _needs(name: str, extra: str) -> list[Requirement]:
    """What the installed distribution of this name requires; nothing where only another interpreter needs it."""
    try:
        return [item for item in map(Requirement, requires(name) or []) if _applies(item, extra)]
    except PackageNotFoundError:
        return []


def needed(extras: tuple[str, ...]) -> set[str]:
    """Names of all distributions that the project with these extras requires, directly and not."""
    waiting = [(PROJECT, extra) for extra in ("", *extras)]
    seen = set(waiting)
    while waiting:
        name, extra = waiting.pop()
        for item in _needs(name, extra):
            steps = {(canonicalize_name(item.name), step) for step in ("", *item.extras)}
            waiting += steps - seen
            seen |= steps
    return {name for name, _ in seen} - {PROJECT}


def locked(extras: tuple[str, ...], lock: Lock) -> list[LockedPackage]:
    """The entries of the lock for these extras by name; one that the lock lacks raises `ValueError`."""
    names = needed(extras)
    if missing := sorted(names - set(lock)):
        raise ValueError(f"requirements.lock lacks {', '.join(missing)}: run make lock")
    return [entry for name in sorted(names) for entry in lock[name]]


def requirements(wheel: str, digest: str, packages: list[LockedPackage]) -> str:
    """A file for `pip install --require-hashes -r`: the wheel next to it, then the packages."""
    return f"./{wheel} --hash=sha256:{digest}\n" + "".join(item.text for item in packages)
