"""Reads JSON as rows of text: an object a line, an array of objects, or a range query's answer of Prometheus."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

MOST_BYTES: Final = 512 << 20
"""Bytes of a document, which is parsed at once; objects of a line each may be more together."""


class LineStream(Protocol):
    """Bytes that can be read by line."""

    def read(self, size: int, /) -> bytes:
        """At most so many bytes."""

    def readline(self, size: int, /) -> bytes:
        """A line of at most so many bytes."""


Row = dict[str, str]
Fail = Callable[[str, int], None]
"""Takes what is wrong in a row, and its number; rows of a document are counted from 1. It may raise."""


def rows_of(first: bytes, stream: LineStream, fail: Fail) -> Iterator[tuple[int, Row]]:
    """Rows with their numbers; `first`: what of the stream was read already, the begin of its first line."""
    if not first.endswith(b"\n"):
        first += stream.readline(MOST_BYTES)
    try:
        whole = json.loads(first)
    except ValueError:
        whole = None
    if isinstance(whole, dict) and not _series(whole):
        yield from _lines(first, stream, fail)
        return
    if whole is None:
        document = first + stream.read(MOST_BYTES + 1 - len(first))
        if len(document) > MOST_BYTES:
            fail(f"a document may have {MOST_BYTES >> 20} MiB; write an object a line", 1)
            return
        try:
            whole = json.loads(document)
        except ValueError as error:
            fail(f"no JSON: {error}", 1)
            return
    yield from enumerate(_objects(whole), 1)


def names_of(rows: Iterable[Row]) -> list[str]:
    """The names of all cells, in order of their first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _lines(first: bytes, stream: LineStream, fail: Fail) -> Iterator[tuple[int, Row]]:
    number, line = 1, first
    while line:
        if line.strip():
            try:
                found = json.loads(line)
            except ValueError:
                found = None
            if isinstance(found, dict):
                yield number, _flat(found)
            else:
                fail("this line is no JSON object", number)
        number, line = number + 1, stream.readline(MOST_BYTES)


def _series(whole: Any) -> list[Any]:
    """The series of an answer of Prometheus; empty for anything else."""
    data = whole.get("data") if isinstance(whole, dict) else None
    result = data.get("result") if isinstance(data, dict) else None
    return [each for each in result if isinstance(each, dict)] if isinstance(result, list) else []


def _objects(whole: Any) -> Iterator[Row]:
    for one in _series(whole):
        labels = _flat(one.get("metric") or {})
        for point in one.get("values") or ():
            if isinstance(point, list) and len(point) == 2:
                yield {"time": _text(point[0]), "value": _text(point[1]), **labels}
    if isinstance(whole, list):
        yield from (_flat(each) for each in whole if isinstance(each, dict))


def _flat(found: dict[str, Any], before: str = "") -> Row:
    """Cells by name; those of an object within are named after both, as in `labels.host`."""
    row: Row = {}
    for name, cell in found.items():
        if isinstance(cell, dict) and not before:
            row |= _flat(cell, f"{name}.")
        else:
            row[before + name] = _text(cell)
    return row


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    return cell if isinstance(cell, str) else json.dumps(cell)


def columns_of(rows: Sequence[Row], names: Sequence[str]) -> dict[str, Any]:
    """Rows as columns of Arrow, empty where a row has no such cell."""
    import pyarrow as pa

    return {name: pa.array([row.get(name, "") for row in rows], pa.string()) for name in names}
