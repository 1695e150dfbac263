"""What happened to a connection to a server that may be away, and since when it is."""

import time
from collections import Counter
from dataclasses import dataclass, field

from ingero_kit.logs import get

log = get(__name__)


@dataclass
class ConnectionStats:
    """Events since the start."""

    events: Counter[str] = field(default_factory=Counter)
    _failing: dict[str, float] = field(default_factory=dict)

    @property
    def away_since(self) -> float | None:
        """Since when publishing or reading fails, seconds since the epoch; `None` while both work."""
        return min(self._failing.values(), default=None)

    def failed(self, what: str, error: BaseException) -> None:
        """Note that publishing or reading failed; the first failure is logged."""
        self.events[f"{what}_failed"] += 1
        if what not in self._failing:
            self._failing[what] = time.time()
            log.warning("log_away", doing=what, reason=describe(error))

    def worked(self, what: str) -> None:
        """Note that publishing or reading works."""
        since = self._failing.pop(what, None)
        if since is not None:
            log.info("log_back", doing=what, seconds=round(max(0.0, time.time() - since), 1))


def describe(error: BaseException) -> str:
    """An error with its type, since many of the client's errors have no text."""
    return f"{type(error).__name__}: {error}".rstrip(": ")
