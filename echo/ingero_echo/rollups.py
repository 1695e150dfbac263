"""Partial sums by five minutes: what a group adds, and how rows of one key are merged later."""

from typing import Any, Final

BUCKET_NANOS: Final = 300 * 10**9
"""Length of a bucket."""

SETTLED_NANOS: Final = 900 * 10**9
"""Age after which a bucket's rows are merged; rows that arrive later still count, but stay separate."""

_KEYS: Final = "cluster_id, node_id, metric_name"
_EXACT: Final = ("events", "last", "samples", "lowest", "highest")
_ROUNDING: Final = 1e-9
"""Share of values by which sums of the same numbers in another order may differ."""


def sums(rows: str, seq: str) -> str:
    """The partial sums of the events in `rows`, which is a table or a query in parentheses.

    `seq` is their order of arrival: a constant, or the column of that name, by which the sums are kept apart then.
    """
    apart = f"{_KEYS}, seq" if seq == "seq" else _KEYS
    return f"""
    SELECT make_timestamp_ns(epoch_ns("timestamp") // {BUCKET_NANOS} * {BUCKET_NANOS}) AS "timestamp", {_KEYS},
           max(rank) AS rank, count(*) AS events, max("timestamp") AS last, count(finite) AS samples,
           sum(finite) AS total, min(finite) AS lowest, max(finite) AS highest,
           arg_min(event_id, finite) AS lowest_event, arg_max(event_id, finite) AS highest_event, {seq} AS seq
    FROM (SELECT *, CASE WHEN isfinite(value_double) THEN value_double END AS finite FROM {rows})
    GROUP BY 1, {apart}
"""


ADD: Final = f"INSERT INTO node_rollups {sums('rows', '$seq::BIGINT')}"
"""Statement that adds the partial sums of the events in `rows`, written as number `$seq`."""


def merged(where: str, rows: str = "node_rollups") -> str:
    """The sums of all rows of one key that a condition selects, with the columns of the table."""
    return f"""
    SELECT "timestamp", {_KEYS}, max(rank) AS rank, sum(events)::BIGINT AS events, max(last) AS last,
           sum(samples)::BIGINT AS samples, sum(total) AS total, min(lowest) AS lowest, max(highest) AS highest,
           arg_min(lowest_event, lowest) AS lowest_event, arg_max(highest_event, highest) AS highest_event,
           max(seq) AS seq
    FROM {rows} WHERE {where} GROUP BY "timestamp", {_KEYS}
"""


def differing(expected: str, rows: str) -> str:
    """The keys for which partial sums are not the expected ones, which have one row a key; both as for `sums`."""
    exact = " OR ".join(f"e.{name} IS DISTINCT FROM r.{name}" for name in _EXACT)
    largest = "greatest(abs(e.lowest), abs(e.highest))"
    return f"""
    SELECT "timestamp", {_KEYS}
    FROM {expected} e FULL JOIN ({merged("true", rows)}) r USING ("timestamp", {_KEYS})
    WHERE {exact} OR (e.total <> r.total AND abs(e.total - r.total) > {_ROUNDING} * e.samples * {largest})
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


def add_rest(connection: Any, since: int) -> None:
    """Add the sums of the bucket that a time is in, for its events from that time on. On the writer's thread only."""
    end = -(-since // BUCKET_NANOS) * BUCKET_NANOS
    rest = f'(FROM events WHERE "timestamp" >= make_timestamp_ns({since}) AND "timestamp" < make_timestamp_ns({end}))'
    connection.execute(f"INSERT INTO node_rollups {sums(rest, 'seq')}")
