"""The only thread that writes. Requests wait in a bounded queue. The thread takes all that wait, writes them in one
transaction, and only then answers: acknowledged means committed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import duckdb

from ingero_echo import columns, rollups
from ingero_echo.arrays import pa
from ingero_echo.database_file import StoreError, disk_problem
from ingero_echo.dedup import ID_BYTES, Deduplicator, identities, identity, identity_suffix
from ingero_echo.fair_queue import FairQueue
from ingero_echo.ingest_batch import Batch
from ingero_echo.row_builder import DERIVED
from ingero_echo.settings import IngestConfig
from ingero_echo.source_position import SourcePosition
from ingero_echo.store import Store
from ingero_echo.tables import TABLES
from ingero_kit.logs import get

log = get(__name__)

IDLE_FRACTION: Final = 3
"""A group is closed early when nothing has come for this part of `group_wait`."""

ONE_SENDER: Final = 0.75
"""Share of the queue that one sender may fill."""

RETRY_SECONDS: Final = 1.0
"""Retry-After when the queue is full or the disk cannot be written."""


class QueueFull(Exception):
    """The queue is full; the sender should retry."""


class WriteFailed(Exception):
    """The transaction failed; nothing of it is in the database, and the sender may retry."""


@dataclass
class WriterCounters:
    """Counters of the writer."""

    events: int = 0
    repeats: int = 0
    lookups: int = 0
    groups: int = 0
    failures: int = 0
    deleted: int = 0
    sweeps: int = 0
    refused: int = 0
    failure: str | None = None
    """Why the last group could not be written; `None` after one that could."""
    write_seconds: float = 0.0
    longest_write_seconds: float = 0.0


@dataclass(slots=True)
class _QueuedBatch:
    batch: Batch
    size: int
    sender: str
    done: Future[int]


@dataclass(frozen=True, slots=True)
class _NewRows:
    """The part of a group to write: rows of each request, repeats in each, and the identities of all events."""

    batches: list[dict[str, list[pa.RecordBatch]]]
    repeats: list[int]
    identities: list[bytes]


class Writer:
    """Owns the store's connection. `put` may be called from any thread."""

    def __init__(self, store: Store, config: IngestConfig) -> None:
        self.counters = WriterCounters()
        self.seq = store.newest_seq()
        """Order of arrival of the newest transaction."""
        self._store = store
        self._config = config
        self._bytes: Counter[str] = Counter()
        """Encoded size of the waiting requests, by sender."""
        self._queue: FairQueue[_QueuedBatch] = FairQueue()
        self._jobs: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._condition = threading.Condition()
        self._closing = False
        self._repeats = Deduplicator(config.remembered_ids)
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def start(self) -> None:
        """Start; until the newest identities are loaded, every event is looked up in the database."""
        self._thread.start()
        threading.Thread(target=self._load_known_ids, name="recall", daemon=True).start()

    def stop(self) -> None:
        """Write the waiting requests, then end."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def waiting_bytes(self) -> int:
        """Encoded size of the waiting requests."""
        return self._bytes.total()

    def check_room(self, size: int, sender: str, coming: Mapping[str, int]) -> None:
        """Raise `QueueFull` when a request of this encoded size does not fit; called before decoding it.

        `coming` is the size of what will be put before it, by sender. One sender leaves a quarter of the queue to
        the others. A sender with nothing in the queue may always add a request if there is space.
        """
        limit = self._config.queue_mb << 20
        waiting = self._bytes.total() + sum(coming.values())
        own = self._bytes[sender] + coming.get(sender, 0)
        if (waiting and waiting + size > limit) or (own and own + size > ONE_SENDER * limit):
            self.counters.refused += 1
            raise QueueFull

    def put(self, batch: Batch, size: int, sender: str = "") -> Future[int]:
        """Queue a batch of a request of `size` bytes; the future gives the number of repeats, or `WriteFailed`."""
        waiting = _QueuedBatch(batch, size, sender, _uncancellable_future())
        with self._condition:
            if self._closing:
                raise QueueFull
            self._bytes[sender] += size
            self._queue.put(sender, waiting)
            self._condition.notify()
        return waiting.done

    def call(self, job: Callable[[], Any]) -> Future[Any]:
        """Run something on the writer's thread between two groups: retention, a copy."""
        done = _uncancellable_future()
        with self._condition:
            self._jobs.append((job, done))
            self._condition.notify()
        return done

    # The thread.

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._queue and not self._jobs and not self._closing:
                    self._condition.wait()
                if not self._queue and not self._jobs:
                    return
                jobs, self._jobs = self._jobs, deque()
            for job, done in jobs:
                try:
                    done.set_result(job())
                except Exception as error:
                    done.set_exception(error)
            if self._queue:
                self._write(self._take())

    def _take(self) -> list[_QueuedBatch]:
        group: list[_QueuedBatch] = []
        rows, deadline = 0, time.monotonic() + self._config.group_wait
        with self._condition:
            while True:
                while self._queue and rows < self._config.group_rows:
                    waiting = self._queue.pop()
                    group.append(waiting)
                    rows += len(waiting.batch.identities)
                left = min(deadline - time.monotonic(), self._config.group_wait / IDLE_FRACTION)
                if rows >= self._config.group_rows or left <= 0 or self._closing:
                    return group
                if not self._condition.wait(left):
                    return group

    def _write(self, group: list[_QueuedBatch]) -> None:
        began = time.perf_counter()
        new_rows = _NewRows([], [], [])
        try:
            new_rows = self._new_rows(group)
            self._transaction(
                new_rows, max((one.batch.position for one in group if one.batch.position), default=None)
            )
        except Exception as error:
            self.counters.failures += 1
            self._recover(error)
            if not self._is_written(new_rows):
                # If the log cannot be read now and turns out to hold this group after all, its repeats are looked up.
                self._repeats.mark_uncertain(new_rows.identities)
                self.counters.failure = disk_problem(error) or str(error).partition("\n")[0]
                self._answer(group, WriteFailed(self.counters.failure))
                return
            log.warning("written_all_the_same", hint="the commit is in the log; what failed came after it")
        self._repeats.add(new_rows.identities)
        took, counters = time.perf_counter() - began, self.counters
        counters.failure = None
        counters.events += len(new_rows.identities)
        counters.repeats += sum(new_rows.repeats)
        counters.groups += 1
        counters.write_seconds += took
        counters.longest_write_seconds = max(counters.longest_write_seconds, took)
        self._answer(group, new_rows.repeats)
        self._store.checkpoint_if_due()

    def _answer(self, group: list[_QueuedBatch], outcome: list[int] | WriteFailed) -> None:
        """Answer each request with the number of its repeats, or all of them with the error."""
        with self._condition:
            for waiting in group:
                self._bytes[waiting.sender] -= waiting.size
            self._bytes = +self._bytes
        for number, waiting in enumerate(group):
            if isinstance(outcome, WriteFailed):
                waiting.done.set_exception(outcome)
            else:
                waiting.done.set_result(outcome[number])

    def _new_rows(self, group: list[_QueuedBatch]) -> _NewRows:
        """The part of a group that is not in the database."""
        identities = [one for waiting in group for one in waiting.batch.identities]
        if self._repeats.all_new(identities):
            return _NewRows([waiting.batch.tables for waiting in group], [0] * len(group), identities)
        return _without_repeats(group, self._written(set(identities)))

    def _written(self, identities: set[bytes]) -> set[bytes]:
        """Those that are in the database. Memory knows them; after a start or a failure one query is needed."""
        written, uncertain = self._repeats.written(identities), self._repeats.uncertain(identities)
        if uncertain:
            found = self._stored(uncertain)
            self._repeats.add(found)
            written |= found
        return written

    def _is_written(self, new_rows: _NewRows) -> bool:
        """Whether a group whose commit raised is in the database: a commit can be in the log and fail afterwards."""
        rows = next((part for tables in new_rows.batches for part in tables.get("events", ()) if part.num_rows), None)
        if rows is None:
            return False
        first = [rows["received"][0].value, rows["event_id"][0].as_py()]
        try:
            found = self._store.connection.execute(
                "SELECT count(*) FROM events WHERE received = make_timestamp_ns(?) AND event_id = ?", first
            ).fetchall()
        except duckdb.Error:
            return False
        return bool(found[0][0])

    def _transaction(self, new_rows: _NewRows, position: SourcePosition | None) -> None:
        if not new_rows.identities and position is None:
            return
        connection, seq = self._store.connection, self.seq + 1
        connection.execute("BEGIN")
        try:
            for table in TABLES:
                found = [part for tables in new_rows.batches for part in tables.get(table, ())]
                if found:
                    # As one batch: for the engine many small batches cost as much as full ones.
                    connection.register("rows", pa.Table.from_batches(found, columns.schema(table)).combine_chunks())
                    try:
                        connection.execute(f"INSERT INTO {table} SELECT *, {seq} FROM rows")
                        if table == "events":
                            self._add_sums(new_rows, found, seq)
                    finally:
                        connection.unregister("rows")
            if position:
                connection.execute("INSERT INTO source VALUES (?, ?, ?)", [seq, *position])
            self.seq = seq  # also when the commit raises: it may be in the log
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(duckdb.Error):
                connection.execute("ROLLBACK")
            raise

    def _add_sums(self, new_rows: _NewRows, events: list[pa.RecordBatch], seq: int) -> None:
        """Add the sums of the events in `rows`, except of batches whose sums are in the shared tables already."""
        summed = [
            part for tables in new_rows.batches if "node_rollups" not in tables for part in tables.get("events", ())
        ]
        if len(summed) < len(events):
            if not summed:
                return
            self._store.connection.unregister("rows")
            self._store.connection.register(
                "rows", pa.Table.from_batches(summed, columns.schema("events")).combine_chunks()
            )
        self._store.connection.execute(rollups.ADD, {"seq": seq})

    def take_over(self, predecessors: str, sealed: int, highest: int, position: SourcePosition) -> None:
        """Continue after a lost database, see `Store.take_over`; on this thread only."""
        self._store.take_over(predecessors, sealed, highest, position)
        self.seq += highest

    def _stored(self, wanted: set[bytes]) -> set[bytes]:
        """Those that the database holds; scans every event."""
        self.counters.lookups += 1
        found = self._store.connection.execute(
            "SELECT event_id, metric_name, cluster_id FROM events WHERE event_id IN (SELECT unnest(?::UUID[]))",
            [[UUID(bytes=one[:ID_BYTES]) for one in wanted]],
        ).fetchall()
        return {identity(event_id.bytes, name, cluster) for event_id, name, cluster in found} & wanted

    def _load_known_ids(self) -> None:
        """Fill the memory from the newest rows, so that a repeat after a restart is recognised."""
        try:
            found = self._newest_identities()
        except (duckdb.Error, ValueError) as error:
            log.error("recall_failed", reason=str(error), hint="every event is looked up, which is slower")
            return
        self.call(lambda: self._repeats.complete(found))

    def _newest_identities(self) -> list[bytes]:
        size = self._config.remembered_ids
        out: list[bytes] = []
        cursor = self._store.cursor()
        newest = cursor.execute("SELECT max(rowid) FROM events").fetchall()[0][0]
        if newest is None:
            return out
        rows = cursor.sql(
            "SELECT event_id::BLOB AS event_id, metric_name, cluster_id FROM events WHERE rowid > $oldest",
            params={"oldest": newest - size},
        )
        for part in rows.to_arrow_reader(50_000):
            ids = b"".join(part["event_id"].to_pylist())
            pairs = zip(part["metric_name"].to_pylist(), part["cluster_id"].to_pylist(), strict=True)
            out += identities(ids, (identity_suffix(*pair) for pair in pairs))
        cursor.close()
        return out

    def _recover(self, error: Exception) -> None:
        """After a failed transaction: keep the connection if it still works, otherwise open the database anew."""
        log.error("write_failed", reason=disk_problem(error) or str(error), hint="senders were asked to send again")
        try:
            self._store.connection.execute("SELECT 1").fetchone()
        except duckdb.Error:
            try:
                self._store.reopen()
                log.warning("database_reopened")
            except (StoreError, duckdb.Error) as again:
                log.error("database_not_reopened", reason=str(again))


def _without_repeats(group: list[_QueuedBatch], written: set[bytes]) -> _NewRows:
    """The group without what is already written, and without repeats within the group."""
    new_rows, seen = _NewRows([], [], []), set(written)
    for waiting in group:
        batch, kept = waiting.batch, []
        for place, one in enumerate(batch.identities):
            if one not in seen:
                seen.add(one)
                kept.append(place)
        new_rows.repeats.append(len(batch.identities) - len(kept))
        new_rows.identities.extend(batch.identities[place] for place in kept)
        if len(kept) == len(batch.identities):
            new_rows.batches.append(batch.tables)
        else:
            new_rows.batches.append(_only(batch, kept) if kept else {})
    return new_rows


def _only(batch: Batch, kept: list[int]) -> dict[str, list[pa.RecordBatch]]:
    """The rows of some of a batch's events, and what was derived from those."""
    events = pa.Table.from_batches(batch.tables["events"], columns.schema("events")).take(pa.array(kept, pa.int64()))
    tables = {"events": events.combine_chunks().to_batches()}
    names, clusters = events["metric_name"].to_pylist(), events["cluster_id"].to_pylist()
    derived = Counter(
        (table, batch.identities[place][:ID_BYTES], cluster)
        for place, name, cluster in zip(kept, names, clusters, strict=True)
        if (table := DERIVED.get(name))
    )
    for table, parts in batch.tables.items():
        if table == "node_rollups":
            tables[table] = parts
        elif table != "events":
            rows, mask = pa.Table.from_batches(parts, columns.schema(table)), []
            for event_id, cluster in zip(rows["event_id"].to_pylist(), rows["cluster_id"].to_pylist(), strict=True):
                key = (table, event_id.bytes, cluster)
                mask.append(derived[key] > 0)
                derived[key] -= 1
            tables[table] = rows.filter(pa.array(mask, pa.bool_())).to_batches()
    return tables


def _uncancellable_future() -> Future[Any]:
    """A future that cannot be cancelled: the caller may give up, and the writer still sets the result."""
    done: Future[Any] = Future()
    done.set_running_or_notify_cancel()
    return done
