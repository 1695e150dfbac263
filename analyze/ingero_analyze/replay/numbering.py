"""Numbers of nodes, and of nodes in their cohorts, in the order in which they came. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ingero_contract.identifiers import NodeKey
from ingero_detect.grouped import Floats, Ints, grouped_median

Number = TypeVar("Number", np.float32, np.float64, np.int64)


def longer(values: npt.NDArray[Number], length: int, missing: Any, axis: int = -1) -> npt.NDArray[Number]:
    """An array with so many entries along an axis, the new ones `missing`; the same one if it has them already."""
    shape = list(values.shape)
    shape[axis] = length - shape[axis]
    return np.concatenate((values, np.full(shape, missing, values.dtype)), axis) if shape[axis] else values


class NodeNumbers:
    """Numbers of nodes."""

    def __init__(self) -> None:
        self.names: list[NodeKey] = []
        self._numbers: dict[NodeKey, int] = {}
        self._last: tuple[Sequence[NodeKey], Ints] = ((), np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, name: NodeKey) -> bool:
        return name in self._numbers

    def __getitem__(self, name: NodeKey) -> int:
        return self._numbers[name]

    def of(self, names: Sequence[NodeKey]) -> Ints:
        """Those of so many nodes, entering new ones; the same as the last time for the same sequence."""
        if names is not self._last[0]:
            found = [self._numbers.setdefault(name, len(self._numbers)) for name in names]
            self.names = list(self._numbers)
            self._last = names, np.array(found, np.int64)
        return self._last[1]


@dataclass(frozen=True)
class CohortTick:
    """The nodes that worked in a tick. By row: its number in its cohort (`place`), its cohort, and the logarithm of
    its value; `middle`: by cohort the median of these."""

    place: Ints
    cohort: Ints
    logs: Floats
    middle: Floats


class CohortMembers:
    """Numbers of nodes in their cohorts: one that changes its cohort has two."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[int, int], int] = {}
        self._last = (b"", b""), np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self._pairs)

    @property
    def pairs(self) -> Ints:
        """By number the node and its cohort, (n, 2)."""
        return np.array(list(self._pairs), np.int64).reshape(-1, 2)

    def tick(self, node: Ints, cohort: Ints, value: Floats) -> CohortTick:
        """A tick: by row the number of a node, its cohort, and its value; others than positive ones are left out."""
        known = np.isfinite(value) & (value > 0)
        node, cohort, logs = node[known], cohort[known], np.log(value[known])
        middle = grouped_median(logs, cohort, int(cohort.max(initial=-1)) + 1)[1] if len(logs) else np.zeros(0)
        return CohortTick(self._places(node, cohort), cohort, logs, middle)

    def _places(self, node: Ints, cohort: Ints) -> Ints:
        key = node.tobytes(), cohort.tobytes()
        if key != self._last[0]:
            both = zip(node.tolist(), cohort.tolist(), strict=True)
            found = [self._pairs.setdefault(pair, len(self._pairs)) for pair in both]
            self._last = key, np.array(found, np.int64)
        return self._last[1]
