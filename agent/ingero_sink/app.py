"""The wiring of the sink: settings in; consumers of the agents' sockets and the Prometheus page out."""

import asyncio
import contextlib
import signal

from ingero_kit.clock import steady_clock
from ingero_kit.files import write_ports_file
from ingero_sink.collector import serve_pages
from ingero_sink.consumer import consume
from ingero_sink.settings import SinkSettings
from ingero_sink.stats import SinkStats


def run(settings: SinkSettings) -> None:
    """Run until SIGTERM or SIGINT. Raises `OSError` when the address cannot be bound."""
    clock = steady_clock()
    stats = SinkStats(settings.max_tracked_nodes, sockets=len(settings.socket_paths))
    server = serve_pages(settings.listen, stats, lambda: stats.ready(clock(), settings.readiness_window))
    write_ports_file(settings.ports_file, {"metrics": server.port})

    async def consume_all() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(
                *(consume(path, stats, clock, settings.reconnect_delay) for path in settings.socket_paths)
            )

    asyncio.run(consume_all())
    server.stop()
