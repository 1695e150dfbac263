"""The protocol of the sources that observations come from."""

from collections.abc import Iterable
from typing import Protocol

from ingero_agent.health.signals import SignalReading


class ReadFailed(Exception):
    """This poll failed. The tick is skipped and the baseline learns nothing."""


class SignalSource(Protocol):
    """Polls the node."""

    def read(self, now: float) -> SignalReading | None:
        """Poll at `now` (seconds); `None` while there is nothing to compare with yet.

        Raises `ReadFailed`.
        """

    def pids(self) -> Iterable[int]:
        """The processes that the last poll measured; empty where there are none."""
