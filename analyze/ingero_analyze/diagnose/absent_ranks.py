"""Says which ranks of a job were not recorded, and whether the others wait for one of them. Pure.

A rank that was not recorded cannot be judged. Where all recorded members of its groups wait at the same time, it may
be the one that they wait for.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ingero_analyze.diagnose.sources import Problems, SourceData
from ingero_analyze.diagnose.timeline_files import RecordedTimeline
from ingero_analyze.terminal import listed
from ingero_detect.grouped import Bools
from ingero_detect.ranks.timeline import shortest_by_instance, step_period
from ingero_detect.ranks.wait_attribution import with_exposed_waits

SHOWN: Final = 32

LARGE_WAIT: Final = 0.07
"""Share of a step that recorded ranks wait together, in groups that lack a rank, from which that rank may be late."""

ABSENT: Final = "absent_ranks"
"""What shows that ranks which were not recorded may be late."""


@dataclass(frozen=True)
class AbsentRanks:
    """Ranks without rows, how many there are in all, and which rows are of groups that lack a member.

    `unread`: those of which there was no file either.
    """

    ranks: tuple[int, ...]
    unread: tuple[int, ...]
    world: int
    incomplete: Bools


def absent_ranks(recorded: RecordedTimeline, known: SourceData) -> AbsentRanks:
    """The ranks that traces name or count, and that have no rows."""
    expected = set(range(known.world)).union(*known.members.values())
    absent = tuple(sorted(expected - set(recorded.ranks))) if set(recorded.ranks) <= expected else ()
    line = recorded.line
    incomplete = np.zeros(len(line.rank), np.bool_)
    for number, name in enumerate(recorded.groups):
        rows = line.collective & (line.group == number) if line.group is not None else incomplete
        here = {recorded.ranks[rank] for rank in np.unique(line.rank[rows]).tolist()}
        if len(here) < max(known.sizes.get(name, 0), len(known.members.get(name, ()))):
            incomplete |= rows
    unread = tuple(rank for rank in absent if rank not in known.read)
    return AbsentRanks(absent, unread, len(expected), incomplete)


def comparable(recorded: RecordedTimeline, absent: AbsentRanks) -> RecordedTimeline:
    """The timeline without the collectives that lack a member, which last until it comes."""
    line = recorded.line
    return replace(recorded, line=replace(line, instance=np.where(absent.incomplete, -1, line.instance)))


def with_absent(
    answer: dict[str, Any], recorded: RecordedTimeline, absent: AbsentRanks, problems: Problems
) -> dict[str, Any]:  # fmt: skip
    """The verdict with the ranks that were not recorded, which are possible where the others wait for nobody else."""
    if not absent.ranks:
        return answer
    count, first = len(absent.ranks), absent.ranks[:SHOWN]
    if absent.unread:
        number, names = len(absent.unread), list(map(str, absent.unread[:SHOWN]))
        problems.add("", f"{number} of {absent.world} ranks were not recorded: {listed(names, number)}")
    share = _waiting_share(recorded, absent)
    evidence = {
        **answer["evidence"], "not_recorded": {"count": count, "first": list(first)},
        "waiting_in_their_groups": round(share, 4),
    }  # fmt: skip
    if answer["kind"] != "none" or share < LARGE_WAIT:
        return {**answer, "evidence": evidence}
    lost = share * step_period(recorded.line)
    return {
        **answer, "kind": "unknown", "slowdown": round(1 / max(1 - share, 0.01), 6),
        "seconds_lost_per_step": round(lost, 9), "evidence": {**evidence, "by": ABSENT, "possible": list(first)},
    }  # fmt: skip


def _waiting_share(recorded: RecordedTimeline, absent: AbsentRanks) -> float:
    """The share of a step in which all recorded members of groups that lack one wait at once, transfers included.

    That of the rank with the largest one.
    """
    line = recorded.line
    rows = np.flatnonzero(absent.incomplete & (line.instance >= 0))
    period = step_period(line)
    if not len(rows) or not period > 0:
        return 0.0
    instance, together = shortest_by_instance(line, rows, with_exposed_waits(line).duration)
    return float(np.bincount(line.rank[rows], together[instance], line.ranks).max()) / line.steps / period
