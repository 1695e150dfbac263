"""Cells of results as numbers with the units that follow them. Pure."""

import math
import re
from typing import Final

from ingero_analyze.audit.columns import unit_of

MISSING: Final = frozenset(
    ("", "-", "na", "n/a", "nan", "null", "none", "[n/a]", "[not supported]", "not available", "unknown", "?")
)
_BRACKETED: Final = re.compile(r"\[[^\[\]\d]*\]|<[^<>\d]*>")
"""What stands in place of a number: [Unknown Error], <unknown>."""
_CELL: Final = re.compile(r"([-+]?(?:[\d.,'’_\s]*\d\.?)(?:[eE][-+]?\d+)?)\s*(\D*)")
_NUMBER: Final = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_THOUSANDS: Final = re.compile(r"[-+]?\d{1,3}([,'’_\s])\d{3}(?:\1\d{3})*(?:\.\d+)?")
_POINT_THOUSANDS: Final = re.compile(r"[-+]?\d{1,3}(?:\.\d{3})+,\d+")
_DECIMAL_COMMA: Final = re.compile(r"[-+]?\d+,\d+")
_CLOCK: Final = re.compile(r"(?:(\d+):)?(\d{1,3}):(\d\d(?:[.,]\d+)?)")
_DURATION: Final = re.compile(r"(?=\d+[hm])(?:(\d+)h)?(?:(\d+)m)?(\d+(?:\.\d+)?)s")


def quantity_of(text: str) -> tuple[float, str] | None:
    """The finite number in a cell, and the unit that may follow it; None if it is missing.

    Durations such as 1:34.20 and 1m34.2s are in seconds. `ValueError` if it is no number, or no known unit follows.
    """
    text = text.strip()
    if _NUMBER.fullmatch(text) and math.isfinite(float(text)):
        return float(text), ""
    if text.lower() in MISSING or _BRACKETED.fullmatch(text):
        return None
    duration = _CLOCK.fullmatch(text) or _DURATION.fullmatch(text)
    if duration:
        hours, minutes, seconds = (float((part or "0").replace(",", ".")) for part in duration.groups())
        return 3600 * hours + 60 * minutes + seconds, "s"
    cell = _CELL.fullmatch(text)
    value = _value(cell.group(1)) if cell else math.nan
    if cell is None or not math.isfinite(value):
        raise ValueError(f"{text[:40]!r} is not a number")
    follows = cell.group(2).strip()
    unit = unit_of(follows) if follows else ""
    if unit is None:
        raise ValueError(f"{text[:40]!r} is a number with {follows[:40]!r}, which is no known unit")
    return value, unit


def _value(text: str) -> float:
    """The number in a text without unit; NaN if it is none."""
    thousands = _THOUSANDS.fullmatch(text)
    if thousands:
        text = text.replace(thousands.group(1), "")
    elif _POINT_THOUSANDS.fullmatch(text):
        text = text.replace(".", "").replace(",", ".")
    elif _DECIMAL_COMMA.fullmatch(text):
        text = text.replace(",", ".")
    return float(text) if _NUMBER.fullmatch(text) else math.nan
