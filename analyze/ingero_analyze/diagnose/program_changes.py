"""Which rank has called more or less than in every round of its program before, from its dump. Pure.

A collective of one operation and size that a rank calls after equally many other calls each time ends a round, such
as a step's norm over the whole job. A rank that has left out a call, or made it twice, comes to it after another
number of calls, or has already made more than a round has. What was never called before proves nothing: evaluations
and checkpoints come without warning. Nor does a collective that has ended, or one that others come to likewise.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from ingero_analyze.diagnose.flight_recorder_dumps import Dump
from ingero_analyze.diagnose.pending_operations import JobState
from ingero_contract.identifiers import Rank

FEWEST_ROUNDS: Final = 2
"""Rounds with equally many calls that show how many a round has."""

MOST_KINDS: Final = 16
"""Kinds of collectives of one rank that are looked at, the rarest."""

_Kind = tuple[str, str, str]
"""Group, operation and sizes."""


def changed_rank(state: JobState, cycle: Iterable[Rank]) -> Rank | None:
    """The only rank of those that wait for each other whose calls differ from its rounds before.

    Those of all others are known to agree with theirs.
    """
    found = {rank: has_changed(state.by_rank[rank]) for rank in cycle}
    changed = [rank for rank, differs in found.items() if differs]
    return changed[0] if len(changed) == 1 and None not in found.values() else None


def has_changed(dump: Dump) -> bool | None:
    """Whether the rank has called more or less than in its rounds before; `None` where it has no like rounds.

    Only the rounds count that are under way, and those whose end has been called and is pending.
    """
    calls = [(group, op, sizes) for (group, _, op, _), sizes in zip(dump.calls, dump.sizes, strict=True)]
    pending = [(part := dump.parts.get(group)) is not None and seq in part.open for group, seq, _, _ in dump.calls]
    often = Counter(kind for kind, (_, seq, _, _) in zip(calls, dump.calls, strict=True) if seq)
    kinds = [kind for kind, times in often.most_common() if times > FEWEST_ROUNDS][-MOST_KINDS:]
    found = [differs for kind in kinds if (differs := _differs(calls, pending, kind)) is not None]
    return any(found) if found else None


def _differs(calls: list[_Kind], pending: list[bool], kind: _Kind) -> bool | None:
    """Whether rounds that this kind ends have other numbers of calls where it is pending; `None`: rounds differ."""
    ends = [place for place, one in enumerate(calls) if one == kind]
    rounds = [(Counter(calls[begin + 1 : end]), pending[end]) for begin, end in pairwise(ends)]
    done = [counts for counts, waits in rounds if not waits]
    if len(done) < FEWEST_ROUNDS or any(counts != done[0] for counts in done):
        return None
    begun = Counter(calls[ends[-1] + 1 :])
    return any(
        begun[what] > times or any(waits and counts[what] != times for counts, waits in rounds)
        for what, times in done[0].items()
    )
