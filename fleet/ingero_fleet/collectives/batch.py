"""Collective points by column, the form in which they are read and judged."""

from array import array
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt


@dataclass
class PointBatch:
    """Points by column: indices of communicator, operation and source in their lists, then the measurements.

    `value` is milliseconds, `time` seconds since the epoch on the sender's clock.
    """

    comm: "array[int]" = field(default_factory=lambda: array("i"))
    op: "array[int]" = field(default_factory=lambda: array("i"))
    rank: "array[int]" = field(default_factory=lambda: array("i"))
    seq: "array[int]" = field(default_factory=lambda: array("q"))
    source: "array[int]" = field(default_factory=lambda: array("i"))
    kind: "array[int]" = field(default_factory=lambda: array("b"))
    value: "array[float]" = field(default_factory=lambda: array("f"))
    time: "array[float]" = field(default_factory=lambda: array("d"))
    received: "array[float]" = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.rank)


Columns = dict[str, npt.NDArray[Any]]
"""Points by column, as in `PointBatch`."""

COLUMN_TYPES: Final = {
    "comm": np.int32, "op": np.int32, "rank": np.int32, "seq": np.int64, "source": np.int32, "kind": np.int8,
    "value": np.float32, "time": np.float64, "received": np.float64,
}  # fmt: skip


def columns_of(batch: PointBatch) -> Columns:
    """A copy of a batch."""
    return {name: np.array(getattr(batch, name), kind) for name, kind in COLUMN_TYPES.items()}
