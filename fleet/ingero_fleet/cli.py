"""The `ingero-fleet` command."""

from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import yaml

from ingero_kit.files import write_ports_file
from ingero_kit.flags import CONTEXT, LazyGroup, config_flag, exit_with_reason, ports_file_flag, set_flag

LAZY_COMMANDS: Final = {
    "audit": "ingero_analyze.audit.command:command",
    "bench": "ingero_analyze.loadgen.command:bench",
    "diagnose": "ingero_analyze.diagnose.command:command",
    "rates": "ingero_fleet.cost.command:rates",
    "replay": "ingero_analyze.replay.command:command",
}
"""Commands that need libraries which a running Fleet does not need. They are named here and imported on use, because
Fleet must not depend on the tools."""


@click.group(cls=LazyGroup, lazy=LAZY_COMMANDS, context_settings=CONTEXT)
@click.version_option(package_name="ingero")
def main() -> None:
    """Receives the health of nodes over OTLP and says which ones are stragglers, since when, why and at what cost."""


_config = config_flag("INGERO_FLEET_CONFIG")
_set = set_flag("processors.ingero.push_interval=5s")


def _read(file: Path | None, settings: tuple[str, ...]) -> Any:
    from ingero_fleet.settings import read_config

    return read_config(file, settings)


@main.command()
@_config
@_set
@click.option("--listen", metavar="HOST", help="Receive pushes on this address, such as 0.0.0.0, at the set ports.")
@click.option("--insecure", is_flag=True, help="Allow --listen in plain text, which others on the way can read.")
@ports_file_flag()
def serve(
    file: Path | None, settings: tuple[str, ...], listen: str | None, insecure: bool, ports_file: Path | None
) -> None:
    """Run Fleet until SIGTERM; SIGHUP reads the processor's settings, rates and rules again.

    Settings come from --set, then INGERO_FLEET_* variables (two underscores between the parts of a path), then the
    file, then the defaults; an unknown name anywhere is an error.

    \b
    ingero-fleet serve --config fleet.yaml
    ingero-fleet serve --set processors.ingero.push_interval=5s --set processors.ingero.quorum.statistical_min=3
    INGERO_FLEET_PROCESSORS__INGERO__PUSH_INTERVAL=5s ingero-fleet serve
    ingero-fleet serve --listen 0.0.0.0 --insecure
    """
    from ingero_fleet.listening import listening_on
    from ingero_kit import logs

    with exit_with_reason("ingero-fleet", OSError):
        config = _read(file, settings)
        if listen is not None:
            settings = (*settings, *listening_on(config, listen, insecure))
            config = _read(file, settings)
        if config.log.nats and config.log.role == "replica":
            from ingero_fleet.replication.processor_pin import pin_processor

            pin_processor()
        from ingero_fleet import app

        logs.configure(config.service.telemetry.logs.level)

        app.run(config, lambda: _read(file, settings), partial(write_ports_file, ports_file))


@main.command()
@_config
@_set
def validate(file: Path | None, settings: tuple[str, ...]) -> None:
    """Check settings and print them whole, defaults included, as YAML; exit status 2 when they cannot be used."""
    with exit_with_reason("ingero-fleet"):
        config = _read(file, settings)
    click.echo(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False).rstrip())
