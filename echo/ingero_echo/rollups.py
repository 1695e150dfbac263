"""Partial sums by five minutes: what a group adds, and how rows of one key are merged later."""

from typing import Any, Final

BUCKET_NANOS: Final = 300 * 10**9
"""Length of a bucket."""

SETTLED_NANOS: Final = 900 * 10**9
"""Age after which a bucket's rows are merged; rows that arrive later still count, but stay separate."""

_KEYS: Final = "cluster_id, node_id, metric_name"

ADD: Final = f"""
    INSERT INTO node_rollups
    SELECT make_timestamp_ns(epoch_ns("timestamp") // {BUCKET_NANOS} * {BUCKET_NANOS}) AS bucket, {_KEYS}, max(rank),
           count(*), max("timestamp"), count(finite), sum(finite), min(finite), max(finite),
           arg_min(event_id, finite), arg_max(event_id, finite)
    FROM (SELECT *, CASE WHEN isfinite(value_double) THEN value_double END AS finite FROM rows)
    GROUP BY bucket, {_KEYS}
"""
"""Statement that adds the partial sums of the events in `rows`."""

_MERGED: Final = f"""
    SELECT "timestamp", {_KEYS}, max(rank), sum(events)::BIGINT, max(last), sum(samples)::BIGINT, sum(total),
           min(lowest), max(highest), arg_min(lowest_event, lowest), arg_max(highest_event, highest)
    FROM node_rollups WHERE "timestamp" >= make_timestamp_ns($since) AND "timestamp" < make_timestamp_ns($until)
    GROUP BY "timestamp", {_KEYS}
"""


def merge(connection: Any, since: int, until: int) -> int:
    """Merge rows of one key in the buckets between two times; returns the rows saved. On the writer's thread only."""
    window = {"since": since // BUCKET_NANOS * BUCKET_NANOS, "until": until // BUCKET_NANOS * BUCKET_NANOS}
    within = '"timestamp" >= make_timestamp_ns($since) AND "timestamp" < make_timestamp_ns($until)'
    connection.execute("BEGIN")
    try:
        connection.execute(f"CREATE OR REPLACE TEMP TABLE merged AS {_MERGED}", window)
        gone = connection.execute(f"DELETE FROM node_rollups WHERE {within}", window).fetchall()[0][0]
        kept = connection.execute("INSERT INTO node_rollups SELECT * FROM merged").fetchall()[0][0]
        connection.execute("DROP TABLE merged")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    return int(gone) - int(kept)
