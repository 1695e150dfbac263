"""Cells of a column as numbers, where some cells may be missing or anything else. Pure."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingero_analyze.audit.columns import SECONDS
from ingero_analyze.table_batch import is_text

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

MISSING: Final = (
    "", "-", "na", "n/a", "n.a.", "#n/a", "nan", "+nan", "-nan", "null", "none", "nil", "unknown",
    "undefined", "no data", "inf", "+inf", "-inf", "infinity", "+infinity", "-infinity",
)  # fmt: skip
"""Cells, in lower case, that say that there is no number, as do words in brackets: [N/A], <unknown>."""

_LARGEST: Final = [2.0**bits - 1 for bits in (15, 16, 31, 32, 63, 64)]
_DCGM_BLANK: Final = [
    float(base + reason) for base in (0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0, 1 << 47) for reason in range(4)
]
NO_VALUE: Final = np.unique(np.concatenate([np.array(_LARGEST + _DCGM_BLANK, kind) for kind in ("f4", "f8")]))
"""Numbers that stand for a missing one: the largest of a type of integers, and what DCGM calls blank, not found, not
supported and not permitted (dcgm_structs.h), also as single floats."""

_BRACKETED: Final = r"^(\[[^\[\]0-9]*\]|<[^<>0-9]*>)$"

FEW: Final = 3
"""Cells of a form that are no exception."""

FEWEST_ROUNDED: Final = 100
"""Values that show to which unit they are rounded."""

_GROUPS: Final = r"^[+-]?[1-9][0-9]{0,2}([,'\x{2019}\x{a0}\x{202f} ][0-9]{3})+(\.[0-9]*)?$"
"""Numbers with separators of thousands: 1,144.8."""

_NUMBER: Final = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_DECIMAL_COMMA: Final = r"^[+-]?([0-9]+|[1-9][0-9]{0,2}([.' \x{a0}\x{202f}][0-9]{3})+),[0-9]+([eE][+-]?[0-9]+)?$"
"""Numbers with a comma of decimals: 1144,8 and 1.144,8."""

_UNIT: Final = r"^.*?[0-9.](?P<unit>\s*[%A-Za-z\x{b5}\x{3bc}\x{b0}][%A-Za-z\x{b5}\x{3bc}\x{b0}/ .]*)$"
"""What follows a number: 98 %, 1980 MHz, 1.2s/it."""

_PREFIXES: Final = {
    "": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "Mil": 1e6, "G": 1e9, "Bil": 1e9, "T": 1e12, "Tri": 1e12,
}  # fmt: skip
"""What dashboards put before a unit, or behind a number without one, by how large the number is."""


_TIMES: Final = {"s": "s", "ms": "ms", "us": "us", "\xb5s": "us", "\u03bcs": "us", "ns": "ns", "min": "min"}
"""Units of time that may differ in one column, and their plain names."""


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
    lasting: bool = False
    """Whether they are times since a start, or of a day without a date."""


@dataclass(frozen=True)
class Form:
    """How the cells of a column write numbers: with a comma of decimals, and with one unit behind all of them."""

    comma: bool = False
    unit: str = ""


def form_of(column: Any) -> Form:
    """The form of a column by its first cells, whose units may differ by their prefix: 1.03 s and 987 ms."""
    import pyarrow.compute as pc

    if not is_text(column):
        return Form()
    column = pc.utf8_trim_whitespace(column)
    column = column.filter(pc.and_not(pc.match_substring_regex(column, "[0-9]"), is_missing(column)))
    units = _units(column)
    unit = str(units[0].as_py()) if len(units) else ""
    known = [str(one) for one in pc.unique(units).to_pylist()]
    if any(_factor(one, unit) is None for one in known):
        unit = ""
    else:
        column = _without_units(column, units, known)
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
    column = pc.utf8_trim_whitespace(column)
    if form.unit:
        column, factors = _in_unit(column, form.unit)
        cells = _numbers(_with_points(column) if form.comma else column)
        return Cells(cells.values * factors, cells.wrong)
    return _numbers(_with_points(column) if form.comma else column)


def _numbers(column: Any) -> Cells:
    """Numbers of text without the unit that the first ones have; later ones may have a prefix, as 1.03 K has."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        return Cells(_finite(pc.cast(column, pa.float64())), np.zeros(len(column), np.bool_))
    except pa.ArrowInvalid:
        pass
    column, factors = _in_unit(column, "")
    column = _without_separators(column)
    missing = is_missing(column)
    usable = pc.match_substring_regex(column, _NUMBER)
    found = pc.cast(pc.utf8_ltrim(pc.if_else(usable, column, None), "+"), pa.float64())
    return Cells(_finite(found) * factors, ~np.asarray(pc.or_(missing, usable)))


def is_missing(column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    known = pc.is_in(pc.utf8_lower(column), value_set=pa.array(MISSING))
    return pc.or_(known, pc.match_substring_regex(column, _BRACKETED))


def _units(column: Any) -> Any:
    """What follows the number of each cell, "" if nothing does."""
    import pyarrow.compute as pc

    return pc.fill_null(pc.struct_field(pc.extract_regex(column, _UNIT), "unit"), "")


def _factor(unit: str, of: str) -> float | None:
    """How many units `of` are one unit; `None` if they are not of the same."""
    unit, of = unit.strip(), of.strip()
    if unit == of:
        return 1.0
    if unit in _TIMES and of in _TIMES:
        return SECONDS[_TIMES[unit]] / SECONDS[_TIMES[of]]
    found = (
        mine / other
        for prefix, mine in _PREFIXES.items() if unit.startswith(prefix)
        for its, other in _PREFIXES.items() if of.startswith(its)
        if unit.removeprefix(prefix).strip() == of.removeprefix(its).strip()
    )  # fmt: skip
    return next(found, None)


def _in_unit(column: Any, unit: str) -> tuple[Any, Floats]:
    """A column without units at the end of its cells, as far as these are of `unit`, and by what numbers are to be
    multiplied. A number without a unit has this one, unless that is a prefix alone."""
    import pyarrow.compute as pc

    units = _units(column)
    each, known = np.ones(len(column)), []
    for one in map(str, pc.unique(units).to_pylist()):
        factor = _factor(one, unit)
        if factor is not None:
            known.append(one)
            each[np.asarray(pc.equal(units, one))] = factor
    return _without_units(column, units, known), each


def _without_units(column: Any, units: Any, known: list[str]) -> Any:
    """A column without those of its `units` that are `known`."""
    import pyarrow.compute as pc

    for one in filter(None, known):
        column = pc.if_else(pc.equal(units, one), pc.utf8_slice_codeunits(column, 0, -len(one)), column)
    return column


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
