"""Joins the dumps of all ranks into operations that have not ended, and says where each member of one is. Pure.

An operation is a collective of a group under one number, or one send with its receive. A dump that was written before
the others is found by what other ranks have ended since: that needed the rank.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from ingero_analyze.diagnose.flight_recorder_dumps import Call, Dump, DumpPart, PeerCalls
from ingero_contract.identifiers import Rank

SHORTEST_RING: Final = 8
"""Entries below which a dump is taken for an extract and not for a ring buffer that dropped what is pending."""

_DEFAULT: Final = "default_pg"

NO_PURPOSE: Final = frozenset({"", "undefined"})
"""What PyTorch writes as the description of a group to which its program gave none."""

_NO_RANK: Final = Rank(-1)


@dataclass(frozen=True, order=True)
class OperationKey:
    """Which operation: a collective by group and number, or a send by its two ranks and place among theirs."""

    group: str
    seq: int
    source: Rank = _NO_RANK
    target: Rank = _NO_RANK


@dataclass
class PendingOperation:
    """An operation that has not ended on all ranks, and its members by where they are.

    `inside`: called, and no earlier operation of the rank is pending; `behind`: called, but an earlier one is
    pending; `missing`: not called; `halted`: called, nothing is before it, and the kernel has not started; `unseen`:
    no dump says. `sure` is false for a send whose counterpart cannot be counted because ring buffers dropped entries,
    `certain` where it is counted, but one side may have called less before the ring buffers begin.
    """

    key: OperationKey
    members: tuple[Rank, ...]
    calls: dict[Rank, Call] = field(default_factory=dict)
    inside: set[Rank] = field(default_factory=set)
    behind: set[Rank] = field(default_factory=set)
    missing: set[Rank] = field(default_factory=set)
    halted: set[Rank] = field(default_factory=set)
    unseen: set[Rank] = field(default_factory=set)
    done: set[Rank] = field(default_factory=set)
    sure: bool = True
    certain: bool = True

    def waited_for(self) -> set[Rank]:
        """Members without which it cannot end."""
        return self.missing | self.behind | self.halted | self.unseen


@dataclass
class JobState:
    """All dumps together.

    `early`: ranks whose dump is older than those of others; `blind`: ranks whose ring buffer may have dropped what
    they wait in; `forgotten`: ranks whose ring buffer holds nothing of a group that they are in; `damaged`: ranks
    that wrote a dump which cannot be read.
    """

    by_rank: dict[Rank, Dump]
    members: dict[str, tuple[Rank, ...]]
    operations: dict[OperationKey, PendingOperation] = field(default_factory=dict)
    pending: dict[Rank, list[OperationKey]] = field(default_factory=dict)
    """Of every rank, in the order of its calls."""
    peers: dict[Rank, set[Rank]] = field(default_factory=dict)
    """Those with which each rank exchanges sends and receives."""
    needed: Counter[str] = field(default_factory=Counter)
    """Of every group, the last collective that all members have entered."""
    early: set[Rank] = field(default_factory=set)
    blind: set[Rank] = field(default_factory=set)
    forgotten: set[Rank] = field(default_factory=set)
    damaged: frozenset[Rank] = frozenset()
    untold: dict[Rank, set[Rank]] = field(default_factory=dict)
    """Ranks whose last call ended, or failed because members did not come; and those members, as far as known."""
    uncalled: set[Rank] = field(default_factory=set)
    """Ranks that have not called what others called, and what ended or failed there."""

    @cached_property
    def unrecorded(self) -> bool:
        """Whether ranks may wait in operations that are not recorded."""
        return any(dump.unrecorded for dump in self.by_rank.values())

    def absent(self) -> set[Rank]:
        """Members of groups that left no dump."""
        return {rank for members in self.members.values() for rank in members} - set(self.by_rank)

    @cached_property
    def called(self) -> dict[str, dict[int, tuple[str, str] | None]]:
        """By group and number, the operation and sizes that its members called; `None` where these differ."""
        found: dict[str, dict[int, tuple[str, str] | None]] = {}
        for dump in self.by_rank.values():
            for (group, seq, op, _), sizes in zip(dump.calls, dump.sizes, strict=True):
                if seq:
                    own = found.setdefault(group, {})
                    own[seq] = (op, sizes) if own.get(seq, (op, sizes)) == (op, sizes) else None
        return found


def join_dumps(dumps: list[Dump]) -> JobState:
    """The operations that have not ended, from the dumps of all ranks."""
    _apply_status(dumps)
    state = JobState({dump.rank: dump for dump in dumps}, _members(dumps))
    needed = state.needed = _ended_anywhere(dumps)
    calls: dict[Rank, list[tuple[int, OperationKey, Call]]] = {}
    pairs = _pairs(state)
    for dump in dumps:
        found = calls.setdefault(dump.rank, [])
        if any(
            _is_early(dump, group, number) for group, number in needed.items() if dump.rank in state.members[group]
        ):
            state.early.add(dump.rank)
        for group, part in dump.parts.items():
            found += [(call.order, OperationKey(group, seq), call) for seq, call in part.open.items()]
    state.early |= {pair.source for pair in pairs if pair.early}
    for pair in pairs:
        state.peers.setdefault(pair.source, set()).add(pair.target)
        state.peers.setdefault(pair.target, set()).add(pair.source)
        for rank, kind in ((pair.source, pair.sends), (pair.target, pair.receives)):
            base = kind.called - len(kind.pending) if pair.sure else 0
            if kind.pending:
                calls[rank] += [(call.order, pair.key(base + place), call) for place, call in enumerate(kind.pending)]
    for rank, found in calls.items():
        found.sort(key=lambda item: item[:2])
        state.pending[rank] = [key for _, key, _ in found]
        for _, key, call in found if rank not in state.early else ():
            members = state.members[key.group] if key.source < 0 else (key.source, key.target)
            state.operations.setdefault(key, PendingOperation(key, members)).calls[rank] = call
    state.untold, state.uncalled = _untold(state), _not_called(state)
    longest = max((len(keys) for keys in state.pending.values()), default=0)
    state.blind = {rank for rank in state.pending if _is_blind(state, state.by_rank[rank], longest)}
    counted = {(pair.group, pair.source, pair.target): pair for pair in pairs}
    for operation in state.operations.values():
        between = counted.get((operation.key.group, operation.key.source, operation.key.target))
        operation.sure = between is None or between.sure
        operation.certain = between is None or between.certain
        entered = operation.key.source < 0 and needed[operation.key.group] >= operation.key.seq
        for rank in operation.members:
            _place(state, operation, rank, entered, between)
    return state


def _is_blind(state: JobState, dump: Dump, longest: int) -> bool:
    """Whether the ring buffer may have dropped what is pending: it is hardly longer than the most that is pending.

    A group's calls, and those of one rank to another, end in order. So nothing pending was dropped where the ring
    buffer holds a call that has ended or the first one, nor in a group whose count of ended calls is known.
    """
    if not (state.pending[dump.rank] and dump.full and SHORTEST_RING <= len(dump.calls) <= 2 * longest):
        return False
    groups = (dump.parts.get(group) for group, members in state.members.items() if dump.rank in members)
    if any(part is None or not (part.completed or part.peers or 1 in part.open) for part in groups):
        return True
    seen = {
        (what, state.members[group][place])
        for group, part in dump.parts.items()
        for (what, place), calls in part.peers.items()
        if place < len(state.members[group]) and calls.called > len(calls.pending)
    }
    return any(
        pair not in seen
        for pair in ((what, peer) for what in ("send", "recv") for peer in state.peers.get(dump.rank, ()))
    )


def _untold(state: JobState) -> dict[Rank, set[Rank]]:
    """By rank whose last call ended, or failed because members did not come: those of them that are known."""
    short, found = _short_groups(state), dict[Rank, set[Rank]]()
    for rank, dump in state.by_rank.items():
        lacking = _lacking_in_last_call(state, dump)
        if lacking is not None and (lacking or dump.calls[-1][0] in short):
            found[rank] = lacking
    return found


def _short_groups(state: JobState) -> set[str]:
    """Groups whose members no dump reports, and that have fewer than others of their purpose, or one: some lack."""
    reported = {group for dump in state.by_rank.values() for group in dump.members}
    purposes = {group: part.desc for dump in state.by_rank.values() for group, part in dump.parts.items()}
    sizes = {group: len(state.members[group]) for group in purposes if group not in reported}
    most: dict[str, int] = {}
    for group, size in sizes.items():
        most[purposes[group]] = max(size, most.get(purposes[group], 0))
    return {
        group for group, size in sizes.items()
        if size == 1 or (purposes[group] not in NO_PURPOSE and size < most[purposes[group]])
    }  # fmt: skip


def _lacking_in_last_call(state: JobState, dump: Dump) -> set[Rank] | None:
    """Members that have not called, or by no dump, what a rank called last if that may have failed; else `None`."""
    if not dump.unsure or state.pending[dump.rank] or dump.rank in state.early:
        return None
    group, seq = dump.calls[-1][:2]
    called = {
        rank for rank, other in state.by_rank.items() if other.parts.get(group, DumpPart()).enqueued >= seq
    }  # fmt: skip
    return set(state.members[group]) - called if state.needed[group] < seq else None


def _not_called(state: JobState) -> set[Rank]:
    """Ranks that wait for nothing and have not called what others called, and what ended or failed there."""
    over: Counter[str] = Counter()
    for dump in state.by_rank.values():
        for group, part in dump.parts.items():
            over[group] = max(over[group], part.retired)
    idle = [dump for rank, dump in state.by_rank.items() if not state.pending[rank] and rank not in state.early]
    return {
        dump.rank
        for dump in idle
        for group, number in over.items()
        if dump.rank in state.members[group]
        and (part := dump.parts.get(group, DumpPart())).enqueued < number and (part.enqueued or not dump.full)
    }  # fmt: skip


def _is_early(dump: Dump, group: str, needed: int) -> bool:
    """Whether others have ended a collective that this rank, by its own dump, cannot have entered."""
    part = dump.parts.get(group, DumpPart())
    known = part.enqueued > 0 or not dump.full
    return known and (needed > part.enqueued or needed > min(part.open, default=needed))


def _place(state: JobState, operation: PendingOperation, rank: Rank, entered: bool, pair: "_Pair | None") -> None:
    """Say where one member of an operation is. `entered`: all members have provably entered it."""
    key, dump = operation.key, state.by_rank.get(rank)
    if dump is None or rank in state.early:
        (operation.done if entered else operation.unseen).add(rank)
    elif rank in operation.calls:
        call = operation.calls[rank]
        first = state.pending[rank][0] == key and rank not in state.blind
        own = (key.group, key.source, key.target)
        entered = entered or (pair is not None and rank == pair.source and pair.received(key.seq))
        waiting = next(one for one in state.pending[rank] if (one.group, one.source, one.target) == own)
        if entered or (call.started and waiting == key) or (first and not dump.timed):
            operation.inside.add(rank)
        else:
            (operation.halted if first else operation.behind).add(rank)
    elif pair is not None:
        kind = pair.sends if rank == pair.source else pair.receives
        if pair.sure and kind.called > key.seq:
            (operation.behind if rank in state.blind else operation.done).add(rank)
        else:
            operation.missing.add(rank)
    elif (part := dump.parts.get(key.group)) is None or (dump.full and not part.enqueued):
        longest = max((len(keys) for keys in state.pending.values()), default=0)
        if dump.full and not state.pending[rank] and len(dump.calls) <= 2 * longest:
            state.forgotten.add(rank)
            operation.unseen.add(rank)
        else:
            # One that waits elsewhere is late because of that. A longer ring buffer would still hold the call.
            operation.missing.add(rank)
    elif part.completed >= key.seq:
        operation.done.add(rank)
    elif part.enqueued >= key.seq:
        # Called, and gone from the ring buffer.
        state.blind.add(rank)
        operation.behind.add(rank)
    else:
        operation.missing.add(rank)


@dataclass(frozen=True)
class _Pair:
    """All sends of a rank to another one within a group, and their receives."""

    group: str
    source: Rank
    target: Rank
    sends: PeerCalls
    receives: PeerCalls
    sure: bool
    """Whether sends and receives can be counted from the same one."""
    certain: bool = True
    """Whether nothing speaks against this count."""

    @property
    def early(self) -> bool:
        """Whether more was received than the sender's dump has sent."""
        ended = self.receives.called - len(self.receives.pending)
        return self.sure and ended > self.sends.called

    def received(self, place: int) -> bool:
        """Whether the receive of this send has ended, so that the sender's GPU has begun to send."""
        return self.sure and self.receives.called - len(self.receives.pending) > place

    def key(self, place: int) -> OperationKey:
        return OperationKey(self.group, place, self.source, self.target)


def _pairs(state: JobState) -> list[_Pair]:
    directions: set[tuple[str, Rank, Rank]] = set()
    for rank, dump in state.by_rank.items():
        for group, part in dump.parts.items():
            ranks = state.members[group]
            for what, place in part.peers:
                peer = ranks[place] if place < len(ranks) else Rank(place)
                directions.add((group, rank, peer) if what == "send" else (group, peer, rank))
    found = []
    for group, source, target in sorted(directions):
        sends = _peer_calls(state, group, "send", source, target)
        receives = _peer_calls(state, group, "recv", target, source)
        sides = [state.by_rank.get(rank) for rank in (source, target)]
        sure = all(side is not None and not side.full for side in sides)
        pair = _Pair(group, source, target, sends, receives, sure)
        found.append(pair if sure or None in sides else _counted_from_a_collective(state, pair))
    return found


def _peer_calls(state: JobState, group: str, what: str, rank: Rank, peer: Rank) -> PeerCalls:
    """The sends of a rank to a peer, or its receives from it."""
    dump, ranks = state.by_rank.get(rank), state.members[group]
    place = ranks.index(peer) if peer in ranks else peer
    found = dump.parts.get(group, DumpPart()).peers.get((what, place)) if dump is not None else None
    return found or PeerCalls()


def _counted_from_a_collective(state: JobState, pair: _Pair) -> _Pair:
    """The pair counted from the last collective that both ranks have called, if there is one.

    Programs send as much before such a collective as they receive; where two collectives disprove that, nothing is
    counted. It is not certain where only one is common and the two ranks have unequally many pending before it: one
    of them may have called less.
    """
    dumps = [state.by_rank[rank] for rank in (pair.source, pair.target)]
    peers = (pair.sends, pair.receives)
    common = sorted(set(dumps[0].collectives) & set(dumps[1].collectives), key=dumps[0].collectives.__getitem__)
    after = [
        [sum(order > dump.collectives[key] for order in peer.orders) for dump, peer in zip(dumps, peers, strict=True)]
        for key in common
    ]
    if not after or any(one[0] - after[-1][0] != one[1] - after[-1][1] for one in after):
        return pair
    before = {max(len(peer.pending) - count, 0) for count, peer in zip(after[-1], peers, strict=True)}
    sends, receives = (PeerCalls(count, peer.pending) for count, peer in zip(after[-1], peers, strict=True))
    return replace(
        pair, sends=sends, receives=receives, sure=True, certain=len(after) > 1 or len(before) == 1
    )  # fmt: skip


def _ended_anywhere(dumps: list[Dump]) -> Counter[str]:
    """Of every group, the last collective that all members have entered, because it ended on one of them."""
    found: Counter[str] = Counter()
    for dump in dumps:
        for group, part in dump.parts.items():
            found[group] = max(found[group], part.ended_by_all)
    return found


def _apply_status(dumps: list[Dump]) -> None:
    """Use each rank's status for the groups whose entries its ring buffer has dropped.

    A handle that the rank's own entries do not name is the group that other ranks know by it: the only one, or the
    only one that this rank is configured for. The numbers of sends and collectives are mixed in a status, so groups
    with sends are left out.
    """
    known: dict[str, set[str]] = {}
    mixed: set[str] = set()
    for dump in dumps:
        for handle, name in dump.names.items():
            known.setdefault(handle, set()).add(name)
        mixed |= {group for group, part in dump.parts.items() if part.peers}
    for dump in dumps:
        for handle, (enqueued, completed) in dump.status.items():
            agreed = known.get(handle, set())
            agreed = agreed & set(dump.members) or agreed
            group = dump.names.get(handle) or (next(iter(agreed)) if len(agreed) == 1 else "")
            if not group or group in mixed:
                continue
            part = dump.parts.setdefault(group, DumpPart())
            part.enqueued, part.completed = max(part.enqueued, enqueued), max(part.completed, completed)
            part.open = {seq: call for seq, call in part.open.items() if seq > part.completed}


def _members(dumps: list[Dump]) -> dict[str, tuple[Rank, ...]]:
    """The ranks of every group in use: as its members report them, otherwise the ranks that used it.

    Where no dump reports them, each rank between others that left no dump may have used it too.
    """
    reported: dict[str, Counter[tuple[Rank, ...]]] = {}
    used: dict[str, set[Rank]] = {}
    everybody: set[Rank] = {rank for dump in dumps for rank in (dump.rank, *dump.nameless)}
    defaults: set[str] = set()
    for dump in dumps:
        for group, ranks in dump.members.items():
            reported.setdefault(group, Counter())[ranks] += 1
            everybody.update(ranks)
        for group, part in dump.parts.items():
            used.setdefault(group, set()).add(dump.rank)
            if part.desc == _DEFAULT:
                defaults.add(group)
    everybody |= {Rank(rank) for rank in range(max(everybody, default=0))}
    absent = everybody - {dump.rank for dump in dumps}
    found: dict[str, tuple[Rank, ...]] = {}
    for group, users in used.items():
        most = reported[group].most_common(1)[0][0] if group in reported else ()
        if not users <= set(most):
            # The reported members lack ranks that used the group.
            most = tuple(sorted(everybody if group in defaults else users | (set(most) or absent)))
        found[group] = most
    return found
