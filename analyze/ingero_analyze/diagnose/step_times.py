"""Tables with a row for every step of a rank and a column for every operation, as training loops log them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ingero_analyze.audit.columns import SECONDS, split_unit, words_of
from ingero_analyze.table_batch import TableBatch
from ingero_detect.grouped import Floats, Ints

FEWEST: Final = 2
"""Columns of times from which they are those of operations: the time of a whole step alone says nothing of ranks. One
alone is, if it is that of computing."""

NOT_DONE: Final = ("", "nan", "none", "null", "n/a", "-")
"""Texts of a cell whose operation was not done in this step."""

STEP: Final = "step of the rank"
"""Name of the number of a row among those of its rank."""

_TIMES: Final = re.compile(r"(.+?) (?:time|times|duration|latency|seconds|secs)|(?:time|timing|timings|timers?) (.+)")
_WHOLE: Final = re.compile(
    r"(?:step|iter|iteration|total|elapsed|wall|batch|end to end|e2e|global|cumulative)(?: .*)?"
)
_NONE: Final = re.compile(
    r"\b(?:start|started|begin|end|ended|stop|since|until|timestamp|stamp|utc|zone|unix|epoch|remaining|eta|std|stddev|var|"
    r"timeout|per)\b"
)


_COMPUTES: Final = re.compile(
    r"(?:forward|fwd|backward|bwd|optimizer|optim|data ?load(?:er|ing)?|compute|computation|"
    r"(?:save )?(?:checkpoint|ckpt)|eval)(?: \w+)?"
)
_EXCHANGES: Final = re.compile(
    r"(?:[dtpec]p |grads? )?(?:all ?reduce|all ?gather|reduce ?scatter|all ?to ?all|broadcast|barrier|comm|"
    r"communication|sync)|wait|waiting|blocked|idle"
)
"""Names of operations that are hardly anything but times, also where nothing says so."""

_COMPUTING: Final = re.compile(r"comp|compute|computation")
"""Names of all that a rank computes."""

_NO_TIMES: Final = re.compile(r"\b(?:count|number|size|bytes?|memory|loss|flops|calls?|tokens|bandwidth|bw|norm)\b")


_LOADS: Final = re.compile(r"(?:data|batch|input)(?: ?(?:load(?:er|ing)?|wait|fetch|generator))?|load data")
"""Names of waiting for data."""

REST: Final = "rest of the step (sync)"
"""What a step is besides loading data, where nothing else of it was recorded: computing, and waiting for others."""

NOT_COMPUTING: Final = (
    "only the times of loading data and of whole steps were recorded: no rank is proven to delay the others by its "
    "data, and whether one computes longer they do not tell"
)


def operation_columns(names: Sequence[str]) -> dict[str, str]:
    """Columns with the time of an operation, and the operation; those of whole steps and of instants are none.

    Where no column says that it is a time, those with names of operations only are, if one of them computes and one
    communicates. The time of whole steps is that of `REST` where the only other one is that of loading data.
    """
    found = _said_to_be_times(names) or _loading(names)
    if found:
        return found
    words = {name: words_of(name) for name in names if not _NO_TIMES.search(words_of(name))}
    computes, exchanges = (
        {name for name, word in words.items() if kind.fullmatch(word)} for kind in (_COMPUTES, _EXCHANGES)
    )
    found = {name: word for name, word in words.items() if name in computes | exchanges}
    return found if computes and exchanges and len(set(found.values())) == len(found) else {}


def _loading(names: Sequence[str]) -> dict[str, str]:
    """The column with the time of loading data and that of whole steps, if there is one of each."""
    loads = {name: word for name in names if _LOADS.fullmatch(word := _operation_of(name))}
    whole = [name for name in names if is_of_whole_steps(name)]
    return {**loads, whole[0]: REST} if len(loads) == len(whole) == 1 else {}


def _operation_of(name: str) -> str:
    """The operation whose time a column has; empty where it is no time."""
    head, unit = split_unit(name)
    named = _TIMES.fullmatch(head)
    if (unit not in SECONDS and not named) or _WHOLE.fullmatch(head) or _NONE.search(words_of(name)):
        return ""
    return (named.group(1) or named.group(2)) if named else head


def _said_to_be_times(names: Sequence[str]) -> dict[str, str]:
    found = {name: operation for name in names if (operation := _operation_of(name))}
    own = len(found) == 1 and all(map(_COMPUTING.fullmatch, found.values()))
    return found if (own or len(found) >= FEWEST) and len(set(found.values())) == len(found) else {}


def is_of_whole_steps(name: str) -> bool:
    """Whether a column has the time of whole steps, by its name."""
    head, unit = split_unit(name)
    timed = unit in SECONDS or _TIMES.fullmatch(head)
    return bool(timed and _WHOLE.fullmatch(head) and not _NONE.search(words_of(name)))


def seconds_of(column: str, unit: str | None) -> float:
    """Seconds of the unit in the name of a column, else of `unit`, else 1."""
    return SECONDS.get(split_unit(column)[1]) or SECONDS.get(unit or "s", 1.0)


def as_operations(
    batch: TableBatch,
    operations: Mapping[str, str],
    ranks: Ints,
    unit: str | None,
    ended: dict[int, tuple[float, int]],
) -> TableBatch:
    """The batch with a row for each operation that has a time, in the order of the columns, one after another.

    Adds the columns `op`, `start` and `duration` (s), and `STEP`. `ranks`: the rank of every row. `ended`: when each
    rank ended its last row, and how many it had; it is brought up to date.
    """
    import pyarrow as pa

    texts = {column: batch.texts(column) for column in operations}
    seconds = np.stack([batch.numbers_or_nan(column) * seconds_of(column, unit) for column in operations], axis=1)
    given = np.stack([_given(column) for column in texts.values()], axis=1)
    whole = list(operations.values()).index(REST) if REST in operations.values() else None
    if whole is not None:
        loading = np.delete(seconds, whole, axis=1).sum(axis=1)
        seconds[:, whole] = np.maximum(seconds[:, whole] - np.where(np.isfinite(loading), loading, 0.0), 0.0)
    lasting = np.where(np.isfinite(seconds) & (seconds > 0), seconds, 0.0)
    begins, number = _begins(ranks, lasting.sum(axis=1), ended)
    starts = begins[:, None] + np.cumsum(lasting, axis=1) - lasting
    row, operation = np.nonzero(given)
    columns: dict[str, Any] = {
        name: column.take(pa.array(row)) for name, column in batch.columns.items() if name not in operations
    }
    names = list(operations.values())
    columns["op"] = pa.array([names[place] for place in operation.tolist()], pa.string())
    columns["start"] = pa.array(starts[row, operation])
    columns["duration"] = _durations(
        seconds[row, operation], [texts[column] for column in operations], row, operation
    )
    columns[STEP] = pa.array(number[row])
    places = row if batch.places is None else batch.places[row]
    return replace(batch, columns=columns, rows=len(row), places=places)


def _durations(seconds: Floats, texts: Sequence[Any], row: Ints, operation: Ints) -> Any:
    """Times as numbers, or as text with that of the cells that are none."""
    import pyarrow as pa

    if not np.isnan(seconds).any():
        return pa.array(seconds)
    return pa.array(
        [
            repr(value) if value == value else str(texts[place][index])
            for value, index, place in zip(seconds.tolist(), row.tolist(), operation.tolist(), strict=True)
        ]
    )


def _given(column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    words = pc.utf8_lower(pc.utf8_trim_whitespace(column))
    return ~np.asarray(pc.is_in(words, value_set=pa.array(NOT_DONE)))


def _begins(ranks: Ints, lasting: Floats, ended: dict[int, tuple[float, int]]) -> tuple[Floats, Ints]:
    """When every row begins, if those of a rank follow one another, and its number among them."""
    begins, number = np.zeros(len(ranks)), np.zeros(len(ranks), np.int64)
    for rank in np.unique(ranks).tolist():
        rows = np.flatnonzero(ranks == rank)
        at, count = ended.get(rank, (0.0, 0))
        ends = at + np.cumsum(lasting[rows])
        begins[rows] = ends - lasting[rows]
        number[rows] = count + np.arange(len(rows))
        ended[rank] = float(ends[-1]), count + len(rows)
    return begins, number
