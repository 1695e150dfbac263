"""Events → Parquet, partitioned by day and cluster, for other engines and for replay."""

from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from ingero_echo.database_file import StoreError
from ingero_echo.store import Store
from ingero_echo.tables import TABLES
from ingero_kit.files import replacing

_CHUNK_ROWS: Final = 100_000


def export(store: Store, folder: Path, table: str) -> int:
    """Write a table as `folder/table/day=…/cluster=…/part.parquet`; returns the rows written.

    Raises `StoreError` when the folder is not empty or the table is not published.
    """
    if table not in TABLES:
        raise StoreError(f"there is no table {table}: {', '.join(TABLES)}")
    target = folder / table
    if target.exists() and any(target.iterdir()):
        raise StoreError(f"{target}: is not empty")
    parts = (
        store.cursor()
        .execute(f"SELECT DISTINCT strftime(\"timestamp\", '%Y-%m-%d'), cluster_id FROM {table} ORDER BY ALL")
        .fetchall()
    )
    written = 0
    for day, cluster in parts:
        place = target / f"day={day}" / f"cluster={_safe(cluster)}"
        rows = store.cursor().sql(
            f"SELECT * FROM {table} WHERE strftime(\"timestamp\", '%Y-%m-%d') = $day AND cluster_id = $cluster "
            'ORDER BY "timestamp"',
            params={"day": day, "cluster": cluster},
        )
        written += _write(rows, place / "part.parquet")
    return written


def export_scores(store: Store, file: Path) -> int:
    """Write health scores as `ingero-fleet replay` reads them: time, cluster, node, cohort, state, score."""
    rows = store.cursor().sql(
        'SELECT epoch_ns("timestamp") / 1e9 AS time, cluster_id AS cluster, node_id AS node, '
        "concat_ws('/', workload_type, job_id, gpu_model) AS cohort, state, health_score AS score "
        'FROM node_metrics WHERE isfinite(health_score) ORDER BY "timestamp", node_id'
    )
    return _write(rows, file)


_TIMELINE: Final = """
    WITH calls AS (
        SELECT rank, communicator, operation, sequence, any_value(nranks) AS nranks,
               epoch_ns("timestamp") / 1e9 AS start,
               coalesce(max(value_double) FILTER (measure = 'barrier_wait_ms'),
                        max(value_double) FILTER (measure = 'duration_ms')) / 1e3 AS duration
        FROM collectives
        WHERE cluster_id = $cluster AND rank IS NOT NULL AND measure IN ('barrier_wait_ms', 'duration_ms')
          AND value_double >= 0 AND isfinite(value_double)
        GROUP BY rank, communicator, operation, sequence, "timestamp"
    ),
    placed AS (
        SELECT *, max(start + duration) OVER (line ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS free,
               first_value(CASE WHEN nranks IS NOT DISTINCT FROM widest THEN sequence END IGNORE NULLS)
                 OVER (line ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS step
        FROM (SELECT *, max(nranks) OVER (PARTITION BY rank) AS widest FROM calls)
        WINDOW line AS (PARTITION BY rank ORDER BY start, communicator, operation)
    )
    SELECT rank, operation AS op, 'collective' AS kind, start, duration, step, communicator AS "group",
           sequence AS seq
    FROM placed
    UNION ALL
    SELECT rank, 'compute', 'compute', free, start - free, step, NULL, NULL FROM placed WHERE start > free
    ORDER BY rank, start
"""


def export_timeline(store: Store, file: Path, cluster: str | None) -> int:
    """Write the collectives of one cluster as `ingero-fleet diagnose` reads them; the time between them is compute.

    A collective's duration is its wait, or the host's time in the call where no wait is known. Raises `StoreError`
    when no cluster is given and there are several.
    """
    found = [
        row[0] for row in store.cursor().execute("SELECT DISTINCT cluster_id FROM collectives ORDER BY 1").fetchall()
    ]
    if cluster is None and len(found) != 1:
        raise StoreError(f"name one cluster with --cluster; those with collectives: {', '.join(found) or 'none'}")
    return _write(store.cursor().sql(_TIMELINE, params={"cluster": found[0] if cluster is None else cluster}), file)


def _write(rows: Any, file: Path) -> int:
    file.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    try:
        reader = rows.to_arrow_reader(_CHUNK_ROWS)
        with replacing(file) as part, pq.ParquetWriter(part, reader.schema, compression="zstd") as writer:
            for batch in reader:
                writer.write_table(pa.Table.from_batches([batch]))
                written += batch.num_rows
    except (OSError, pa.ArrowException, duckdb.Error) as error:
        raise StoreError(f"{file}: cannot be written: {error}") from None
    return written


def _safe(name: str) -> str:
    """A cluster's name as a folder's name."""
    return "".join(letter if letter.isalnum() or letter in "._-" else f"%{ord(letter):02X}" for letter in name) or "-"
