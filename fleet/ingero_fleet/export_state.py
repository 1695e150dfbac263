"""The state of the exporters: what waits, what was dropped, and why nothing is delivered. Values that add up."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ingero_kit.clock import rfc3339

MOST_DETAIL: Final = 200
"""Most characters of a receiver's message in an answer."""


@dataclass(frozen=True, kw_only=True)
class Obstacle:
    """Why nothing is delivered at present."""

    since: float
    """Seconds since the epoch."""
    failure: str
    """Kind of the latest failure, as in `ingero_kit.otlp_client.Failure`."""
    detail: str = ""
    """The latest failure in the words of the transport or the receiver."""


@dataclass(frozen=True, kw_only=True)
class ExportState:
    """The state of an exporter in one process, or in several."""

    waiting: int = 0
    """Pushes in the queue or in the request under way."""
    full: float = 0.0
    """Share of the queue that is in use, by pushes or bytes; of several queues the fullest."""
    obstacle: Obstacle | None = None
    """Absent while exports succeed."""

    def __add__(self, other: "ExportState") -> "ExportState":
        obstacles = [item.obstacle for item in (self, other) if item.obstacle]
        return ExportState(
            waiting=self.waiting + other.waiting,
            full=max(self.full, other.full),
            obstacle=min(obstacles, key=lambda item: item.since, default=None),
        )


def export_answer(state: ExportState, counters: Mapping[str, int]) -> dict[str, Any]:
    """One exporter in Fleet's answers; a failure and its time only while it lasts."""
    found: dict[str, Any] = {
        "waiting": state.waiting, "queue_full": round(state.full, 3),
        "dropped": {
            outcome.removeprefix("dropped_"): count for outcome, count in sorted(counters.items())
            if outcome.startswith("dropped_") and count
        },
    }  # fmt: skip
    if state.obstacle:
        found |= {
            "failing_since": rfc3339(state.obstacle.since), "failure": state.obstacle.failure,
            "detail": state.obstacle.detail[:MOST_DETAIL],
        }  # fmt: skip
    return found
