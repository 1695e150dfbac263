"""Joins several short polls into one, so that a collapse is seen before the next push is due."""

from collections import deque
from dataclasses import replace
from typing import Final

from ingero_agent.health.signals import SignalReading
from ingero_agent.sources import SignalSource
from ingero_contract.signals import SIGNALS

MAX_POLLS: Final = 64
"""Polls that are kept."""

MIN_COVERAGE: Final = 0.85
"""Share of the wanted time that polls must cover."""

_AVERAGED: Final = ("rate", *(str(row.signal) for row in SIGNALS[1:] if row.averaged))

_INSTANT: Final = 1e-6
"""Least weight of a poll, seconds."""

TimedPoll = tuple[float, float, SignalReading]


class PollBuffer:
    """The latest polls. Each begins where the previous one ended, seconds."""

    def __init__(self) -> None:
        self._polls: deque[TimedPoll] = deque(maxlen=MAX_POLLS)
        self._new = 0
        self._from: float | None = None

    def read(self, source: SignalSource, now: float) -> None:
        """Add a poll. Raises `ReadFailed` when it failed; the next poll then covers its time as well."""
        seen = source.read(now)
        if seen is not None:
            self._polls.append((now if self._from is None else self._from, now, seen))
            self._new = min(self._new + 1, MAX_POLLS)
        if seen is not None or self._from is None:
            self._from = now

    def drain(self) -> SignalReading | None:
        """The polls since the last call as one observation; `None` without a poll."""
        polls = list(self._polls)[len(self._polls) - self._new :]
        self._new = 0
        return _joined(polls)

    def recent(self, now: float, seconds: float) -> SignalReading | None:
        """The polls of the last `seconds` as one observation; `None` if they do not cover that time."""
        polls = [poll for poll in self._polls if poll[1] > now - seconds]
        return _joined(polls) if polls and now - polls[0][0] >= MIN_COVERAGE * seconds else None


def _joined(polls: list[TimedPoll]) -> SignalReading | None:
    """Join polls: time-weighted means of rates and averaged signals, the sum of launches, the newest of the rest.

    Each poll is weighted by the time it covers: what one poll counted too early is missing in the one before it.
    """
    if len(polls) <= 1:
        return polls[0][2] if polls else None
    weights = [max(_INSTANT, stop - start if seen.seconds is None else seen.seconds) for start, stop, seen in polls]
    drain = sum(weights)
    means = {
        name: sum(weight * getattr(poll, name) for weight, (_, _, poll) in zip(weights, polls, strict=True)) / drain
        for name in _AVERAGED
    }
    seconds = None if polls[-1][2].seconds is None else drain
    return replace(polls[-1][2], launches=sum(poll.launches for _, _, poll in polls), seconds=seconds, **means)
