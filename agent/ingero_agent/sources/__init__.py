"""Where observations come from, behind one protocol."""

from typing import Protocol

from ingero_agent.health.signals import Observation


class ReadFailed(Exception):
    """This look failed; the tick is skipped, nothing is learnt from it."""


class SignalSource(Protocol):
    """Looks at the node."""

    def read(self, now: float) -> Observation | None:
        """One look at `now` (seconds); `None` while there is nothing to compare with yet.

        Raises `ReadFailed` when the look failed.
        """

    def close(self) -> None:
        """Give back what was opened."""
