"""How long collectives last after their last rank has arrived, by communicator, operation and message size.

All ranks of a collective end together, so the shortest wait among them is the time after the last arrival.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ingero_fleet.collectives.points import CommKey

TICKS: Final = 24
"""Latest ticks that are kept."""

MAX_SERIES: Final = 20_000
"""Series kept in all."""

MAX_SERIES_OF_COMMUNICATOR: Final = 16
"""Series kept of one communicator: varying message sizes must not displace those of others."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class TransferSeries(NamedTuple):
    """Collectives that can be compared over time. `size` in bytes, 0 where it is not known."""

    comm: CommKey
    op: str
    size: int


class TransferTimes:
    """Sums and counts by series and tick; a series without collectives in all ticks that are kept is forgotten."""

    def __init__(self) -> None:
        self.series: list[TransferSeries] = []
        self.dropped: Counter[str] = Counter()
        """Collectives that were left out, by reason."""
        self._rows: dict[TransferSeries, int] = {}
        self._of_communicator: Counter[CommKey] = Counter()
        self._seconds = np.zeros((0, TICKS))
        self._count = np.zeros((0, TICKS), np.int64)
        self._column = 0

    def __len__(self) -> int:
        return len(self.series)

    def next_tick(self) -> None:
        """Begin a tick; the oldest one is forgotten."""
        self._column = (self._column + 1) % TICKS
        self._seconds[:, self._column] = 0
        self._count[:, self._column] = 0
        kept = self._count.any(axis=1)
        if not kept.all():
            self._seconds, self._count = self._seconds[kept], self._count[kept]
            self.series = [self.series[place] for place in np.flatnonzero(kept).tolist()]
            self._number()

    def add(
        self, comms: list[CommKey], ops: list[str], comm: Ints, op: Ints, size: Ints, seconds: Floats
    ) -> None:  # fmt: skip
        """Add collectives: indices of communicator and operation, bytes, and seconds after the last arrival."""
        fit = seconds > 0
        keys, member = np.unique(np.stack([comm[fit], op[fit], size[fit]], axis=1), axis=0, return_inverse=True)
        member = member.reshape(-1)
        total, count = np.bincount(member, seconds[fit], len(keys)), np.bincount(member, minlength=len(keys))
        for place, (comm_number, op_number, number_of_bytes) in enumerate(keys.tolist()):
            row = self._row(TransferSeries(comms[comm_number], ops[op_number], number_of_bytes), int(count[place]))
            if row is not None:
                self._seconds[row, self._column] += total[place]
                self._count[row, self._column] += count[place]

    def _row(self, series: TransferSeries, count: int) -> int | None:
        row = self._rows.get(series)
        if row is not None:
            return row
        if self._of_communicator[series.comm] >= MAX_SERIES_OF_COMMUNICATOR:
            self.dropped["network: a communicator has more message sizes than are kept"] += count
            return None
        row = len(self.series)
        if row >= MAX_SERIES:
            self.dropped["network: more series than are kept"] += count
            return None
        if row == len(self._seconds):
            more = ((0, max(64, row)), (0, 0))
            self._seconds, self._count = np.pad(self._seconds, more), np.pad(self._count, more)
        self.series.append(series)
        self._rows[series] = row
        self._of_communicator[series.comm] += 1
        return row

    def table(self) -> Floats:
        """Mean seconds by series and tick, the oldest tick first; NaN where there is none. Without empty ticks."""
        used = len(self.series)
        order = np.roll(np.arange(TICKS), -self._column - 1)
        seconds, count = self._seconds[:used, order], self._count[:used, order]
        filled = count.any(axis=0)
        found: Floats = np.where(count > 0, seconds / np.maximum(count, 1), np.nan)[:, filled]
        return found

    def latest(self, ticks: int) -> tuple[Floats, Floats]:
        """Sum of seconds and number of collectives by series in the latest ticks."""
        used = len(self.series)
        columns = (self._column - np.arange(min(ticks, TICKS))) % TICKS
        return self._seconds[:used, columns].sum(axis=1), self._count[:used, columns].sum(axis=1).astype(np.float64)

    def state(self) -> dict[str, Any]:
        """Everything that later ticks depend on."""
        used = len(self.series)
        return {
            "series": [[series.comm, series.op, series.size] for series in self.series], "column": self._column,
            "seconds": self._seconds[:used].copy(), "count": self._count[:used].copy(),
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned."""
        self.series = [TransferSeries(CommKey(*comm), op, size) for comm, op, size in state["series"]]
        self._column, self._seconds, self._count = state["column"], state["seconds"], state["count"]
        self._number()

    def _number(self) -> None:
        self._rows = {series: row for row, series in enumerate(self.series)}
        self._of_communicator = Counter(series.comm for series in self.series)
