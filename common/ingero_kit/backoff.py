"""Retry delays: exponential with jitter, or from a server's Retry-After."""

import email.utils
import math
import random
from dataclasses import dataclass
from typing import Final

MAX_RETRY_AFTER: Final = 3600.0
"""Longest wait that a server may ask for, seconds."""


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Delays of `first` seconds doubling up to `longest`, each spread by `jitter` (0 to 1) downwards."""

    first: float = 0.2
    longest: float = 30.0
    jitter: float = 0.5

    def delay(self, attempt: int, random_value: float | None = None) -> float:
        """Seconds before retry number `attempt` (0 is the first retry)."""
        spread = random.random() if random_value is None else random_value
        return min(self.longest, self.first * 2.0 ** min(attempt, 60)) * (1 - self.jitter * spread)


def parse_retry_after(text: str | None, now: float, longest: float = MAX_RETRY_AFTER) -> float | None:
    """Seconds from a Retry-After header (delta-seconds or HTTP date), bounded; `None` if unreadable."""
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - now
        except (ValueError, TypeError):
            return None
    return min(max(seconds, 0.0), longest) if math.isfinite(seconds) else None
