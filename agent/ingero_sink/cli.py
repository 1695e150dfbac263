"""The `ingero-sink` command."""

from pathlib import Path
from typing import Any

import click

from ingero_kit.flags import CONTEXT, InstalledCommand, config_flag, exit_with_reason, settings_flags
from ingero_sink.settings import CONFIG_VARIABLE, SinkSettings, read_settings


@click.command(cls=InstalledCommand, context_settings=CONTEXT)
@click.version_option(package_name="ingero")
@config_flag(CONFIG_VARIABLE)
@settings_flags(SinkSettings)
def main(file: Path | None, **flags: Any) -> None:
    """Turn the agents' events into Prometheus metrics.

    Settings come from flags, then INGERO_SINK_* variables, then the file, then the defaults.

    \b
    ingero-sink --remediate-socket /run/ingero/remediate.sock --listen :9464
    """
    from ingero_kit import logs
    from ingero_sink.app import run

    logs.configure()
    with exit_with_reason("ingero-sink", OSError):
        run(read_settings(flags, file))
