"""Judges a communicator whose ranks tell their work, as if all of them did equal work. Pure.

What work explains is learnt from the other ranks than the one that is judged. A rank is late only if it is late under
the most that its work may explain. Where it is late under the least only, the answer is unknown.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingero_detect.grouped import Bools, Floats, Ints
from ingero_detect.ranks.work_in_waits import (
    differing,
    explained_time,
    learn_curve,
    steadied,
    told,
)
from ingero_fleet.collectives.attribution import LateRankFinding

MOST_CELLS: Final = 32_768
"""Waits of one communicator that are kept with their work: the fewer collectives, the more ranks it has."""

MOST_CELLS_IN_ALL: Final = 4_000_000
"""The same for all communicators of an engine together, 32 MB."""

FEWEST: Final = 8
"""Collectives from which anything is learnt about work."""

Judge = Callable[[Bools, Ints, Floats], LateRankFinding | None]
"""Judges some of the latest collectives by the rank that was last in each and the time lost to it."""


@dataclass(frozen=True)
class WorkTable:
    """Waits and work of the latest collectives of a communicator, one row for each, and their operations."""

    waited: npt.NDArray[np.float32]
    work: npt.NDArray[np.float32]
    op: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.op)

    @property
    def tells(self) -> bool:
        """Whether any work is known."""
        return bool(np.isfinite(self.work).any())

    def state(self) -> dict[str, Any]:
        """Everything that later collectives depend on."""
        return dict(vars(self))

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> "WorkTable":
        """The table of a state that `state` returned."""
        return cls(**state)

    @classmethod
    def of(
        cls, collective: Ints, rank: Ints, waited: Floats, work: npt.NDArray[np.float32], op: Ints,
        cells: tuple[int, int],
    ) -> "WorkTable":  # fmt: skip
        """A table of so many collectives and ranks from points, and the operation of each collective."""
        table = cls(np.full(cells, np.nan, np.float32), np.full(cells, np.nan, np.float32), op.astype(np.int32))
        table.waited[collective, rank], table.work[collective, rank] = waited, work
        return table

    def then(self, newer: "WorkTable") -> "WorkTable":
        """The rows of this table and a newer one."""
        return WorkTable(
            np.concatenate([self.waited, newer.waited]), np.concatenate([self.work, newer.work]),
            np.concatenate([self.op, newer.op]),
        )  # fmt: skip

    def latest(self, count: int) -> "WorkTable":
        """The newest rows."""
        first = max(0, len(self) - count)
        return WorkTable(self.waited[first:], self.work[first:], self.op[first:])


class WorkRoom:
    """How many rows the tables of work may have, so that all of them together stay within their bound."""

    def __init__(self, tables: Iterable[WorkTable | None], size: int) -> None:
        """`size`: most collectives of a window."""
        self._size = size
        self._left = MOST_CELLS_IN_ALL - sum(table.work.size for table in tables if table is not None)

    def rows(self, before: int, wanted: int, ranks: int) -> int:
        """Most rows of a table that has some and would have more.

        Without room a new table is so short that nothing can be learnt from it, and so no rank is accused.
        """
        wanted = min(wanted, self._size, max(2 * FEWEST, MOST_CELLS // ranks))
        if (wanted - before) * ranks > self._left:
            return max(before, FEWEST - 1)
        self._left -= (wanted - before) * ranks
        return wanted


def judge_equal_work(table: WorkTable, raw: LateRankFinding, judge: Judge) -> LateRankFinding:
    """The finding of a table's collectives under equal work; `raw` is that by waits as they are."""
    work, waited = table.work.astype(np.float64), table.waited.astype(np.float64)
    rows = told(work)
    unequal = rows & differing(work)
    if not unequal.any():
        return raw
    by_op = (np.flatnonzero(rows & (table.op == op)) for op in np.unique(table.op[rows]).tolist())
    parts = [part for part in by_op if len(part) >= FEWEST]
    finding = _judge(parts, waited, work, judge, None) if parts else None
    suspects = [found.rank for found in (finding, raw) if found and found.accused]
    for rank in suspects if parts else ():
        most = _judge(parts, waited, work, judge, (rank, True))
        if most and most.accused and most.rank == rank:
            return most
    for rank in suspects:
        tells = parts and 2 * np.isfinite(work[rows, rank]).sum() >= rows.sum()
        least = _judge(parts, waited, work, judge, (rank, False)) if tells else raw
        if least and least.accused:
            return replace(least, unknown=True, why_not=(
                f"rank {least.rank} came last in {least.last_arrivals} of {least.collectives}, but the ranks do "
                "different work, and how long that takes is not known well enough"))  # fmt: skip
    found = finding or raw
    if found.accused:
        return replace(
            found, why_not=f"last in {found.last_arrivals} of {found.collectives}, which more work explains"
        )
    return found


def _judge(
    parts: list[Ints], waited: Floats, work: Floats, judge: Judge, who: tuple[int, bool] | None
) -> LateRankFinding | None:
    """Judge all ranks, or one rank in its favour or against it by what the others show."""
    chosen: Bools = np.zeros(len(work), np.bool_)
    last, lost = np.zeros(len(work), np.int64), np.zeros(len(work))
    for part in parts:
        even = _even(waited[part], work[part], who)
        ordered = np.sort(even, axis=1)
        chosen[part], last[part], lost[part] = True, even.argmin(axis=1), ordered[:, 1] - ordered[:, 0]
    return judge(chosen, last[chosen], lost[chosen])


def _even(waited: Floats, work: Floats, who: tuple[int, bool] | None) -> Floats:
    """The waits under equal work, infinity where nothing is known; at least two of each row are known."""
    if who is None:
        shift = explained_time(learn_curve(waited, work), work).expected
    else:
        rank, favourable = who
        found = explained_time(learn_curve(np.delete(waited, rank, 1), np.delete(work, rank, 1)), work)
        shift = found.certain()
        shift[:, rank] = found.at_most(rank) if favourable else found.at_least(rank)
    even = np.where(np.isfinite(work), waited + shift, np.nan)
    # Work that may explain any time explains that a rank is last.
    longest = np.max(np.where(np.isfinite(even), even, -np.inf), axis=1, keepdims=True)
    even = steadied(np.minimum(even, longest), work)
    return np.where(np.isnan(even), np.inf, even)
