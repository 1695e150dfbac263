"""Supervises background tasks: every failure is logged and counted, and endless work is restarted."""

import asyncio
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ingero_kit.backoff import Backoff
from ingero_kit.clock import Clock, steady_clock
from ingero_kit.logs import get

log = get(__name__)

CALM_SECONDS: Final = 300.0
"""How long work must have run for its next failure to count as the first again."""


class RestartRequired(Exception):
    """The operator must end; the message says why."""


def message_of(error: BaseException) -> str:
    """The text of an exception, or its type where it has no text."""
    return str(error) or type(error).__name__


@dataclass
class Tasks:
    """Starts and supervises tasks. `failures` counts their failures by name."""

    clock: Clock = field(default_factory=steady_clock)
    backoff: Backoff = field(default_factory=lambda: Backoff(first=1.0, longest=60.0))
    failures: Counter[str] = field(default_factory=Counter)

    def failed(self, name: str, error: BaseException) -> None:
        """Record a failure that is a fault of the operator."""
        self.failures[name] += 1
        frames = traceback.extract_tb(error.__traceback__)
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
        log.error("task_failed", task=name, kind=type(error).__name__, reason=str(error)[:500], where=where)

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that ends by itself."""
        return asyncio.create_task(self._once(name, work), name=name)

    async def _once(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self.failed(name, error)

    async def keep(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run endless work: restart it with back-off when it fails or returns. `RestartRequired` passes through."""
        tries = 0
        while True:
            began = self.clock()
            try:
                await work()
                raise RuntimeError("it returned")
            except RestartRequired:
                raise
            except Exception as error:
                self.failed(name, error)
            tries = 0 if self.clock() - began > CALM_SECONDS else tries
            await asyncio.sleep(self.backoff.delay(tries))
            tries += 1
