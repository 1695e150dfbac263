"""Where the traced processes run: container, pod and Slurm job."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ingero_agent.slurm import SlurmJob, main_job, slurm_job_of
from ingero_agent.trace.containers import Container
from ingero_agent.trace.host import container_of
from ingero_kit.logs import get

log = get(__name__)


class Place(NamedTuple):
    """The pod and the Slurm job of a process; empty for none."""

    pod: str = ""
    job: str = ""


class _Found(NamedTuple):
    container: Container | None
    job: SlurmJob | None


class ProcessPlaces:
    """Where processes run. What was read of a process counts also once it has ended, until it is forgotten."""

    def __init__(self, *, detect_slurm: bool) -> None:
        self._detect = detect_slurm
        self._found: dict[int, _Found] = {}
        self._ended: dict[int, _Found] = {}
        self.job = ""
        """The job of most processes, or the last one while no process has any."""

    def note(self, pids: Iterable[int]) -> None:
        """Read the processes that are new: one may end before it is asked for."""
        for pid in pids:
            if pid not in self._found:
                self._found[pid] = self._read(pid)

    def place_of(self, pid: int) -> Place:
        """The place of a process, as it was when it was read last."""
        if pid not in self._ended:
            self.note([pid])
        container, job = self._found.get(pid) or self._ended[pid]
        return Place(container.pod if container else "", job.job_id if job else "")

    def refresh(self, pids: Iterable[int]) -> tuple[dict[int, Container], dict[int, str]]:
        """Read these processes again, and forget others that were not among them the time before either: what they
        did last may be read late. Returns their containers, and their jobs, which are empty for none."""
        before, self._found = self._found, {pid: self._read(pid) for pid in pids}
        self._found |= {pid: before[pid] for pid in self._found if pid in before and not _runs(pid)}
        self._ended = {pid: found for pid, found in before.items() if pid not in self._found}
        main = main_job(job for _, job in self._found.values() if job)
        if main and main.job_id != self.job:
            self.job = main.job_id
            log.info("slurm job", job=self.job)
        containers = {pid: container for pid, (container, _) in self._found.items() if container}
        return containers, {pid: job.job_id if job else "" for pid, (_, job) in self._found.items()}

    def _read(self, pid: int) -> _Found:
        return _Found(container_of(pid), slurm_job_of(pid) if self._detect else None)


def _runs(pid: int) -> bool:
    """Whether a process has not ended. One that has, and that its parent has not waited for, has no environment."""
    try:
        Path(f"/proc/{pid}/exe").readlink()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True
