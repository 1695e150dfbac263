"""Reads lines of name=value pairs as rows: logfmt, logs with such pairs behind a time, line protocol of InfluxDB."""

import io
import re
from collections.abc import Iterator
from typing import Final

from ingero_analyze.json_tables import MOST_BYTES, Fail, LineStream, Row

_PAIR: Final = re.compile(r'(?<![^\s,;|(\[])([A-Za-z_][\w./%-]*)=(?:"((?:[^"\\]|\\.)*)"|([^\s,;|)\]]*))')
_TIME: Final = re.compile(
    r"\W*(\d{4}[-/]\d{2}[-/]\d{2}[ T_]\d{2}:\d{2}:\d{2}(?:[.,]\d+)?(?:Z|\s?[+-]\d{2}:?\d{2})?"
    r"|\d{9,19}(?:\.\d+)?(?=\W))"
)
"""What a line of a log begins with: a date and time of day, or a number of seconds or finer units since 1970."""

_SERIES: Final = re.compile(
    r"(?P<name>(?:[^\s,=\\]|\\.)+)(?P<tags>(?:,(?:[^\s\\]|\\.)+)?) (?P<fields>\S.*=.*) (?P<time>\d{9,19})\s*"
)
"""A point in line protocol: measurement, tags, fields and time."""

FEWEST: Final = 2
"""Pairs in a line from which a file is one of pairs."""


def is_pairs(line: bytes) -> bool:
    """Whether a file that begins with this line is in such a format."""
    text = line.decode("utf-8", "replace")
    if len(_PAIR.findall(text)) < FEWEST:
        return False
    return bool(_SERIES.fullmatch(text) or _TIME.match(text) or _PAIR.match(text.lstrip("[( ")))


def are_pairs(text: str) -> bool:
    """Whether half of the lines of a text or more are in such a format."""
    lines = [line for line in text.splitlines() if line.strip()]
    return 2 * sum(is_pairs(line.encode()) for line in lines) >= len(lines) > 0


def rows_of(first: bytes, stream: LineStream, fail: Fail) -> Iterator[tuple[int, Row]]:
    """The pairs of lines with their numbers, and the time at the begin or, in line protocol, the end of a line.

    `first`: what of the stream was read already. Lines without pairs are left out, as other words of a log are.
    """
    begin = io.BytesIO(first)
    number, line = 1, begin.readline() or stream.readline(MOST_BYTES)
    while line:
        line += b"" if line.endswith(b"\n") else stream.readline(MOST_BYTES)
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        row: Row = {name: _plain(quoted) or bare for name, quoted, bare in _PAIR.findall(text)}
        if row:
            if series := _SERIES.fullmatch(text):
                row = {f"{series['name']}.time" if name == "time" else name: _number(row[name]) for name in row}
                row["time"] = series["time"]
            elif "time" not in row and "ts" not in row and (time := _TIME.match(text)):
                row["time"] = time[1].replace(",", ".").replace("_", " ")
            yield number, row
        number, line = number + 1, begin.readline() or stream.readline(MOST_BYTES)


def _plain(quoted: str) -> str:
    return re.sub(r"\\(.)", r"\1", quoted)


def _number(text: object) -> str:
    """A field of line protocol without the letter of its type."""
    return re.sub(r"^(-?\d+)[iu]$", r"\1", str(text))
