"""The signals that end a service."""

import asyncio
import signal
from collections.abc import Callable
from typing import Final

ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""A closed terminal sends the last one. It ends a service as the others do, unless the service reloads on it."""


def on_end(action: Callable[[], object]) -> None:
    """Call this on the running event loop when the service is to end."""
    loop = asyncio.get_running_loop()
    for number in ENDING:
        loop.add_signal_handler(number, action)
