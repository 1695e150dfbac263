"""Finds which ranks are the cause of a hang, from the operations that have not ended. Pure.

Ranks and what they wait for form a graph. A rank that waits for another one is a victim. The cause is a rank that
others wait for and that waits for nobody: its host calls nothing, its GPU does not end what all have entered, or it
has left no dump and nobody remains that it could wait for. Where the dumps allow several sets of causes, the ranks
that belong to some of them are `possible`, and only those that belong to all of them are `certain`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from ingero_analyze.diagnose.flight_recorder_dumps import Call
from ingero_analyze.diagnose.hang_reasons import PROGRAM, TRACELESS, Causes, Why
from ingero_analyze.diagnose.like_groups import ranks_unlike_others
from ingero_analyze.diagnose.peer_programs import unlike_its_peers
from ingero_analyze.diagnose.pending_operations import NO_PURPOSE, JobState, OperationKey, PendingOperation
from ingero_analyze.diagnose.program_changes import changed_rank
from ingero_analyze.diagnose.unseen_ranks import could_wait_for
from ingero_contract.identifiers import Rank

SAME_SIZES: Final = frozenset({"all_reduce", "reduce", "broadcast", "_all_gather_base", "_reduce_scatter_base"})
"""Collectives whose input sizes must agree on all ranks."""


FEW: Final = 2
"""Most hosts that are taken to have stopped after one operation: where more wait, it is the program that waits."""


def find_causes(state: JobState) -> Causes:
    """Which ranks cause the hang for certain, and which may."""
    found = Causes()
    operations = sorted(state.operations.values(), key=lambda operation: not operation.sure)
    _add_of_operations(found, state, operations)
    edges = _edges(state, operations, found)
    _add_of_cycles(found, state, edges)
    _doubt(found, state, edges, {rank for operation in operations for rank in operation.unseen})
    _add_untold(found, state, operations)
    _add_unseen(found, state, operations, edges)
    causes = set(found.certain) | set(found.possible)
    lost = [rank for rank in edges if rank not in causes and not _reachable(edges, rank) & causes]
    found.possible |= dict.fromkeys(_terminal(edges, lost) if lost else (), Why.CYCLE)
    _add_stuck_instead(found, operations)
    _settle(found)
    found.explained = _all_wait_for_certain(state, edges, found)
    return found


def _add_of_operations(found: Causes, state: JobState, operations: Sequence[PendingOperation]) -> None:
    """The causes that single operations show, without regard to who waits for whom."""
    for operation in operations:
        _add_certain(found, state, operation)
    one_more = _one_more(state)
    if one_more is not None:
        found.possible |= {rank: found.certain.pop(rank) for rank in tuple(found.certain)} | {one_more: Why.ONE_MORE}
    for operation in operations:
        stuck = _stuck(operation)
        if len(stuck) > 1 and not stuck & (set(found.certain) | set(found.possible)):
            found.possible |= dict.fromkeys(sorted(stuck), Why.STUCK)


def _add_of_cycles(found: Causes, state: JobState, edges: Mapping[Rank, set[Rank]]) -> None:
    """Of ranks that wait for each other, the one that its calls single out, or all of them as possible."""
    for cycle, waits in _cycles(state, edges, found):
        single = _singled_out(state, cycle, waits)
        if single is None:
            found.cycle = cycle
            found.possible |= dict.fromkeys(cycle, Why.CYCLE)
        else:
            found.cycle = ()
            rank, why = single
            found.certain[rank] = why


def _singled_out(
    state: JobState, cycle: tuple[Rank, ...], waits: Mapping[Rank, set[Rank]]
) -> tuple[Rank, Why] | None:
    tests: tuple[tuple[Why, Callable[[JobState, tuple[Rank, ...]], Rank | None]], ...] = (
        (Why.ALONE, partial(_alone_against_all, waits=waits)),
        (Why.OUT_OF_ORDER, _out_of_order),
        (Why.CHANGED, changed_rank),
        (Why.UNLIKE, unlike_its_peers),
    )
    found = ((rank, why) for why, test in tests if (rank := test(state, cycle)) is not None)
    return next(found, None)


def _add_untold(found: Causes, state: JobState, operations: Sequence[PendingOperation]) -> None:
    """Possible causes of which too little is told: rings that forgot, dumps that are damaged, hosts that stopped."""
    for operation in operations:
        if operation.unseen and operation.waited_for() <= state.forgotten:
            found.possible |= dict.fromkeys(sorted(operation.inside), Why.STUCK)
        elif operation.unseen and operation.waited_for() <= state.damaged:
            found.possible |= dict.fromkeys(sorted(operation.inside - set(found.certain)), Why.STUCK_INSTEAD)
    for rank in stopped_hosts(state):
        found.possible.setdefault(rank, Why.BEHIND)
    for rank in state.blind:
        found.possible.setdefault(rank, Why.FORGOTTEN)
    lacking = set[Rank]().union(*state.untold.values())
    for rank in sorted(lacking | state.uncalled):
        if rank not in found.certain and not state.pending.get(rank):
            found.possible.setdefault(
                rank,
                _doubt_of_host(state, rank) or Why.NOT_CALLED if rank in state.by_rank else _why_unseen(state, rank),
            )
    if not operations and state.unrecorded:
        found.possible = dict.fromkeys(state.by_rank, Why.UNRECORDED) | found.possible


def _settle(found: Causes) -> None:
    """Make each cause either certain or possible. Nobody is certain by exclusion while others are possible, or
    beside a program that explains the hang."""
    for rank in found.certain:
        found.possible.pop(rank, None)
    if found.possible or PROGRAM & set(found.certain.values()):
        for rank in [one for one, why in found.certain.items() if why in (Why.NO_DUMP, Why.EARLY_DUMP)]:
            found.possible[rank] = found.certain.pop(rank)
    if found.certain or set(found.possible) != set(found.cycle):
        found.cycle = ()


def _all_wait_for_certain(state: JobState, edges: Mapping[Rank, set[Rank]], found: Causes) -> bool:
    """Whether certain causes make all ranks wait; one that called something else keeps its peers waiting there."""
    differs = {rank for rank, why in found.certain.items() if why is Why.DIFFERS}
    waits = dict(edges)
    for rank in edges.keys() & state.pending.keys():
        own = next((state.operations[key] for key in state.pending[rank][:1] if key in state.operations), None)
        waits[rank] = edges[rank] | (differs & own.calls.keys() if own else set())
    return all(_reachable(waits, rank) & set(found.certain) for rank in waits if waits[rank])


def _halted(found: Causes) -> set[Rank]:
    return {rank for rank, why in found.certain.items() if why in (Why.GPU, Why.GPU_BEFORE)}


def _doubt(found: Causes, state: JobState, edges: Mapping[Rank, set[Rank]], unseen: set[Rank]) -> None:
    """Where there are several causes, one by its own dump may be a victim whose dump was written a little early.

    A GPU that does not end what all others have ended leaves the same dump as one that was about to end it. It is
    certain only if nothing else explains the hang, that is, if the rank could not wait for another cause.
    """
    doubtful = {}
    for rank, why in found.certain.items():
        if why not in (Why.GPU, Why.GPU_BEFORE) and not (why is Why.HOST and state.early):
            continue
        others = set(found.certain) | set(found.possible) | (set() if why is Why.HOST else unseen)
        later = could_wait_for(state, rank, _halted(found) - {rank})
        if (later | set().union(*(_reachable(edges, one) for one in later))) & (others - {rank}):
            doubtful[rank] = why
    for rank in [one for one, why in found.certain.items() if why is Why.GPU]:
        instead = _stopped_instead(state, rank)
        if instead:
            doubtful[rank] = Why.GPU
            found.possible |= dict.fromkeys(sorted(instead - set(found.certain)), Why.GPU_INSTEAD)
    for rank, why in doubtful.items():
        del found.certain[rank]
        found.possible[rank] = why


def _stopped_instead(state: JobState, rank: Rank) -> set[Rank]:
    """Ranks whose GPU may have stopped instead of that of a rank whose dump was then written just before.

    Such a rank alone waits for the other one, which has ended that operation and now waits for it in a later one.
    """
    waiting = {
        (key, one)
        for key in state.pending[rank]
        if (operation := state.operations[key]).waited_for() == {rank} and len(operation.inside) == 1
        for one in operation.inside
    }  # fmt: skip
    return {one for key, one in waiting if _goes_on_to_wait_for(state, rank, one, key)}


def _goes_on_to_wait_for(state: JobState, rank: Rank, one: Rank, stopped: OperationKey) -> bool:
    """Whether a rank would come to wait for another one, whose GPU stops in an operation that all others end."""
    for key in state.pending[rank]:
        operation = state.operations[key]
        others = set(operation.members) - {rank}
        if key == stopped or others <= operation.done:
            continue
        if one in others:
            return True
        # Without the two, either others lack there too, or it would have ended on all of them.
        return bool(operation.waited_for() - {rank})
    return True


def _add_unseen(
    found: Causes, state: JobState, operations: Iterable[PendingOperation], edges: Mapping[Rank, set[Rank]]
) -> None:
    """Add the ranks whose state no dump shows, after all other candidates are known.

    Such a rank is certain only if it cannot wait for any other candidate, and if it cannot have ended the operations
    in which others seem to wait for it: a GPU that has stopped there is the other explanation. Where dumps are absent
    of ranks for which nobody waits, dumps were lost, and that one is absent proves nothing.
    """
    unseen = {rank for operation in operations for rank in operation.unseen} - set(found.certain)
    candidates = set(found.certain) | set(found.possible) | unseen
    halted = _halted(found)
    doubtful = {Why.FORGOTTEN, Why.UNREADABLE} | ({Why.NO_DUMP} if state.absent() - unseen else set())
    for rank in sorted(unseen):
        why = _why_unseen(state, rank)
        instead = {
            one
            for operation in operations if operation.waited_for() == {rank} and len(operation.inside) == 1
            for one in operation.inside
            if one in _reachable({**edges, rank: _could_wait_after(state, rank, one, operation, halted)}, rank)
        }  # fmt: skip
        found.possible |= dict.fromkeys(sorted(instead - set(found.certain)), Why.GPU_INSTEAD)
        if instead or why in doubtful or _reachable(edges, rank) & (candidates - {rank}):
            found.possible[rank] = why
        else:
            found.certain[rank] = why


def _add_stuck_instead(found: Causes, operations: Iterable[PendingOperation]) -> None:
    """Where ranks without a dump are only possible, those that wait in an operation that lacks none but such ranks.

    It may be one that all have entered, and that ends on nobody.
    """
    untold = {rank for rank, why in found.possible.items() if why in TRACELESS}
    if found.certain or not untold:
        return
    for operation in operations:
        waited_for = operation.waited_for()
        if waited_for and waited_for <= untold:
            for rank in sorted(operation.inside):
                found.possible.setdefault(rank, Why.STUCK_INSTEAD)


def _could_wait_after(
    state: JobState, rank: Rank, one: Rank, operation: PendingOperation, halted: set[Rank]
) -> set[Rank]:
    """For whom a rank could wait if it had ended an operation in which the GPU of another one has stopped."""
    ended = operation.key if operation.key.source < 0 else None
    return could_wait_for(state, rank, halted | {one}, ended)


def operations_called(calls: Mapping[Rank, Call]) -> tuple[tuple[str, ...], tuple[Rank, ...]]:
    """What was called under one number, the most frequent first, and which ranks called another one."""
    most = Counter(call.op for call in calls.values()).most_common(2)
    sizes = Counter(call.sizes for call in calls.values()).most_common(2)
    ops = tuple(op for op, _ in most)
    odd: tuple[Rank, ...] = ()
    if len(most) > 1 and most[0][1] > most[1][1]:
        odd = tuple(sorted(rank for rank, call in calls.items() if call.op != most[0][0]))
    elif len(most) == 1 and most[0][0] in SAME_SIZES and len(sizes) > 1:
        types = {call.sizes.partition("] ")[2] for call in calls.values()}
        ops = (ops[0], f"{ops[0]} of another {'size' if len(types) == 1 else 'type'}")
        if sizes[0][1] > sizes[1][1]:
            odd = tuple(sorted(rank for rank, call in calls.items() if call.sizes != sizes[0][0]))
    return ops, odd


def _add_certain(found: Causes, state: JobState, operation: PendingOperation) -> None:
    """Add the ranks that one operation proves to be causes."""
    for rank in operation.missing:
        if state.pending.get(rank) or rank in state.forgotten or rank in found.certain:
            continue
        doubt = _doubt_of_host(state, rank)
        if doubt is not None:
            found.possible[rank] = doubt
        elif operation.sure:
            found.certain[rank] = Why.HOST
        elif operation.inside - set(found.certain):
            # The counterpart may have ended on this rank and been dropped from its ring buffer.
            found.possible |= {rank: Why.HOST, **dict.fromkeys(sorted(operation.inside), Why.GPU)}
    found.certain |= dict.fromkeys(operation.halted, Why.GPU_BEFORE)
    stuck = _stuck(operation)
    if operation.key.source < 0 and operation.inside:
        ops, odd = operations_called(operation.calls)
        if len(ops) > 1:
            odd = odd or ranks_unlike_others(state, operation)
            if odd:
                found.certain |= dict.fromkeys(odd, Why.DIFFERS)
            else:
                found.possible |= dict.fromkeys(sorted(operation.calls), Why.DIFFERS)
            return
    if stuck == set(operation.members) and not any(
        operation.key.group in state.by_rank[one].members for one in stuck
    ):
        # Nobody reports who else is in the group.
        found.possible |= dict.fromkeys(stuck, Why.STUCK)
    elif len(stuck) == 1 and operation.certain:
        found.certain |= dict.fromkeys(stuck, Why.GPU)
    elif len(stuck) == 1:
        found.possible |= {**dict.fromkeys(operation.members, Why.UNCOUNTED), **dict.fromkeys(stuck, Why.GPU)}


def _doubt_of_host(state: JobState, rank: Rank) -> Why | None:
    """Why a rank that calls nothing more may wait nevertheless, or may have called more, or `None`."""
    if rank in state.uncalled:
        return Why.NOT_CALLED
    if rank in state.untold:
        return Why.ENDED_OR_FAILED
    return Why.UNRECORDED if state.unrecorded else None


def _one_more(state: JobState) -> Rank | None:
    """The only rank with anything pending: calls for which others with a dump, two or more in all, have not come.

    They ended everything, and called the same last. Either their hosts stopped all at once, or it called too much.
    """
    waiting = {rank for rank, keys in state.pending.items() if keys}
    others = set(state.by_rank) - waiting
    if len(waiting) != 1 or len(others) < 2 or others & state.early:
        return None
    for operation in state.operations.values():
        if not operation.missing or operation.done or operation.halted:
            return None
    last = {state.by_rank[rank].calls[-1][1:3] if state.by_rank[rank].calls else None for rank in others}
    return waiting.pop() if len(last) == 1 else None


def _stuck(operation: PendingOperation) -> set[Rank]:
    """The members that have entered an operation and not ended it, if it lacks no member."""
    return set() if operation.waited_for() else operation.inside


def _why_unseen(state: JobState, rank: Rank) -> Why:
    if rank not in state.by_rank:
        # Its process was alive when the dump was written.
        return Why.UNREADABLE if rank in state.damaged else Why.NO_DUMP
    return Why.EARLY_DUMP if rank in state.early else Why.FORGOTTEN


def _edges(state: JobState, operations: list[PendingOperation], found: Causes) -> dict[Rank, set[Rank]]:
    """For which ranks each rank waits; for one whose state no dump shows, all for which it could wait."""
    edges: dict[Rank, set[Rank]] = {}
    for rank, keys in state.pending.items():
        if rank in state.early or rank in found.certain or not keys:
            continue
        waits = edges.setdefault(rank, set())
        for key in keys if rank in state.blind else keys[:1]:
            operation = state.operations[key]
            waits |= operation.waited_for() or operation.inside
    for rank in {rank for operation in operations for rank in operation.unseen}:
        edges.setdefault(rank, set()).update(could_wait_for(state, rank, _halted(found)))
    return {rank: others - {rank} for rank, others in edges.items()}


def _cycles(
    state: JobState, edges: Mapping[Rank, set[Rank]], found: Causes
) -> list[tuple[tuple[Rank, ...], Mapping[Rank, set[Rank]]]]:
    """Ranks that surely wait for each other, whatever those do whose state no dump shows; and who waits for whom."""
    sure: dict[Rank, set[Rank]] = {}
    for rank in edges:
        keys = state.pending.get(rank, [])
        if not keys or rank in state.early | state.blind or rank in found.possible:
            continue
        operation = state.operations[keys[0]]
        if operation.sure and operation.waited_for():
            sure[rank] = operation.missing | operation.behind
    reach = {rank: _reachable(sure, rank) for rank in sure}
    cycles = {tuple(sorted(one for one in reach[rank] if rank in reach.get(one, ()))) for rank in sure}
    return [(cycle, sure) for cycle in sorted(cycles) if cycle]


def _alone_against_all(state: JobState, cycle: tuple[Rank, ...], waits: Mapping[Rank, set[Rank]]) -> Rank | None:
    """The only rank without which nobody of a cycle would wait in a circle, if it alone called what it waits in.

    All other members of that operation, two or more, then contradict it. A single other one is as likely to be wrong.
    """
    alone = [rank for rank in cycle if _contradicted(state, rank, cycle)]
    if len(alone) != 1 or _has_circle(waits, set(cycle) - set(alone)):
        return None
    others = (rank for rank in cycle if rank != alone[0])
    return alone[0] if all(_has_circle(waits, set(cycle) - {rank}) for rank in others) else None


def _out_of_order(state: JobState, cycle: tuple[Rank, ...]) -> Rank | None:
    """The only rank of a cycle that waits in another operation than all others, which it called after theirs before.

    All of them, two others or more, are members of both operations, so they have the same two calls to make.
    """
    waits = {rank: state.pending[rank][0] for rank in cycle}
    by_key: dict[OperationKey, list[Rank]] = {}
    for rank, key in waits.items():
        by_key.setdefault(key, []).append(rank)
    if len(by_key) != 2 or any(key.source >= 0 for key in by_key):
        return None
    (own, alone), (theirs, others) = sorted(by_key.items(), key=lambda item: len(item[1]))
    both = set(state.members[own.group]) & set(state.members[theirs.group])
    if len(alone) != 1 or len(others) < 2 or not set(cycle) <= both:
        return None
    before = [
        tuple(state.by_rank[rank].collectives.get((key.group, key.seq - 1), -1) for key in (theirs, own))
        for rank in cycle
    ]  # fmt: skip
    return alone[0] if all(0 <= first < second for first, second in before) else None


def _contradicted(state: JobState, rank: Rank, cycle: tuple[Rank, ...]) -> bool:
    """Whether all other members of the operation that a rank waits in, two or more, wait elsewhere in the cycle."""
    operation = state.operations[state.pending[rank][0]]
    others = set(operation.members) - {rank}
    return len(others) >= 2 and others <= operation.missing and others <= set(cycle)


def _has_circle(waits: Mapping[Rank, set[Rank]], ranks: set[Rank]) -> bool:
    """Whether some of these ranks wait for each other."""
    among = {rank: waits[rank] & ranks for rank in ranks}
    return any(rank in _reachable(among, rank) for rank in ranks)


def _reachable(edges: Mapping[Rank, set[Rank]], start: Rank) -> set[Rank]:
    """All ranks for which one waits directly or through others."""
    found: set[Rank] = set()
    open_ranks = [start]
    while open_ranks:
        following = edges.get(open_ranks.pop(), set()) - found
        found |= following
        open_ranks += following
    return found


def _terminal(edges: Mapping[Rank, set[Rank]], ranks: Iterable[Rank]) -> tuple[Rank, ...]:
    """Ranks that wait for each other and for no other rank."""
    smallest = min((_reachable(edges, rank) for rank in ranks), key=len)
    return tuple(sorted(smallest))


def stopped_hosts(state: JobState) -> list[Rank]:
    """Ranks that wait, and whose hosts seem to have stopped too.

    Such a host called nothing more after an operation after which another one went on with operations pending, has
    fewer of them pending than others, and is not one of many that stop there: neither its program nor its queue keeps
    it from calling.
    """
    longest = max((len(keys) for keys in state.pending.values()), default=0)
    went_on: set[tuple[str, int, str, str]] = set()
    last: dict[Rank, tuple[str, int, str, str]] = {}
    waiting = (
        set(state.pending) - state.early - state.blind - {rank for rank, keys in state.pending.items() if not keys}
    )
    together = Counter(state.by_rank[rank].calls[-1][:2] for rank in waiting)
    for rank in waiting:
        keys, calls = state.pending[rank], state.by_rank[rank].calls
        first = state.operations[keys[0]].calls[rank].order
        parts, sizes = state.by_rank[rank].parts, state.by_rank[rank].sizes
        names = [
            # Groups without a description have a purpose each, which their sizes tell.
            (parts[group].desc, len(state.members[group]), op, size if parts[group].desc in NO_PURPOSE else "")
            for (group, _, op, order), size in zip(calls, sizes, strict=True)
            if order >= first
        ]
        went_on.update(names[:-1])
        if len(keys) < longest and (together[calls[-1][:2]] <= FEW or not calls[-1][1]):
            last[rank] = names[-1]
    places = Counter(last.values())
    return sorted(rank for rank, name in last.items() if name in went_on and places[name] <= FEW)


def uncounted(state: JobState) -> set[Rank]:
    """Ranks that may have stopped in a send or receive that cannot be matched: nothing else keeps them waiting."""
    found = set()
    for operation in state.operations.values():
        if not operation.sure:
            found |= {rank for rank in operation.calls if state.pending[rank][0] == operation.key}
            found |= {rank for rank in operation.missing if not state.pending.get(rank)}
    return found
