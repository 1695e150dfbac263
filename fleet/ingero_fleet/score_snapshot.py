"""A copy of the score map that other threads read while pushes change the map."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingero_contract.identifiers import NodeKey
from ingero_detect.nodes.cohorts import CohortKey
from ingero_fleet.score_table import COLUMNS, ScoreTable

ROWS_PER_PIECE: Final = 8192
"""Rows of the score map that are copied at once."""


@dataclass(frozen=True)
class ScoreSnapshot:
    """Columns by row. `names` is the same list object while no node comes or goes."""

    now: float
    names: list[NodeKey]
    cohorts: list[CohortKey]
    columns: dict[str, npt.NDArray[Any]]
    several_agents: set[int] = field(default_factory=set)
    """Rows of the nodes for which several agents report."""

    @property
    def nodes_with_several_agents(self) -> frozenset[NodeKey]:
        """Nodes as which several agents report."""
        return frozenset(self.names[row] for row in self.several_agents)

    @classmethod
    def take(cls, table: ScoreTable, now: float, rows: npt.NDArray[np.int64] | None = None) -> "ScoreSnapshot":
        """Copy the whole map; later reports, and those not in `rows`, stay fresh for the next tick."""
        *_, scores = cls.in_pieces(table, now, rows)
        return scores

    @classmethod
    def in_pieces(
        cls, table: ScoreTable, now: float, rows: npt.NDArray[np.int64] | None = None
    ) -> Iterator["ScoreSnapshot"]:
        """Copy a few rows at a time, so that the caller can take reports in between.

        Yields the unfinished copy after every piece; the last one is complete. A report is copied completely or
        not at all. New nodes are in the next snapshot.
        """
        names = table.roster()
        length = len(names)
        tenancy = table.view("tenancy").copy()
        stale = np.full(length, rows is None)
        if rows is not None:
            stale[rows] = True
        columns: dict[str, npt.NDArray[Any]] = {name: np.empty(length, dtype) for name, dtype in COLUMNS.items()}
        scores = cls(now, names, [], columns)
        for start in range(0, length, ROWS_PER_PIECE):
            piece = slice(start, min(start + ROWS_PER_PIECE, length))
            for name, column in columns.items():
                column[piece] = table.view(name)[piece]
            same = table.view("tenancy")[piece] == tenancy[piece]
            columns["alive"][piece] &= same
            table.view("fresh")[piece] &= ~(same & stale[piece])
            yield scores
        scores.cohorts.extend(table.cohorts)
        scores.several_agents.update(row for row in table.instances.several(now) if row < length)
        yield scores
