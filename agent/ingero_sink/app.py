"""The wiring of the sink: settings in; consumers of the agents' sockets and the Prometheus page out."""

import asyncio
import contextlib
from pathlib import Path
from typing import Final

from ingero_contract.events import MAX_LINE
from ingero_kit.clock import Clock, steady_clock
from ingero_kit.files import write_ports_file
from ingero_kit.logs import get
from ingero_kit.signals import on_end
from ingero_sink.collector import serve_pages
from ingero_sink.settings import SinkSettings
from ingero_sink.stats import SinkStats

log = get(__name__)

DIAL_SECONDS: Final = 2.0


async def consume(path: Path, stats: SinkStats, clock: Clock, reconnect_delay: float) -> None:
    """Run until cancelled. Why the socket cannot be reached is logged once, and again when the reason changes.

    An agent that is killed does not say that its node straggles no more, so what it said ends with its connection.
    """
    reason = ""
    while True:
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_unix_connection(path, limit=MAX_LINE), DIAL_SECONDS)
        except (OSError, TimeoutError) as error:
            before, reason = reason, getattr(error, "strerror", None) or str(error) or "no answer"
            if reason != before:
                log.warning("not_connected", path=str(path), reason=reason, hint=_hint(error))
            await asyncio.sleep(reconnect_delay)
            continue
        reason = ""
        stats.connections += 1
        log.info("connected", path=str(path))
        try:
            await read_lines(reader, stats, clock, str(path))
        finally:
            stats.connections -= 1
            writer.close()
        log.info("disconnected", path=str(path), stragglers_unknown=stats.source_ended(str(path)))
        await asyncio.sleep(reconnect_delay)


def _hint(error: Exception) -> str:
    """What a user may do about a socket that cannot be reached."""
    if isinstance(error, PermissionError):
        return "the sink must run as root, or in the group of the agent's remediate_gid"
    return "does the agent run with --remediate, and with this path?"


async def read_lines(reader: asyncio.StreamReader, stats: SinkStats, clock: Clock, source: str = "") -> None:
    """Record lines of a source until the stream ends. A line that is too long is skipped and counted."""
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
                stats.record_line(line, clock(), source)
            if not line.endswith(b"\n"):
                return
            too_long = False


def run(settings: SinkSettings) -> None:
    """Run until SIGTERM, SIGINT or SIGHUP. Raises `OSError` when the address cannot be bound."""
    clock = steady_clock()
    stats = SinkStats(settings.max_tracked_nodes, sockets=len(settings.socket_paths))
    server = serve_pages(settings.listen, stats, lambda: stats.ready(clock(), settings.readiness_window))
    write_ports_file(settings.ports_file, {"metrics": server.port})

    async def consume_all() -> None:
        task = asyncio.current_task()
        assert task is not None
        on_end(task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(
                *(consume(path, stats, clock, settings.reconnect_delay) for path in settings.socket_paths)
            )

    asyncio.run(consume_all())
    server.stop()
