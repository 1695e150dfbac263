"""Reads lines of logs as rows: logfmt, pairs, values and objects behind a time, names with values, line protocol."""

import io
import re
from collections.abc import Iterator
from typing import Final

from ingero_analyze.json_tables import MOST_BYTES, Fail, LineStream, Row, object_of
from ingero_analyze.json_tables import rows_of as json_rows
from ingero_analyze.worded_lines import values_of, without_launcher

_NAME: Final = r"[A-Za-z_][\w./%-]*"
_PAIR: Final = re.compile(
    rf'(?<![^\s,;|(\[])({_NAME})=(?:"((?:[^"\\]|\\.)*)"|((?:[^\s",;|)\]]|,(?=\d{{3}}(?!\d)))*))'
)
"""name=value, with or without quotation marks; a comma may separate thousands."""

_ENTRY: Final = re.compile(
    r"(?:^|[|,;\]]|[:-]\s)\s*([A-Za-z][^|,;:=\[\]{}\"']{0,60}?)\s*:\s+((?:(?!:\s)[^|,;=])*?)\s*(?=[|,;]|$)"
)
"""`name: value` between commas or strokes."""

_TIME: Final = re.compile(
    r"(?:\[[\w.-]+\] )?\W*(\d{4}[-/]\d{2}[-/]\d{2}[ T_]\d{2}:\d{2}:\d{2}(?:[.,]\d+)?(?:Z|\s?[+-]\d{2}:?\d{2})?"
    r"|\d{9,19}(?:\.\d+)?(?=\W))"
)
"""What a line of a log begins with: a date and time of day, or a number of seconds or finer units since 1970."""

_HOST: Final = re.compile(
    r"(?:<\d+>)?(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?P<syslog>[\w.-]+) [\w./-]+(?:\[\d+\])?: |"
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\S* (?P<journal>[\w.-]+) [\w./-]+\[\d+\]: )"
)
"""How lines of syslog and journald begin; they say by which host a line was written, and some not in which year."""

_HOSTS: Final = frozenset(("node", "host", "hostname", "node_name", "nodename", "server", "machine", "instance"))
_TIMES: Final = frozenset(("time", "ts", "timestamp", "@timestamp"))

LINES: Final = ("line", "Line", "log", "message", "msg", "MESSAGE")
"""Names of the cell of an object that holds a line of a log."""

_AGAIN: Final = "tsNs"
"""The time again, beside `Time`, of a line of a log that Grafana writes."""

_LEVEL: Final = re.compile(r"\W*(?:(?:DEBUG|INFO|WARN(?:ING)?|ERROR|NOTICE)\b\W*)?", re.IGNORECASE)

_POINT: Final = re.compile(r"((?:[^\s,=\\]|\\.)+)(?:,(?:[^\s\\]|\\.)+)? [^\s=]+=")
"""How a point in line protocol begins: measurement, tags and the name of a field."""

_TYPED: Final = re.compile(r"(-?\d+)[iu]")
"""An integer of line protocol."""

FEWEST: Final = 2
"""Cells in a line, besides its time, from which it is one of a history."""


def is_log(line: str) -> bool:
    """Whether a file that begins with this line is a log of values."""
    bare, placed = without_launcher(line)
    row = row_of(line)
    known = bool(placed) or not _TIMES.isdisjoint(row) or bool(_HOST.match(bare) or _PAIR.match(bare.lstrip("[( ")))
    return known and len(row.keys() - _TIMES - {"host", *placed}) >= FEWEST


def has_values(line: str) -> bool:
    """Whether a line among others like it is one of a log of values."""
    return is_log(line) or bool(values_of(without_launcher(line)[0]))


def are_logs(text: str) -> bool:
    """Whether half of the lines of a text or more are those of a log of values."""
    lines = [line for line in text.splitlines() if line.strip()]
    return 2 * sum(map(has_values, lines)) >= len(lines) > 0


def row_of(line: str) -> Row:
    """The cells of a line, with the time at its begin (in line protocol its end), the host that wrote it and the rank
    or host that a launcher puts before it, unless cells are called so; empty for any other line.
    """
    bare, placed = without_launcher(line.rstrip("\r\n"))
    row = _cells_of(bare)
    called = {name.lower() for name in row}
    return row and {**{name: cell for name, cell in placed.items() if name not in called}, **row}


def _cells_of(line: str) -> Row:
    row: Row = {name: _plain(quoted) or bare for name, quoted, bare in _PAIR.findall(line)}
    last = line.rstrip().rpartition(" ")[2]
    if row and last.isdecimal() and 9 <= len(last) <= 19 and (point := _POINT.match(line)):
        typed = {name: found[1] if (found := _TYPED.fullmatch(cell)) else cell for name, cell in row.items()}
        named = {f"{point[1]}.{name}" if name == "time" else name: cell for name, cell in typed.items()}
        return {**named, "timestamp": last}
    if time := _TIME.match(line):
        rest = line[time.end() :]
        begin = rest.find("{")
        held = object_of(rest[begin:].encode()) if begin >= 0 and rest.rstrip().endswith("}") else None
        bare, placed = without_launcher(_LEVEL.sub("", rest, 1))
        rest = bare if "host" in placed else _LEVEL.sub("", rest, 1)
        row = held or (not row and values_of(rest)) or {**dict(_ENTRY.findall(rest)), **row}
        if row and "host" in placed and _HOSTS.isdisjoint(row):
            row["host"] = placed["host"]
        if row and _TIMES.isdisjoint(row):
            row["timestamp"] = time[1].replace(",", ".").replace("_", " ")
    elif not row:
        row = values_of(line)
    if row and _HOSTS.isdisjoint(row) and (written := _HOST.match(line)):
        row["host"] = written["syslog"] or written["journal"]
    return row


def rows_of(first: bytes, stream: LineStream, fail: Fail) -> Iterator[tuple[int, Row]]:
    """The rows of lines with their numbers; `first`: what of the stream was read already.

    Lines without cells are left out, as other words of a log are.
    """
    begin = io.BytesIO(first)
    number, line = 1, begin.readline() or stream.readline(MOST_BYTES)
    while line:
        line += b"" if line.endswith(b"\n") else stream.readline(MOST_BYTES)
        if row := row_of(line.decode("utf-8", "replace")):
            yield number, row
        number, line = number + 1, begin.readline() or stream.readline(MOST_BYTES)


def rows_of_objects(first: bytes, stream: LineStream, fail: Fail) -> Iterator[tuple[int, Row]]:
    """The rows of JSON, with the cells of a line of a log that an object holds, as of Loki and of containers."""
    for number, row in json_rows(first, stream, fail):
        yield number, with_line(row)


def with_line(row: Row) -> Row:
    """An object with the cells of its line, but no time of this where it has one; the object itself if there is
    none."""
    text = next((row[name] for name in LINES if name in row), "")
    cells = object_of(text.encode()) if text.startswith("{") else row_of(text)
    if not cells:
        return row
    timed = not _TIMES.isdisjoint(name.lower() for name in row)
    own = {name: cell for name, cell in row.items() if name not in (*LINES, _AGAIN)}
    return {**{name: cell for name, cell in cells.items() if not (timed and name in _TIMES)}, **own}


def _plain(quoted: str) -> str:
    return re.sub(r"\\(.)", r"\1", quoted)
