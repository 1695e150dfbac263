"""Adopts the verdicts that judging replicas publish after each tick."""

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Final

from ingero_fleet.replication.ordered_log import OrderedLog
from ingero_fleet.replication.published_verdicts import decode_verdicts
from ingero_fleet.verdict_cache import VerdictCache
from ingero_kit.clock import Clock
from ingero_kit.logs import get

log = get(__name__)

STALE_INTERVALS: Final = 3
"""Push intervals after which verdicts are old. They still stand: there are no better ones."""


class VerdictFollower:
    """`adopt` is called with every newer verdict cache."""

    def __init__(
        self, shared: OrderedLog, clock: Clock, interval: float, outcomes: Counter[str],
        adopt: Callable[[VerdictCache], None],
    ) -> None:  # fmt: skip
        self.ticks = 0
        """Ticks after which the verdicts were published that were taken last."""
        self.cache: VerdictCache | None = None
        """Those verdicts."""
        self._log, self._clock, self._outcomes, self._adopt = shared, clock, outcomes, adopt
        self._stale_seconds = STALE_INTERVALS * interval
        self._taken: float | None = None

    def age(self) -> float | None:
        """Seconds since verdicts were taken last; `None` before the first ones."""
        return None if self._taken is None else max(0.0, self._clock() - self._taken)

    @property
    def is_stale(self) -> bool:
        """Whether there are no verdicts, or only old ones."""
        age = self.age()
        return age is None or age > self._stale_seconds

    async def keep_following(self) -> None:
        """Take verdicts until cancelled."""
        async with contextlib.aclosing(self._log.follow_verdicts()) as bodies:
            async for body in bodies:
                self.take(body)

    def take(self, body: bytes) -> None:
        """Take published verdicts. Those of an earlier tick, which came late, are left out."""
        now = self._clock()
        try:
            ticks, cache = decode_verdicts(body, now)
        except ValueError as error:
            self._outcomes["verdicts_refused"] += 1
            log.warning("verdicts_refused", reason=str(error))
            return
        if ticks < self.ticks and not self.is_stale:
            self._outcomes["verdicts_late"] += 1
            return
        self.ticks, self.cache, self._taken = ticks, cache, now
        self._adopt(cache)
