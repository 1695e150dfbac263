"""The columns of the shared tables, and how rows are converted both ways. Pure.

The tables hold microseconds, because engines partition and prune by them. A second column holds the nanoseconds that
are left, 0 to 999. Further times are stored in nanoseconds only.
"""

import functools
from dataclasses import dataclass
from typing import Final

from ingero_echo import rollups
from ingero_echo.schema_versions import published_columns

_KINDS: Final = {"UUID": "uuid", "VARCHAR": "string", "DOUBLE": "double", "INTEGER": "int", "BIGINT": "long"}
"""Types of Iceberg by those of the engine."""

SQL_TYPES: Final = {kind: name for name, kind in _KINDS.items()} | {"timestamp": "TIMESTAMP"}
"""Types of the engine by those of Iceberg."""

_SORT: Final = ("cluster_id", "node_id", "metric_name", "timestamp")
"""What files are sorted by first; a row's other columns follow, so that the order is total."""

DAY: Final = "timestamp"
"""The column whose days are the partitions."""

NANOS: Final = "timestamp_nanos"
"""The column of what microseconds leave out of a time."""


@dataclass(frozen=True)
class LakeColumn:
    """One column of a shared table; `source` computes it from a row of the database."""

    name: str
    kind: str
    source: str


@functools.cache
def lake_columns(table: str) -> tuple[LakeColumn, ...]:
    """The columns of a shared table, in order."""
    found: list[LakeColumn] = []
    for name, kind in _published(table):
        if kind == "TIMESTAMP_NS" and name == DAY:
            found.append(LakeColumn(DAY, "timestamp", f'make_timestamp(epoch_ns("{DAY}") // 1000)'))
            found.append(LakeColumn(NANOS, "int", f'(epoch_ns("{DAY}") % 1000)::INTEGER'))
        elif kind == "TIMESTAMP_NS":
            found.append(LakeColumn(f"{name}_ns", "long", f'epoch_ns("{name}")'))
        else:
            found.append(LakeColumn(name, _KINDS[kind], f'"{name}"'))
    return tuple(found)


@functools.cache
def restored(table: str) -> str:
    """The list of columns that turns rows of a shared table into rows of the database."""
    out = []
    for name, kind in _published(table):
        source = f'epoch_us("{DAY}") * 1000 + {NANOS}' if name == DAY else f"{name}_ns"
        out.append(f'make_timestamp_ns({source}) AS "{name}"' if kind == "TIMESTAMP_NS" else f'"{name}"')
    return ", ".join(out)


def range_rows(table: str, after: int, through: int) -> str:
    """A query for the rows that arrived in a range, as the shared table holds them. Partial sums are added up."""
    within = f"seq > {after} AND seq <= {through}"
    rows = f"({rollups.merged(within)})" if table == "node_rollups" else f"(SELECT * FROM {table} WHERE {within})"
    columns = ", ".join(f'{column.source} AS "{column.name}"' for column in lake_columns(table))
    return f"SELECT {columns} FROM {rows}"


def sort_order(table: str) -> tuple[str, ...]:
    """All columns, in the order that files are sorted by."""
    names = [column.name for column in lake_columns(table)]
    first = [name for name in _SORT if name in names]
    return (*first, *(name for name in names if name not in first))


def sort_columns(table: str) -> tuple[str, ...]:
    """The columns that a table declares to be sorted by."""
    return sort_order(table)[: sum(1 for name in _SORT if any(name == c.name for c in lake_columns(table)))]


def _published(table: str) -> list[tuple[str, str]]:
    return [(name, kind) for owner, name, kind in published_columns() if owner == table]
