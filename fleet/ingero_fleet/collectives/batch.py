"""Collective points as packed records, the form in which they are read, and by column, in which they are judged."""

from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

POINT: Final = np.dtype([
    ("comm", "<i4"), ("op", "<i4"), ("rank", "<i4"), ("seq", "<i8"), ("size", "<i8"), ("source", "<i4"),
    ("kind", "i1"), ("value", "<f4"), ("time", "<f8"), ("received", "<f8"),
    ("work", "<f4"),
])  # fmt: skip
"""A point: indices of communicator, operation and source in their lists, then the measurements.

`size` is in bytes, 0 where it is not known; `work` is NaN where it is not told; `value` is milliseconds, `time` is
seconds since the epoch on the sender's clock.
"""

pack_point: Final = Struct("<iiiqqibfddf").pack
"""The bytes of a point."""

Columns = dict[str, npt.NDArray[Any]]
"""Points by column, as in `POINT`."""


@dataclass
class PointBatch:
    """Packed points."""

    packed: bytearray = field(default_factory=bytearray)

    def __len__(self) -> int:
        return len(self.packed) // POINT.itemsize

    def columns(self) -> Columns:
        """A copy of the points by column."""
        points = np.frombuffer(self.packed, POINT)
        return {name: points[name].copy() for name in POINT.names or ()}

    def renumber(self, name: str, numbers: dict[int, int]) -> None:
        """Replace the indices in one column."""
        column = np.frombuffer(self.packed, POINT)[name]
        column[:] = renumbered(column, numbers)


def renumbered(column: npt.NDArray[Any], numbers: dict[int, int]) -> npt.NDArray[Any]:
    """A copy of a column with its indices replaced."""
    return np.array([numbers[number] for number in column.tolist()], column.dtype)
