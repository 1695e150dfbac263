"""Seals ranges of the order of arrival into the shared tables, and deletes sealed rows later. A thread of its own."""

import contextlib
import os
import random
import shutil
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import duckdb

from ingero_echo.errors import UserError
from ingero_echo.lake import files, plan
from ingero_echo.lake.plan import Boundary, ShardTaken
from ingero_echo.settings import TableConfig
from ingero_echo.source_position import SourcePosition
from ingero_echo.store import Store
from ingero_echo.tables import TABLES
from ingero_kit.connection_stats import ConnectionStats
from ingero_kit.extras import pip_command
from ingero_kit.logs import get

log = get(__name__)

REMEMBERED_SEALS: Final = 10_000
"""Seals whose times are remembered for the deletion of their rows; of older ones the newest counts."""


class Lake(Protocol):
    """The shared tables."""

    def create(self) -> None:
        """Create what is missing."""

    def boundaries(self, table: str) -> dict[str, Boundary]:
        """What a table says of all shards."""

    def field_ids(self, table: str) -> dict[str, int]:
        """The numbers of the columns."""

    def put(self, table: str, file: Path, name: str) -> str:
        """Store a file; returns where it is."""

    def commit(self, table: str, locations: list[str], shard: str, expected: int, wanted: Boundary) -> None:
        """Add files and set the boundary in one commit."""


def open_lake(config: TableConfig) -> Any:
    """Connect to the catalog. Raises `UserError`."""
    try:
        from ingero_echo.lake.catalog import LakeCatalog  # optional, and slow to load
    except ImportError as error:
        raise UserError(f"sealing needs more packages ({error.name})", pip_command("echo-lake")) from None
    return LakeCatalog(config)


def lower_priority(nice: int = plan.NICE) -> None:
    """Let other threads go first. A process without privileges cannot raise the priority of a thread again."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)


@dataclass
class SealCounters:
    """Counters of the sealer."""

    sealed: int = plan.NOTHING
    """Order of arrival of the newest row in the shared tables."""
    seals: int = 0
    failures: int = 0
    files: int = 0
    bytes: int = 0
    rows: int = 0
    deleted: int = 0
    last: float = 0.0
    """Unix time of the last seal; 0 before the first one."""
    until: float = field(default_factory=time.time)
    """Unix time until which all that arrived is sealed."""
    failure: plan.SealFailure | None = None
    """Why the last seal failed; nothing after one that succeeded."""
    whole_at: float = field(default_factory=time.monotonic)
    """When all that had arrived by then was sealed last, by the monotonic clock; at first the start."""
    taken: bool = False
    """Whether another database seals under this name, so that this one has stopped."""
    source: ConnectionStats | None = None
    """The connection to the stream whose rows are sealed, where there is one."""

    @property
    def lag(self) -> float:
        """Seconds of arrivals that may not be sealed yet."""
        return time.monotonic() - self.whole_at


class Sealer:
    """Seals one database. `call` runs a job on the writer's thread; `open_lake` connects to the catalog."""

    def __init__(
        self,
        store: Store,
        call: Callable[[Callable[[], Any]], Future[Any]],
        open_lake: Callable[[TableConfig], Lake],
        config: TableConfig,
        take_over: Callable[[str, int, int, SourcePosition], None] | None = None,
    ) -> None:
        """`take_over` continues after a database that was lost; given where there is a source."""
        self.counters = SealCounters()
        self._store, self._call, self._open_lake, self._config = store, call, open_lake, config
        self._lake: Lake | None = None
        self._take_over = take_over
        self.source_sealed: Future[dict[str, SourcePosition]] = Future()
        """The messages through which the tables have the stream when this process begins to seal."""
        self.sealed_position: SourcePosition | None = None
        """The message through which all tables have the stream."""
        self._expected: dict[str, int] = {}
        """Boundaries of the tables that this process has read or committed."""
        self._attempts: dict[str, set[int]] = {table: set() for table in TABLES}
        """Boundaries that were committed with an unknown outcome."""
        with store.cursor() as cursor:
            row = cursor.execute(
                "SELECT store::VARCHAR, origin::VARCHAR, copied, coalesce(predecessors, '') FROM sealing"
            ).fetchall()[0]
        self._id, self._origin, self._copied = str(row[0]), row[1], int(row[2])
        self._predecessors = tuple(row[3].split())
        self._sealed_elsewhere = dict.fromkeys(TABLES, plan.NOTHING)
        """Boundaries of rows that the tables have under another name: by the database that a backup was made of, or
        by this one."""
        self._continue()
        self.counters.until = self._oldest_arrival() or self.counters.until
        self._folder = store.config.path.absolute().with_name(store.config.path.name + ".seal")
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sealer", daemon=True)

    def _continue(self) -> None:
        """Seal what follows on what this database knows to be sealed, also under another name of the shard."""
        self._sealed = self._floor = self.counters.sealed = self._store.sealed_seq()
        self._started_at = self._store.newest_seq()
        self._seals: deque[tuple[int, float]] = deque([(self._sealed, time.monotonic())], REMEMBERED_SEALS)

    def start(self) -> None:
        """Seal from now on."""
        self._thread.start()

    def stop(self) -> None:
        """End after the step that runs; what is not sealed yet is sealed by the next process."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        wait = 0.0
        while not self._ending.wait(wait) and not self.counters.taken:
            wait = self._config.every * (0.9 + random.random() / 5)
            try:
                while not self._ending.is_set() and self.seal():
                    pass
            except ShardTaken as error:
                self.counters.taken = True
                self.counters.failure = plan.SealFailure.SHARD_TAKEN
                log.error("sealing_ended", reason=str(error), hint=error.hint)
            except (UserError, OSError, duckdb.Error) as error:
                self.counters.failures += 1
                self.counters.failure = plan.seal_failure(error)
                self._lake = None
                log.warning("seal_failed", reason=str(error), hint="it is tried again; events stay in the database")

    def seal(self) -> bool:
        """Seal one range, and delete rows that were sealed long enough ago; whether there may be more to seal.

        Raises `ShardTaken`, and other errors of users, of the engine and of the disk, after which it may be repeated.
        """
        began, now = time.monotonic(), time.time_ns()
        cursor = self._store.cursor()
        try:
            if self._take_over and not self.source_sealed.done():
                self._connect()
            counts = cursor.execute(
                "SELECT seq, count(*) FROM events WHERE seq > ? GROUP BY seq ORDER BY seq", [self._sealed]
            ).fetchall()
            through = plan.cut(counts, self._config.max_rows)
            if through is None:
                self._whole(began, now)
                self._delete()
                return False
            nice = plan.niceness(self.counters.lag, self._config.every)
            if through != counts[-1][0]:
                now = self._arrival(cursor, through)
            lake = self._connect()
            with ThreadPoolExecutor(1, "sort", lower_priority, (nice,)) as sorting:
                for table in plan.ORDER:
                    self._seal_table(lake, cursor, sorting, table, through, now)
        finally:
            cursor.close()
        self._call(lambda: self._record(through)).result()
        self._sealed = self.counters.sealed = through
        self.sealed_position = self._store.source_position(through)
        self._seals.append((through, time.monotonic()))
        self.counters.seals += 1
        self.counters.last = time.time()
        self.counters.until, self.counters.failure = now / 10**9, None
        if through == counts[-1][0]:
            self._whole(began, now)
        self._delete()
        rows = sum(count for seq, count in counts if seq <= through)
        self.counters.rows += rows
        log.info("sealed", through=through, events=rows, seconds=round(time.monotonic() - began, 3))
        return bool(through != counts[-1][0])

    def _whole(self, began: float, now: int) -> None:
        """All that had arrived at a moment is sealed."""
        self.counters.whole_at, self.counters.until, self.counters.failure = began, now / 10**9, None

    def _oldest_arrival(self) -> float | None:
        """When the first row arrived that is not sealed, Unix time."""
        with self._store.cursor() as cursor:
            found = cursor.execute("SELECT epoch_ns(min(received)) FROM events WHERE seq > ?", [self._sealed])
            nanos = found.fetchall()[0][0]
        return None if nanos is None else int(nanos) / 10**9

    def _arrival(self, cursor: Any, through: int) -> int:
        """When the newest row of a range arrived: further rows had arrived when it was sealed."""
        found = cursor.execute("SELECT epoch_ns(max(received)) FROM events WHERE seq = ?", [through]).fetchall()
        return int(found[0][0] or 0)

    def _connect(self) -> Lake:
        if self._lake is None:
            lake = self._open_lake(self._config)
            lake.create()
            every = {table: lake.boundaries(table) for table in TABLES}
            ours = {table: known.get(self._config.shard, Boundary()) for table, known in every.items()}
            if self._take_over and not self.source_sealed.done():
                self._replace_lost(ours)
            for table, known in every.items():
                found = known.get(self._config.shard, Boundary())
                self._sealed_elsewhere[table] = max(
                    plan.sealed_elsewhere(known.values(), self._origin, self._copied),
                    plan.sealed_formerly(self._config.former_shard, known, self._id, self._started_at),
                )
                if table not in self._expected:
                    self._expected[table] = plan.first_contact(
                        self._config.shard, found, self._id, self._started_at, self._predecessors
                    )
                elif self._was_ours(table, found):
                    self._expected[table] = found.sealed
            self._lake = lake
            if self._take_over and not self.source_sealed.done():
                self.sealed_position = self._store.source_position(self._sealed)
                self.source_sealed.set_result({table: one.source for table, one in ours.items() if one.source})
        return self._lake

    def _replace_lost(self, ours: dict[str, Boundary]) -> None:
        """Continue after another database of this shard whose source this one reads on from, if it sealed nothing."""
        found, highest = ours["events"], max(one.sealed for one in ours.values())
        if not plan.continues(found, self._id, self._sealed, self._store.source_position()):
            return
        assert self._take_over and found.source
        stores = tuple({one.store: None for one in ours.values() if one.store})
        change = partial(self._take_over, " ".join(stores), found.sealed, highest, found.source)
        self._call(change).result()
        self._predecessors = stores
        self._continue()
        log.warning("database_replaced", shard=self._config.shard, sealed=found.sealed, source=found.source.sequence)

    def _seal_table(
        self, lake: Lake, cursor: Any, sorting: ThreadPoolExecutor, table: str, through: int, now: int
    ) -> None:
        after = max(self._expected[table], self._floor, self._sealed_elsewhere[table])
        shard = self._config.shard
        if after >= through:
            return
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(mode=0o700, parents=True)
        try:
            ids, locations = lake.field_ids(table), []
            for day in files.days(cursor, table, after, through):
                path = self._folder / f"{table}-{day}.parquet"
                memory = self._config.memory_mb
                sorting.submit(files.write_day, cursor, table, after, through, day, ids, path, memory).result()
                name = plan.file_name(table, day, shard, uuid.uuid4().hex[:12], after, through)
                locations.append(lake.put(table, path, name))
                self.counters.bytes += path.stat().st_size
                path.unlink()
            if locations:
                self._commit(lake, table, locations, self._boundary(through, now))
                self.counters.files += len(locations)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _boundary(self, through: int, now: int) -> Boundary:
        return Boundary(through, self._id, now, self._store.source_position(through), self._predecessors)

    def _commit(self, lake: Lake, table: str, locations: list[str], wanted: Boundary) -> None:
        shard = self._config.shard
        try:
            lake.commit(table, locations, shard, self._expected[table], wanted)
        except ShardTaken:
            if self._was_ours(table, lake.boundaries(table).get(shard, Boundary())):
                raise UserError(f"{table}: an earlier commit that seemed to have failed has landed") from None
            raise
        except UserError:
            self._attempts[table].add(wanted.sealed)
            raise
        self._expected[table] = wanted.sealed
        self._attempts[table].clear()

    def _was_ours(self, table: str, found: Boundary) -> bool:
        """Whether a boundary is one that this process committed without learning that it did."""
        return found.store == self._id and found.sealed in self._attempts[table]

    def _record(self, through: int) -> None:
        self._store.connection.execute("UPDATE sealing SET sealed = ?", [through])
        if self._take_over:
            self._store.connection.execute(
                "DELETE FROM source WHERE seq < (SELECT max(seq) FROM source WHERE seq <= ?)", [through]
            )

    def _delete(self) -> None:
        through = plan.deletable(self._seals, time.monotonic(), self._config.keep)
        if through == plan.NOTHING:
            return
        self.counters.deleted += self._call(lambda: self._store.delete_through(through)).result()
        while self._seals[0][0] <= through and len(self._seals) > 1:
            self._seals.popleft()
