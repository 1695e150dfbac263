"""For whom a rank could wait whose state no dump shows, from what peers with the same program have called. Pure."""

from ingero_analyze.diagnose.flight_recorder_dumps import Dump
from ingero_analyze.diagnose.pending_operations import JobState, OperationKey
from ingero_contract.identifiers import Rank


def could_wait_for(state: JobState, rank: Rank, halted: set[Rank], ended: OperationKey | None = None) -> set[Rank]:
    """The ranks for which a rank could wait: those that lack in any operation in which it could be.

    `ended`: an operation that the rank is assumed to have ended.

    Operations do not end without the `halted`, whose GPUs have stopped.
    A peer that waits for this rank only shows where the rank is: it has not come to that operation, so it is not in
    one that its program calls later.
    """
    found = set(state.peers.get(rank, ())) | _hidden_peers(state, rank)
    waiting = [
        (key, peer)
        for key, operation in state.operations.items()
        if key.source < 0 and operation.waited_for() == {rank} and not halted & set(operation.members)
        for peer in operation.inside
    ]
    for group, members in state.members.items():
        if rank not in members:
            continue
        last = state.needed[group]
        key = OperationKey(group, (max(last, ended.seq) if ended and ended.group == group else last) + 1)
        operation = state.operations.get(key)
        others = operation.waited_for() | halted & set(members) if operation is not None else set(members)
        if others - {rank} and not any(_calls_later(state, key, *where) for where in waiting):
            found |= others
    return found - {rank}


def _hidden_peers(state: JobState, rank: Rank) -> set[Rank]:
    """Other ranks without a dump, if this rank seems to be in a group all of whose members left none."""
    known = sum(rank in members for members in state.members.values())
    usual = max(len(dump.parts) for dump in state.by_rank.values())
    return state.absent() if known < usual else set()


def _calls_later(state: JobState, key: OperationKey, met: OperationKey, peer: Rank) -> bool:
    """Whether a peer calls its counterpart of an operation after the one in which it waits, by its dump."""
    dump = state.by_rank[peer]
    group = _counterpart(state, dump, key.group)
    part = dump.parts.get(group)
    if not group or part is None:
        return False
    if part.enqueued < key.seq:
        return True
    places = {call[:2]: place for place, call in enumerate(dump.calls)}
    return places.get((group, key.seq), -1) > places.get((met.group, met.seq), len(places))


def _counterpart(state: JobState, dump: Dump, group: str) -> str:
    """The group that has the same purpose for another rank; empty where that is not known."""
    if dump.rank in state.members[group]:
        return group
    purposes = {part.desc for other in state.by_rank.values() if (part := other.parts.get(group)) is not None}
    found = [name for name, part in dump.parts.items() if part.desc in purposes]
    return found[0] if len(found) == 1 and len(purposes) == 1 else ""
