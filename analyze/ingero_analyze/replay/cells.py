"""Cells of a column as numbers and times, where some cells may be missing or anything else. Pure."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingero_analyze.tables import LATEST, is_text

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

MISSING: Final = ("", "-", "na", "n/a", "nan", "null", "none", "inf", "+inf", "-inf", "infinity", "+infinity",
                  "-infinity")  # fmt: skip
"""Cells, in lower case, that say that there is no number."""

FEW: Final = 3
"""Cells of a form that are no exception."""

SCALES: Final = {1.0: "seconds", 1e3: "milliseconds", 1e6: "microseconds", 1e9: "nanoseconds"}
"""Units of times since 1970, by how many are a second."""

_FINEST_FIRST: Final = (1e9, 1e6, 1e3)
_LEAST: Final = {scale: LATEST * scale / 1e3 for scale in _FINEST_FIRST}
"""Numbers that are not larger are of a coarser unit."""

EARLIEST: Final = 1e9
"""Seconds since 1970 of the year 2001. Smaller times in a unit that a name says may count from anything."""

_GROUPS: Final = r"^[+-]?[1-9][0-9]{0,2}([,'\x{2019}\x{a0}\x{202f} ][0-9]{3})+(\.[0-9]*)?$"
"""Numbers with separators of thousands: 1,144.8."""

_NUMBER: Final = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_ZONE: Final = r":.*(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"


@dataclass(frozen=True)
class Cells:
    """Numbers or seconds by row, NaN where they are missing or wrong; `wrong`: which rows have something else."""

    values: Floats
    wrong: Bools
    calendar: bool = False
    """Whether they are dates and times of day."""
    zoneless: bool = False
    """Whether some of these had no zone and were taken as UTC."""
    units: tuple[str, ...] = ()
    """Units of those that are numbers of time since 1970."""


def numbers(column: Any) -> Cells:
    """A column of Arrow as finite numbers. `ValueError` when its type can hold none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not is_text(column):
        try:
            found = pc.cast(column, pa.float64(), safe=False)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise ValueError(f"{column.type} is no number") from None
        return Cells(_finite(found), np.zeros(len(column), np.bool_))
    column = pc.utf8_trim_whitespace(column)
    try:
        return Cells(_finite(pc.cast(column, pa.float64())), np.zeros(len(column), np.bool_))
    except pa.ArrowInvalid:
        pass
    column = _without_separators(column)
    missing = pc.is_in(pc.utf8_lower(column), value_set=pa.array(MISSING))
    usable = pc.match_substring_regex(column, _NUMBER)
    found = pc.cast(pc.utf8_ltrim(pc.if_else(usable, column, None), "+"), pa.float64())
    return Cells(_finite(found), ~np.asarray(pc.or_(missing, usable)))


def _without_separators(column: Any) -> Any:
    """A column without separators of thousands. Commas stay where one may be that of a decimal, as in 0,98."""
    import pyarrow.compute as pc

    grouped = pc.match_substring_regex(column, _GROUPS)
    commas = pc.match_substring(column, ",")
    if pc.any(pc.and_not(commas, grouped)).as_py():
        grouped = pc.and_not(grouped, commas)
    return pc.if_else(grouped, pc.replace_substring_regex(column, r"[^0-9.+-]", ""), column)


def points_may_be_thousands(column: Any) -> bool:
    """Whether a point in a column of text seems to separate thousands, as in 1.040 beside 987.

    All numbers with a point have the form, and many have none, which decimals of a fixed or usual precision do not.
    """
    import pyarrow.compute as pc

    if not is_text(column):
        return False
    column = pc.utf8_trim_whitespace(column)
    pointed = pc.sum(pc.match_substring(column, ".")).as_py() or 0
    grouped = pc.sum(pc.match_substring_regex(column, r"^[+-]?[1-9][0-9]{0,2}\.[0-9]{3}$")).as_py() or 0
    whole = pc.sum(pc.match_substring_regex(column, r"^[+-]?[1-9][0-9]{0,2}$")).as_py() or 0
    return bool(pointed == grouped >= FEW and whole >= max(FEW, grouped / 50))


def _finite(column: Any) -> Floats:
    import pyarrow.compute as pc

    values = np.array(pc.fill_null(column, float("nan")), np.float64)
    values[~np.isfinite(values)] = np.nan
    return values


@dataclass(frozen=True)
class Clock:
    """How many of the numbers of a column are a second, and whether they count from 1970; `named`: its name says how
    many, else each is taken by its size, because files of several writers hold several units."""

    per_second: float
    since_1970: bool
    named: bool


def times(column: Any, clock: Clock) -> Cells:
    """A column of Arrow as seconds: ISO 8601, timestamps, or numbers. `ValueError` when its type can hold no time."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        moments = pc.cast(pc.cast(column, pa.timestamp("us", column.type.tz if pa.types.is_timestamp(column.type)
                                                       else None), safe=False), pa.int64())  # fmt: skip
        zoneless = pa.types.is_date(column.type) or column.type.tz is None
        return Cells(_seconds(moments), np.zeros(len(column), np.bool_), calendar=True, zoneless=zoneless)
    if is_text(column) and _is_iso(column):
        return _iso(column)
    found = numbers(column)
    scale = np.full(len(found.values), clock.per_second)
    if clock.since_1970 and not clock.named:
        size = np.abs(found.values)
        scale = np.select([size > _LEAST[unit] for unit in _FINEST_FIRST], _FINEST_FIRST, 1.0)
    values = found.values / scale
    far = np.abs(values) > LATEST
    units = (
        () if not clock.since_1970 else tuple(SCALES[each] for each in np.unique(scale[~np.isnan(values)]).tolist())
    )
    return Cells(np.where(far, np.nan, values), found.wrong | far, calendar=clock.since_1970, units=units)


def clock_of(column: Any, named: float | None) -> Clock:
    """How a column counts; numbers in a finer unit than seconds can only be times since 1970. `named`: how many are a
    second by the unit in its name, if there is one."""
    usual = 0.0
    if not (is_text(column) and _is_iso(column)):
        try:
            values = np.abs(numbers(column).values)
        except ValueError:
            values = np.zeros(0)
        values = values[np.isfinite(values)]
        usual = float(np.sort(values)[len(values) // 2]) if len(values) else 0.0
    scale = named or next((unit for unit in _FINEST_FIRST if usual > _LEAST[unit]), 1.0)
    return Clock(scale, usual > EARLIEST * scale, named is not None)


def _is_iso(column: Any) -> bool:
    """Whether most cells that hold something have a time of day."""
    import pyarrow.compute as pc

    held = pc.sum(pc.not_equal(column, "")).as_py() or 0
    return 2 * (pc.sum(pc.match_substring(column, ":")).as_py() or 0) > held


def _seconds(microseconds: Any) -> Floats:
    import pyarrow.compute as pc

    values = np.asarray(pc.fill_null(microseconds, 0), np.float64) / 1e6
    return np.where(np.asarray(pc.is_null(microseconds)), np.nan, values)


def _iso(column: Any) -> Cells:
    import pyarrow as pa
    import pyarrow.compute as pc

    column = pc.utf8_upper(pc.utf8_trim_whitespace(column))
    missing = pc.is_in(column, value_set=pa.array([text.upper() for text in (*MISSING, "nat")]))
    column = pc.if_else(missing, None, column)
    clean = np.zeros(len(column), np.bool_)
    found = _moments(column)
    if found is not None:
        return Cells(_seconds(found), clean, calendar=True)
    column = pc.replace_substring_regex(column, r"\s*(UTC|GMT)$", "Z")
    column = pc.replace_substring_regex(column, r"\s+([+-][0-9]{2}:?[0-9]{2})$", r"\1")
    bare = pc.invert(pc.match_substring_regex(column, _ZONE))
    zoneless = bool(pc.any(bare).as_py())
    column = pc.if_else(bare, pc.binary_join_element_wise(column, "Z", ""), column)
    found = _moments(column)
    if found is not None:
        return Cells(_seconds(found), clean, calendar=True, zoneless=zoneless)
    coded = pc.dictionary_encode(column)
    known = np.array([*(_parsed(text) for text in coded.dictionary.to_pylist()), np.nan])
    values = known[np.asarray(pc.fill_null(coded.indices, len(known) - 1))]
    return Cells(values, np.isnan(values) & ~np.asarray(missing), calendar=True, zoneless=zoneless)


def _moments(column: Any) -> Any | None:
    """Texts with zones as microseconds; `None` if one is no time."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        return pc.cast(pc.cast(column, pa.timestamp("us", "UTC")), pa.int64())
    except pa.ArrowInvalid:
        pass
    try:
        fine = pc.cast(column, pa.timestamp("ns", "UTC"))
        return pc.cast(pc.cast(fine, pa.timestamp("us", "UTC"), safe=False), pa.int64())
    except pa.ArrowInvalid:
        return None


def _parsed(text: str) -> float:
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return float("nan")
