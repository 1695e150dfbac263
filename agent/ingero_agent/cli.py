"""The `ingero-agent` command."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

from ingero_agent.settings import AgentSettings, read_settings
from ingero_agent.trace.commands import COMMANDS
from ingero_agent.trace.settings import CONFIG_VARIABLE, TraceSettings
from ingero_agent.trace.settings import read_settings as read_trace_settings
from ingero_kit.flags import settings_flags
from ingero_kit.settings import SettingsError

_config = click.option(
    "--config", "file", type=click.Path(dir_okay=False, path_type=Path), envvar=CONFIG_VARIABLE, help="YAML file."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="ingero")
def main() -> None:
    """Measures a node and pushes its health."""


@main.command("fleet-push")
@_config
@settings_flags(AgentSettings)
def fleet_push(file: Path | None, **flags: Any) -> None:
    """Push this node's health to Fleet and read from the answer whether it is a straggler.

    Settings come from flags, then INGERO_AGENT_* variables, then the file, then the defaults.

    \b
    ingero-agent fleet-push --stub --fleet-endpoint 127.0.0.1:4318 --fleet-insecure --fleet-cluster-id lab
    ingero-agent fleet-push --watch-command train.py --fleet-endpoint fleet:4318 --fleet-cluster-id lab --remediate
    """
    from ingero_agent.app import fleet_push as push
    from ingero_kit import logs

    try:
        settings = read_settings(flags, file)
        logs.configure(settings.log_level)
        asyncio.run(push(settings))
    except (SettingsError, OSError) as error:
        _fail(error)


@main.command("trace")
@_config
@settings_flags(TraceSettings)
def trace(file: Path | None, **flags: Any) -> None:
    """Count the CUDA and NCCL calls of every process on this node through eBPF. Needs root.

    Settings come from flags, then INGERO_AGENT_TRACE_* variables, then `trace:` in the file, then the defaults.

    \b
    ingero-agent trace --db /var/lib/ingero/ingero.db
    ingero-agent trace --otlp fleet:4318 --cluster prod --prometheus 127.0.0.1:9466
    ingero-agent trace --record run.parquet --duration 10m
    """
    from ingero_agent.trace.app import run
    from ingero_agent.trace.loader import CannotTrace
    from ingero_kit import logs

    try:
        settings = read_trace_settings(flags, file)
        logs.configure(settings.log_level)
        run(settings)
    except (CannotTrace, SettingsError, ImportError, OSError) as error:
        _fail(error)


def _fail(error: Exception) -> None:
    click.echo(f"ingero-agent: {error}", err=True)
    sys.exit(2 if isinstance(error, SettingsError) else 1)


for command in COMMANDS:
    main.add_command(command)
