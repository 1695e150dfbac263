"""Reads Parquet as rows, or as batches of columns."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from ingero_analyze.json_tables import Row
from ingero_analyze.table_batch import BATCH_ROWS, Choose, Skip, TableBatch, as_text, chosen
from ingero_analyze.table_errors import TableError

PARQUET: Final = (".parquet", ".pq", ".parq")


def parquet_columns(file: str) -> list[str]:
    """The columns of a file that hold single values."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise TableError(file, "reading Parquet needs pyarrow: pip install pyarrow") from None
    try:
        return [column.name for column in parquet.read_schema(file) if not pa.types.is_nested(column.type)]
    except (pa.ArrowException, OSError) as error:
        raise _no_parquet(file, error) from None


def parquet_rows(file: str, advance: Callable[[int], None]) -> Iterator[tuple[int, Row]]:
    """Rows as text with their numbers, counted from 1; `advance` is told how many more bytes were read."""
    consumed, names = 0, parquet_columns(file)
    for batch in parquet_batches(file, lambda _: names, None):
        texts = {name: batch.text(name) for name in batch.columns}
        for index in range(batch.rows):
            yield batch.first_row + index, {name: values[index] for name, values in texts.items()}
        advance(batch.consumed - consumed)
        consumed = batch.consumed


def _no_parquet(file: str, error: Exception) -> Exception:
    """What is wrong with a file; the error itself if it is one of the file system."""
    if isinstance(error, OSError) and error.errno:
        return error
    return TableError(file, f"not a Parquet file, or damaged: {str(error)[:200]}")


def _flat(table: Any) -> Any:
    """A table of Arrow with the fields of structures as columns, such as `resource.host`."""
    from pyarrow import types

    while any(types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return table


def parquet_batches(file: str, choose: Choose, skip: Skip | None) -> Iterator[TableBatch]:
    """Batches of the columns that are chosen, those within structures too. `TableError` for what is no Parquet."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import parquet

    try:
        source = parquet.ParquetFile(file)
        wanted = list(chosen(file, _flat(source.schema_arrow.empty_table()).column_names, choose))
        row, size = 1, Path(file).stat().st_size
        total = max(1, source.metadata.num_rows)
        for found in source.iter_batches(BATCH_ROWS, columns=wanted):
            flat = _flat(pa.Table.from_batches([found]))
            columns = {}
            for name in wanted:
                column = flat.column(flat.schema.get_field_index(name)).chunk(0)
                coded = pa.types.is_dictionary(column.type)
                columns[name] = pc.cast(column, column.type.value_type) if coded else column
            done = row - 1 + found.num_rows
            batch = TableBatch(file, row, columns, found.num_rows, size * done // total)
            yield as_text(batch, [name for name in wanted if pa.types.is_binary(columns[name].type)], skip)
            row += found.num_rows
    except (pa.ArrowException, OSError) as error:
        raise _no_parquet(file, error) from None
