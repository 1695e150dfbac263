"""What is remembered over restarts, in a file that one process at a time uses."""

import fcntl
import json
import os
from pathlib import Path

from ingero_kit.files import replace_file
from ingero_kit.settings import SettingsError
from ingero_operator.taints.state import TaintState, from_status, to_status

MAX_BYTES = 1 << 20


class DrainStateStore:
    """The state file of one cluster, locked while this object lives."""

    def __init__(self, file: Path, cluster: str) -> None:
        """Take the lock. Raises `SettingsError` if another process has it, `OSError`."""
        self._file, self._cluster = file, cluster
        file.parent.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(f"{file}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise SettingsError(f"{file}: another process uses it") from None

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock)

    def load(self) -> TaintState:
        """The state of the previous process. Raises `SettingsError` for a file that is damaged or of another cluster:
        without it, overrides by users would be forgotten."""
        try:
            data = self._file.read_bytes()[: MAX_BYTES + 1]
        except FileNotFoundError:
            return TaintState()
        try:
            tree = json.loads(data)
            cluster, state = tree["cluster"], from_status(tree["drains"])
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise SettingsError(f"{self._file} is damaged: move it away to start without it") from None
        if cluster != self._cluster:
            raise SettingsError(f"{self._file} is of cluster {cluster!r:.80}, not {self._cluster!r}")
        return state

    def save(self, state: TaintState) -> None:
        """Write the state. Raises `OSError`."""
        tree = {"cluster": self._cluster, "drains": to_status(state)}
        replace_file(self._file, json.dumps(tree, indent=1).encode())
