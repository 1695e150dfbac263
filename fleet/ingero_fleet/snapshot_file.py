"""A state file that is replaced atomically: it holds the old state or the new one, never a part."""

from pathlib import Path
from stat import S_ISREG
from typing import Final

from ingero_kit.files import replace_file
from ingero_kit.logs import get
from ingero_kit.write_watch import WriteWatch

MOST_BYTES: Final = 1 << 30
"""Largest file that is read, bytes."""

SHARE: Final = 0.005
"""Share of a processor that writing more often than at the longest interval may take."""

log = get(__name__)


class SnapshotFile:
    """Writes state at an interval, atomically; a failing disk is logged, and judging continues.

    A process that is killed loses what it has learnt since. So the interval, seconds, is the shortest one while
    writing costs little, and never more than the longest.
    """

    def __init__(self, file: Path, shortest: float, longest: float) -> None:
        self._file, self._shortest, self._longest = file, shortest, longest
        self._written: float | None = None
        self._watch = WriteWatch("snapshot", file)
        self.cost = 0.0
        """Processor time of the latest snapshot, seconds."""

    @property
    def failures(self) -> int:
        """Snapshots that could not be written."""
        return self._watch.failures

    def due(self, now: float) -> bool:
        """Whether it is time to write again; `now` in seconds of any clock that does not jump."""
        interval = min(self._longest, max(self._shortest, self.cost / SHARE))
        if self._written is None or now - self._written >= interval:
            self._written = now
            return True
        return False

    def read(self) -> bytes | None:
        """The state that was written last; `None` if there is none."""
        try:
            found = self._file.stat()
            if found.st_size > MOST_BYTES or not S_ISREG(found.st_mode):
                reason = "larger than 1 GiB" if S_ISREG(found.st_mode) else "not a file, such as a folder or a device"
                log.warning("snapshot_refused", file=str(self._file), reason=f"it is {reason}")
                return None
            return self._file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("snapshot_not_read", file=str(self._file), reason=str(error))
            return None

    def write(self, data: bytes) -> None:
        """Replace the file; its folder is made where it is missing."""
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._file, data)
        except OSError as error:
            self._watch.failed(error)
        else:
            self._watch.succeeded()
