"""Polls collectives between two ticks, so that a late rank is named as soon as agents have reported it."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ingero_fleet.collectives.tracker import CollectivesTracker
from ingero_kit.clock import Clock
from ingero_kit.logs import get

log = get(__name__)

MAX_POLL_LOAD: Final = 0.1
"""Largest part of the time that polls may take: after a longer poll the next one comes later."""


async def poll_between_ticks(tracker: CollectivesTracker, clock: Clock, poll_seconds: float) -> None:
    """Poll in a worker thread until cancelled; a poll that fails is logged, and the next one is tried."""
    loop, pause = asyncio.get_running_loop(), poll_seconds
    with ThreadPoolExecutor(1, "poll") as worker:
        while True:
            await asyncio.sleep(pause)
            started = time.monotonic()
            try:
                await loop.run_in_executor(worker, tracker.early_poll, clock())
            except Exception:
                tracker.polls["failed"] += 1
                log.exception("poll_failed")
            pause = max(poll_seconds, (time.monotonic() - started) / MAX_POLL_LOAD)
