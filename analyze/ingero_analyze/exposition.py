"""Reads text formats of Prometheus with times as rows: of exporters, OpenMetrics, and of `promtool tsdb dump`."""

import re
from collections.abc import Iterator
from typing import Final

from ingero_analyze.histogram_means import with_means
from ingero_analyze.json_tables import MOST_BYTES, Fail, LineStream, Row

_LABEL: Final = r'[a-zA-Z_][a-zA-Z0-9_]*\s*=\s*"(?:[^"\\]|\\.)*"'
_SAMPLE: Final = re.compile(
    rf"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)?(?:\{{\s*(?P<labels>{_LABEL}(?:\s*,\s*{_LABEL})*)?\s*,?\s*\}})?\s+"
    r"(?P<value>[+-]?(?:[0-9][0-9.eE+-]*|\.[0-9]+|[Ii]nf|[Nn]a[Nn]))(?:\s+(?P<time>-?[0-9][0-9.eE+]*))?"
    r"(?:\s+#.*)?\s*"
)
"""A line of a sample, with labels or a time; an exemplar may follow."""

_NAMED: Final = re.compile(
    rf"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)?\s*\{{\s*(?P<labels>{_LABEL}(?:\s*,\s*{_LABEL})*)\s*,?\s*\}}"
)
"""A series with its labels."""

_PAIR: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')

_RANGE: Final = re.compile(r"([A-Za-z_:{][^=\s{]*(?:\{.*\})?|\{.*\}) =>\s*")
_POINT: Final = re.compile(r"(?P<value>\S+) @\[(?P<time>[0-9.]+)\]")
"""A series and its points, as `promtool query range` prints them."""

_TAGS: Final = re.compile(r"[A-Za-z_]\w*=[^,=]+(?:,[A-Za-z_]\w*=[^,=]*)*")
"""Tags as the command line of InfluxDB writes them in a cell: host=n1,rack=2."""


def is_exposition(line: bytes) -> bool:
    """Whether a file that begins with this line is in such a format."""
    text = line.decode("utf-8", "replace")
    if text.startswith(("# HELP ", "# TYPE ", "# UNIT ")):
        return True
    found = _SAMPLE.fullmatch(text)
    return bool((found and found["labels"]) or _RANGE.fullmatch(text))


def rows_of(first: bytes, stream: LineStream, fail: Fail) -> Iterator[tuple[int, Row]]:
    """Samples with their numbers of lines, and means of histograms. Those without a time are no rows of a history."""
    return with_means(_samples(first, stream, fail))


def _samples(first: bytes, stream: LineStream, fail: Fail) -> Iterator[tuple[int, Row]]:
    number, line = 1, first
    series: Row = {}
    while line:
        text = line.decode("utf-8", "replace").strip()
        if head := _RANGE.fullmatch(text):
            series = labels_of(head[1]) or {"__name__": head[1]}
        elif point := _POINT.fullmatch(text):
            yield number, {"time": point["time"], "value": point["value"], **series}
        elif text and not text.startswith("#"):
            found = _SAMPLE.fullmatch(text)
            if found is None or not (found["name"] or found["labels"]):
                fail("this line is no sample of a metric", number)
            elif found["time"] is None:
                fail("this sample has no time: one scrape of an exporter is no history", number)
            else:
                labels = {name: _unescaped(value) for name, value in _PAIR.findall(found["labels"] or "")}
                named = {"__name__": found["name"]} if found["name"] else {}
                yield number, {"time": found["time"], "value": found["value"], **named, **labels}
        number, line = number + 1, stream.readline(MOST_BYTES)


def labels_of(cell: str) -> Row | None:
    """The labels of a series, and its name as `__name__`, of `name{label="value"}`, or its tags, of `tag=value`;
    `None` for anything else."""
    if _TAGS.fullmatch(cell.strip()):
        return dict(pair.split("=") for pair in cell.strip().split(",") if "=" in pair)
    found = _NAMED.fullmatch(cell.strip())
    if found is None:
        return None
    named = {"__name__": found["name"]} if found["name"] else {}
    return named | {name: _unescaped(value) for name, value in _PAIR.findall(found["labels"])}


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], text)
