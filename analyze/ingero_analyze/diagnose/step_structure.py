"""Derives what a timeline does not state from its operations: where steps end, which ranks form a stage. Pure."""

import re
from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints
from ingero_detect.timeline import FEWEST_STEPS

_BETWEEN_STAGES: Final = re.compile(r"send|recv|receive|p2p", re.IGNORECASE)


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


def counted_steps(rank: Ints, op: Ints, group: Ints, start: Floats, collective: Bools) -> Ints:
    """Number the steps of a timeline without steps.

    A step ends with the collective in which all ranks take part equally often and least often, if there is one.
    Otherwise the n-th time that a rank performs an operation is step n.
    """
    last = _last_of_step(rank, op, collective)
    if last is None:
        return occurrence(rank, op, np.where(collective, group, -1), start=start)
    order = np.lexsort((np.arange(len(start)), start, rank))
    own, is_last = rank[order], op[order] == last
    # Several in a row, such as the buckets of one gradient, end one step.
    followed = np.append(is_last[1:] & (own[1:] == own[:-1]), False)
    ends = is_last & ~followed
    before = np.cumsum(ends) - ends
    first = np.searchsorted(own, np.arange(int(own[-1]) + 1))
    found = np.empty(len(start), np.int64)
    found[order] = before - before[first][own]
    return found


def _last_of_step(rank: Ints, op: Ints, collective: Bools) -> int | None:
    """The collective that ends steps; `None` where every operation is done about as often as any other."""
    ranks = int(rank.max()) + 1
    pairs, times = np.unique(op * ranks + rank, return_counts=True)
    ops, first = np.unique(pairs // ranks, return_index=True)
    fewest, most = np.minimum.reduceat(times, first), np.maximum.reduceat(times, first)
    by_all = np.diff(np.append(first, len(pairs))) == ranks
    regular = by_all & (fewest >= FEWEST_STEPS) & (most - fewest <= 0.1 * most) & np.isin(ops, op[collective])
    if not regular.any():
        return None
    last = int(np.argmin(np.where(regular, most, most.max() + 1)))
    return int(ops[last]) if most.max() >= 1.5 * most[last] else None


def stages_of(rank: Ints, op: Ints, names: list[str], group: Ints, collective: Bools) -> Ints:
    """Pipeline stages by row, from which ranks communicate; -1 without a pipeline. Numbered by first rank.

    Stages exchange tensors by sends and receives; all other operations connect ranks of one stage.
    """
    unknown = np.full(len(rank), -1, np.int64)
    between = np.array([bool(_BETWEEN_STAGES.search(name)) for name in names], np.bool_)[op] & collective
    inside = collective & ~between & (group >= 0)
    if not between.any() or (group[between] < 0).any():
        return unknown
    stage = np.arange(int(rank.max()) + 1)
    pairs = np.unique(np.stack([group[inside], rank[inside]]), axis=1)
    while True:
        lowest = np.full(int(pairs[0].max(initial=0)) + 1, len(stage))
        np.minimum.at(lowest, pairs[0], stage[pairs[1]])
        joined = stage.copy()
        np.minimum.at(joined, pairs[1], lowest[pairs[0]])
        if (joined == stage).all():
            break
        stage = joined
    if len(np.unique(stage)) < 2:
        return unknown
    return stage[rank]
