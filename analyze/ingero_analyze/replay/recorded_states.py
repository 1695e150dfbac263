"""Compares the detector's states in a replay with those that Fleet recorded beside its history."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ingero_detect.column_store import ColumnStore
from ingero_detect.fingerprint import processor_text, state_hash
from ingero_fleet.recording import MAX_STATES_BYTES, STATES_SUFFIX


@dataclass
class RecordedStates:
    """State hash and processor by digest, and how many of them were compared and differ."""

    known: dict[str, tuple[str, str]] = field(default_factory=dict)
    compared: int = 0
    differ: int = 0
    recorded_with: str = ""

    @classmethod
    def read(cls, files: Iterable[str]) -> Self:
        """The states beside these files; lines that cannot be read are left out."""
        found = cls()
        for file in files:
            with suppress(OSError), Path(file + STATES_SUFFIX).open(encoding="utf-8", errors="replace") as stream:
                for line in stream.read(2 * MAX_STATES_BYTES).splitlines():
                    digest, _, rest = line.partition(",")
                    hashed, _, processor = rest.partition(",")
                    if hashed and processor:
                        found.known[digest] = hashed, processor
        return found

    def compare(self, digest: str, memory: ColumnStore) -> None:
        """Compare the state after a tick, if it was recorded."""
        if digest in self.known:
            recorded, processor = self.known[digest]
            self.compared += 1
            if recorded != state_hash(memory):
                self.differ += 1
                self.recorded_with = self.recorded_with or processor

    def summary(self) -> dict[str, Any] | None:
        """What was compared; `None` if nothing was recorded."""
        if not self.compared:
            return None
        return {
            "compared": self.compared, "differ": self.differ, "recorded_with": self.recorded_with or None,
            "replayed_with": processor_text(),
        }  # fmt: skip
