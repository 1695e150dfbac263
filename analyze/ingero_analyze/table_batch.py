"""Some rows of a table as columns of text and numbers, with errors that name file, row and column."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingero_analyze.table_errors import TableError, place_of

BATCH_BYTES: Final = 4 << 20
BATCH_ROWS: Final = 1 << 16


@dataclass(frozen=True)
class TableBatch:
    """Some rows of one file. `first_row` is the number of the first one, counted like lines in an editor.

    `places`: the place of every row, counted from the first one, where rows without values are left out.
    """

    file: str
    first_row: int
    columns: Mapping[str, Any]
    rows: int
    consumed: int
    places: npt.NDArray[np.int64] | None = None

    def error(self, index: int, column: str, text: str) -> TableError:
        """An error at a row of this batch."""
        return TableError(self.file, text, self._row(index), column)

    def place(self, index: int, column: str | None = None) -> str:
        """A row of this batch, in words."""
        return place_of(self.file, self._row(index), column)

    def _row(self, index: int) -> int:
        return self.first_row + (index if self.places is None else int(self.places[index]))

    def text(self, name: str) -> list[str]:
        """A column as text; empty where a value is missing."""
        values: list[str] = self.texts(name).to_pylist()
        return values

    def codes(self, name: str, known: dict[str, int]) -> npt.NDArray[np.int64]:
        """A text column as numbers into `known`, which grows."""
        import pyarrow.compute as pc

        encoded = pc.dictionary_encode(self.texts(name))
        numbers = [known.setdefault(text, len(known)) for text in encoded.dictionary.to_pylist()]
        return np.array(numbers, np.int64)[np.asarray(encoded.indices)] if numbers else np.zeros(0, np.int64)

    def numbers(self, name: str) -> npt.NDArray[np.float64]:
        """A column as numbers; NaN where a value is missing. `TableError` names the first that is not a number."""
        import pyarrow as pa
        import pyarrow.compute as pc

        column = self.columns[name]
        if is_text(column):
            column = pc.utf8_trim_whitespace(column)
            column = pc.if_else(pc.equal(column, ""), None, column)
        try:
            numbers = pc.cast(column, pa.float64(), safe=False)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            index = self._first_without(column, pa.float64(), safe=False)
            raise self.error(index, name, f"{str(column[index])[:40]!r} is not a number") from None
        return np.asarray(pc.fill_null(numbers, float("nan")), np.float64)

    def numbers_or_nan(self, name: str) -> npt.NDArray[np.float64]:
        """A column as numbers; NaN where a value is missing or not a number."""
        import pyarrow.compute as pc

        try:
            return self.numbers(name)
        except TableError:
            encoded = pc.dictionary_encode(self.texts(name))
            values = [_number(text) for text in encoded.dictionary.to_pylist()]
            return np.array(values, np.float64)[np.asarray(encoded.indices, np.int64)]

    def texts(self, name: str) -> Any:
        """A column as an array of text; empty where a value is missing. `TableError` names the first that is none."""
        import pyarrow as pa
        import pyarrow.compute as pc

        column = self.columns[name]
        try:
            return pc.fill_null(pc.cast(column, pa.string()), "")
        except pa.ArrowNotImplementedError:
            raise TableError(self.file, f"{column.type} is neither text nor a number", column=name) from None
        except pa.ArrowInvalid:
            raise self.error(self._first_without(column, pa.string()), name, "not UTF-8 text") from None

    def _first_without(self, column: Any, kind: Any, *, safe: bool = True) -> int:
        """The first row whose value cannot be converted; the first row if every one can."""
        import pyarrow as pa
        import pyarrow.compute as pc

        for index in range(self.rows):
            try:
                pc.cast(column.slice(index, 1), kind, safe=safe)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                return index
        return 0


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def is_text(column: Any) -> bool:
    """Whether a column of Arrow holds text."""
    import pyarrow as pa

    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


Choose = Callable[[Sequence[str]], Sequence[str]]
"""Which of a file's columns to read. Raises `ValueError` if they are not the right ones."""

Skip = Callable[[TableError], None]
"""Takes note of a row that cannot be read and is left out."""


def chosen(file: str, names: Sequence[str], choose: Choose) -> Sequence[str]:
    """Those of a file's columns that are to be read. `TableError` if they are not the right ones."""
    try:
        return choose(names)
    except ValueError as error:
        raise TableError(file, str(error)) from None


def as_text(raw: TableBatch, names: Sequence[str], skip: Skip | None) -> TableBatch:
    """The batch with these columns as text; with `skip`, without the rows of which one is no text."""
    try:
        return replace(raw, columns={**raw.columns, **{name: raw.texts(name) for name in names}})
    except TableError:
        if skip is None:
            raise
    import pyarrow as pa

    kept = np.ones(raw.rows, np.bool_)
    for name in names:
        for index in np.flatnonzero(kept).tolist():
            try:
                (raw.columns[name][index].as_py() or b"").decode()
            except UnicodeDecodeError:
                kept[index] = False
                skip(raw.error(index, name, "not UTF-8 text"))
    rows = np.flatnonzero(kept)
    places = rows if raw.places is None else raw.places[rows]
    columns = {name: column.take(pa.array(rows)) for name, column in raw.columns.items()}
    return as_text(replace(raw, columns=columns, rows=len(rows), places=places), names, None)
