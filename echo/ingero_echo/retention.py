"""Deletes events beyond their age, then the oldest ones while the live data is too large.

The file does not shrink; freed blocks are used again, so it stays bounded.
"""

import threading
from itertools import pairwise
from typing import Any, Final

from ingero_echo import rollups
from ingero_echo.settings import RetentionConfig
from ingero_echo.store import Store
from ingero_echo.tables import TABLES

_STEP: Final = 0.1
"""Share of the rows that is deleted at once when the data is too large."""


TRUSTED_AFTER: Final = 3600 * 10**9
"""How long the clock must keep a leap ahead before the new time is used to delete events or to refuse old ones."""

_SLACK: Final = 60 * 10**9
"""Largest leap ahead that is accepted at once."""


class RetentionClock:
    """The time that ages are computed from, nanoseconds: the wall clock, but a leap ahead counts only after a while.

    A clock that is wrong for a while must not delete data. `newest` is the arrival of the newest event in the
    database that is believed, `None` without one: the time between it and the start may be a leap too.
    """

    def __init__(self, newest: int | None, wall: int, steady: int) -> None:
        offset = wall - steady
        self._believed = offset if newest is None else min(offset, newest - steady)
        self._claimed, self._since = offset, steady
        self._lock = threading.Lock()
        self.now(wall, steady)

    def now(self, wall: int, steady: int) -> int:
        """The current time; `wall` is the clock that may be set, `steady` the monotonic one."""
        offset = wall - steady
        with self._lock:
            if offset <= self._believed + _SLACK:
                self._believed, self._claimed, self._since = offset, offset, steady
            elif offset + _SLACK < self._claimed or self._claimed <= self._believed + _SLACK:
                self._claimed, self._since = offset, steady
            elif steady - self._since >= TRUSTED_AFTER:
                self._believed = self._claimed
            return steady + self._believed


def retention_clock(store: Store, wall: int, steady: int) -> RetentionClock:
    """The clock for a store that was just opened; the times are those of `RetentionClock.now`."""
    return RetentionClock(_believed_arrival(store.cursor()), wall, steady)


def _believed_arrival(cursor: Any) -> int | None:
    """The arrival of the newest event, nanoseconds, without the leaps of the last hour that events arrived in.

    Events may have arrived while the clock was wrong, so what lies between two arrivals of that hour is no proof that
    time passed, nor is what lies before the first of them. `None` without events.
    """
    newest: int | None = cursor.execute("SELECT epoch_ns(max(received)) FROM events").fetchall()[0][0]
    if newest is None:
        return None
    slots = cursor.execute(
        f"""
        SELECT epoch_ns(received) // {_SLACK} AS slot FROM events WHERE received > make_timestamp_ns($edge)
        UNION SELECT epoch_ns(max(received)) // {_SLACK} FROM events WHERE received <= make_timestamp_ns($edge)
        ORDER BY slot
        """,
        {"edge": newest - TRUSTED_AFTER},
    ).fetchall()
    known = [slot for (slot,) in slots if slot is not None]
    leaps = sum(later - earlier - 1 for earlier, later in pairwise(known))
    return int(newest - _SLACK * leaps)


def sweep(store: Store, config: RetentionConfig, now_nanos: int, *, sealing: bool = False) -> int:
    """Delete expired events, merge partial sums; returns the rows deleted. On the writer's thread only.

    Of a database that is sealed into shared tables, only sealed rows are deleted because of its size. Partial sums
    stay apart, because ranges of them are sealed.
    """
    sealed = store.sealed_seq()
    sealing = sealing or sealed >= 0
    settled = now_nanos - rollups.SETTLED_NANOS
    if not sealing:
        rollups.merge(store.connection, settled - 4 * rollups.SETTLED_NANOS, settled)
    oldest = now_nanos - int(config.age * 1e9)
    deleted = delete_before(store.connection, oldest // rollups.BUCKET_NANOS * rollups.BUCKET_NANOS)
    if deleted:
        store.checkpoint()
    if store.live_bytes() > config.size_mb << 20:
        store.checkpoint()
        if sealing:
            return deleted + (store.delete_through(sealed) if store.live_bytes() > config.size_mb << 20 else 0)
    while store.live_bytes() > config.size_mb << 20:
        edge = _edge(store.connection)
        gone = delete_before(store.connection, edge) if edge is not None else 0
        if not gone:
            break
        deleted += gone
        store.checkpoint()
    return deleted


def delete_before(connection: Any, nanos: int) -> int:
    """Delete everything older; returns the rows deleted. The sums of the bucket that is cut are made anew."""
    deleted = 0
    connection.execute("BEGIN")
    try:
        for table in TABLES:
            row = connection.execute(f'DELETE FROM {table} WHERE "timestamp" < make_timestamp_ns(?)', [nanos])
            deleted += int(row.fetchall()[0][0])
        if deleted and nanos % rollups.BUCKET_NANOS:
            rollups.add_rest(connection, nanos)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    return deleted


def _edge(connection: Any) -> int | None:
    """The time that a tenth of the events are older than, by a sample of them."""
    row = connection.execute(
        f'SELECT epoch_ns(quantile_cont("timestamp", {_STEP})) FROM events USING SAMPLE 20000 ROWS'
    ).fetchone()
    return None if row is None or row[0] is None else int(row[0]) + 1
