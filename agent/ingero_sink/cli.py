"""The `ingero-sink` command."""

import asyncio
import contextlib
import signal
import sys
from pathlib import Path

import click

from ingero_kit import logs
from ingero_kit.addresses import parse_listen
from ingero_kit.clock import steady_clock
from ingero_kit.files import write_ports_file
from ingero_kit.settings import SettingsError, parse_duration
from ingero_sink.collector import make_metrics_server
from ingero_sink.consumer import consume
from ingero_sink.stats import SinkStats


def _seconds(flag: str, text: str) -> float:
    try:
        seconds = float(str(parse_duration(text)))
    except ValueError:
        raise SettingsError(f"{flag} {text}: a duration such as 2s was expected") from None
    if not 0 < seconds < 86400:
        raise SettingsError(f"{flag} {text}: a duration between 0 and a day was expected")
    return seconds


@click.command(
    context_settings={
        "help_option_names": ["-h", "--help"], "max_content_width": 110, "auto_envvar_prefix": "INGERO_SINK"
    }
)  # fmt: skip
@click.version_option(package_name="ingero")
@click.option(
    "--socket-path", "socket_paths", type=click.Path(path_type=Path), multiple=True,
    default=(Path("/run/ingero/remediate.sock"),), show_default=True,
    help="An agent's socket; once for fleet-push, once for trace.",
)  # fmt: skip
@click.option(
    "--listen", default="127.0.0.1:9464", show_default=True,
    help="Address of /metrics, /healthz and /readyz; :9464 for every address.",
)  # fmt: skip
@click.option("--reconnect-delay", default="2s", show_default=True, help="Pause before connecting again.")
@click.option("--max-tracked-nodes", default=10_000, show_default=True, type=click.IntRange(1))
@click.option(
    "--readiness-window", default="60s", show_default=True, help="How long the last event keeps the sink ready."
)
@click.option("--ports-file", type=click.Path(path_type=Path), help="Write the port taken, as JSON, when ready.")
def main(
    socket_paths: tuple[Path, ...],
    listen: str,
    reconnect_delay: str,
    max_tracked_nodes: int,
    readiness_window: str,
    ports_file: Path | None,
) -> None:
    """Turn the agents' events into Prometheus metrics.

    Every flag can be set as INGERO_SINK_*, for example INGERO_SINK_LISTEN=:9464 for every address.

    \b
    ingero-sink --socket-path /run/ingero/remediate.sock --listen :9464
    """
    logs.configure()
    try:
        try:
            host, port = parse_listen(listen)
        except ValueError as error:
            raise SettingsError(f"--listen {error}") from None
        delay = _seconds("--reconnect-delay", reconnect_delay)
        window = _seconds("--readiness-window", readiness_window)
        clock, stats = steady_clock(), SinkStats(max_tracked_nodes, sockets=len(socket_paths))
        server = make_metrics_server(host, port, stats, lambda: stats.ready(clock(), window))
    except (SettingsError, OSError) as error:
        place = f"{listen}: " if isinstance(error, OSError) else ""
        click.echo(f"ingero-sink: {place}{error}", err=True)
        sys.exit(1 if isinstance(error, OSError) else 2)
    server.start()
    write_ports_file(ports_file, {"metrics": server.port})

    async def run() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*(consume(path, stats, clock, delay) for path in socket_paths))

    asyncio.run(run())
    server.stop()
