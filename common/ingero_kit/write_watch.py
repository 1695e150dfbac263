"""Counts and logs failed writes of a file that is written again and again."""

from pathlib import Path

from ingero_kit.logs import get

log = get(__name__)


class WriteWatch:
    """Logs the first of several failures in a row, and the write that ends them; a full disk does not fill the log.

    `what` begins the names of the events: WHAT_not_written and WHAT_written_again.
    """

    def __init__(self, what: str, file: Path) -> None:
        self.failures = 0
        """Failures since the start."""
        self._what, self._file = what, file
        self._failing = False

    def failed(self, error: OSError) -> None:
        """Note a write that failed."""
        self.failures += 1
        if not self._failing:
            log.warning(f"{self._what}_not_written", file=str(self._file), reason=str(error))
        self._failing = True

    def succeeded(self) -> None:
        """Note a write that did not."""
        if self._failing:
            log.info(f"{self._what}_written_again", file=str(self._file))
        self._failing = False
