"""Which Slurm job the workload of this node belongs to, from the cgroups and environments of its processes.

Parsing is separate from reading. The cgroup names the job wherever Slurm tracks processes by cgroups, and everyone
may read it. The environment also has the number of nodes; only root and the owner of a process may read it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ingero_agent.trace.containers import parse_environment, parse_rank
from ingero_kit.health_report import HealthReport
from ingero_kit.proc_stat import stat_fields

MAX_PROCESSES: Final = 64
"""Most processes that are read in one search."""

_CGROUP: Final = re.compile(r"/(?:[^/:\n]*slurmstepd\.scope|slurm[^/:\n]*/uid_\d+)/job_(\d+)(?=/|$)", re.MULTILINE)
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class SlurmJob:
    """A job as one of its processes shows it; 0 and `None` where that is not known."""

    job_id: str
    nodes: int = 0
    node_rank: int | None = None
    """This node's number in the job, from 0."""


def parse_slurm_cgroup(text: str) -> str:
    """The job in the lines of /proc/PID/cgroup, of version 1 or 2; empty without one.

    All lines are searched, because Slurm may track processes in a hierarchy of version 1 beside an empty one of
    version 2.
    """
    found = _CGROUP.search(text)
    return found.group(1) if found else ""


def parse_slurm_job(cgroups: str, environment: Mapping[str, str]) -> SlurmJob | None:
    """The job of a process. Its cgroup wins over SLURM_JOB_ID, which anyone can set.

    Nodes and rank are taken only from an environment that names the same job.
    """
    by_environment = environment.get("SLURM_JOB_ID", "")
    job = parse_slurm_cgroup(cgroups) or by_environment
    if not _NUMBER.fullmatch(job):
        return None
    if by_environment != job:
        return SlurmJob(job)
    nodes = parse_rank(environment, "SLURM_JOB_NUM_NODES") or 0
    rank = parse_rank(environment, "SLURM_NODEID")
    return SlurmJob(job, nodes, rank if rank is not None and rank < nodes else None)


def parse_parent_of_ended(text: str) -> int:
    """The parent of a process without an address space, which has ended or is ending, from /proc/PID/stat; 0 for
    any other."""
    _, parent, *rest = [*stat_fields(text), "", ""]
    return int(parent) if parent.isdecimal() and rest[18:19] == ["0"] else 0


def main_job(jobs: Iterable[SlurmJob]) -> SlurmJob | None:
    """The job that most processes belong to, the lowest id where two have as many; `None` without any.

    Of its processes the one that knows most is taken.
    """
    found = list(jobs)
    counts = Counter(one.job_id for one in found)
    if not counts:
        return None
    job_id = min(counts, key=lambda job: (-counts[job], int(job)))
    return max((one for one in found if one.job_id == job_id), key=lambda one: (one.nodes, one.node_rank is not None))


def slurm_job_of(pid: int, proc: Path = Path("/proc")) -> SlurmJob | None:
    """The job of a process; `None` without one, or when the process is gone or cannot be read.

    One that has ended, or is ending, and that its parent has not waited for, has no environment: its parent's counts.
    """
    cgroups = _read(proc / str(pid) / "cgroup").decode(errors="replace")
    environment = _read(proc / str(pid) / "environ")
    if not environment:
        parent = parse_parent_of_ended(_read(proc / str(pid) / "stat").decode(errors="replace"))
        environment = _read(proc / str(parent) / "environ")
    return parse_slurm_job(cgroups, parse_environment(environment))


def find_slurm_job(pids: Iterable[int], proc: Path = Path("/proc")) -> SlurmJob | None:
    """The job of these processes. Processes that are gone or cannot be read are left out."""
    found = (slurm_job_of(pid, proc) for pid in sorted(pids)[:MAX_PROCESSES])
    return main_job(job for job in found if job)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def with_slurm_job(node: HealthReport, job: SlurmJob, world_size: int, rank: int | None) -> HealthReport:
    """The node as a part of the job. A world size and a rank that a user has set win over Slurm's."""
    if world_size:
        return replace(node, job_id=job.job_id, world_size=world_size, rank=rank)
    return replace(node, job_id=job.job_id, world_size=job.nodes, rank=job.node_rank)
