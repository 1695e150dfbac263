"""The `ingero-operator` command."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from ingero_kit.files import write_ports_file
from ingero_kit.flags import settings_flags
from ingero_kit.settings import SettingsError, load
from ingero_operator.settings import OperatorConfig

PREFIX = "INGERO_OPERATOR_"
CONFIG_VARIABLE = "INGERO_OPERATOR_CONFIG"


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="ingero")
def main() -> None:
    """Reconciles FleetCluster and EchoStore into the running components."""


@main.command()
@click.option(
    "--config", "file", type=click.Path(dir_okay=False, path_type=Path), envvar=CONFIG_VARIABLE, help="YAML file."
)
@click.option("--ports-file", type=click.Path(path_type=Path), help="Write the port taken, as JSON, when listening.")
@settings_flags(OperatorConfig)
def run(file: Path | None, ports_file: Path | None, **flags: Any) -> None:
    """Run the operator until SIGTERM, with the pod's service account or the kubeconfig's current context.

    Settings come from flags, then INGERO_OPERATOR_* variables, then the file, then the defaults. Exit status 1 asks
    for a restart: the Lease or the watches were lost.

    \b
    ingero-operator run --no-leader-election --listen 127.0.0.1:0
    """
    import uvloop

    from ingero_kit import logs
    from ingero_operator.api_client import ApiError
    from ingero_operator.app import serve
    from ingero_operator.tasks import RestartRequired

    try:
        config = load(OperatorConfig, file=file, prefix=PREFIX, flags=flags, reserved=frozenset({CONFIG_VARIABLE}))
        logs.configure(config.log_level)
        uvloop.run(serve(config, partial(write_ports_file, ports_file)))
    except (SettingsError, OSError, RestartRequired, ApiError) as error:
        click.echo(f"ingero-operator: {error}", err=True)
        sys.exit(2 if isinstance(error, SettingsError) else 1)


@main.command()
def crds() -> None:
    """Print the CustomResourceDefinitions as YAML."""
    from ingero_operator.render.crds import all_definitions
    from ingero_operator.render.text import dump

    click.echo(dump(all_definitions()), nl=False)


@main.command()
def manifests() -> None:
    """Print the operator's own installation as YAML: namespace, rights, admission policies, Deployment."""
    from importlib.metadata import version

    from ingero_operator.render.install import everything
    from ingero_operator.render.text import dump

    click.echo(dump(everything(version("ingero"))), nl=False)
