"""Detects files that are replaced while a process runs, such as certificates and tokens."""

import contextlib
from collections.abc import Iterable
from pathlib import Path


class FileWatcher:
    """Compares time, inode and size, through symbolic links, so that an updated Secret volume is noticed."""

    def __init__(self, files: Iterable[Path | None]) -> None:
        self._files = [file for file in files if file]
        self._seen = self._stamps()

    def changed(self) -> bool:
        """Whether any file has changed since the last call."""
        stamps = self._stamps()
        before, self._seen = self._seen, stamps
        return stamps != before

    def _stamps(self) -> list[tuple[int, int, int]]:
        stamps = []
        for file in self._files:
            facts = None
            with contextlib.suppress(OSError):
                facts = file.stat()
            stamps.append((facts.st_mtime_ns, facts.st_ino, facts.st_size) if facts else (0, 0, 0))
        return stamps
