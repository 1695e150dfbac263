"""Maintains the shared tables: retention, merging of files, expiry of versions, removal of what none names.

Each step may be ended at any moment and repeated, and two processes may do it at once. A lease only saves the work.
"""

import random
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import duckdb

from ingero_echo.errors import UserError
from ingero_echo.lake import files, maintenance
from ingero_echo.lake.maintenance import StoredObject
from ingero_echo.lake.plan import ORDER
from ingero_echo.lake.sealer import lower_priority
from ingero_echo.lake.view import LakeFile, PinnedTable
from ingero_echo.settings import TableConfig
from ingero_kit.logs import get

log = get(__name__)


class MaintainedLake(Protocol):
    """The shared tables."""

    def create(self) -> None:
        """Create what is missing."""

    def storage_time(self) -> float:
        """The time of the storage."""

    def claim(self, now: float, every: float) -> bool:
        """Take or renew the lease."""

    def pin(self, table: str) -> PinnedTable:
        """The present version of a table."""

    def field_ids(self, table: str) -> Mapping[str, int]:
        """The numbers of the columns."""

    def fetch(self, table: str, file: LakeFile, target: Path) -> None:
        """Copy a data file to this machine."""

    def put(self, table: str, file: Path, name: str) -> str:
        """Store a file; returns where it is."""

    def replace(self, table: str, old: Sequence[LakeFile], location: str | None = None) -> bool:
        """Take files out of a table, and put one in."""

    def expire(self, table: str, before: float) -> int:
        """Forget versions that were replaced before a time."""

    def stored(self, table: str) -> list[StoredObject]:
        """All objects of a table."""

    def named(self, table: str) -> set[str]:
        """The paths that a table and its versions name."""

    def remove(self, table: str, paths: Sequence[str]) -> None:
        """Delete objects."""


@dataclass
class MaintenanceCounters:
    """Counters of maintenance."""

    runs: int = 0
    failures: int = 0
    expired: int = 0
    merged: int = 0
    snapshots: int = 0
    removed: int = 0


class Maintainer:
    """Maintains the tables now and then. `folder` is for copies of files."""

    def __init__(self, open_lake: Callable[[TableConfig], Any], config: TableConfig, folder: Path) -> None:
        self.counters = MaintenanceCounters()
        self._open_lake, self._config, self._folder = open_lake, config, folder
        self._every = config.maintain_every or 3600.0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="maintainer", daemon=True)

    def start(self) -> None:
        """Maintain from now on."""
        self._thread.start()

    def stop(self) -> None:
        """End after the step that runs."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        lower_priority()
        while not self._ending.wait(self._every * (0.9 + random.random() / 5)):
            try:
                self.maintain()
            except (UserError, OSError, duckdb.Error) as error:
                self.counters.failures += 1
                log.warning("maintenance_failed", reason=str(error), hint="the next run goes on")

    def maintain(self) -> bool:
        """Do all that is due, unless another shard does; whether it was done.

        Raises errors of users, of the engine and of the disk, after which it may be repeated.
        """
        lake: MaintainedLake = self._open_lake(self._config)
        lake.create()
        now = lake.storage_time()
        if abs(now - time.time()) > maintenance.CLOCK_SECONDS:
            raise UserError("the clocks of this machine and of the object storage differ by more than ten minutes")
        if not lake.claim(now, self._every):
            return False
        for table in ORDER:
            for step in (self._expire_rows, self._compact, self._expire_snapshots, self._remove_objects):
                if self._ending.is_set():
                    return False
                step(lake, table, now)
        self.counters.runs += 1
        return True

    def _expire_rows(self, lake: MaintainedLake, table: str, now: float) -> None:
        if self._config.retention is None:
            return
        old = maintenance.expired_files(lake.pin(table).files, now, self._config.retention)
        if old and lake.replace(table, old):
            self.counters.expired += len(old)

    def _compact(self, lake: MaintainedLake, table: str, now: float) -> None:
        for group in maintenance.compactions(lake.pin(table).files, now, self._config.compact_mb << 20):
            if self._ending.is_set():
                return
            with self._empty_folder():
                merged = self._merge(lake, table, group)
                name = f"data/day={maintenance.day_text(group[0])}/{table}-{uuid.uuid4().hex}.parquet"
                if lake.replace(table, group, lake.put(table, merged, name)):
                    self.counters.merged += len(group)

    def _merge(self, lake: MaintainedLake, table: str, group: Sequence[LakeFile]) -> Path:
        copies = [self._folder / file.name for file in group]
        for file, copy in zip(group, copies, strict=True):
            lake.fetch(table, file, copy)
        target = self._folder / "merged.parquet"
        rows = files.merge_files(table, copies, lake.field_ids(table), target, self._config.memory_mb)
        expected = sum(file.rows for file in group)
        if rows != expected:
            raise UserError(f"{table}: {len(group)} files have {rows} rows, and the table says {expected}")
        return target

    def _expire_snapshots(self, lake: MaintainedLake, table: str, now: float) -> None:
        self.counters.snapshots += lake.expire(table, now - self._config.snapshots)

    def _remove_objects(self, lake: MaintainedLake, table: str, now: float) -> None:
        objects = lake.stored(table)
        gone = maintenance.unreferenced(objects, lake.named(table), now)
        lake.remove(table, gone)
        self.counters.removed += len(gone)

    @contextmanager
    def _empty_folder(self) -> Iterator[None]:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(mode=0o700, parents=True)
        try:
            yield
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
