"""The `ingero-fleet` command."""

import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import yaml

from ingero_kit.files import write_ports_file
from ingero_kit.lazy_commands import LazyGroup
from ingero_kit.settings import SettingsError

CONFIG_VARIABLE = "INGERO_FLEET_CONFIG"

LAZY_COMMANDS: Final = {
    "audit": "ingero_analyze.audit.command:command",
    "bench": "ingero_analyze.loadgen.command:bench",
    "diagnose": "ingero_analyze.diagnose.command:command",
    "rates": "ingero_fleet.cost.command:rates",
    "replay": "ingero_analyze.replay.command:command",
}
"""Commands that need libraries which a running Fleet does not need. They are named here and imported on use, because
Fleet must not depend on the tools."""


@click.group(
    cls=LazyGroup,
    lazy=LAZY_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="ingero")
def main() -> None:
    """Receives health over OTLP and answers with what the cluster knows about itself."""


_config = click.option(
    "--config", "file", type=click.Path(dir_okay=False, path_type=Path), envvar=CONFIG_VARIABLE, help="YAML file."
)
_set = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="PATH=VALUE",
    help="Set one value, e.g. processors.ingero.push_interval=5s.",
)


def _read(file: Path | None, settings: tuple[str, ...]) -> Any:
    from ingero_fleet.settings import read_config

    return read_config(file, settings)


@main.command()
@_config
@_set
@click.option("--ports-file", type=click.Path(path_type=Path), help="Write the ports taken, as JSON, when ready.")
def serve(file: Path | None, settings: tuple[str, ...], ports_file: Path | None) -> None:
    """Run Fleet until SIGTERM; SIGHUP reads the processor's settings, rates and rules again.

    Settings come from --set, then INGERO_FLEET_* variables (two underscores between the parts of a path), then the
    file, then the defaults; an unknown name anywhere is an error.

    \b
    ingero-fleet serve --config fleet.yaml
    ingero-fleet serve --set processors.ingero.push_interval=5s --set processors.ingero.quorum.statistical_min=3
    INGERO_FLEET_PROCESSORS__INGERO__PUSH_INTERVAL=5s ingero-fleet serve
    """
    from ingero_kit import logs

    try:
        config = _read(file, settings)
        if config.log.nats:
            from ingero_fleet.replication.processor_pin import pin_processor

            pin_processor()
        from ingero_fleet import app

        logs.configure(config.service.telemetry.logs.level)
        app.run(config, lambda: _read(file, settings), partial(write_ports_file, ports_file))
    except (SettingsError, OSError) as error:
        click.echo(f"ingero-fleet: {error}", err=True)
        sys.exit(2 if isinstance(error, SettingsError) else 1)


@main.command()
@_config
@_set
def validate(file: Path | None, settings: tuple[str, ...]) -> None:
    """Check settings and print them whole, defaults included, as YAML; exit status 2 when they cannot be used."""
    try:
        config = _read(file, settings)
    except SettingsError as error:
        click.echo(f"ingero-fleet: {error}", err=True)
        sys.exit(2)
    click.echo(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False).rstrip())
