"""Finds where a job hangs, from statuses of NCCL RAS. Pure.

A rank that has started fewer collectives than others of a communicator lets these wait. It is named if it is ahead of
nobody itself, and if no rank has started anything between two statuses: a moment alone may show ordinary lateness.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ingero_contract.values import HangVerdict
from ingero_detect.hangs.ras_status import RasCommunicator, RasProcess, RasStatus

APART: Final = 30.0
"""Seconds without a new collective after which a job is taken to hang."""


class RasRank(NamedTuple):
    """A rank of the job. `name`: its number in the one communicator that holds all processes, or its process."""

    name: int | str
    process: RasProcess


@dataclass(frozen=True)
class RasFront:
    """A communicator whose ranks differ: where the others wait. `seq`: collectives that the first have started."""

    comm: str
    op: str
    seq: int
    entered: int
    missing: tuple[RasRank, ...]


@dataclass(frozen=True)
class RasVerdict:
    """Whether the job hangs, and which ranks it waits for."""

    kind: HangVerdict
    reason: str
    ranks: tuple[RasRank, ...] = ()
    possible: tuple[RasRank, ...] = ()
    """Ranks that may be the cause, where it is not known, or causes too."""
    unresponsive: tuple[RasRank, ...] = ()
    fronts: tuple[RasFront, ...] = ()
    still_seconds: float = 0.0
    """For how long no rank is known to have started anything; 0 below `APART`."""


@dataclass
class _Waiting:
    """Who is behind, who waits, and who is gone, over all communicators of a status."""

    behind: set[RasProcess] = field(default_factory=set)
    waits: set[RasProcess] = field(default_factory=set)
    dead: set[RasProcess] = field(default_factory=set)
    unresponsive: set[RasProcess] = field(default_factory=set)
    undecided: set[RasProcess] = field(default_factory=set)
    fronts: list[tuple[RasCommunicator, set[RasProcess]]] = field(default_factory=list)


def judge_statuses(statuses: list[RasStatus], *, damaged: bool = False) -> RasVerdict:
    """The verdict on the last status; the statuses are in the order of their times.

    `damaged`: parts of the statuses could not be read, and whoever is in them may be the cause.
    """
    last = statuses[-1]
    waiting = _Waiting()
    for comm in last.communicators.values():
        _add(waiting, comm)
    earlier = [status for status in statuses if last.at - status.at >= APART and shows_the_same(status, last)]
    moved = any(_moved(status, last) for status in statuses[:-1])
    roots = waiting.behind - waiting.waits - waiting.undecided
    possible = (waiting.behind | waiting.unresponsive | waiting.undecided) - waiting.dead
    ranks: set[RasProcess] = set()
    if waiting.dead:
        kind, ranks, reason = HangVerdict.DEAD, waiting.dead, "NCCL considers the processes dead"
    elif moved:
        kind, possible, reason = HangVerdict.NONE, set(), "ranks have started collectives between the statuses"
    elif damaged:
        kind, reason = HangVerdict.UNKNOWN, "parts of the files could not be read"
    elif waiting.unresponsive or waiting.undecided:
        kind, reason = HangVerdict.UNKNOWN, "some ranks did not answer, or started different collectives"
    elif roots and earlier:
        kind, ranks, possible = HangVerdict.HANG, roots, set()
        reason = f"nothing has moved for {last.at - earlier[0].at:.0f} s"
    elif waiting.behind:
        kind = HangVerdict.UNKNOWN
        reason = "the ranks behind wait for each other" if not roots else (
            f"another status, {APART:.0f} seconds or more earlier or later, says whether the job moves"
        )  # fmt: skip
        possible = roots or possible
    else:
        kind, reason = HangVerdict.NONE, "all ranks have started equally many collectives"
    names = _names(last)

    def named(processes: set[RasProcess]) -> tuple[RasRank, ...]:
        return tuple(RasRank(*item) for item in sorted((names[process], process) for process in processes))

    return RasVerdict(
        kind, reason, named(ranks), named(possible), named(waiting.unresponsive),
        tuple(_front(comm, behind, named(behind)) for comm, behind in waiting.fronts),
        last.at - earlier[0].at if earlier else 0.0,
    )  # fmt: skip


def shows_the_same(earlier: RasStatus, last: RasStatus) -> bool:
    """Whether all ranks were listed before, with the same counts."""
    return all(
        name in earlier.communicators and earlier.communicators[name].counts == comm.counts
        for name, comm in last.communicators.items()
    )


def _add(waiting: _Waiting, comm: RasCommunicator) -> None:
    """Compare the ranks of one communicator."""
    waiting.dead |= comm.dead
    waiting.unresponsive |= comm.unresponsive
    if not comm.complete:
        # All others may wait for those that are missing.
        waiting.waits |= set(comm.counts)
        waiting.undecided |= set(comm.counts) if not comm.dead and not comm.unresponsive else set()
    if not comm.settled or not comm.counts:
        return
    most = max(comm.counts.values(), key=lambda counts: sum(counts.values()))
    behind = {process for process, counts in comm.counts.items() if counts != most}
    if any(count > most.get(op, 0) for process in behind for op, count in comm.counts[process].items()):
        waiting.undecided |= set(comm.counts)
        waiting.fronts.append((comm, behind))
        return
    if not behind:
        return
    least = min(sum(comm.counts[process].values()) for process in behind)
    waiting.behind |= behind
    waiting.waits |= {process for process, counts in comm.counts.items() if sum(counts.values()) > least}
    waiting.fronts.append((comm, behind))


def _moved(earlier: RasStatus, last: RasStatus) -> bool:
    """Whether a rank has started a collective since, or communicators have come or gone."""
    return set(earlier.communicators) != set(last.communicators) or any(
        counts != last.communicators[name].counts.get(process, counts)
        for name, comm in earlier.communicators.items()
        for process, counts in comm.counts.items()
    )


def _front(comm: RasCommunicator, behind: set[RasProcess], missing: tuple[RasRank, ...]) -> RasFront:
    """A communicator whose ranks differ, like a collective that not all have entered."""
    most = max(comm.counts.values(), key=lambda counts: sum(counts.values()))
    ops = {op for process in behind for op in most if comm.counts[process].get(op, 0) != most[op]}
    return RasFront(
        comm.name, "/".join(sorted(ops)), sum(most.values()), len(comm.counts) - len(behind), missing
    )  # fmt: skip


def _names(status: RasStatus) -> dict[RasProcess, int | str]:
    """Ranks in the one communicator that holds all processes; without one, host, process and device."""
    everybody = {process for comm in status.communicators.values() for process in comm.places}
    for comm in status.communicators.values():
        if set(comm.places) == everybody:
            return dict(comm.places)
    return {process: ":".join(map(str, process)) for process in everybody}
