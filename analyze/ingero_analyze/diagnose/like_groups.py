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


def ranks_unlike_others(state: JobState, operation: PendingOperation) -> tuple[Rank, ...]:
    """The ranks whose call differs from that of all like groups; none where these do not tell."""
    key, calls = operation.key, {rank: (call.op, call.sizes) for rank, call in operation.calls.items()}
    before = _called_before(state, key.group, key.seq)
    if None in before:
        return ()
    size = len(state.members[key.group])
    told = [
        state.called[group][key.seq]
        for group, members in state.members.items()
        if group != key.group and len(members) == size and key.seq in state.called.get(group, {})
        and _called_before(state, group, key.seq) == before
    ]  # fmt: skip
    if len(told) < FEWEST_GROUPS or len(set(told)) != 1 or told[0] not in calls.values():
        return ()
    return tuple(sorted(rank for rank, what in calls.items() if what != told[0]))


def _called_before(state: JobState, group: str, seq: int) -> list[tuple[str, str] | None]:
    table = state.called.get(group, {})
    return [table.get(number) for number in range(seq - FEWEST_BEFORE, seq)]
