"""Values in JSON of other programs, read with care. Pure."""

from typing import Any


def whole(value: Any) -> int | None:
    """A count, also when it is given as text; `None` for anything else."""
    if type(value) is int:
        return value if -1 <= value < 2**62 else None
    if type(value) is str and len(value) <= 18 and value.removeprefix("-").isdigit() and value.isascii():
        return int(value) if int(value) >= -1 else None
    return None


def number(value: Any) -> float | None:
    """A finite number; `None` for anything else."""
    if type(value) in (int, float) and -1e300 < value < 1e300:
        return float(value)
    return None


def text(value: Any, longest: int = 200) -> str:
    """A short printable text; empty for anything else."""
    if type(value) is not str:
        return ""
    short = value[:longest]
    return short if short.isprintable() else "".join(letter for letter in short if letter.isprintable())
