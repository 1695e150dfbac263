"""Reads files again when they have been replaced, such as token files."""

import asyncio
from collections.abc import Callable
from typing import Final

from ingero_http.file_watcher import FileWatcher
from ingero_kit.logs import get
from ingero_kit.settings import SettingsError

log = get(__name__)

INTERVAL_SECONDS: Final = 2.0
"""Seconds between two checks of the files."""


def reload_if_changed(files: FileWatcher, reload: Callable[[], None], what: str) -> None:
    """Read files again when they have changed. Unusable files are logged once a change, and the old content stays."""
    if not files.changed():
        return
    try:
        reload()
        log.info(f"{what}_reloaded")
    except (SettingsError, OSError) as error:
        log.error(f"{what}_not_reloaded", reason=str(error))


async def watch_files(files: FileWatcher, reload: Callable[[], None], what: str) -> None:
    """Call `reload_if_changed` periodically, for ever."""
    while True:
        await asyncio.sleep(INTERVAL_SECONDS)
        reload_if_changed(files, reload, what)
