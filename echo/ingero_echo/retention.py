"""What has to go: events beyond their age, then the oldest while the live data is too large.

The file does not shrink; freed blocks are used again, so it stays bounded.
"""

from typing import Any, Final

from ingero_echo import rollups
from ingero_echo.settings import RetentionConfig
from ingero_echo.store import Store
from ingero_echo.tables import TABLES

_STEP: Final = 0.1
"""Share of the rows that is deleted at once when the data is too large."""


def sweep(store: Store, config: RetentionConfig, now_nanos: int) -> int:
    """Delete what has to go, merge partial sums; returns the rows deleted. On the writer's thread only."""
    settled = now_nanos - rollups.SETTLED_NANOS
    rollups.merge(store.connection, settled - 4 * rollups.SETTLED_NANOS, settled)
    deleted = delete_before(store.connection, now_nanos - int(config.age * 1e9))
    if deleted:
        store.checkpoint()
    if store.live_bytes() > config.size_mb << 20:
        store.checkpoint()
    while store.live_bytes() > config.size_mb << 20:
        edge = _edge(store.connection)
        gone = delete_before(store.connection, edge) if edge is not None else 0
        if not gone:
            break
        deleted += gone
        store.checkpoint()
    return deleted


def delete_before(connection: Any, nanos: int) -> int:
    """Delete everything older; returns the rows deleted."""
    deleted = 0
    for table in TABLES:
        row = connection.execute(f'DELETE FROM {table} WHERE "timestamp" < make_timestamp_ns(?)', [nanos]).fetchone()
        deleted += int(row[0]) if row else 0
    return deleted


def _edge(connection: Any) -> int | None:
    """The time that a tenth of the events are older than, by a sample of them."""
    row = connection.execute(
        f'SELECT epoch_ns(quantile_cont("timestamp", {_STEP})) FROM events USING SAMPLE 20000 ROWS'
    ).fetchone()
    return None if row is None or row[0] is None else int(row[0]) + 1
