"""Decides when other processes may read the database file while Echo writes it.

DuckDB allows one process. Its file format is made to survive crashes: what one checkpoint has written stays unchanged
until the next checkpoint has ended, and everything newer is in the write-ahead log. A process that opens the file
read-only between two checkpoints therefore has a snapshot, log included, that stays valid until the second checkpoint
after it begins. `SnapshotRegistry` enforces this: no process opens the file during a checkpoint, and a process that
still reads an older version is ended before the next one. Checkpoints happen only where the store asks for them,
never inside a commit.
Blocks carry checksums: a reader of an outdated version sees an error, not wrong rows.
"""

import contextlib
import fcntl
import os
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from ingero_kit.logs import get

log = get(__name__)

REPLAY_BYTES: Final = 4 << 20
"""Length of the log above which it is folded in, because every reader would replay it."""


@dataclass(frozen=True)
class Version:
    """What a reader that opens now sees: checkpoints so far, and the length of the log after the newest one."""

    checkpoints: int
    log_bytes: int


class SnapshotReader(Protocol):
    """A process that may have the file open."""

    version: Version | None
    """The version that it has open."""
    busy: bool
    """Whether it is answering a question."""

    def end(self) -> None:
        """End it at once, from any thread; returns when it is gone."""


class SnapshotRegistry:
    """Enforces the rule for one database file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = path.with_name(path.name + ".wal")
        self._lock = threading.Lock()
        self._checkpoints = 0
        self._readers: set[SnapshotReader] = set()
        self._shared: int | None = None
        self.checkpoint_wanted = False
        """Whether readers would gain from a checkpoint: they replay the log whenever they open."""

    @contextlib.contextmanager
    def opening(self, reader: SnapshotReader) -> Iterator[Version]:
        """While a reader opens the file; it counts as a reader until `left`."""
        with self._lock:
            self._readers.add(reader)
            length = self._log.stat().st_size if self._log.exists() else 0
            self.checkpoint_wanted = self.checkpoint_wanted or length > REPLAY_BYTES
            yield Version(self._checkpoints, length)

    def remove(self, reader: SnapshotReader) -> None:
        """A reader that has ended."""
        with self._lock:
            self._readers.discard(reader)

    def has_stale_readers(self) -> bool:
        """Whether the next checkpoint would end a running question."""
        with self._lock:
            return any(map(self._is_stale, self._readers))

    @contextlib.contextmanager
    def checkpointing(self) -> Iterator[None]:
        """While a checkpoint runs. Readers of an older version than the present one are ended before."""
        with self._lock:
            for reader in [reader for reader in self._readers if self._is_stale(reader)]:
                self._end(reader)
            try:
                yield
            finally:
                self._checkpoints += 1
                self.checkpoint_wanted = False

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """While the database is opened or closed: no reader is left, and the file carries no lock of ours."""
        with self._lock:
            for reader in list(self._readers):
                self._end(reader)
            if self._shared is not None:
                os.close(self._shared)
                self._shared = None
            try:
                yield
            finally:
                self._checkpoints += 1

    def admit_readers(self) -> None:
        """Admit readers by releasing the engine's lock on the file. `DatabaseLock` decides who may write.

        Locks of this kind are released when the process closes any descriptor of the file. A shared lock without that
        property replaces it, so that other programs still cannot open the file for writing.
        """
        os.close(os.open(self._path, os.O_RDONLY | os.O_CLOEXEC))
        self._shared = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            checkpoint_wanted = struct.pack("hhqqi0q", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
            fcntl.fcntl(self._shared, fcntl.F_OFD_SETLK, checkpoint_wanted)
        except OSError as error:
            log.warning("database_not_locked", reason=str(error), hint="let no other program write to the file")

    def _is_stale(self, reader: SnapshotReader) -> bool:
        """Whether it reads an older version; an idle reader opens the present version before it reads again."""
        return reader.busy and reader.version is not None and reader.version.checkpoints < self._checkpoints

    def _end(self, reader: SnapshotReader) -> None:
        reader.end()
        self._readers.discard(reader)
