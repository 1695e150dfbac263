"""Keeps a task of a Fleet with a shared log running."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from ingero_kit.logs import get

log = get(__name__)


async def persist(task: Callable[[], Awaitable[None]], pause: float, outcomes: Counter[str]) -> None:
    """Run a task until cancelled; when it fails, that is logged and counted, and it begins again after a pause."""
    while True:
        try:
            await task()
        except Exception:
            outcomes["failed_tasks"] += 1
            log.exception("log_task_failed", task=task.__name__)
            await asyncio.sleep(pause)
