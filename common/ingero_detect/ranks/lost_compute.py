"""Puts operations of compute that a recording has lost back in place, each as long as usual on its rank. Pure.

Where rows are lost at random, the compute of a step seems shorter on whichever rank lacks one. Most steps of like
ranks show how often each operation is done in a step. A rank that lacks some is compared as if these had taken their
usual time there; that time neither accuses nor clears it.
"""

from dataclasses import replace
from typing import Any, Final

import numpy as np

from ingero_detect.grouped import Bools, Ints
from ingero_detect.ranks.timeline import Timeline

MORE_OFTEN: Final = 0.02
"""Share of steps of ranks with an operation more often than usual, above which no number is usual."""

MOST_LOST: Final = 0.25
"""Share of an operation that may be lost: above it, some ranks do it less often."""


def with_lost_compute(line: Timeline, alike: Ints) -> Timeline:
    """The timeline with rows for the lost ones, where ranks with the same work (`alike`) lack some in some steps.

    Steps in which a rank has no row at all stay empty. A new row begins with the first one of its rank's step.
    """
    computes = np.flatnonzero(~line.collective)
    ops, op = np.unique(line.op[computes], return_inverse=True)
    cell = line.rank[computes] * line.steps + line.step[computes]
    cells = line.ranks * line.steps
    recorded = np.bincount(line.rank * line.steps + line.step, minlength=cells) > 0
    found: list[tuple[Ints, int, float]] = []
    for number, name in enumerate(ops.tolist()):
        count = np.bincount(cell[op == number], minlength=cells).reshape(line.ranks, line.steps)
        lacking = np.zeros_like(count)
        for kind in np.unique(alike).tolist():
            own = alike == kind
            known = recorded.reshape(count.shape) & own[:, None]
            lacking[own] = np.where(known, _lacking(count, known), 0)[own]
        for rank in np.flatnonzero(lacking.any(axis=1)).tolist():
            rows = computes[(op == number) & (line.rank[computes] == rank)]
            if len(rows):
                places = rank * line.steps + np.repeat(np.arange(line.steps), lacking[rank])
                found.append((places, name, float(np.median(line.duration[rows]))))
    return _with_rows(line, found) if found else line


def _lacking(count: Ints, known: Bools) -> Ints:
    """How many rows each rank lacks in each step; none where an operation is not done equally often everywhere."""
    usual = int(np.bincount(count[known]).argmax()) if known.any() else 0
    lacking = np.maximum(usual - count, 0)
    lost = lacking[known].sum() > MOST_LOST * usual * known.sum()
    irregular = (count[known] > usual).mean() > MORE_OFTEN if usual else True
    return np.zeros_like(count) if irregular or lost else lacking


def _with_rows(line: Timeline, found: list[tuple[Ints, int, float]]) -> Timeline:
    """The timeline with further rows of compute: by operation and rank their places in the table, and seconds."""
    place = np.concatenate([places for places, *_ in found])
    rank, step = np.divmod(place, line.steps)
    op = np.repeat([name for _, name, _ in found], [len(places) for places, *_ in found])
    duration = np.repeat([seconds for *_, seconds in found], [len(places) for places, *_ in found])
    begin = np.full(line.ranks * line.steps, np.inf)
    np.minimum.at(begin, line.rank * line.steps + line.step, line.start)
    none = np.full(len(place), -1, np.int64)
    new: dict[str, Any] = {
        "rank": rank, "step": step, "op": op, "collective": none > 0, "start": begin[place], "duration": duration,
        "instance": none, "stage": _of_rank(line.rank, line.stage)[rank],
        "data_parallel": _of_rank(line.rank, line.data_parallel)[rank], "group": none,
        "work": np.full(len(place), np.nan), "sends": none > 0, "chores": none > 0,
        "routed": np.isin(op, np.unique(line.op[line.routed])) if line.routed is not None else none > 0,
    }  # fmt: skip
    given = {name: values for name in new if (values := getattr(line, name)) is not None}
    joined: dict[str, Any] = {name: np.concatenate([values, new[name]]) for name, values in given.items()}
    return replace(line, **joined)


def _of_rank(rank: Ints, values: Ints) -> Ints:
    """The value of each rank's first row."""
    ranks, first = np.unique(rank, return_index=True)
    found = np.full(int(ranks[-1]) + 1, -1, np.int64)
    found[ranks] = values[first]
    return found
