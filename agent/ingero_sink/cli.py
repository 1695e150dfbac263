"""The `ingero-sink` command."""

import sys
from pathlib import Path
from typing import Any

import click

from ingero_kit import logs
from ingero_kit.flags import settings_flags
from ingero_kit.settings import SettingsError
from ingero_sink.app import run
from ingero_sink.settings import CONFIG_VARIABLE, SinkSettings, read_settings


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="ingero")
@click.option(
    "--config", "file", type=click.Path(dir_okay=False, path_type=Path), envvar=CONFIG_VARIABLE, help="YAML file."
)
@settings_flags(SinkSettings)
def main(file: Path | None, **flags: Any) -> None:
    """Turn the agents' events into Prometheus metrics.

    Settings come from flags, then INGERO_SINK_* variables, then the file, then the defaults.

    \b
    ingero-sink --socket-path /run/ingero/remediate.sock --listen :9464
    """
    logs.configure()
    try:
        run(read_settings(flags, file))
    except (SettingsError, OSError) as error:
        click.echo(f"ingero-sink: {error}", err=True)
        sys.exit(2 if isinstance(error, SettingsError) else 1)
