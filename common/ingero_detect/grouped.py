"""Medians of many groups at once. No loop over groups: one sort of 64-bit keys that hold group and value."""

from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_GROUP_BITS: Final = 16
_SIGN: Final = np.uint64(1 << 63)
_KEEP: Final = np.uint64(0xFFFF_FFFF_FFFF_0000)


def grouped_median(values: Floats, groups: Ints, m: int) -> tuple[Ints, Floats]:
    """Count and median of every group 0 to m-1; NaN for an empty group.

    Values may be infinite, not NaN. With more than one group the lowest 16 bits of a value give way to the group
    number, so a median is right to 2e-11 of its value; sorting plain integers is what makes this fast.
    """
    count = np.bincount(groups, minlength=m) if len(values) else np.zeros(m, np.int64)
    median = np.full(m, np.nan)
    if not len(values):
        return count, median
    if m == 1:
        ordered = np.sort(values)
    elif m <= 1 << _GROUP_BITS:
        ordered = _decode(np.sort(_encode(values, groups)))
    else:
        ordered = values[np.lexsort((values, groups))]
    start = np.concatenate(([0], np.cumsum(count)[:-1]))
    some = count > 0
    low = ordered[start[some] + (count[some] - 1) // 2]
    high = ordered[start[some] + count[some] // 2]
    with np.errstate(invalid="ignore"):
        median[some] = np.where(low == high, low, 0.5 * (low + high))
    return count, median


def _encode(values: Floats, groups: Ints) -> npt.NDArray[np.uint64]:
    """Keys that sort by group, then by value: the IEEE 754 bits made monotone, shifted below the group number."""
    bits = np.ascontiguousarray(values).view(np.uint64)
    flip = (bits.view(np.int64) >> 63).view(np.uint64) | _SIGN
    keys: npt.NDArray[np.uint64] = ((bits ^ flip) >> np.uint64(_GROUP_BITS)) | (
        groups.astype(np.uint64) << np.uint64(64 - _GROUP_BITS)
    )
    return keys


def _decode(keys: npt.NDArray[np.uint64]) -> Floats:
    bits = keys << np.uint64(_GROUP_BITS)
    flip = np.where(bits & _SIGN, _SIGN, _KEEP)
    return (bits ^ flip).view(np.float64)
