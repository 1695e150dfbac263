"""Reads JSON as rows of text: an object a line, an array of objects, what pandas writes, an answer of Prometheus, a
trace in Chrome's format."""

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, Protocol

from ingero_analyze import chrome_tables
from ingero_analyze.database_json import rows_of_database
from ingero_analyze.histogram_means import with_means
from ingero_analyze.keyed_json import is_time, rows_by_host, rows_by_name, rows_by_time, with_lists
from ingero_analyze.monitor_json import batch_of, document_of, rows_of_monitor
from ingero_analyze.otlp_points import Totals, rows_of_request
from ingero_analyze.python_literals import read_printed
from ingero_analyze.series_json import rows_of_columns, rows_of_lists, rows_of_series

NUMBERS: Final = frozenset(("id", "index", "number"))
MACHINES: Final = frozenset(("node", "host", "server", "machine"))
"""Names in objects of a list that say nothing without the name of the list, and lists whose objects have a `name`."""

MEMBERS: Final = frozenset(("ranks", "nodes", "hosts", "gpus", "devices", "workers", "machines", "servers"))
"""Names of lists of objects in a line each of which is a row."""

MOST_BYTES: Final = 512 << 20
"""Bytes of a document, which is parsed at once; objects of a line each may be more together."""


class LineStream(Protocol):
    """Bytes that can be read by line."""

    def read(self, size: int, /) -> bytes:
        """At most so many bytes."""

    def readline(self, size: int, /) -> bytes:
        """A line of at most so many bytes."""


_RANK: Final = re.compile(r"(?:rank[ _-]?)?\d{1,7}", re.IGNORECASE)
"""Names of the lists in an object that are those of ranks."""

Row = dict[str, str]
Fail = Callable[[str, int], None]
"""Takes what is wrong in a row, and its number; rows of a document are counted from 1. It may raise."""

IsValue = Callable[[str], bool]
"""Whether a cell of this name is what was measured."""


def rows_of(
    first: bytes, stream: LineStream, fail: Fail, is_value: IsValue | None = None
) -> Iterator[tuple[int, Row]]:
    """Rows with their numbers; `first`: what of the stream was read already, the begin of its first line.

    With `is_value`, an object with a list of results, such as a node with its GPUs, is a row for each of them.
    """
    if not first.endswith(b"\n"):
        first += stream.readline(MOST_BYTES)
    try:
        whole = json.loads(first)
    except (ValueError, RecursionError):
        whole = None
    if isinstance(whole, dict):
        begun = [first, stream.readline(MOST_BYTES)]
        while begun[-1] and not begun[-1].strip():
            begun.append(stream.readline(MOST_BYTES))
        if begun[-1]:
            yield from _lines(begun, stream, fail, is_value)
            return
    if whole is None:
        document = first + stream.read(MOST_BYTES + 1 - len(first))
        if len(document) > MOST_BYTES:
            fail(f"a document may have {MOST_BYTES >> 20} MiB; write an object a line", 1)
            return
        try:
            whole = _parsed(document)
        except (ValueError, RecursionError) as error:
            if document.lstrip()[:1] == b"{":
                yield from _lines((), io.BytesIO(document), fail, is_value)
            else:
                fail(f"no JSON object, though it begins like JSON: {error}", 1)
            return
    yield from enumerate(_objects(whole, is_value), 1)


def _parsed(document: bytes) -> Any:
    """A document, or what Python prints of one; of Chrome's format also a list of events without its end, which is
    optional there."""
    try:
        return json.loads(document)
    except ValueError:
        if document.lstrip()[:1] != b"[":
            raise
        if b'"ph"' in document:
            return json.loads(document.rstrip().rstrip(b",") + b"]")
        try:
            return read_printed(document.decode())
        except ValueError:
            pass
        raise


def names_of(rows: Iterable[Row]) -> list[str]:
    """The names of all cells, in order of their first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _lines(
    begun: Sequence[bytes], stream: LineStream, fail: Fail, is_value: IsValue | None
) -> Iterator[tuple[int, Row]]:
    rest = iter(lambda: stream.readline(MOST_BYTES), b"")
    totals: Totals = {}
    for number, line in enumerate(chain(begun, rest), 1):
        if line.strip():
            if (found := _object(line)) is None:
                fail("this line is no JSON object", number)
            elif (points := rows_of_request(found, totals)) is not None:
                yield from ((number, _flat(each)) for each in points)
            else:
                spread = with_lists(document_of(found))
                if metrics := batch_of(found):
                    yield from ((number, _flat(each)) for each in metrics)
                    continue
                listed = spread != found or not MEMBERS.isdisjoint(spread)
                if is_value is None:
                    rows = _values_of(_unnested([spread]) if listed else [spread])
                else:
                    rows = map(_with_brackets, _unfolded(spread, is_value))
                yield from ((number, _flat(each)) for each in rows)


def _values_of(found: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row for each value of objects that hold lists of these."""
    return chain.from_iterable(map(rows_of_columns, found))


def object_of(text: bytes) -> Row | None:
    """A JSON object, or what Python prints of a dictionary, as a row; `None` for anything else."""
    found = _object(text)
    return None if found is None else _flat(found)


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        try:
            found = read_printed(text.decode())
        except (ValueError, RecursionError):
            return None
    return found if isinstance(found, dict) else None


def _series(whole: Any) -> list[Any]:
    """The series or streams of an answer of Prometheus or Loki, or of a list of series; empty for anything else."""
    data = whole.get("data") if isinstance(whole, dict) else None
    result = data.get("result") if isinstance(data, dict) else whole
    if not isinstance(result, list):
        return []
    found = [each for each in result if isinstance(each, dict)]
    return found if data or all(_is_object(each.get("metric")) and "values" in each for each in found) else []


def _points(series: list[Any]) -> Iterator[Row]:
    """A row for each point of series with its labels, or for each line of streams."""
    for one in series:
        value = "line" if "stream" in one else "value"
        labels = _flat(one.get("metric") or one.get("stream") or {})
        for point in one.get("values") or [one.get("value")]:
            if isinstance(point, list) and len(point) >= 2:
                yield {"time": _text(point[0]), value: _text(point[1]), **labels}


def _objects(whole: Any, is_value: IsValue | None) -> Iterator[Row]:
    """The rows of a whole document."""
    if series := _series(whole):
        yield from _points(series) if is_value else (row for _, row in with_means(enumerate(_points(series))))
        return
    if isinstance(whole, list) and whole and all(isinstance(each, list) for each in whole):
        yield from map(_flat, rows_of_lists(whole))
        return
    if (answer := rows_of_monitor(whole) or rows_of_database(whole)) is not None:
        yield from map(_flat, answer)
        return
    if (events := chrome_tables.events_of(whole)) is not None:
        yield from (_flat(each) for each in chrome_tables.rows_of(events))
        return
    if isinstance(whole, dict) and (points := rows_of_request(whole)) is not None:
        yield from map(_flat, points)
        return
    if isinstance(whole, dict) and (keyed := rows_by_host(whole)) is not None:
        whole = keyed
    elif isinstance(whole, dict):
        named = rows_by_name(whole) if is_value else rows_by_time(whole) or rows_of_series(whole)
        whole = whole if named is None else named
    if isinstance(whole, dict):
        rows = _unfolded(whole, is_value, alone=True)
        whole = rows if rows != [whole] or _values(whole, is_value) else _of_columns(whole)
    found = [with_lists(each) for each in whole if isinstance(each, dict)]
    if is_value is None:
        yield from map(_flat, _values_of(_unnested(_unnested(found))))
        return
    yield from (_flat(_with_brackets(row)) for each in found for row in _unfolded(each, is_value))


def _unfolded(found: dict[str, Any], is_value: IsValue | None, *, alone: bool = False) -> list[dict[str, Any]]:
    """The objects of the only list of such in an object, each with what is around them; else the object itself.

    They are rows if they have a value, or if the object is `alone` and has none itself. Their cells count before
    those around, of which values are left out.
    """
    if is_value is None:
        return [found]
    cells = _spread(found)
    inner = [name for name, cell in cells.items() if isinstance(cell, list) and any(map(_is_object, cell))]
    if len(inner) != 1:
        return [found]
    objects = (_of_list(inner[0], each) for each in cells.pop(inner[0]) if _is_object(each))
    rows = [row for each in objects for row in _unfolded(each, is_value)]
    values = _values(cells, is_value)
    if not any(_values(_spread(row), is_value) for row in rows) and (values or not alone):
        return [found]
    around = {name: cell for name, cell in cells.items() if name not in values}
    return [around | row for row in rows]


def _values(found: dict[str, Any], is_value: IsValue | None) -> set[str]:
    """The names of single cells that were measured."""
    single = (name for name, cell in found.items() if not isinstance(cell, list | dict))
    return set(filter(is_value, single)) if is_value else set()


def _is_object(cell: Any) -> bool:
    return isinstance(cell, dict)


def _spread(found: dict[str, Any]) -> dict[str, Any]:
    """The cells of an object, with those of objects within named after both."""
    spread: dict[str, Any] = {}
    for name, cell in found.items():
        spread |= {f"{name}.{within}": each for within, each in cell.items()} if _is_object(cell) else {name: cell}
    return spread


def _of_list(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """An object of a list, such as `gpus`, with numbers and names that say of what: `index` is the `gpu index`."""
    one = name.rpartition(".")[2].removesuffix("s")
    named = NUMBERS if one.lower() not in MACHINES else {*NUMBERS, "name"}
    return {f"{one} {name}" if name.lower() in named else name: cell for name, cell in found.items()}


def _unnested(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The objects of a list in each object, with the other cells of that one, if all have them under one name."""
    names = {
        name for each in found[:1] for name, cell in each.items() if isinstance(cell, list) and _are_objects(cell)
    }
    if len(names) != 1:
        return found
    [name] = names
    if not all(
        isinstance(each.get(name), list) and all(isinstance(row, dict) for row in each[name]) for each in found
    ):
        return found
    return [
        {
            **{other: each[other] for other in each if other != name},
            **(_of_list(name, row) if name in MEMBERS else row),
        }
        for each in found
        for row in each[name]
    ]


def _are_objects(cells: list[Any]) -> bool:
    return bool(cells) and all(isinstance(cell, dict) for cell in cells)


def _of_columns(whole: dict[str, Any]) -> list[Any]:
    """The objects in an object: those of each rank, the only list in it, its columns or rows as pandas writes them,
    else it alone."""
    cells = list(whole.values())
    lists = [cell for cell in cells if isinstance(cell, list)]
    names, data = whole.get("columns"), whole.get("data")
    if isinstance(names, list) and isinstance(data, list) and all(isinstance(row, list) for row in data):
        index = whole.get("index")
        if isinstance(index, list) and len(index) == len(data) and index != list(range(len(data))):
            names, data = ["index", *names], [[cell, *row] for cell, row in zip(index, data, strict=True)]
        return [dict(zip(map(str, names), row, strict=False)) for row in data]
    if len(lists) == 1 and any(isinstance(each, dict) for each in lists[0]):
        name = next(name for name, cell in whole.items() if cell is lists[0])
        member = name in MEMBERS
        return [_of_list(name, each) if member and isinstance(each, dict) else each for each in lists[0]]
    if lists and len(lists) == len(cells) and all(map(_RANK.fullmatch, whole)) and all(map(_are_objects, lists)):
        return [{"rank": name, **each} for name, rows in whole.items() for each in rows]
    if len(cells) > 1 and len(lists) == len(cells) and len({len(each) for each in lists}) == 1:
        return [dict(zip(whole, row, strict=True)) for row in zip(*lists, strict=True)]
    if cells and all(isinstance(cell, dict) and cell for cell in cells):
        if all(name.isdecimal() for name in whole):
            return cells
        if all(name.isdecimal() or is_time(name) for cell in cells for name in cell):
            numbers = dict.fromkeys(number for cell in cells for number in cell)
            index = all(map(is_time, numbers))
            return [
                ({"index": number} if index else {}) | {name: cell.get(number) for name, cell in whole.items()}
                for number in numbers
            ]
    return [whole]


def _with_brackets(found: dict[str, Any]) -> dict[str, Any]:
    """The cells with lists of numbers as they are in JSON: with commas alone, 701 and 697 could be 701697."""
    return {name: json.dumps(cell) if _are_numbers(cell) else cell for name, cell in _spread(found).items()}


def _are_numbers(cell: Any) -> bool:
    return isinstance(cell, list) and all(isinstance(each, int | float) for each in cell)


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
    """A value as text, a list of texts and numbers with commas; with question marks for lone surrogates, which JSON
    may hold and no output can."""
    if cell is None:
        return ""
    if isinstance(cell, list) and not any(isinstance(each, list | dict) for each in cell):
        return ",".join(map(_text, cell))
    text = cell if isinstance(cell, str) else json.dumps(cell)
    return text if text.isascii() else text.encode(errors="replace").decode()


def columns_of(rows: Sequence[Row], names: Sequence[str]) -> dict[str, Any]:
    """Rows as columns of Arrow, empty where a row has no such cell."""
    import pyarrow as pa

    return {name: pa.array([row.get(name, "") for row in rows], pa.string()) for name in names}
