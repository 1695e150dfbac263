"""One process owns a database: a lock file that names its owner, for the message to the second process."""

import contextlib
import fcntl
import json
import os
import socket
from pathlib import Path
from typing import IO

from ingero_echo.errors import UserError


class DatabaseLocked(UserError):
    """Another process has the database; the text says which and what to do."""


class DatabaseLock:
    """Locks `<database>.lock` with flock(2) until closed; the kernel releases it when the process is killed."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(database.name + ".lock")
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Take the lock; raises `DatabaseLocked` when another process has it."""
        file = self._path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            owner = "another process"
            with contextlib.suppress(ValueError, KeyError, TypeError):
                facts = json.loads(file.read())
                owner = f"process {facts['pid']} on {facts['host']}"
            file.close()
            raise DatabaseLocked(
                f"{self._path.with_suffix('')}: the database is in use by {owner}: stop it first, or take a copy "
                "while it runs with POST /api/v2/backups"
            ) from None
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        file.flush()
        self._file = file

    def release(self) -> None:
        """Release the lock. The file stays: removing it would let two processes lock two files of one name."""
        if self._file:
            self._file.close()
            self._file = None
