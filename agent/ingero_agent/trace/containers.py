"""Which container and pod a process runs in, from its cgroup and its environment. Pure."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ingero_agent.cgroups import cgroup_path

_CONTAINER: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_POD: Final = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")
LONGEST: Final = 253
"""Longest name in Kubernetes, characters; longer values are ignored."""


@dataclass(frozen=True)
class Container:
    """The container and pod of a process; empty fields are not known.

    `cgroup` names the cgroup in this database: 63 bits of its path's SHA-256.
    """

    path: str
    container: str = ""
    pod_uid: str = ""
    pod: str = ""
    namespace: str = ""

    @property
    def cgroup(self) -> int:
        """The cgroup's number, the same for every process of the cgroup."""
        return int.from_bytes(hashlib.sha256(self.path.encode()).digest()[:8]) >> 1


def parse_environment(data: bytes) -> dict[str, str]:
    """The variables in /proc/PID/environ; of one that is there twice, the first, as getenv(3) finds it."""
    pairs = [entry.split("=", 1) for entry in data.decode(errors="replace").split("\0") if "=" in entry]
    return dict(reversed(pairs))


def parse_rank(environment: Mapping[str, str], name: str = "RANK") -> int | None:
    """A variable that is a whole number from 0, such as RANK, as launchers of distributed jobs set it."""
    text = environment.get(name, "").strip()
    return int(text) if text.isdecimal() else None


def rank_of(environment: Mapping[str, str]) -> int | None:
    """The rank of a process in its job: RANK, or else what `srun` sets."""
    rank = parse_rank(environment)
    return parse_rank(environment, "SLURM_PROCID") if rank is None else rank


def parse_container(cgroups: str, environment: Mapping[str, str]) -> Container | None:
    """Parse /proc/PID/cgroup; `None` for a process without a cgroup.

    A pod's name is POD_NAME, or else the host name, which Kubernetes gives the container; its namespace is
    POD_NAMESPACE. Both are used only inside a pod.
    """
    path = cgroup_path(cgroups)
    if not path:
        return None
    containers, pods = _CONTAINER.findall(path), _POD.findall(path)
    if not pods:
        return Container(path, containers[-1] if containers else "")

    def name(*variables: str) -> str:
        found = (environment.get(variable, "") for variable in variables)
        return next((text for text in found if text and len(text) <= LONGEST), "")

    return Container(
        path, containers[-1] if containers else "", pods[-1].replace("_", "-"), name("POD_NAME", "HOSTNAME"),
        name("POD_NAMESPACE"),
    )  # fmt: skip
