"""Cells of a column as times: dates, numbers since 1970 or a start, durations, days of a spreadsheet. Pure."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from ingero_analyze.replay.cells import FEWEST_ROUNDED, Cells, Floats, form_of, is_missing, numbers
from ingero_analyze.table_batch import is_text
from ingero_analyze.tables import LATEST

EXCEL_UNIT: Final = "days of a spreadsheet"

SCALES: Final = {1.0: "seconds", 1e3: "milliseconds", 1e6: "microseconds", 1e9: "nanoseconds"}
"""Units of times since 1970, by how many are a second."""

_FINEST_FIRST: Final = (1e9, 1e6, 1e3)
_LEAST: Final = {scale: LATEST * scale / 1e3 for scale in _FINEST_FIRST}
"""Numbers that are not larger are of a coarser unit."""

EARLIEST: Final = 1e9
"""Seconds since 1970 of the year 2001. Smaller times in a unit that a name says may count from anything."""

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
_ZONES: Final = {
    "EST": "-05:00", "EDT": "-04:00", "CST": "-06:00", "CDT": "-05:00", "MST": "-07:00", "MDT": "-06:00",
    "PST": "-08:00", "PDT": "-07:00", "WET": "+00:00", "WEST": "+01:00", "BST": "+01:00", "CET": "+01:00",
    "CEST": "+02:00", "EET": "+02:00", "EEST": "+03:00", "MSK": "+03:00", "HKT": "+08:00", "SGT": "+08:00",
    "JST": "+09:00", "KST": "+09:00", "AEST": "+10:00", "AEDT": "+11:00", "NZST": "+12:00", "NZDT": "+13:00",
}  # fmt: skip
"""Zones by their names: those of RFC 5322, 4.3, and common ones of Europe, Asia and Oceania."""

_NAMED_ZONE: Final = rf"\b(?:UTC|GMT|{'|'.join(_ZONES)})\b"
_ZONE_NAME: Final = re.compile(rf"\b(?:{'|'.join(_ZONES)})\b")
_NO_ZONE: Final = re.compile(r"\b(?:MON|TUE|WED|THU|FRI|SAT|SUN)[A-Z]*|UTC|GMT|Z|[^A-Z]")
"""What besides a date and a time of day names no zone."""

_HALF_DAY: Final = re.compile(
    r"(?P<date>.*[ T])(?P<hour>[0-9]{1,2})(?P<rest>:[0-9:.]+)\s*(?P<half>[AP])\.?M\.?(?P<zone>.*)"
)
"""Times of a clock of twelve hours, in upper case: 04:00:00 PM."""

SLASHED: Final = re.compile(r"\s*[0-9]{1,2}(?P<by>[/-])[0-9]{1,2}(?P=by)(?:[0-9]{2}){1,2}\b.*")
"""Dates of which it may be open whether they begin with the day."""

FOUR_DIGITS: Final = re.compile(r"[/-][0-9]{4}\b")
_DASHES: Final = r"^([0-9]{1,2})-([0-9]{1,2})-([0-9]{4})\b"
"""Dates with dashes that end with the year: as those with slashes."""

_SLASHES: Final = r"^(?P<first>[0-9]{1,2})/(?P<second>[0-9]{1,2})/(?P<century>[0-9]{2})?[0-9]{2}\b"
_GO_ZONE: Final = r"\s*([+-][0-9]{2}:?[0-9]{2})\s+([A-Z]{3,5}|[+-][0-9]{2,4})( M=.*)?$"
"""Zones as Go prints them, in upper case: +0100 CET m=+0.01."""

_ZONE: Final = r":.*(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"


_LASTING: Final = (
    r"^(?:(?P<days>[0-9]+)(?: days?,?\s+|-))?(?P<hours>[0-9]{1,4}):(?P<minutes>[0-5][0-9]):"
    r"(?P<seconds>[0-5][0-9](?:\.[0-9]+)?)$"
)
"""Times since a start: 0:01:30, 0 days 00:01:30, 1 day, 2:00:00, 1-02:00:00. A time of day is one since midnight."""

MIDNIGHT: Final = 82_800.0
"""Seconds by which times of day fall at midnight, at least."""

_TIMES_OF_DAY: Final = re.compile(
    r"\s*\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?\s*(?:[AaPp]\.?[Mm]\.?)?(?:Z|[+-]\d{2}:?\d{2})?\s*"
)
_DATES: Final = re.compile(
    r"\s*(?:\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}|\d{8}|\d{1,2}[- ][A-Za-z]{3,9}[- ]\d{4})(?:[ T]00:00:00(?:\.0+)?)?\s*"
)

_EXPONENT: Final = r"^[0-9](?:[.,](?P<decimals>[0-9]*))?[eE][+]?(?P<exponent>[0-9]{1,2})$"

EXCEL: Final = (36_526.0, 73_050.0)
"""Days by which Excel counts from 1899-12-30: those of the years 2000 to 2099."""

EXCEL_1970: Final = 25_569.0
DAY: Final = 86_400.0
DENSE: Final = 500.0
"""Rows in a unit of the time from which it is a day, where its numbers may be those of Excel."""


@dataclass(frozen=True)
class Clock:
    """How many of the numbers of a column are a second, and whether they count from 1970; `named`: its name says how
    many, else each is taken by its size, because files of several writers hold several units."""

    per_second: float
    since_1970: bool
    named: bool
    day_first: bool | None = None
    """Whether dates with slashes begin with the day, as 24/11/2025, or with the month; `None` if no date tells."""
    excel: bool = False
    """Whether they are Excel's numbers of days."""
    misnamed: bool = False
    """Whether its name says milliseconds, which would be of the first weeks of 1970, or begin weeks after a start,
    while as seconds they are dates."""


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
        return lasting(column) or _iso(column, clock.day_first)
    found = numbers(column, form_of(column))
    if clock.excel:
        seconds = np.round((found.values - EXCEL_1970) * DAY, 3)
        return Cells(seconds, found.wrong, calendar=True, zoneless=True, units=(EXCEL_UNIT,))
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
    usual, least, day_first, excel = 0.0, 0.0, None, False
    if is_text(column) and _is_iso(column):
        day_first = _day_first(column)
    else:
        try:
            values = np.abs(numbers(column, form_of(column)).values)
        except ValueError:
            values = np.zeros(0)
        values = values[np.isfinite(values)]
        excel = named is None and _is_excel(values)
        usual = float(np.sort(values)[len(values) // 2]) if len(values) else 0.0
        least = float(values.min()) if len(values) else 0.0
    scale = named or next((unit for unit in _FINEST_FIRST if usual > _LEAST[unit]), 1.0)
    misnamed = named == 1e3 and least > EARLIEST and usual < EARLIEST * scale
    return Clock(scale, usual > EARLIEST * scale, named is not None, day_first, excel, misnamed)


def are_dates(column: Any) -> bool:
    """Whether a column holds dates with times of day, or numbers since 1970, and not those of rows."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type) or (is_text(column) and _is_iso(column)):
        return True
    return clock_of(column, None).since_1970


def rounded_to(column: Any, clock: Clock) -> float:
    """Seconds to which numbers with an exponent are rounded, as spreadsheets write long ones: 1.76987E+12; else 0."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not is_text(column):
        return 0.0
    parts = pc.drop_null(pc.extract_regex(pc.utf8_trim_whitespace(column), _EXPONENT))
    if 2 * len(parts) <= len(column):
        return 0.0
    digits = pc.max(pc.utf8_length(pc.struct_field(parts, "decimals"))).as_py()
    exponent = pc.max(pc.cast(pc.struct_field(parts, "exponent"), pa.int64())).as_py()
    return float(10.0 ** (exponent - digits) / clock.per_second)


def _is_excel(values: Floats) -> bool:
    """Whether numbers are days as Excel counts them: of this century, with more rows a unit than any history has."""
    if not len(values) or values.min() < EXCEL[0] or values.max() > EXCEL[1]:
        return False
    return len(values) > max(DENSE * float(np.ptp(values)), FEWEST_ROUNDED)


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
    """Which part of dates with slashes is the day, by those of which one part can be no month.

    Of a year with two digits, the first part may be the year.
    """
    import pyarrow.compute as pc

    slashed = pc.replace_substring_regex(pc.utf8_trim_whitespace(column), _DASHES, r"\1/\2/\3")
    dates = pc.extract_regex(slashed, _SLASHES)
    first, second = (pc.greater(pc.cast(pc.struct_field(dates, part), "int64"), 12) for part in ("first", "second"))
    four_digits = pc.not_equal(pc.struct_field(dates, "century"), "")
    first, second = pc.any(pc.and_(first, four_digits)).as_py(), pc.any(second).as_py()
    return bool(first) if bool(first) != bool(second) else None


def _iso(column: Any, day_first: bool | None) -> Cells:
    import pyarrow.compute as pc

    column = pc.utf8_upper(pc.utf8_trim_whitespace(column))
    missing = pc.or_(is_missing(column), pc.equal(column, "NAT"))
    column = pc.if_else(missing, None, column)
    clean = np.zeros(len(column), np.bool_)
    found = _moments(column)
    if found is not None:
        return Cells(_seconds(found), clean, calendar=True)
    column = pc.replace_substring_regex(column, _COMPACT, r"\1-\2-\3T\4:\5:\6")
    column = pc.replace_substring_regex(column, _GO_ZONE, r"\1")
    column = pc.replace_substring_regex(column, r"\s*GMT([+-][0-9]{4})\s*\([A-Z .-]+\)$", r" \1")
    column = pc.replace_substring_regex(column, r"\s*(UTC|GMT)$", "Z")
    for name in _zones_in(column):
        column = pc.replace_substring_regex(column, rf"\s+{name}$", _ZONES[name])
    column = pc.replace_substring_regex(column, r"^([0-9]{4})/([0-9]{2})/([0-9]{2})\b", r"\1-\2-\3")
    column = pc.replace_substring_regex(column, r"^([0-9]{2})\.([0-9]{2})\.([0-9]{4})\b", r"\3-\2-\1")
    column = pc.replace_substring_regex(column, r"^([0-9]{2})\.([0-9]{2})\.([0-9]{2})\b", r"20\3-\2-\1")
    column = pc.replace_substring_regex(column, _DASHES, r"\1/\2/\3")
    if day_first is not None:
        year_first = r"\3-\2-\1" if day_first else r"\3-\1-\2"
        column = pc.replace_substring_regex(column, r"\b([0-9])/", r"0\1/")
        column = pc.replace_substring_regex(column, r"^([0-9]{2})/([0-9]{2})/([0-9]{4}),?", year_first)
        if not day_first:
            column = pc.replace_substring_regex(column, r"^([0-9]{2})/([0-9]{2})/([0-9]{2})\b,?", r"20\3-\1-\2")
    column = pc.replace_substring_regex(column, r"\s+([+-][0-9]{2}:?[0-9]{2})$", r"\1")
    bare = pc.invert(pc.match_substring_regex(column, _ZONE))
    zoneless = bool(pc.any(pc.and_not(bare, pc.match_substring_regex(column, _NAMED_ZONE))).as_py())
    column = pc.if_else(bare, pc.binary_join_element_wise(column, "Z", ""), column)
    found = _moments(column)
    if found is not None:
        return Cells(_seconds(found), clean, calendar=True, zoneless=zoneless)
    coded = pc.dictionary_encode(column)
    known = np.array([*(_parsed(text) for text in coded.dictionary.to_pylist()), np.nan])
    values = known[np.asarray(pc.fill_null(coded.indices, len(known) - 1))]
    return Cells(values, np.isnan(values) & ~np.asarray(missing), calendar=True, zoneless=zoneless)


def _zones_in(column: Any) -> list[str]:
    """The names of zones at the ends of texts."""
    import pyarrow.compute as pc

    ends = pc.extract_regex(column, r"\s(?P<zone>[A-Z]{3,4})$")
    return [name for name in pc.unique(pc.struct_field(ends, "zone")).to_pylist() if name in _ZONES]


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
    """A date with the name of the month in ISO 8601; `None` if it is none, or of a zone whose name is not known."""
    date = next(filter(None, (pattern.search(text) for pattern in _NAMED_DATES)), None)
    clock = _TIME_OF_DAY.search(text)
    if date is None or clock is None:
        return None
    offset = _OFFSET.search(text)
    rest = text[: date.start()] + date.groupdict().get("between", "") + text[date.end() :]
    named = _ZONE_NAME.search(rest)
    if _NO_ZONE.sub("", _ZONE_NAME.sub("", _TIME_OF_DAY.sub("", rest), 1)) or (named and offset):
        return None
    hour, _, minutes = clock["clock"].replace(",", ".").partition(":")
    hours = int(hour) % 12 + 12 * (clock["half"] == "PM") if clock["half"] else int(hour)
    month = _MONTHS.index(date["month"]) + 1
    zone = offset["offset"] if offset else _ZONES[named[0]] if named else "+00:00"
    return f"{date['year']}-{month:02d}-{int(date['day']):02d}T{hours:02d}:{minutes}{zone}"


def lasting(column: Any) -> Cells | None:
    """Times since a start, such as 0:01:30, as seconds; `None` if most cells are none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not is_text(column):
        return None
    column = pc.utf8_trim_whitespace(column)
    missing = is_missing(column)
    parts = pc.extract_regex(column, _LASTING)
    usable = pc.is_valid(parts)
    if 2 * (pc.sum(usable).as_py() or 0) <= len(column) - (pc.sum(missing).as_py() or 0):
        return None
    values = np.zeros(len(column))
    for name, seconds in (("days", DAY), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0)):
        part = pc.struct_field(parts, name)
        part = pc.cast(pc.if_else(pc.equal(part, ""), "0", part), pa.float64())
        values += seconds * np.asarray(pc.fill_null(part, np.nan), np.float64)
    return Cells(values, ~np.asarray(pc.or_(missing, usable)), lasting=True)


def with_dates(date: Any, time: Any) -> Any | None:
    """Two columns as one of dates with times of day; `None` if they hold anything else."""
    import pyarrow as pa
    import pyarrow.compute as pc

    dates, clocks = (pc.fill_null(pc.cast(column, pa.string()), "") for column in (date, time))
    first = [next(filter(None, map(str, column.to_pylist())), "") for column in (dates, clocks)]
    if not _DATES.fullmatch(first[0]) or not _TIMES_OF_DAY.fullmatch(first[1]):
        return None
    dates = pc.replace_substring_regex(pc.utf8_trim_whitespace(dates), r"[ T]00:00:00(\.0+)?$", "")
    dates = pc.replace_substring_regex(dates, r"^([0-9]{4})([0-9]{2})([0-9]{2})$", r"\1-\2-\3")
    return pc.binary_join_element_wise(dates, pc.utf8_trim_whitespace(clocks), " ")
