"""Which of two calls under one number is the wrong one, from what groups of the same purpose call under it. Pure.

Where a group is split evenly over two calls, as every group of two is, it has no majority. Groups that do the same,
such as the other tensor groups, have called the same under the numbers before; what all of them call under this
number is the program.
"""

from typing import Final

from ingero_analyze.diagnose.pending_operations import JobState, PendingOperation
from ingero_contract.identifiers import Rank

FEWEST_BEFORE: Final = 3
"""Numbers before this one under which a like group must have called the same."""

FEWEST_GROUPS: Final = 2
"""Like groups that must agree."""

_What = tuple[str, str]
"""Operation and sizes."""


def ranks_unlike_others(state: JobState, operation: PendingOperation) -> tuple[Rank, ...]:
    """The ranks whose call differs from that of all like groups; none where these do not tell."""
    calls = {rank: (call.op, call.sizes) for rank, call in operation.calls.items()}
    seq, members = operation.key.seq, state.members[operation.key.group]
    own = _calls_by_number(state, operation.key.group)
    before = [own.get(number) for number in range(seq - FEWEST_BEFORE, seq)]
    if None in before:
        return ()
    told = set[_What | None]()
    groups = 0
    for group, others in state.members.items():
        if group == operation.key.group or len(others) != len(members):
            continue
        table = _calls_by_number(state, group)
        if seq in table and [table.get(number) for number in range(seq - FEWEST_BEFORE, seq)] == before:
            told.add(table[seq])
            groups += 1
    if groups < FEWEST_GROUPS or len(told) != 1 or not told <= set(calls.values()):
        return ()
    return tuple(sorted(rank for rank, what in calls.items() if what not in told))


def _calls_by_number(state: JobState, group: str) -> dict[int, _What | None]:
    """What the members of a group have called under each number; `None` where they differ."""
    found: dict[int, _What | None] = {}
    for rank in state.members[group]:
        dump = state.by_rank.get(rank)
        for (name, seq, op, _), sizes in zip(dump.calls, dump.sizes, strict=True) if dump is not None else ():
            if name == group and seq:
                found[seq] = (op, sizes) if found.get(seq, (op, sizes)) == (op, sizes) else None
    return found
