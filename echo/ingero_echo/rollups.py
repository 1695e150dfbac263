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
           arg_min(event_id, finite), arg_max(event_id, finite), $seq::BIGINT
    FROM (SELECT *, CASE WHEN isfinite(value_double) THEN value_double END AS finite FROM rows)
    GROUP BY bucket, {_KEYS}
"""
"""Statement that adds the partial sums of the events in `rows`, written as number `$seq`."""


def merged(where: str) -> str:
    """The sums of all rows of one key that a condition selects, with the columns of the table."""
    return f"""
    SELECT "timestamp", {_KEYS}, max(rank) AS rank, sum(events)::BIGINT AS events, max(last) AS last,
           sum(samples)::BIGINT AS samples, sum(total) AS total, min(lowest) AS lowest, max(highest) AS highest,
           arg_min(lowest_event, lowest) AS lowest_event, arg_max(highest_event, highest) AS highest_event,
           max(seq) AS seq
    FROM node_rollups WHERE {where} GROUP BY "timestamp", {_KEYS}
"""


def merge(connection: Any, since: int, until: int) -> int:
    """Merge rows of one key in the buckets between two times; returns the rows saved. On the writer's thread only."""
    window = {"since": since // BUCKET_NANOS * BUCKET_NANOS, "until": until // BUCKET_NANOS * BUCKET_NANOS}
    within = '"timestamp" >= make_timestamp_ns($since) AND "timestamp" < make_timestamp_ns($until)'
    connection.execute("BEGIN")
    try:
        connection.execute(f"CREATE OR REPLACE TEMP TABLE merged AS {merged(within)}", window)
        gone = connection.execute(f"DELETE FROM node_rollups WHERE {within}", window).fetchall()[0][0]
        kept = connection.execute("INSERT INTO node_rollups SELECT * FROM merged").fetchall()[0][0]
        connection.execute("DROP TABLE merged")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    return int(gone) - int(kept)
