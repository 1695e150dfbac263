"""Calls between two polls of the kernel's maps, and estimates for the time in which a group was not counted. Pure."""

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import sub
from types import MappingProxyType
from typing import Final

from ingero_agent.trace.probes.table import BY_NUMBER, Function, element_size

CALL_KEY: Final = struct.Struct("=IHH")
COLLECTIVE_KEY: Final = struct.Struct("=IHBBQ")
_VALUE: Final = struct.Struct("=7Q32I")
_COLD, _HISTOGRAM = 6, 7
VALUE_BYTES: Final = _VALUE.size
UNKNOWN: Final = 255
_NONE: Final = MappingProxyType[int, int]({})


@dataclass(frozen=True)
class CallCount:
    """Calls of one function by one process since the last poll; nanoseconds and bytes.

    `kind` is the direction of a copy, `octaves` the calls by the binary magnitude of their nanoseconds. `size` of a
    collective whose data type is not known is 0. `cold`: calls that came milliseconds after the previous one.
    `estimated`: scaled up from a window in which the group was counted.
    """

    function: Function
    pid: int
    count: int
    nanoseconds: int = 0
    longest: int = 0
    size: int = 0
    errors: int = 0
    kind: int = 0
    histogram: tuple[int, ...] = ()
    cold: int = 0
    estimated: bool = False


def unpack(value: bytes, cpus: int) -> tuple[int, ...]:
    """Merge the per-processor values: sums, and the largest of the maxima."""
    parts = [_VALUE.unpack_from(value, VALUE_BYTES * cpu) for cpu in range(cpus)]
    summed = list(map(sum, zip(*parts, strict=True)))
    summed[2] = max(part[2] for part in parts)
    return tuple(summed)


def longest(before: tuple[int, ...] | None, after: tuple[int, ...], histogram: tuple[int, ...]) -> int:
    """The longest call between two polls: exact when it set a record, otherwise the top of its log2 bucket."""
    if not before or after[2] > before[2]:
        return after[2]
    highest = next((index for index in range(len(histogram) - 1, -1, -1) if histogram[index]), -1)
    return min(after[2], 2 ** (highest + 1) - 1) if highest >= 0 else 0


class CounterDeltas:
    """Computes differences to the last poll, which it remembers."""

    def __init__(self) -> None:
        self._before: dict[bytes, tuple[int, ...]] = {}

    def call(self, key: bytes, value: tuple[int, ...]) -> CallCount | None:
        """The calls that a value of the map of calls adds since the last poll."""
        pid, number, kind = CALL_KEY.unpack(key)
        return self._difference(key, value, pid, number, kind, 1)

    def collective(self, key: bytes, value: tuple[int, ...]) -> CallCount | None:
        """The calls that a value of the map of collectives adds; elements are converted to bytes."""
        pid, number, dtype = COLLECTIVE_KEY.unpack(key)[:3]
        return self._difference(key, value, pid, number, 0, element_size(dtype))

    def forget(self, key: bytes) -> None:
        """Forget a key, as its process is gone."""
        self._before.pop(key, None)

    def _difference(
        self, key: bytes, value: tuple[int, ...], pid: int, number: int, kind: int, scale: int
    ) -> CallCount | None:
        function, before = BY_NUMBER.get(number), self._before.get(key)
        old = before or (0,) * len(value)
        if function is None or value[0] <= old[0]:
            return None
        self._before[key] = value
        histogram = tuple(map(sub, value[_HISTOGRAM:], old[_HISTOGRAM:]))
        return CallCount(
            function, pid, value[0] - old[0], value[1] - old[1], longest(before, value, histogram),
            (value[3] - old[3]) * scale, value[4] - old[4], kind, histogram, value[_COLD] - old[_COLD],
        )  # fmt: skip


ENOUGH: Final = 8
"""Calls in a window from which a ratio to them is used."""


class Scaler:
    """Estimates the calls of a group for the time in which it was not counted, from its last window.

    Waits and collectives are always counted. A process that makes them is assumed to make the other calls in
    proportion; a window measures that proportion (the ratio estimator of sampling surveys). So a process that slows
    down or stops between two windows is noticed. For a process without such calls the rate of the last window is
    used. Fractions are carried over, so that over many windows the estimates add up.
    """

    def __init__(self) -> None:
        self._window: dict[tuple[int, int, int], CallCount] = {}
        self._seconds = 0.0
        self._aux: dict[int, float] = {}
        self._counting = False
        self._carried: dict[tuple[int, int, int], list[float]] = {}

    def step(
        self, counted: Iterable[CallCount], on: float, off: float, alive: set[int], always: Mapping[int, int] = _NONE
    ) -> Iterator[CallCount]:
        """The calls to report since the last step, in which `on` seconds were counted and `off` seconds were not.

        `always`: calls since then, by process, of a group that was counted all the time.
        """
        if on > 0 and not self._counting:
            self.restart()
        self._counting = on > 0
        self._seconds += on
        for pid, calls in always.items() if on > 0 else ():
            self._aux[pid] = self._aux.get(pid, 0.0) + calls * on / (on + off)
        for one in counted:
            key = (one.pid, one.function.number, one.kind)
            before = self._window.get(key)
            self._window[key] = (
                replace(
                    one, count=one.count + before.count, nanoseconds=one.nanoseconds + before.nanoseconds,
                    size=one.size + before.size,
                )
                if before
                else one
            )  # fmt: skip
            yield one
        if off > 0 and self._seconds:
            uncounted = {pid: calls * off / (on + off) for pid, calls in always.items()}
            yield from self._estimate(off, alive, uncounted)

    def restart(self) -> None:
        """Start a new window: old rates do not describe the present load."""
        self._carried = {key: self._carried[key] for key in self._window if key in self._carried}
        self._window.clear()
        self._aux.clear()
        self._seconds = 0.0

    def _estimate(self, seconds: float, alive: set[int], uncounted: Mapping[int, float]) -> Iterator[CallCount]:
        for key, one in self._window.items():
            if one.pid not in alive:
                continue
            aux = self._aux.get(one.pid, 0.0)
            share = uncounted.get(one.pid, 0.0) / aux if aux >= ENOUGH else seconds / self._seconds
            carried = self._carried.setdefault(key, [0.0, 0.0, 0.0])
            for index, number in enumerate((one.count, one.nanoseconds, one.size)):
                carried[index] += number * share
            count, nanoseconds, size = (int(number) for number in carried)
            if count:
                self._carried[key] = [number - int(number) for number in carried]
                yield CallCount(one.function, one.pid, count, nanoseconds, 0, size, 0, one.kind, estimated=True)
