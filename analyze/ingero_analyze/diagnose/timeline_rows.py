"""Which rows of a timeline can be compared, when some are lost, there twice, or of a rank that two claim. Pure.

Columns are codes as the readers have them: -1 where a value is not known. `kind` is 1 for collectives, 0 for compute.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingero_analyze.diagnose.counted_steps import numbered, occurrence
from ingero_detect.grouped import Bools, Floats, Ints, extremes

Columns = dict[str, npt.NDArray[Any]]

DOUBLED_STEPS: Final = 0.1
"""Share of its steps in which a rank has the rows of two, from which two processes claim it."""

OVERLAP: Final = 0.1
"""By how much the share of rows that begin before the last one has ended exceeds that of other ranks."""

MOST_AT_ONCE: Final = 2.0
"""Time in operations of a rank over the time that it was recorded, above which steps that begin together overlap."""

MOST_OVERLAPPING: Final = 0.4
"""Share of compute rows that begin within the one before of their rank and operation, above which several ranks have
one name."""

FEWEST_TOGETHER: Final = 3
TOGETHER: Final = 0.01
"""Steps at least, and the share of a recording within which they begin, where starts are since the begin of each."""


@dataclass(frozen=True)
class LostRows:
    """Rows that cannot be used. `unplaced` counts those of which rank or step is not known, in the table or not."""

    rows: Bools
    unplaced: int


def selected(columns: Columns, rows: Bools | Ints) -> Columns:
    """Some rows of every column."""
    return {name: column[rows] for name, column in columns.items()}


def begin_together(step: Ints, start: Floats) -> bool:
    """Whether all steps begin at one time, so that starts may be times since the begin of each.

    Steps on one clock follow one another, but microbatches that are called steps come again in every iteration.
    """
    names, of = np.unique(step, return_inverse=True)
    if len(names) < FEWEST_TOGETHER or (step < 0).any():
        return False
    first, last = extremes(start, of, len(names))
    return bool(first.max() <= last.min() and np.ptp(first) <= TOGETHER * (last.max() - first.min()))


def span_of_steps(rank: Ints, step: Ints, start: Floats) -> float:
    """From the first to the last start of each step of a rank, all steps together; the median over ranks."""
    cells, of = np.unique(np.stack([rank, step]), axis=1, return_inverse=True)
    first, last = extremes(start, of, cells.shape[1])
    _, own = np.unique(cells[0], return_inverse=True)
    return float(np.median(np.bincount(own, last - first)))


def one_after_another(columns: Columns, step: Ints, sound: Bools) -> Floats:
    """Starts on one clock, from those since the begin of each step, whose numbers are `step`.

    A step takes as long as it takes the rank that is busy with it for longest. Clocks of ranks may differ.
    """
    rank, start = columns["rank"][sound], columns["start"][sound]
    cells, of = np.unique(np.stack([step[sound], rank]), axis=1, return_inverse=True)
    begin, _ = extremes(start, of, cells.shape[1])
    _, end = extremes(start + columns["duration"][sound], of, cells.shape[1])
    length = np.zeros(int(step.max()) + 1)
    np.maximum.at(length, cells[0], end - begin)
    return np.where(step >= 0, columns["start"] + (np.cumsum(length) - length)[step], columns["start"])


def share_that_overlaps(columns: Columns) -> float:
    """Share of compute rows that begin in the first half of the one before of the same rank and operation."""
    rows = selected(columns, columns["kind"] == 0)
    order = np.lexsort((rows["start"], rows["op"], rows["rank"]))
    rank, op, start, duration = (rows[name][order] for name in ("rank", "op", "start", "duration"))
    same = (rank[1:] == rank[:-1]) & (op[1:] == op[:-1])
    within = same & (start[1:] < start[:-1] + duration[:-1] / 2)
    return float(within.sum() / max(same.sum(), 1))


def repeated_rows(columns: Columns) -> tuple[Ints, Ints]:
    """Rows that equal an earlier one in every column, and the first such one of each."""
    bits = [np.ascontiguousarray(column).view(np.int64) for column in columns.values()]
    marks = np.random.default_rng(0).integers(1, 2**63, len(bits), dtype=np.uint64) | np.uint64(1)
    digest = np.zeros(len(bits[0]), np.uint64)
    for column, mark in zip(bits, marks, strict=True):
        digest = (digest ^ (digest >> np.uint64(29)) ^ column.view(np.uint64)) * mark
    order = np.argsort(digest, kind="stable")
    alike = np.flatnonzero(digest[order][1:] == digest[order][:-1])
    candidates = np.unique(order[np.concatenate((alike, alike + 1))]) if len(alike) else np.zeros(0, np.int64)
    if not len(candidates):
        return candidates, candidates
    table = np.stack([column[candidates] for column in bits], axis=1)
    _, first, same = np.unique(table, axis=0, return_index=True, return_inverse=True)
    earliest = first[same.ravel()]
    later = np.flatnonzero(earliest != np.arange(len(candidates)))
    return candidates[later], candidates[earliest[later]]


def ranks_claimed_twice(columns: Columns) -> list[int]:
    """Ranks with the rows of two: twice what others have of the same operations, and out of order in time.

    Two processes on one clock overlap; on two clocks, steps go back.
    """
    rank, given = columns["rank"], bool((columns["step"] >= 0).all())
    step = columns["step"] if given else np.zeros(len(rank), np.int64)
    suspects = np.flatnonzero(_doubled_share(rank, numbered(columns["op"], columns["group"], step), step) > 0)
    if not len(suspects):
        return []
    order = np.lexsort((columns["start"], rank))
    ranks = rank[order]
    disorder = [
        np.array([_disorder(columns, own, given) for own in np.split(order[use], _cuts(ranks[use]))])
        for use in (np.ones(len(order), np.bool_), columns["kind"][order] == 0)
        if use.any()
    ]
    present = [np.unique(ranks), np.unique(ranks[columns["kind"][order] == 0])]
    found = []
    for suspect in suspects.tolist():
        for own, values in zip(present, disorder, strict=False):
            place = np.flatnonzero(own == suspect)
            if len(place) and len(own) > 1:
                others = np.delete(values, place[0])
                if values[place[0]] > np.median(others) + OVERLAP:
                    found.append(suspect)
                    break
    return found


def _cuts(ranks: Ints) -> Ints:
    return np.flatnonzero(np.diff(ranks)) + 1


def _doubled_share(rank: Ints, cell: Ints, step: Ints) -> npt.NDArray[np.float64]:
    """By rank, the share of its steps in which it has twice the rows of its peers; 0 where these are few."""
    ranks = int(rank.max()) + 1
    pairs, first, count = np.unique(cell * ranks + rank, return_index=True, return_counts=True)
    of_cell = pairs // ranks
    order = np.lexsort((count, of_cell))
    starts = np.flatnonzero(np.diff(of_cell[order], prepend=-1))
    sizes = np.diff(np.append(starts, len(order)))
    usual = np.repeat(count[order][starts + (sizes - 1) // 2], sizes)
    doubled = np.empty(len(pairs), np.bool_)
    doubled[order] = count[order] >= 2 * usual
    steps = int(step.max()) + 1
    place = (pairs % ranks) * steps + step[first]
    total = np.bincount(place, minlength=ranks * steps).reshape(ranks, steps)
    share = np.bincount(place, doubled, ranks * steps).reshape(ranks, steps) / np.maximum(total, 1)
    found: npt.NDArray[np.float64] = (share > 0.5).sum(axis=1) / np.maximum((total > 0).sum(axis=1), 1)
    return np.where(found >= DOUBLED_STEPS, found, 0.0)


def _disorder(columns: Columns, rows: Ints, given: bool) -> float:
    """Share of a rank's rows, in order of time, that overlap those before.

    1 where steps go back by two or more, or most numbered collectives are there twice.
    """
    start, duration = columns["start"][rows], columns["duration"][rows]
    if given:
        names = columns["step"][rows]
        if (np.maximum.accumulate(names) - names >= 2).any():
            return 1.0
    met = rows[(columns["group"][rows] >= 0) & (columns["seq"][rows] >= 0)]
    if len(met):
        again = numbered(*(columns[name][met] for name in ("op", "group", "seq", "step")))
        if len(np.unique(again)) <= 0.6 * len(met):
            return 1.0
    ended = np.maximum.accumulate(start + duration)[:-1]
    return float(np.mean(start[1:] < ended - 0.01 * duration[1:])) if len(rows) > 1 else 0.0


def without_lost_rows(columns: Columns, lost: LostRows) -> Bools:
    """Rows that can be compared although others are lost.

    A rank is not judged by the compute of a step that lacks a row of it. A collective that lacks a member is left out
    for all, because the last to arrive may be the one that is not there. Without `seq`, collectives of a rank are
    counted, so all those of its step are lost with one. Every row needs a step.
    """
    rank, step, kind = columns["rank"], columns["step"], columns["kind"]
    placed = lost.rows & (rank >= 0) & (step >= 0)
    keep = ~lost.rows & (rank >= 0)
    own = numbered(rank, step)
    unclear = placed & ((kind < 0) | (columns["op"] < 0))
    keep &= ~((kind == 0) & _among(own, placed & (kind == 0))) & ~_among(own, unclear)
    collective = keep & (kind == 1)
    by_number = bool((columns["seq"][collective] >= 0).all())
    if not by_number:
        keep &= ~((kind == 1) & _among(own, placed & (kind == 1)))
    if lost.unplaced:
        keep &= ~((kind == 0) & _short_of_compute(rank, own, keep & (kind == 0)))
        if not by_number:
            keep &= ~(
                (kind == 1) & _uneven(numbered(columns["op"], columns["group"], step), rank, keep & (kind == 1))
            )
    touched = np.ones(len(rank), np.bool_) if lost.unplaced else _among(step, placed)
    incomplete = np.zeros(len(rank), np.bool_)
    rows = np.flatnonzero(keep & (kind == 1))
    if len(rows):
        incomplete[rows] = _incomplete(selected(columns, rows), by_number)
    return keep & ~(incomplete & touched)


def _among(key: Ints, rows: Bools) -> Bools:
    found: Bools = np.isin(key, np.unique(key[rows]))
    return found


def _short_of_compute(rank: Ints, own: Ints, rows: Bools) -> Bools:
    """Rows of a rank's step with fewer rows than the rank usually has in a step."""
    pairs, first, same, count = np.unique(own[rows], return_index=True, return_inverse=True, return_counts=True)
    of = rank[rows][first]
    short = np.zeros(len(pairs), np.bool_)
    for number in np.unique(of).tolist():
        mine = of == number
        short[mine] = count[mine] < np.median(count[mine])
    found = np.zeros(len(rank), np.bool_)
    found[rows] = short[same]
    return found


def _uneven(cell: Ints, rank: Ints, rows: Bools) -> Bools:
    """Rows of cells in which ranks have different numbers of rows."""
    ranks = int(rank.max()) + 1
    pairs, count = np.unique(cell[rows] * ranks + rank[rows], return_counts=True)
    if not len(pairs):
        return rows
    starts = np.flatnonzero(np.diff(pairs // ranks, prepend=-1))
    uneven = np.maximum.reduceat(count, starts) != np.minimum.reduceat(count, starts)
    return rows & np.isin(cell, (pairs // ranks)[starts][uneven])


def _incomplete(columns: Columns, by_number: bool) -> Bools:
    """Rows of collectives with fewer ranks than those of their group usually have."""
    family = numbered(columns["op"], columns["group"])
    if by_number:
        instance = numbered(family, columns["seq"], np.where(columns["group"] < 0, columns["step"], -1))
    else:
        place = occurrence(columns["step"], family, columns["rank"], start=columns["start"])
        instance = numbered(family, columns["step"], place)
    _, row, same, size = np.unique(instance, return_index=True, return_inverse=True, return_counts=True)
    kinds, times = np.unique(np.stack((family[row], size)), axis=1, return_counts=True)
    usual = np.zeros(int(family.max()) + 1, np.int64)
    for place_of in np.argsort(times, kind="stable").tolist():
        usual[kinds[0, place_of]] = kinds[1, place_of]
    found: Bools = (size < usual[family[row]])[same]
    return found


def filled_starts(columns: Columns, lost: Bools) -> tuple[npt.NDArray[np.float64], list[int]]:
    """Starts of lost rows taken from the row before it of the same rank, and ranks whose rows are in another order.

    Of the latter, nothing tells where a row without a start belongs.
    """
    start, unclear = columns["start"].copy(), []
    for rank in np.unique(columns["rank"][lost & ~np.isfinite(start) & (columns["rank"] >= 0)]).tolist():
        rows = np.flatnonzero(columns["rank"] == rank)
        known = np.isfinite(start[rows])
        if (np.diff(start[rows][known]) < 0).any():
            unclear.append(rank)
        before = np.maximum.accumulate(np.where(known, np.arange(len(rows)), -1))
        start[rows] = np.where(before >= 0, start[rows][np.maximum(before, 0)], -np.inf)
    return start, unclear


def ranks_short_of_rows(columns: Columns, lost: LostRows) -> list[int]:
    """Ranks that did an operation slightly less often than most, if lost rows have no place."""
    known = (columns["op"] >= 0) & (columns["rank"] >= 0)
    rank, op = columns["rank"][known], columns["op"][known]
    if not lost.unplaced or not len(rank):
        return []
    table = np.bincount(rank * (int(op.max()) + 1) + op, minlength=(int(rank.max()) + 1) * (int(op.max()) + 1))
    table = table.reshape(int(rank.max()) + 1, -1)
    found = set[int]()
    for column in table.T:
        own = column[column > 0]
        if len(own):
            values, times = np.unique(own, return_counts=True)
            missing = values[times.argmax()] - column
            found |= set(np.flatnonzero((column > 0) & (missing > 0) & (missing <= lost.unplaced)).tolist())
    return sorted(found)
