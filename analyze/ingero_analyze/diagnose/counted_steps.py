"""Numbers the steps of timelines that have none, by the operations that their ranks repeat. Pure."""

from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints, connected
from ingero_detect.ranks.timeline import FEWEST_STEPS

FEWEST_REPEATED: Final = 3
"""How often a rank does what ends steps, at least, in a recording of few steps."""

MOST_UNEVEN: Final = 1.25
"""Rows of compute of one rank over those of another from which a row of one is no row of the other."""

MOST_PARTS: Final = 64
REPEATED: Final = 0.9
"""Parts of a step at most, and which share of them must repeat."""

UNLIKE: Final = 2.0
"""Rows of the longest part over those of the shortest from which these are parts of steps, and no steps."""

OFTENER: Final = 1.5
"""How many times as often as in another group a rank does something in one with another rhythm."""


def numbered(*keys: Ints) -> Ints:
    """One number for every combination of keys, in their order; -1 is a value like others."""
    found = np.zeros(len(keys[0]), np.int64)
    for key in keys:
        found = np.unique(found * (int(key.max(initial=-1)) + 2) + key + 1, return_inverse=True)[1].astype(np.int64)
    return found


def occurrence(*keys: Ints, start: Floats) -> Ints:
    """For every row, how many rows with the same keys came before it on its rank's own clock."""
    order = np.lexsort((np.arange(len(start)), start, *reversed(keys)))
    same = np.ones(len(order), np.bool_)
    same[:1] = False
    for key in keys:
        same[1:] &= key[order][1:] == key[order][:-1]
    place = np.arange(len(order))
    first = np.maximum.accumulate(np.where(same, 0, place))
    found = np.empty(len(order), np.int64)
    found[order] = place - first
    return found


def counted_steps(
    rank: Ints, op: Ints, group: Ints, start: Floats, collective: Bools, chores: Bools | None = None
) -> Ints:  # fmt: skip
    """Number the steps of a timeline without steps. `chores`, such as evaluations, end none.

    A step ends with the operation that all ranks do equally often and least often, if there is one. Otherwise the
    n-th time that a rank performs an operation is step n, or all is one step where some ranks have far more rows of
    compute than others, which are then no parts of a step that compare. Groups of other sizes make other operations,
    and so do those in which a rank does something far less often than in others. In a recording of few steps only the
    layers of a step are many: where the groups that meet often enough do not connect all ranks, or nothing else ends
    steps, an operation may end steps that all ranks do only a few times.
    """
    groups = np.where(collective, group, -1)
    joined = _often_connected(rank, groups)
    op = numbered(op, _group_sizes(rank, groups))
    op = numbered(op, _rhythms(rank, op, groups))
    order = np.lexsort((np.arange(len(start)), start, rank))
    own, name, computes = rank[order], op[order], ~collective[order]
    # Several in a row, such as the buckets of one gradient or the layers of a model, end one step. Collectives that
    # run beside computing change nothing in the order of what is computed.
    ends = _ends_of_runs(own, name)
    ends[computes] = _ends_of_runs(own[computes], name[computes])
    if chores is not None:
        ends &= ~chores[order]
    fewest = (FEWEST_STEPS, FEWEST_REPEATED) if joined else (FEWEST_REPEATED,)
    tried = (_last_of_step(own, name, ends, ~computes, least) for least in fewest)
    last = next((op for op in tried if op is not None), None)
    if last is None:
        of_rank = np.bincount(rank[~collective], minlength=int(rank.max()) + 1)
        if of_rank.max() > MOST_UNEVEN * of_rank.min() > 0:
            return np.zeros(len(start), np.int64)
        return occurrence(rank, op, np.where(collective, group, -1), start=start)
    ends &= name == last
    before: Ints = np.cumsum(ends) - ends
    first = np.searchsorted(own, np.arange(int(own[-1]) + 1))
    part = before - before[first][own]
    if not joined:
        part = _with_rest(own, part)
    found = np.empty(len(start), np.int64)
    found[order] = part // _parts_of_step(own, part)
    return found


def _with_rest(rank: Ints, part: Ints) -> Ints:
    """Parts of a few steps; what follows the last end belongs to the last part, if it is less than half of it."""
    ranks, parts = int(rank.max()) + 1, int(part.max()) + 1
    rows = np.median(np.bincount(rank * parts + part, minlength=ranks * parts).reshape(ranks, parts), axis=0)
    return np.minimum(part, parts - 2) if parts > 2 and 2 * rows[-1] < np.median(rows[:-1]) else part


def _often_connected(rank: Ints, group: Ints) -> bool:
    """Whether groups in which each of their ranks has as many rows as steps are needed connect all ranks.

    So they seem to where groups are not known.
    """
    if (group < 0).all():
        return True
    pairs, rows = np.unique(np.stack([group, rank]), axis=1, return_counts=True)
    often = pairs[:, (rows >= FEWEST_STEPS) & (pairs[0] >= 0)]
    return len(np.unique(connected(often, int(rank.max()) + 1))) == 1


def _group_sizes(rank: Ints, group: Ints) -> Ints:
    """By row, how many ranks its group has; 0 where none is known."""
    pairs = np.unique(np.stack([group, rank]), axis=1)
    sizes = np.bincount(pairs[0] + 1, minlength=int(group.max(initial=-1)) + 2)
    sizes[0] = 0
    return sizes[group + 1].astype(np.int64)


def _rhythms(rank: Ints, op: Ints, group: Ints) -> Ints:
    """By row, in how many groups of other rhythms its rank does the same less often; 0 where no group is known.

    A tensor and a data group may have the same size, and differ by how often they meet.
    """
    triples, row, times = np.unique(np.stack([op, rank, group]), axis=1, return_inverse=True, return_counts=True)
    order = np.lexsort((times, triples[1], triples[0]))
    others = (np.diff(triples[:2, order], axis=1) != 0).any(axis=0)
    oftener = np.append(False, ~others & (times[order][1:] > OFTENER * times[order][:-1]))
    before = np.cumsum(oftener)
    first = np.maximum.accumulate(np.where(np.append(True, others), before - oftener, 0))
    found = np.empty(len(order), np.int64)
    found[order] = before - first
    return found[row.ravel()]


def _parts_of_step(rank: Ints, part: Ints) -> int:
    """How many parts repeat together: computing may divide the run of operations that ends a step.

    The parts of most ranks have the same numbers of rows again after so many. They do so at least eight times, or
    three times where the longest has twice the rows of the shortest, as of layers: a checkpoint adds fewer.
    """
    ranks, parts = int(rank.max()) + 1, int(part.max()) + 1
    rows = np.bincount(rank * parts + part, minlength=ranks * parts).reshape(ranks, parts)
    usual = np.median(rows, axis=0)[1:-1]
    uneven = len(usual) > 0 and float(usual.max()) >= UNLIKE * float(usual.min())
    fewest = FEWEST_REPEATED if uneven else FEWEST_STEPS
    for count in range(1, min(MOST_PARTS, parts // fewest) + 1):
        if (usual[count:] == usual[:-count]).mean() >= REPEATED:
            return count
    return 1


def _ends_of_runs(rank: Ints, op: Ints) -> Bools:
    """By row, whether the next one is of another operation or rank."""
    return np.append((op[1:] != op[:-1]) | (rank[1:] != rank[:-1]), True)[: len(op)]


def _last_of_step(rank: Ints, op: Ints, ends: Bools, collective: Bools, least_often: int) -> int | None:
    """The operation that ends steps, for rows in order; `None` where every one is done about as often as any other.

    It is done `least_often` times or more. Of several, a collective, and the one that is done for the first time
    after the others.
    """
    ranks = int(rank.max()) + 1
    pairs, begins, times = np.unique(op * ranks + rank, return_index=True, return_counts=True)
    runs = np.bincount(np.searchsorted(pairs, (op * ranks + rank)[ends]), minlength=len(pairs))
    ops, first = np.unique(pairs // ranks, return_index=True)
    fewest, most = np.minimum.reduceat(runs, first), np.maximum.reduceat(runs, first)
    by_all = np.diff(np.append(first, len(pairs))) == ranks
    regular = by_all & (fewest >= least_often) & (most - fewest <= 0.1 * most)
    if not regular.any():
        return None
    latest = np.maximum.reduceat(begins - np.searchsorted(rank, np.arange(ranks))[pairs % ranks], first)
    joins = np.isin(ops, op[collective])
    least = most[regular].min()
    last = int(np.lexsort((latest, joins, regular & (most <= 1.1 * least)))[-1])
    return int(ops[last]) if times.max() >= OFTENER * most[last] else None
