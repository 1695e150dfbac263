"""Where the traced processes run: container, pod and Slurm job."""

from collections.abc import Iterable
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


class ProcessPlaces:
    """Places by process, read when a process is first asked for and again by `refresh`."""

    def __init__(self, *, detect_slurm: bool) -> None:
        self._detect = detect_slurm
        self._places: dict[int, Place] = {}
        self.job = ""
        """The job of most processes, or the last one while no process has any."""

    def place_of(self, pid: int) -> Place:
        """The place of a process, as it was when it was read."""
        if pid not in self._places:
            container, job = container_of(pid), self._job_of(pid)
            self._places[pid] = _place(container, job)
        return self._places[pid]

    def refresh(self, pids: Iterable[int]) -> tuple[dict[int, Container], dict[int, str]]:
        """Read these processes again and forget all others. Returns their containers, and their jobs, which
        are empty for none."""
        read = {pid: (container_of(pid), self._job_of(pid)) for pid in pids}
        self._places = {pid: _place(*found) for pid, found in read.items()}
        found = main_job(job for _, job in read.values() if job)
        if found and found.job_id != self.job:
            self.job = found.job_id
            log.info("slurm job", job=self.job)
        containers = {pid: container for pid, (container, _) in read.items() if container}
        return containers, {pid: place.job for pid, place in self._places.items()}

    def _job_of(self, pid: int) -> SlurmJob | None:
        return slurm_job_of(pid) if self._detect else None


def _place(container: Container | None, job: SlurmJob | None) -> Place:
    return Place(container.pod if container else "", job.job_id if job else "")
