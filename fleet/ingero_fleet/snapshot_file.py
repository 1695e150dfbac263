"""A state file that is replaced atomically: it holds the old state or the new one, never a part."""

from pathlib import Path
from typing import Final

from ingero_kit.files import replace_file
from ingero_kit.logs import get

MOST_BYTES: Final = 1 << 30
"""Largest file that is read, bytes."""

log = get(__name__)


class SnapshotFile:
    """Writes state at an interval, atomically; a failing disk is logged, and judging continues."""

    def __init__(self, file: Path, interval_seconds: float) -> None:
        self._file, self._interval = file, interval_seconds
        self._written: float | None = None

    def due(self, now: float) -> bool:
        """Whether it is time to write again; `now` in seconds of any clock that does not jump."""
        if self._written is None or now - self._written >= self._interval:
            self._written = now
            return True
        return False

    def read(self) -> bytes | None:
        """The state that was written last; `None` if there is none."""
        try:
            if self._file.stat().st_size > MOST_BYTES:
                log.warning("snapshot_refused", reason="the file is larger than 1 GiB")
                return None
            return self._file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("snapshot_not_read", file=str(self._file), reason=str(error))
            return None

    def write(self, data: bytes) -> None:
        """Replace the file."""
        try:
            replace_file(self._file, data)
        except OSError as error:
            log.warning("snapshot_not_written", file=str(self._file), reason=str(error))
