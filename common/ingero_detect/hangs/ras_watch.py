"""Follows jobs by statuses of NCCL RAS as they come, and says which of them hang now. Pure."""

from dataclasses import dataclass
from typing import Final

from ingero_contract.values import HangVerdict
from ingero_detect.hangs.ras_hangs import APART, RasVerdict, judge_statuses, shows_the_same
from ingero_detect.hangs.ras_status import RasStatus

MAX_JOBS: Final = 16
"""Jobs that are followed; several jobs of a node share the address of the service."""


@dataclass(frozen=True)
class RasFinding:
    """A job that hangs since (seconds), or goes on: the kind of its verdict is `NONE` then, and `since` is 0 or the
    onset of a hang that has ended."""

    job: str
    since: float
    verdict: RasVerdict


@dataclass
class _RasJob:
    """The first status since which nothing has moved, and whether the job was found to hang."""

    still: RasStatus
    hangs: bool = False


class RasWatch:
    """Judges each status against the first one that showed the same counts."""

    def __init__(self) -> None:
        self._jobs: dict[str, _RasJob] = {}

    @property
    def hanging(self) -> int:
        """Jobs that hang."""
        return sum(job.hangs for job in self._jobs.values())

    def take(self, status: RasStatus, *, damaged: bool = False) -> list[RasFinding]:
        """What to report after one more status: jobs that hang no more under another name, and its job, last."""
        key, found = status.job, []
        for name in self._replaced(key, status):
            before = self._jobs.pop(name)
            found += [RasFinding(name, before.still.at, _GOES_ON)] if before.hangs else []
        job = self._jobs.pop(key, None) or _RasJob(status)
        since = job.still.at
        if not shows_the_same(job.still, status):
            job.still = status
        verdict = judge_statuses([job.still, status] if job.still is not status else [status], damaged=damaged)
        was, job.hangs = job.hangs, _hangs(verdict)
        self._jobs[key] = job
        while len(self._jobs) > MAX_JOBS:
            del self._jobs[next(iter(self._jobs))]
        found.append(RasFinding(key, since if job.hangs or was else 0.0, verdict if job.hangs else _GOES_ON))
        return found

    def _replaced(self, key: str, status: RasStatus) -> list[str]:
        """Jobs that have made or ended communicators since: their names were other ones."""
        return [
            name for name, job in self._jobs.items()
            if name != key and not job.still.communicators.keys().isdisjoint(status.communicators)
        ]  # fmt: skip


_GOES_ON: Final = RasVerdict(HangVerdict.NONE, "the job goes on")


def _hangs(verdict: RasVerdict) -> bool:
    """Whether nothing has moved for long, and some rank waits: a pause of all ranks is no hang."""
    waits = bool(verdict.ranks or verdict.fronts or verdict.unresponsive)
    return verdict.kind is not HangVerdict.NONE and waits and verdict.still_seconds >= APART
