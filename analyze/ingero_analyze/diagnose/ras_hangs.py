"""Finds where a job hangs, from statuses of NCCL RAS. Pure.

A rank that has started fewer collectives than others of a communicator lets these wait. It is named if it is ahead of
nobody itself, and if no rank has started anything between two statuses: a moment alone may show ordinary lateness.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from ingero_analyze.diagnose.hangs import SHOWN, SHOWN_RANKS
from ingero_analyze.diagnose.ras_status import RasCommunicator, RasProcess, RasStatus
from ingero_analyze.diagnose.sources import Claims

APART: Final = 30.0
"""Seconds without a new collective after which a job is taken to hang."""

CLAIMS: Final = Claims(
    can=(
        "which ranks have started fewer collectives than others of their communicators",
        "which processes NCCL considers dead, and which did not answer",
        f"that nothing moves, from two statuses that are {APART:.0f} seconds or more apart",
    ),
    cannot=(
        "whether a collective has ended: only what was started is counted",
        "whether a rank that is behind waits on its own GPU for a collective that all have started",
        "sends and receives",
    ),
)

RAS_HANGS: Final = {
    "hang": "the job waits for rank {ranks}, which has started fewer collectives and waits for no other",
    "no_dump": "the process of rank {ranks} is dead; ranks of its communicators wait for it",
    "unknown": "the statuses do not show the cause; ranks that are possible are listed",
    "none": "no rank is known to let others wait",
}
"""The verdicts as sentences."""


@dataclass
class _Waiting:
    """Who is behind, who waits, and who is gone, over all communicators of a status."""

    behind: set[RasProcess] = field(default_factory=set)
    waits: set[RasProcess] = field(default_factory=set)
    dead: set[RasProcess] = field(default_factory=set)
    unresponsive: set[RasProcess] = field(default_factory=set)
    undecided: set[RasProcess] = field(default_factory=set)
    fronts: list[tuple[RasCommunicator, set[RasProcess]]] = field(default_factory=list)


def find_ras_hang(statuses: list[RasStatus], *, damaged: bool = False) -> dict[str, Any]:
    """The verdict on the last status, as the command prints it; the statuses are in the order of their times.

    `damaged`: parts of the files could not be read, and whoever is in them may be the cause.
    """
    last = statuses[-1]
    waiting = _Waiting()
    for comm in last.communicators.values():
        _add(waiting, comm)
    earlier = [status for status in statuses if last.at - status.at >= APART and _shows_the_same(status, last)]
    moved = any(_moved(status, last) for status in statuses[:-1])
    roots = waiting.behind - waiting.waits - waiting.undecided
    possible = (waiting.behind | waiting.unresponsive | waiting.undecided) - waiting.dead
    if waiting.dead:
        kind, ranks, reason = "no_dump", waiting.dead, "NCCL considers the processes dead"
    elif moved:
        kind, ranks, possible, reason = "none", set(), set(), "ranks have started collectives between the statuses"
    elif damaged:
        kind, ranks, reason = "unknown", set(), "parts of the files could not be read"
    elif waiting.unresponsive or waiting.undecided:
        kind, ranks, reason = "unknown", set(), "some ranks did not answer, or started different collectives"
    elif roots and earlier:
        kind, ranks, possible, reason = "hang", roots, set(), f"nothing has moved for {last.at - earlier[0].at:.0f} s"
    elif waiting.behind:
        kind, ranks = "unknown", set()
        reason = "the ranks behind wait for each other" if not roots else (
            f"another status, {APART:.0f} seconds or more earlier or later, says whether the job moves"
        )  # fmt: skip
        possible = roots or possible
    else:
        kind, ranks, reason = "none", set(), "all ranks have started equally many collectives"
    return _answer(kind, ranks, possible, reason, waiting, statuses)


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


def _shows_the_same(earlier: RasStatus, last: RasStatus) -> bool:
    """Whether all ranks were listed before, with the same counts."""
    return all(
        name in earlier.communicators and earlier.communicators[name].counts == comm.counts
        for name, comm in last.communicators.items()
    )


def _answer(
    kind: str, ranks: set[RasProcess], possible: set[RasProcess], reason: str, waiting: _Waiting,
    statuses: list[RasStatus],
) -> dict[str, Any]:  # fmt: skip
    last = statuses[-1]
    names = _names(last)
    named = sorted((names[process], process) for process in ranks)
    return {
        "kind": kind,
        "ranks": [name for name, _ in named[:SHOWN_RANKS]],
        "slowdown": None,
        "seconds_lost_per_step": None,
        "evidence": {
            "by": "ras",
            "statuses": len(statuses),
            "reason": reason,
            "ranks_count": len(ranks),
            "nodes": {str(name): process[0] for name, process in named[:SHOWN_RANKS]},
            "possible": sorted(names[process] for process in possible)[:SHOWN_RANKS],
            "possible_count": len(possible),
            "unresponsive": sorted(names[process] for process in waiting.unresponsive)[:SHOWN_RANKS],
            "collectives": [_front(comm, behind, names) for comm, behind in waiting.fronts[:SHOWN]],
            "collectives_count": len(waiting.fronts),
        },
    }


def _front(comm: RasCommunicator, behind: set[RasProcess], names: dict[RasProcess, int | str]) -> dict[str, Any]:
    """A communicator whose ranks differ, like a collective that not all have entered."""
    most = max(comm.counts.values(), key=lambda counts: sum(counts.values()))
    ops = {op for process in behind for op in most if comm.counts[process].get(op, 0) != most[op]}
    return {
        "group": comm.name, "description": "", "seq": sum(most.values()), "op": "/".join(sorted(ops)),
        "entered_count": len(comm.counts) - len(behind), "missing_count": len(behind),
        "missing": sorted(names[process] for process in behind)[:SHOWN_RANKS],
    }  # fmt: skip


def _names(status: RasStatus) -> dict[RasProcess, int | str]:
    """Ranks in the one communicator that holds all processes; without one, host, process and device."""
    everybody = {process for comm in status.communicators.values() for process in comm.places}
    for comm in status.communicators.values():
        if set(comm.places) == everybody:
            return dict(comm.places)
    return {process: ":".join(map(str, process)) for process in everybody}
