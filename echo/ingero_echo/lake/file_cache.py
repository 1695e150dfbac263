"""Copies of data files on the local disk, bounded: the one that was used longest ago goes first."""

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ingero_echo.errors import EchoApiError, UserError
from ingero_echo.lake.view import LakeFile

AT_ONCE: Final = 8
"""Files that are fetched at the same time."""

PATIENCE_SECONDS: Final = 30.0
"""Longest time that a question waits for files that are fetched; fetching goes on after it."""


@dataclass
class _Entry:
    size: int
    there: Future[None] = field(default_factory=Future)
    uses: int = 0


class FileCache:
    """Holds the files that questions use. The folder is emptied at first: nothing in it is trusted."""

    def __init__(
        self,
        folder: Path,
        limit: int,
        fetch: Callable[[str, LakeFile, Path], None],
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self.hits = self.fetched = 0
        self._patience = patience
        self._folder, self._limit, self._fetch = folder, limit, fetch
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        self._entries: dict[str, _Entry] = {}
        """By name, the one that was used longest ago first."""
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(AT_ONCE, "fetch")

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(entry.size for entry in self._entries.copy().values())

    @contextlib.contextmanager
    def using(self, files: Sequence[tuple[str, LakeFile]]) -> Iterator[dict[str, Path]]:
        """Paths by location of files, each with its table; they stay within the block. Raises `EchoApiError`."""
        names = [file.name for _, file in files]
        mine = self._reserve(files)
        try:
            for (table, file), entry in mine:
                self._pool.submit(self._load, table, file, entry)
            self._wait([self._entries[name].there for name in names])
            yield {file.location: self._folder / file.name for _, file in files}
        except (UserError, OSError) as error:
            if isinstance(error, EchoApiError):
                raise
            raise EchoApiError("storage", f"a data file cannot be read: {error}", "ask again", 503, 1) from None
        finally:
            self._release(names)

    def _wait(self, fetched: Sequence[Future[None]]) -> None:
        """Until all are there. Raises what a fetch has raised, `EchoApiError` if one takes too long."""
        ended, running = wait(fetched, self._patience, FIRST_EXCEPTION)
        for one in ended:
            one.result()
        if running:
            message = f"{len(running)} of its {len(fetched)} data files are still being copied from the storage"
            raise EchoApiError("not_ready", message, "ask again", 503, 5)

    def _reserve(self, files: Sequence[tuple[str, LakeFile]]) -> list[tuple[tuple[str, LakeFile], _Entry]]:
        """Mark all as used, make room; returns those that are to be fetched."""
        wanted = sum(file.size for _, file in files)
        if wanted > self._limit:
            message = f"its data files have {wanted >> 20} MB, and the cache holds {self._limit >> 20}"
            raise EchoApiError("too_large", message, "a shorter window, or a larger read.cache_mb", 422)
        with self._lock:
            names = {file.name for _, file in files}
            new = [(table, file) for table, file in files if not self._whole(file)]
            room = self._limit - sum(file.size for _, file in new)
            total = sum(entry.size for entry in self._entries.values())
            unused = [
                name
                for name, entry in self._entries.items()
                if not entry.uses and entry.there.done() and name not in names
            ]
            for name in unused:
                if total <= room:
                    break
                total -= self._drop(name)
            if total > room:
                raise EchoApiError("busy", "other questions use the whole cache", "ask again", 503, 1)
            self.hits += len(files) - len(new)
            self.fetched += len(new)
            for _, file in files:
                entry = self._entries.pop(file.name, None) or _Entry(file.size)
                entry.uses += 1
                self._entries[file.name] = entry
            return [(one, self._entries[one[1].name]) for one in new]

    def _whole(self, file: LakeFile) -> bool:
        """Whether a file is there or on its way; one with another length is dropped."""
        entry = self._entries.get(file.name)
        if entry is None:
            return False
        if not entry.there.done() or entry.uses:
            return True
        path = self._folder / file.name
        if entry.there.exception() is None and path.exists() and path.stat().st_size == file.size:
            return True
        self._drop(file.name)
        return False

    def _drop(self, name: str) -> int:
        (self._folder / name).unlink(missing_ok=True)
        return self._entries.pop(name).size

    def _release(self, names: Sequence[str]) -> None:
        with self._lock:
            for name in names:
                self._entries[name].uses -= 1

    def _load(self, table: str, file: LakeFile, entry: _Entry) -> None:
        path = self._folder / file.name
        part = path.with_suffix(".part")
        try:
            self._fetch(table, file, part)
            if part.stat().st_size != file.size:
                raise UserError(f"{file.location} has {part.stat().st_size} bytes instead of {file.size}")
            part.replace(path)
            entry.there.set_result(None)
        except Exception as error:
            part.unlink(missing_ok=True)
            entry.there.set_exception(error)
