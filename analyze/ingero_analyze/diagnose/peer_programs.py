"""Which rank has called more or less than the other members of a group with the same program, from their dumps. Pure.

The members of a tensor or data group call the same, in the same order, between two of its collectives. Where all of
them did so under the numbers before, and then the calls of one contradict those of the others, which agree as far as
they have come, its program is the one that changed. Groups whose members do different things, as those of a pipeline,
show that before.
"""

from collections.abc import Iterable
from itertools import combinations
from typing import Final

from ingero_analyze.diagnose.flight_recorder_dumps import Dump
from ingero_analyze.diagnose.pending_operations import JobState
from ingero_contract.identifiers import Rank

FEWEST_BEFORE: Final = 3
"""Equal intervals between collectives of a group that show that its members have one program."""

FEWEST_OTHERS: Final = 2
"""Members that contradict the one that changed, and agree."""

_Calls = list[tuple[str, int, str, str]]
"""Purpose, size of the group, operation and sizes of each call."""

_NEXT: Final = "the next collective of the group"


def unlike_its_peers(state: JobState, cycle: Iterable[Rank]) -> Rank | None:
    """The only rank of those that wait for each other whose calls contradict all members of one of its groups."""
    cycle = set(cycle)
    found: set[Rank] = set()
    for group, members in state.members.items():
        known = FEWEST_OTHERS < len(members) < len(state.by_rank) and set(members) <= set(state.by_rank) - state.early
        if known and cycle & set(members):
            changed = _changed_in(state, group, members)
            if changed is None:
                return None
            found |= changed
    return found.pop() if len(found) == 1 and found <= cycle else None


def _changed_in(state: JobState, group: str, members: tuple[Rank, ...]) -> set[Rank] | None:
    """The member that contradicts others, if there is one; `None` where they contradict each other."""
    tables = {rank: _intervals(state, state.by_rank[rank], group) for rank in members}
    shared = set[int].intersection(*map(set, tables.values()))
    for equal, seq in enumerate(sorted(shared)):
        odd = _odd_ones({rank: table[seq] for rank, table in tables.items()})
        if odd != set():
            return odd if equal >= FEWEST_BEFORE else set()
    return set()


def _odd_ones(calls: dict[Rank, _Calls]) -> set[Rank] | None:
    """The only rank whose calls two others or more contradict while these agree; `None` where that does not tell."""
    apart = [pair for pair in combinations(calls, 2) if _contradict(calls[pair[0]], calls[pair[1]])]
    odd = {rank for rank in calls if len(apart) >= FEWEST_OTHERS and all(rank in pair for pair in apart)}
    return None if apart and len(odd) != 1 else odd


def _contradict(one: _Calls, other: _Calls) -> bool:
    """Whether neither continues the other."""
    length = min(len(one), len(other))
    return one[:length] != other[:length]


def _intervals(state: JobState, dump: Dump, group: str) -> dict[int, _Calls]:
    """By number of a collective of the group, what the rank called after it, up to the next one."""
    found: dict[int, _Calls] = {}
    calls: _Calls = []
    for (name, seq, op, _), sizes in zip(dump.calls, dump.sizes, strict=True):
        if name == group and seq:
            calls.append((_NEXT, 0, op, sizes))
            calls = found[seq] = []
        else:
            part = dump.parts.get(name)
            calls.append((part.desc if part is not None else "", len(state.members.get(name, ())), op, sizes))
    return found
