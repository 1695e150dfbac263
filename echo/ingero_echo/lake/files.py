"""Writes the rows of a range as sorted Parquet files, one for each day."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import duckdb

from ingero_echo.lake.layout import DAY, SQL_TYPES, lake_columns, range_rows, sort_order
from ingero_echo.window import literal

ROW_GROUP: Final = 61_440
"""Rows of a row group; fixed, so that the same rows give the same file."""

_CHUNK_ROWS: Final = 50_000


def days(cursor: Any, table: str, after: int, through: int) -> list[str]:
    """The days that rows of a range belong to."""
    found = cursor.execute(
        f'SELECT DISTINCT "{DAY}"::DATE FROM {table} WHERE seq > ? AND seq <= ? ORDER BY 1', [after, through]
    ).fetchall()
    return [str(day) for (day,) in found]


def write_day(
    cursor: Any, table: str, after: int, through: int, day: str, ids: Mapping[str, int], target: Path, memory_mb: int
) -> None:
    """Write the rows of one day; `ids` are the numbers of the columns in the shared table."""
    columns = lake_columns(table)
    begin = f"{literal(day)}::TIMESTAMP"
    of_day = f'{range_rows(table, after, through)} WHERE "{DAY}" >= {begin} AND "{DAY}" < {begin} + INTERVAL 1 DAY'

    def listed(identifier: str) -> str:
        return ", ".join(
            f'"{c.name}"::{identifier} AS "{c.name}"' if c.kind == "uuid" else f'"{c.name}"' for c in columns
        )

    # The database's own engine may not write files. It would pass identifiers as text, which costs more than bytes.
    with _engine(target, memory_mb) as engine:
        rows = cursor.sql(f"SELECT {listed('BLOB')} FROM ({of_day})").to_arrow_reader(_CHUNK_ROWS)
        engine.register("rows_of_day", rows)
        engine.execute(_copy(table, f"SELECT {listed('UUID')} FROM rows_of_day", ids, target))


def merge_files(table: str, sources: Sequence[Path], ids: Mapping[str, int], target: Path, memory_mb: int) -> int:
    """Write the rows of several files of a table as one; returns how many there are."""
    with _engine(target, memory_mb) as engine:
        return int(engine.execute(_copy(table, stored_rows(table, sources), ids, target)).fetchall()[0][0])


def stored_rows(table: str, sources: Sequence[Path]) -> str:
    """A query for the rows of copies of data files. Older files lack columns."""
    columns = ", ".join(f'NULL::{SQL_TYPES[column.kind]} AS "{column.name}"' for column in lake_columns(table))
    none = f"SELECT {columns} WHERE false"
    if not sources:
        return none
    names = ", ".join(literal(str(source)) for source in sources)
    return f"{none} UNION ALL BY NAME SELECT * FROM read_parquet([{names}], union_by_name=true)"


def _engine(target: Path, memory_mb: int) -> duckdb.DuckDBPyConnection:
    settings: dict[str, Any] = {
        "memory_limit": f"{memory_mb}MB", "threads": 1, "temp_directory": str(target.with_suffix(".spill")),
    }  # fmt: skip
    return duckdb.connect(config=settings)


def _copy(table: str, rows: str, ids: Mapping[str, int], target: Path) -> str:
    order = ", ".join(f'"{name}"' for name in sort_order(table))
    numbers = ", ".join(f"{column.name}: {ids[column.name]}" for column in lake_columns(table))
    return (
        f"COPY (SELECT * FROM ({rows}) ORDER BY {order}) TO {literal(str(target))} "
        f"(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP}, FIELD_IDS {{{numbers}}})"
    )
