"""Values read from files that are replaced while a process runs, such as certificates and tokens. No threads.

Every listener and client asks for the current value when it needs it, so a new file counts without a restart.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from ingero_http.structured_logs import structlog

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Value = TypeVar("Value")


class FollowedFiles(Generic[Value]):
    """What `read` makes of some files, read again when they have changed.

    Time, inode and size are compared, through symbolic links, so that an updated Secret volume is noticed; at most
    every `interval` seconds. `what` names the value in logs. The first `read` may raise.
    """

    def __init__(
        self,
        what: str,
        files: Iterable[Path | None],
        read: Callable[[], Value],
        interval: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._read, self._interval, self._clock = what, read, interval, clock
        self._files = [file for file in files if file]
        self._stamps, self._checked = self._stat(), clock()
        self._value = read()

    def current(self) -> Value:
        """The value of the current files. If they cannot be used, that is logged once and the old value stays."""
        now = self._clock()
        if now - self._checked >= self._interval:
            self._checked = now
            stamps = self._stat()
            if stamps != self._stamps:
                self._stamps = stamps
                self._read_again()
        return self._value

    def _read_again(self) -> None:
        try:
            self._value = self._read()
            log.info(f"{self._what}_reloaded")
        except Exception as error:
            log.error(f"{self._what}_not_reloaded", reason=str(error))

    def _stat(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(file) for file in self._files]


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        facts = file.stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_ino, facts.st_size
