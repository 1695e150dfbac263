"""Writes the rows of a range as sorted Parquet files, one for each day."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import duckdb

from ingero_echo.lake.layout import DAY, lake_columns, range_rows, sort_order
from ingero_echo.window import literal

ROW_GROUP: Final = 122_880
"""Rows of a row group; fixed, so that the same rows give the same file."""

_CHUNK_ROWS: Final = 50_000


def days(cursor: Any, table: str, after: int, through: int) -> list[str]:
    """The days that rows of a range belong to."""
    found = cursor.execute(
        f"SELECT DISTINCT strftime(\"{DAY}\", '%Y-%m-%d') FROM {table} WHERE seq > ? AND seq <= ? ORDER BY 1",
        [after, through],
    ).fetchall()
    return [str(day) for (day,) in found]


def write_day(
    cursor: Any, table: str, after: int, through: int, day: str, ids: Mapping[str, int], target: Path, memory_mb: int
) -> None:
    """Write the rows of one day; `ids` are the numbers of the columns in the shared table."""
    columns = lake_columns(table)
    of_day = f"{range_rows(table, after, through)} WHERE strftime(\"{DAY}\", '%Y-%m-%d') = {literal(day)}"
    # The database's own engine may not write files. Identifiers come from it as text.
    taken = ", ".join(f'"{c.name}"::UUID AS "{c.name}"' if c.kind == "uuid" else f'"{c.name}"' for c in columns)
    order = ", ".join(f'"{name}"' for name in sort_order(table))
    numbers = ", ".join(f"{column.name}: {ids[column.name]}" for column in columns)
    settings: dict[str, Any] = {
        "memory_limit": f"{memory_mb}MB", "threads": 1, "temp_directory": str(target.with_suffix(".spill")),
    }  # fmt: skip
    with duckdb.connect(config=settings) as engine:
        engine.register("rows_of_day", cursor.sql(of_day).to_arrow_reader(_CHUNK_ROWS))
        engine.execute(
            f"COPY (SELECT {taken} FROM rows_of_day ORDER BY {order}) TO {literal(str(target))} "
            f"(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP}, FIELD_IDS {{{numbers}}})"
        )
