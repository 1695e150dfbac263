"""Cells of a column as numbers and times, where some cells may be missing or anything else. Pure."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingero_analyze.tables import LATEST, is_text

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

MISSING: Final = (
    "", "-", "na", "n/a", "n.a.", "#n/a", "<na>", "[n/a]", "nan", "+nan", "-nan", "null", "none", "nil", "<nil>",
    "undefined", "no data", "[not supported]", "inf", "+inf", "-inf", "infinity", "+infinity", "-infinity",
)  # fmt: skip
"""Cells, in lower case, that say that there is no number."""

FEW: Final = 3
"""Cells of a form that are no exception."""

FEWEST_ROUNDED: Final = 100
"""Values that show to which unit they are rounded."""

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
_DECIMAL_COMMA: Final = r"^[+-]?([0-9]+|[1-9][0-9]{0,2}([.' \x{a0}\x{202f}][0-9]{3})+),[0-9]+([eE][+-]?[0-9]+)?$"
"""Numbers with a comma of decimals: 1144,8 and 1.144,8."""

_UNIT: Final = r"^.*?[0-9.](?P<unit>\s*[%A-Za-z\x{b5}\x{b0}][%A-Za-z\x{b5}\x{b0}/ .]*)$"
"""What follows a number: 98 %, 1980 MHz, 1.2s/it."""

_COMPACT: Final = r"^((?:19|20)[0-9]{2})(0[1-9]|1[0-2])([0-3][0-9])[T _-]?([0-2][0-9])([0-5][0-9])([0-5][0-9])"
"""Dates and times of day without separators: 20251124T160000Z. As a number of milliseconds they would be centuries
away."""

_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_MONTH: Final = rf"(?P<month>{'|'.join(_MONTHS)})[A-Z]*"
_NAMED_DATES: Final = (
    re.compile(rf"(?<!\d)(?P<day>\d{{1,2}})[-/ ]{_MONTH}[-/ ,.]+(?P<year>\d{{4}})(?!\d)"),
    re.compile(rf"\b{_MONTH}[ .]+(?P<day>\d{{1,2}})(?!\d)(?P<between>.*?)(?P<year>(?<!\d)(?:19|20)\d{{2}})(?!\d)"),
)
"""Dates with the name of the month, in upper case: 24/NOV/2025, MON, 24 NOV 2025, MON NOV 24 16:00:00 2025."""

_TIME_OF_DAY: Final = re.compile(r"(?<!\d)(?P<clock>\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?)\s*(?P<half>[AP]M)?")
_OFFSET: Final = re.compile(r"(?P<offset>[+-]\d{2}:?\d{2})(?:\s*\([A-Z]+\))?Z?$")
_NO_ZONE: Final = re.compile(r"\b(?:MON|TUE|WED|THU|FRI|SAT|SUN)[A-Z]*|UTC|GMT|Z|[^A-Z]")
"""What besides a date and a time of day names no zone."""

_HALF_DAY: Final = re.compile(
    r"(?P<date>.*[ T])(?P<hour>[0-9]{1,2})(?P<rest>:[0-9:.]+)\s*(?P<half>[AP])\.?M\.?(?P<zone>.*)"
)
"""Times of a clock of twelve hours, in upper case: 04:00:00 PM."""

SLASHED: Final = re.compile(r"\s*[0-9]{1,2}/[0-9]{1,2}/[0-9]{4}\b.*")
"""Dates of which it may be open whether they begin with the day."""

_SLASHES: Final = r"^(?P<first>[0-9]{1,2})/(?P<second>[0-9]{1,2})/[0-9]{4}\b"
_GO_ZONE: Final = r"\s*([+-][0-9]{2}:?[0-9]{2})\s+([A-Z]{3,5}|[+-][0-9]{2,4})( M=.*)?$"
"""Zones as Go prints them, in upper case: +0100 CET m=+0.01."""

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


@dataclass(frozen=True)
class Form:
    """How the cells of a column write numbers: with a comma of decimals, and with one unit behind all of them."""

    comma: bool = False
    unit: str = ""


def form_of(column: Any) -> Form:
    """The form of a column by its first cells."""
    import pyarrow.compute as pc

    if not is_text(column):
        return Form()
    column = pc.utf8_trim_whitespace(column)
    column = column.filter(pc.invert(_is_missing(column)))
    units = pc.struct_field(pc.extract_regex(column, _UNIT), "unit")
    unit = str(units[0].as_py() or "") if len(units) else ""
    if unit and pc.all(pc.equal(pc.fill_null(units, ""), unit)).as_py():
        column = _without(column, unit)
    else:
        unit = ""
    commas = column.filter(pc.match_substring(column, ","))
    decimal = pc.all(pc.match_substring_regex(commas, _DECIMAL_COMMA)).as_py()
    grouped = pc.all(pc.match_substring_regex(commas, _GROUPS)).as_py()
    return Form(bool(len(commas) and decimal and not grouped), unit)


def numbers(column: Any, form: Form = Form()) -> Cells:
    """A column of Arrow as finite numbers. `ValueError` when its type can hold none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not is_text(column):
        try:
            found = pc.cast(column, pa.float64(), safe=False)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise ValueError(f"{column.type} is no number") from None
        return Cells(_finite(found), np.zeros(len(column), np.bool_))
    column = _without(pc.utf8_trim_whitespace(column), form.unit)
    if form.comma:
        column = _with_points(column)
    try:
        return Cells(_finite(pc.cast(column, pa.float64())), np.zeros(len(column), np.bool_))
    except pa.ArrowInvalid:
        pass
    column = _without_separators(column)
    missing = _is_missing(column)
    usable = pc.match_substring_regex(column, _NUMBER)
    found = pc.cast(pc.utf8_ltrim(pc.if_else(usable, column, None), "+"), pa.float64())
    return Cells(_finite(found), ~np.asarray(pc.or_(missing, usable)))


def _is_missing(column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.is_in(pc.utf8_lower(column), value_set=pa.array(MISSING))


def _without(column: Any, unit: str) -> Any:
    """A column without this unit at the end of its cells."""
    import pyarrow.compute as pc

    if not unit:
        return column
    return pc.if_else(pc.ends_with(column, unit), pc.utf8_slice_codeunits(column, 0, -len(unit)), column)


def _with_points(column: Any) -> Any:
    """A column with points instead of commas of decimals, without separators of thousands."""
    import pyarrow.compute as pc

    grouped = pc.match_substring_regex(column, r"^[+-]?[1-9][0-9]{0,2}([.][0-9]{3})+$")
    mine = pc.or_(grouped, pc.match_substring_regex(column, _DECIMAL_COMMA))
    bare = pc.replace_substring_regex(column, r"[.' \x{a0}\x{202f}]", "")
    return pc.if_else(mine, pc.replace_substring(bare, ",", "."), column)


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


def coarseness(values: Floats, whole: bool) -> float:
    """The decimal unit to which values are rounded, relative to their median; 0 if none is seen.

    Whole numbers count only if `whole`: they may be counts, whose unit is no rounding.
    """
    values = values[np.isfinite(values) & (values > 0)]
    if len(values) < FEWEST_ROUNDED or values.min() == values.max():
        return 0.0
    for digits in range(0 if whole else 1, 3):
        if np.allclose(values, np.round(values, digits), rtol=0, atol=1e-9):
            rounded = whole or not np.allclose(values, np.round(values), rtol=0, atol=1e-9)
            return float(10.0**-digits / np.median(values)) if rounded else 0.0
    return 0.0


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
    day_first: bool | None = None
    """Whether dates with slashes begin with the day, as 24/11/2025, or with the month; `None` if no date tells."""


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
        return _iso(column, clock.day_first)
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
    usual, day_first = 0.0, None
    if is_text(column) and _is_iso(column):
        day_first = _day_first(column)
    else:
        try:
            values = np.abs(numbers(column).values)
        except ValueError:
            values = np.zeros(0)
        values = values[np.isfinite(values)]
        usual = float(np.sort(values)[len(values) // 2]) if len(values) else 0.0
    scale = named or next((unit for unit in _FINEST_FIRST if usual > _LEAST[unit]), 1.0)
    return Clock(scale, usual > EARLIEST * scale, named is not None, day_first)


def _is_iso(column: Any) -> bool:
    """Whether most cells that hold something have a time of day."""
    import pyarrow.compute as pc

    held = pc.sum(pc.not_equal(column, "")).as_py() or 0
    timed = pc.or_(pc.match_substring(column, ":"), pc.match_substring_regex(column, _COMPACT + r"([.Z+-].*)?$"))
    return 2 * (pc.sum(timed).as_py() or 0) > held


def _seconds(microseconds: Any) -> Floats:
    import pyarrow.compute as pc

    values = np.asarray(pc.fill_null(microseconds, 0), np.float64) / 1e6
    return np.where(np.asarray(pc.is_null(microseconds)), np.nan, values)


def _day_first(column: Any) -> bool | None:
    """Which part of dates with slashes is the day, by those of which one part can be no month."""
    import pyarrow.compute as pc

    dates = pc.extract_regex(pc.utf8_trim_whitespace(column), _SLASHES)
    first, second = (
        pc.any(pc.greater(pc.cast(pc.struct_field(dates, part), "int64"), 12)).as_py() for part in ("first", "second")
    )
    return bool(first) if bool(first) != bool(second) else None


def _iso(column: Any, day_first: bool | None) -> Cells:
    import pyarrow as pa
    import pyarrow.compute as pc

    column = pc.utf8_upper(pc.utf8_trim_whitespace(column))
    missing = pc.is_in(column, value_set=pa.array([text.upper() for text in (*MISSING, "nat")]))
    column = pc.if_else(missing, None, column)
    clean = np.zeros(len(column), np.bool_)
    found = _moments(column)
    if found is not None:
        return Cells(_seconds(found), clean, calendar=True)
    column = pc.replace_substring_regex(column, _COMPACT, r"\1-\2-\3T\4:\5:\6")
    column = pc.replace_substring_regex(column, _GO_ZONE, r"\1")
    column = pc.replace_substring_regex(column, r"\s*(UTC|GMT)$", "Z")
    column = pc.replace_substring_regex(column, r"^([0-9]{4})/([0-9]{2})/([0-9]{2})\b", r"\1-\2-\3")
    column = pc.replace_substring_regex(column, r"^([0-9]{2})\.([0-9]{2})\.([0-9]{4})\b", r"\3-\2-\1")
    if day_first is not None:
        year_first = r"\3-\2-\1" if day_first else r"\3-\1-\2"
        column = pc.replace_substring_regex(column, r"\b([0-9])/", r"0\1/")
        column = pc.replace_substring_regex(column, r"^([0-9]{2})/([0-9]{2})/([0-9]{4}),?", year_first)
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
        if half := _HALF_DAY.fullmatch(text):
            hour = int(half["hour"]) % 12 + 12 * (half["half"] == "P")
            text = f"{half['date']}{hour:02d}{half['rest']}{half['zone']}"
        text = _with_number_of_month(text) or text
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return float("nan")


def _with_number_of_month(text: str) -> str | None:
    """A date with the name of the month in ISO 8601; `None` if it is none, or of a zone that only its name tells."""
    date = next(filter(None, (pattern.search(text) for pattern in _NAMED_DATES)), None)
    clock = _TIME_OF_DAY.search(text)
    if date is None or clock is None:
        return None
    offset = _OFFSET.search(text)
    rest = text[: date.start()] + date.groupdict().get("between", "") + text[date.end() :]
    if _NO_ZONE.sub("", _TIME_OF_DAY.sub("", rest)):
        return None
    hour, _, minutes = clock["clock"].replace(",", ".").partition(":")
    hours = int(hour) % 12 + 12 * (clock["half"] == "PM") if clock["half"] else int(hour)
    month = _MONTHS.index(date["month"]) + 1
    zone = offset["offset"] if offset else "+00:00"
    return f"{date['year']}-{month:02d}-{int(date['day']):02d}T{hours:02d}:{minutes}{zone}"
