"""Connects to the agent's socket, reads lines, and reconnects when the connection is lost."""

import asyncio
import contextlib
from pathlib import Path
from typing import Final

from ingero_contract.events import MAX_LINE
from ingero_kit.clock import Clock
from ingero_kit.logs import get
from ingero_sink.stats import SinkStats

log = get(__name__)

DIAL_SECONDS: Final = 2.0


async def consume(path: Path, stats: SinkStats, clock: Clock, reconnect_delay: float) -> None:
    """Run until cancelled."""
    while True:
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_unix_connection(path, limit=MAX_LINE), DIAL_SECONDS)
        except (OSError, TimeoutError):
            await asyncio.sleep(reconnect_delay)
            continue
        stats.connections += 1
        log.info("connected", path=str(path))
        try:
            await read_lines(reader, stats, clock)
        finally:
            stats.connections -= 1
            writer.close()
        log.info("disconnected", path=str(path))
        await asyncio.sleep(reconnect_delay)


async def read_lines(reader: asyncio.StreamReader, stats: SinkStats, clock: Clock) -> None:
    """Record lines until the stream ends. A line that is too long is skipped and counted."""
    too_long = False
    with contextlib.suppress(ConnectionError):
        while True:
            try:
                line = await reader.readuntil(b"\n")
            except asyncio.IncompleteReadError as error:
                line = error.partial
            except asyncio.LimitOverrunError as error:
                await reader.readexactly(error.consumed)
                stats.parse_errors += not too_long
                too_long = True
                continue
            if not too_long:
                stats.record_line(line, clock())
            if not line.endswith(b"\n"):
                return
            too_long = False
