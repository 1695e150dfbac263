"""Reads lines of names with their values, such as `iter 30: loss 8.7970, time 812.3ms`, and what launchers put before
lines. Pure."""

import re
from typing import Final

from ingero_analyze.audit.columns import SECONDS
from ingero_analyze.json_tables import Row

FEWEST: Final = 2
"""Numbers in a line from which it is one of values."""

LONGEST: Final = 4096
"""Characters of a line; a longer one is none of values."""

_TRIED: Final = 8
"""Places of a line behind which values may begin."""

_WORD: Final = r"(?!(?:nan|NaN|inf)\b)[A-Za-z_(][^\s,|;:=\[\]]*"
_DIGITS: Final = r"[-+]?(?:(?:\d[\d,]*)?\.?\d+(?:[eE][-+]?\d+)?|nan|NaN|inf)"
_UNIT: Final = r"[A-Za-z%µ][\w/%]*"
_NAME: Final = re.compile(rf"({_WORD}(?: {_WORD})*)\s*([:=]?)\s*")
_TOKEN: Final = r"(?:[^\s,|;()\[\]]|,(?=\d{3}(?!\d)))*[^\s,|;:()\[\]]"
_APART: Final = rf"(?: {_UNIT}(?=\s*(?:[,|;\t\]]|\s\s|$)))?"
"""A unit behind a blank, which nothing but the end of a value follows."""

_BEHIND: Final = r"(?:/\s*\d+)?(?:\s*\([^()]*\))?(?:[\s,|;:\[\]-]+|$)"
"""Of how many a number is one, and its average or so in brackets; then the next name or the end."""

_SAID: Final = re.compile(rf"({_TOKEN}{_APART}){_BEHIND}")
"""A value behind a colon or an equals sign: one word, with its unit."""

_NUMBER: Final = re.compile(rf"({_DIGITS}(?:{_UNIT})?{_APART}){_BEHIND}")
"""A value behind a blank: a number with its unit."""

_COUNTED: Final = re.compile(rf"({_DIGITS}) ?({_UNIT}){_BEHIND}")
"""A number without a name, which its unit gives it."""

_MEASURED: Final = {"C": "temperature", "W": "power", "MHz": "clock"}
"""What a number without a name is by its unit, where that is not its unit's name."""

_IS_NUMBER: Final = re.compile(rf"{_DIGITS} ?(?:{_UNIT})?")

_TIMED: Final = re.compile(rf"([-+]?(?:\d+\.?\d*|\.\d+)) ?({'|'.join(SECONDS)})")

_COLOURS: Final = re.compile(r"\x1b\[[\d;]*m")

_LAUNCHER: Final = re.compile(
    r"\[(?:[a-z]+|\d+,)(?P<rank>\d+)\](?:<\w+>)?: ?|\s*(?P<task>\d{1,6}): (?=\s*[A-Za-z_\[])"
    r"|(?P<host>(?!(?:epoch|step|iter|iteration|batch|rank|gpu|device|run)\d(?!\S*: (?i:gpu)\b))"
    r"[A-Za-z][\w.-]*\d[\w.-]*): "
)
"""What torchrun, mpirun, srun and pdsh put before each line of a process, or of a host. This may be called gpu12
where a GPU follows."""

_PLACE: Final = re.compile(
    r"(?:epoch:? ?\[(?P<epoch>\d+)\]\s*)?\[\s*(?P<step>\d+)(?:/\s*(?P<of>\d+))?\]", re.IGNORECASE
)
"""A step of an epoch and how many there are, `Epoch: [1]  [ 10/500]`, or one number in brackets."""

_LOGGER: Final = re.compile(r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):[\w.]*:| - |\]:? |: ")
"""What values may begin behind."""

_LASTS: Final = ("time", "dt", "seconds")
"""Names of how long a step took, beside its number."""

_STEPS: Final = ("step", "steps", "iter", "iteration", "completed step", "global_step")

_SINCE_1970: Final = 1e8
"""Seconds from which a number is a moment."""


def without_launcher(line: str) -> tuple[str, Row]:
    """A line without colours and without the rank or host that a launcher put before it, and this as a cell."""
    line = _COLOURS.sub("", line)
    found = _LAUNCHER.match(line)
    if found is None:
        return line, {}
    rank = found["rank"] or found["task"]
    return line[found.end() :], {"rank": rank} if rank else {"host": found["host"]}


def values_of(line: str) -> Row:
    """The cells of a line that has nothing but names with values, from its begin or from behind the name of a logger.

    At least `FEWEST` of them are numbers. The number of a step is called `step`, and how long it took `step_time`.
    Times with a unit are in seconds, and their names say so. Empty for any other line.
    """
    if len(line) > LONGEST:
        return {}
    line = _PLACE.sub(_step, line)
    places = [0, *(found.end() for found in _LOGGER.finditer(line))][:_TRIED]
    return next((row for place in places if (row := _items(line[place:].strip(" \t[(")))), {})


def _step(place: re.Match[str]) -> str:
    step, of = int(place["step"]), int(place["of"] or 0)
    return f" step {int(place['epoch'] or 0) * of + step}, " if of else f" {step} "


def _items(text: str) -> Row:
    row: Row = {}
    place = 0
    while place < len(text):
        if name := _NAME.match(text, place):
            found = (_SAID if name[2] else _NUMBER).match(text, name.end())
            called, value = name[1], found and found[1]
        else:
            found = _COUNTED.match(text, place)
            called, value = (_MEASURED.get(found[2], found[2]), found[1]) if found else ("", None)
        if found is None or value is None or called in row:
            return {}
        row[called] = value
        place = found.end()
    if sum(_IS_NUMBER.fullmatch(value) is not None for value in row.values()) < FEWEST:
        return {}
    steps = [name for name in row if name.lower() in _STEPS]
    if not steps:
        return dict(map(_in_seconds, row, row.values()))
    lasts = [name for name in row if name.lower() in _LASTS and _is_duration(row[name])]
    names = {**dict.fromkeys(lasts[:1], "step_time"), **({steps[0]: "step"} if len(steps) == 1 else {})}
    return dict(_in_seconds(names.get(name, name), value) for name, value in row.items())


def _in_seconds(name: str, value: str) -> tuple[str, str]:
    """A cell whose value has a unit of time, with this in its name."""
    found = _TIMED.fullmatch(value)
    return (f"{name} (s)", f"{float(found[1]) * SECONDS[found[2]]:.12g}") if found else (name, value)


def _is_duration(value: str) -> bool:
    number = re.match(_DIGITS, value)
    return number is not None and ":" not in value and float(number[0].replace(",", "")) < _SINCE_1970
