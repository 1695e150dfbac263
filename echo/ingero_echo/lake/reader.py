"""A reader: the shared tables at their newest version, and the rows that writers have not sealed yet.

One thread looks for new versions, one for each writer asks for its rows. A question pins what it reads. Rows that are
sealed by now are kept until no question can use the version before.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import duckdb

from ingero_echo.errors import EchoApiError, UserError
from ingero_echo.lake import view
from ingero_echo.lake.file_cache import FileCache
from ingero_echo.lake.plan import NOTHING, ORDER
from ingero_echo.lake.tail import TailGone, TailPage
from ingero_echo.lake.view import LakeFile, Pin, PinnedTable
from ingero_echo.settings import EchoConfig, ReadConfig, cached_files
from ingero_echo.store import Store
from ingero_echo.tables import TABLES
from ingero_echo.window import Sources, Window, rfc3339
from ingero_kit.logs import get

log = get(__name__)

POLL_SECONDS: Final = 1.0
"""Time between two requests to a writer that has nothing more."""

GRACE_SECONDS: Final = 30.0
"""How much longer than a question may take sealed rows are kept."""

_EVENTS_FIRST: Final = tuple(reversed(ORDER))


class ReadableLake(Protocol):
    """The shared tables."""

    def pin(self, table: str, before: PinnedTable | None = None) -> PinnedTable:
        """The present version of a table."""

    def fetch(self, table: str, file: LakeFile, target: Path) -> None:
        """Copy a data file to this machine."""


@dataclass
class _Writer:
    """What is known of one writer. `through` is the order of arrival of its newest row here."""

    schema: str
    address: str
    through: int | None = None
    store: str = ""
    rows: int = 0
    as_of: int = 0
    heard: float = -float("inf")
    asked: bool = False
    """Whether its newest rows were asked for once, with or without success."""
    changes: int = 0
    """How often its rows were dropped, because they no longer continue what is sealed."""


class LakeReader:
    """Answers of several writers in one place. `fetch_tail` asks a writer for the rows after an order of arrival."""

    def __init__(
        self,
        store: Store,
        config: EchoConfig,
        read: ReadConfig,
        open_lake: Callable[[], ReadableLake],
        fetch_tail: Callable[[str, int], TailPage],
    ) -> None:
        self.refreshes = self.failures = 0
        self._store, self._read, self._open_lake, self._fetch_tail = store, read, open_lake, fetch_tail
        self._grace = config.query.timeout + GRACE_SECONDS
        self._lake: ReadableLake | None = None
        self.cache = FileCache(cached_files(read).absolute(), read.cache_mb << 20, self._fetch)
        self._pins: deque[tuple[float, Pin]] = deque(maxlen=1000)
        """Versions with the time when they were pinned; the newest is used."""
        self._writers = {
            shard: _Writer(f"unsealed{number}", address.rstrip("/"))
            for number, (shard, address) in enumerate(sorted(read.shards.items()))
        }
        for writer in self._writers.values():
            store.connection.execute(f"CREATE SCHEMA {writer.schema}")
            for table in TABLES:
                store.connection.execute(f"CREATE TABLE {writer.schema}.{table} AS FROM main.{table} LIMIT 0")
        self._writing = threading.Lock()
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(self.refresh, read.every), name="tables", daemon=True)
        ]
        self._threads += [
            threading.Thread(target=self._run, args=(self._poller(shard), POLL_SECONDS), name="tail", daemon=True)
            for shard in self._writers
        ]

    @property
    def ready(self) -> bool:
        """Whether the tables were read, and every writer was asked or does not answer."""
        return self.unready() is None

    def unready(self) -> EchoApiError | None:
        """What is missing before the first answer, if anything is, with its cure."""
        if not self._pins:
            hint = (
                "the log has the reason as read_failed; check table.catalog and table.credentials_file if this lasts"
            )
            return EchoApiError("not_ready", "the shared tables were not read yet", hint, 503, 1)
        waiting = [shard for shard, writer in self._writers.items() if not writer.asked]
        if waiting:
            hint = "ask again; check read.shards, read.token_file and read.ca_file if this lasts"
            return EchoApiError("not_ready", f"not heard of yet: {', '.join(waiting)}", hint, 503, 1)
        return None

    def start(self) -> None:
        """Follow tables and writers from now on."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End; waits for requests that run."""
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def _run(self, step: Callable[[], bool], every: float) -> None:
        while not self._ending.is_set():
            more = False
            try:
                more = step()
            except (UserError, OSError, duckdb.Error) as error:
                self.failures += 1
                log.warning("read_failed", what=threading.current_thread().name, reason=str(error))
            self._ending.wait(0 if more else every)

    def refresh(self) -> bool:
        """Pin the newest version of all tables, once files that were added since the last one are here: so questions
        go on while the object storage is away. Raises `UserError`."""
        lake = self._lake or self._open_lake()
        before: Pin = self._pins[-1][1] if self._pins else {}
        # Events first: what they name was sealed before them.
        pins = {table: lake.pin(table, before.get(table)) for table in _EVENTS_FIRST}
        self._lake = lake
        if before:
            self._fetch_added(view.added(pins, before, self._read.cache_mb << 20 >> 2))
        self._pins.append((time.monotonic(), pins))
        self.refreshes += 1
        return False

    def _poller(self, shard: str) -> Callable[[], bool]:
        return lambda: self.poll(shard)

    def poll(self, shard: str) -> bool:
        """Ask a writer for its next rows; whether there are more. Raises `UserError`."""
        writer = self._writers[shard]
        if not self._pins or writer.rows > self._read.unsealed_rows:
            self._trim(shard)
            return False
        after, asked = writer.through, time.time_ns()
        if after is None:
            after = self._pins[-1][1]["events"].sealed(shard)
        try:
            page = self._fetch_tail(writer.address, after)
        except TailGone:
            writer.asked = True
            self._drop(writer)
            self.refresh()
            return False
        except UserError:
            writer.asked = True
            raise
        if writer.store not in ("", page.store):
            self._drop(writer)
            return False
        self._add(writer, page)
        if page.complete:
            writer.asked = True
            writer.as_of, writer.heard = asked, time.monotonic()
        self._trim(shard)
        return not page.complete

    @contextlib.contextmanager
    def pinned(self, window: Window) -> Iterator[Sources]:
        """What a question about a window reads. Raises `EchoApiError`, also at the end if a writer's rows changed."""
        if not self._pins:
            raise EchoApiError("not_ready", "the shared tables were not read yet", "ask again", 503, 1)
        pin = self._pins[-1][1]
        changes = [writer.changes for writer in self._writers.values()]
        as_of, missing = self._freshness(pin)
        hot = [view.Unsealed(writer.schema, shard, writer.store) for shard, writer in self._writers.items()]
        files = {table: view.needed(table, pin[table], window) for table in TABLES}
        wanted = [(table, file) for table, found in files.items() for file in found]
        with self.cache.using(wanted) as paths:
            found = {
                table: view.source(table, pin[table], [paths[file.location] for file in names], hot, window)
                for table, names in files.items()
            }
            yield Sources(found, as_of, missing)
        if changes != [writer.changes for writer in self._writers.values()]:
            raise EchoApiError("not_ready", "a writer was replaced during the question", "ask again", 503, 1)

    def _freshness(self, pin: Pin) -> tuple[dict[str, str], tuple[str, ...]]:
        """Times up to which each writer's events are here, and writers that do not answer."""
        as_of, missing, now = {}, [], time.monotonic()
        sealed = pin["events"].boundaries
        answering = {writer.store for writer in self._writers.values()} - {""}
        renamed = {
            shard for shard, boundary in sealed.items()
            if shard not in self._writers and boundary.store in answering
        }  # fmt: skip
        for shard in sorted({*sealed, *self._writers} - renamed):
            writer = self._writers.get(shard)
            known = sealed[shard].as_of if shard in sealed else 0
            as_of[shard] = rfc3339(max(known, writer.as_of if writer else 0))
            if writer is None or now - writer.heard > self._read.missing_after:
                missing.append(shard)
        return as_of, tuple(missing)

    def _fetch(self, table: str, file: LakeFile, target: Path) -> None:
        assert self._lake is not None  # set before the first pin
        self._lake.fetch(table, file, target)

    def _fetch_added(self, files: list[tuple[str, LakeFile]]) -> None:
        try:
            with self.cache.using(files):
                pass
        except EchoApiError as error:
            if error.code != "busy":  # questions that run need the room
                raise

    # Rows that are not sealed. Only these methods write to the database, one at a time.

    def _add(self, writer: _Writer, page: TailPage) -> None:
        connection = self._store.connection
        with self._writing:
            connection.execute("BEGIN")
            try:
                for table, rows in page.tables.items():
                    if rows.num_rows:
                        connection.register("rows_of_page", rows)
                        names = ", ".join(f'"{name}"' for name in rows.column_names)
                        connection.execute(
                            f"INSERT INTO {writer.schema}.{table} BY NAME SELECT {names} FROM rows_of_page"
                        )
                        connection.unregister("rows_of_page")
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            writer.changes += (
                writer.store != page.store
            )  # questions that run do not know the boundary of this database
            writer.through, writer.store = page.through, page.store
            writer.rows += sum(rows.num_rows for rows in page.tables.values())
            self._store.checkpoint_if_due()

    def _drop(self, writer: _Writer) -> None:
        with self._writing:
            writer.changes += 1
            writer.through, writer.store, writer.rows, writer.heard = None, "", 0, -float("inf")
            for table in TABLES:
                self._store.connection.execute(f"DELETE FROM {writer.schema}.{table}")

    def _trim(self, shard: str) -> None:
        writer, before = self._writers[shard], time.monotonic() - self._grace
        for table in TABLES:
            through = view.trimmed(self._pins.copy(), shard, table, before)
            if through > NOTHING:
                with self._writing:
                    sql = f"DELETE FROM {writer.schema}.{table} WHERE seq <= {through}"
                    writer.rows -= int(self._store.connection.execute(sql).fetchall()[0][0])
