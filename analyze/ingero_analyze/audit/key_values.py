"""Results in lines of `name=value`, as scripts and services log them (logfmt). Pure."""

import re
from itertools import islice
from typing import Final

from ingero_analyze.audit.columns import ROLES, is_value, words_of
from ingero_analyze.json_tables import Row, names_of
from ingero_analyze.tables import Rows

LOOKED_AT: Final = 256
"""Lines by which such a text is known."""

FEWEST_PAIRS: Final = 2
"""Pairs of a line of results."""

_NAME: Final = r"[A-Za-z_][\w./%-]*"
_PAIR: Final = re.compile(
    rf"(?:^|(?<=[\s,;|\[({{]))({_NAME})=(?:\"([^\"]*)\"|([^\s\"]\S*?))(?=[,;|\])}}]{{0,3}}(?:\s|$)|[,;|]\s*{_NAME}=)"
)
_WRITTEN: Final = re.compile(
    r"(?:<\d+>)?\[?(?:(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)|"
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)\]? (?:(\S+) [\w./-]+(?:\[\d+\])?: )?"
)
"""When a line was written (without a year, it is no date), and the host that syslog and journald write behind it."""


def rows_of_pairs(text: str) -> Rows | None:
    """Columns and rows, with line numbers; None for a text that does not begin with such a line, or has few of them.

    A line that does not name its node is of the host that wrote it.
    """
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    begin = [len(_row(line)) >= FEWEST_PAIRS for _, line in islice(lines, LOOKED_AT)]
    if not begin or not begin[0] or 2 * sum(begin) < len(begin):
        return None
    rows = [(number, row) for number, line in lines if (row := _row(line))]
    return names_of(row for _, row in rows), iter(rows)


def are_results(text: str) -> bool:
    """Whether a text, or the begin of one, is of this kind, with a value and the GPU or node that it is of."""
    found = rows_of_pairs(text)
    names = found[0] if found else []
    return any(map(is_value, names)) and not {*ROLES["gpu"], *ROLES["node"]}.isdisjoint(map(words_of, names))


def _row(line: str) -> Row:
    """The pairs of a line, with when and where it was written; empty if these are too few."""
    row = {name: quoted or bare for name, quoted, bare in _PAIR.findall(line)}
    if len(row) < FEWEST_PAIRS:
        return {}
    known = set(map(words_of, row))
    written = _WRITTEN.match(line)
    time, host = written.groups() if written else (None, None)
    if time and known.isdisjoint(ROLES["time"]):
        row["timestamp"] = time
    if host and known.isdisjoint(ROLES["node"]):
        row["host"] = host
    return row
