"""What a decoded request gives: rows by table, identities, and what was left out with the reasons."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ingero_echo.arrays import pa
from ingero_echo.source_position import SourcePosition
from ingero_kit.otlp_repair import Repaired

MAX_REASONS: Final = 10
"""Maximum of reasons in an answer."""


@dataclass(slots=True)
class Batch:
    """A decoded request: record batches by table, identities, and what was left out with the reasons.

    `identities` has one entry for every event, by which duplicates are recognised.
    """

    tables: dict[str, list[pa.RecordBatch]] = field(default_factory=dict)
    identities: list[bytes] = field(default_factory=list)
    rejected: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    position: SourcePosition | None = None
    """The message of the stream through which these rows have it, for a batch that was read from one."""
    clusters: set[str] = field(default_factory=set)
    """Clusters that the records name, whether the sender may write to them or not."""

    def reject(self, reason: str, count: int = 1) -> None:
        """Count records that are left out, with the reason."""
        self.rejected += count
        self._note(reason, count)

    def repaired(self, found: Repaired) -> None:
        """Count what could not be read of a request: records or parts of them."""
        self.rejected += found.records
        for reason, count in found.reasons.items():
            self._note(reason, count)

    def _note(self, reason: str, count: int) -> None:
        self.reasons[reason] = self.reasons.get(reason, 0) + count

    @property
    def message(self) -> str:
        """The reasons in one line for the sender; empty when nothing was wrong."""
        parts = [f"{reason} ({count})" for reason, count in self.reasons.items()]
        more = [f"and {len(parts) - MAX_REASONS} other reasons"] if len(parts) > MAX_REASONS else []
        return "; ".join(parts[:MAX_REASONS] + more)
