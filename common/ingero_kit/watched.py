"""Files that are replaced while a process runs, such as tokens and certificates: who read them learns of a change."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from ingero_kit.logs import get
from ingero_kit.settings import SettingsError

log = get(__name__)

INTERVAL_SECONDS: Final = 2.0
"""How often files are looked at."""


class WatchedFiles:
    """Compares time, inode and size, through symbolic links, so that a mounted Secret that is swapped is noticed."""

    def __init__(self, files: Iterable[Path | None]) -> None:
        self._files = [file for file in files if file]
        self._seen = self._stamps()

    def changed(self) -> bool:
        """Whether any file is another one than at the last call."""
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


def reload_if_changed(files: WatchedFiles, reload: Callable[[], None], what: str) -> None:
    """Read files again when they have changed; what cannot be used is logged once a change, and the old stays."""
    if not files.changed():
        return
    try:
        reload()
        log.info(f"{what}_reloaded")
    except (SettingsError, OSError) as error:
        log.error(f"{what}_not_reloaded", reason=str(error))


async def follow(files: WatchedFiles, reload: Callable[[], None], what: str) -> None:
    """`reload_if_changed` for ever."""
    while True:
        await asyncio.sleep(INTERVAL_SECONDS)
        reload_if_changed(files, reload, what)
