"""The `ingero-operator` command."""

import os
from functools import partial
from pathlib import Path
from typing import IO, Any

import click

from ingero_kit.files import write_ports_file
from ingero_kit.flags import (
    CONTEXT,
    CommandGroup,
    FiniteRange,
    config_flag,
    exit_with_reason,
    ports_file_flag,
    settings_flags,
)
from ingero_kit.settings import load
from ingero_operator.settings import OperatorConfig
from ingero_operator.slurm.settings import SlurmSettings

PREFIX = "INGERO_OPERATOR_"
CONFIG_VARIABLE = "INGERO_OPERATOR_CONFIG"
SLURM_PREFIX = "INGERO_OPERATOR_SLURM_"
SLURM_CONFIG_VARIABLE = "INGERO_OPERATOR_SLURM_CONFIG"


@click.group(cls=CommandGroup, context_settings=CONTEXT)
@click.version_option(package_name="ingero")
def main() -> None:
    """Reconciles FleetCluster and EchoStore into the running components."""


@main.command()
@config_flag(CONFIG_VARIABLE)
@ports_file_flag("Write the port taken, as JSON, when listening.")
@settings_flags(OperatorConfig)
def run(file: Path | None, ports_file: Path | None, **flags: Any) -> None:
    """Run the operator until SIGTERM, with the pod's service account or the kubeconfig's current context.

    Settings come from flags, then INGERO_OPERATOR_* variables, then the file, then the defaults. Exit status 1 asks
    for a restart: the Lease or the watches were lost.

    \b
    ingero-operator run --no-leader-election --listen 127.0.0.1:0
    """
    import asyncio

    from ingero_kit import logs
    from ingero_operator.api_client import ApiError
    from ingero_operator.app import serve
    from ingero_operator.tasks import RestartRequired

    with exit_with_reason("ingero-operator", OSError, RestartRequired, ApiError):
        not_ours = {CONFIG_VARIABLE, *(name for name in os.environ if name.startswith(SLURM_PREFIX))}
        config = load(OperatorConfig, file=file, prefix=PREFIX, flags=flags, reserved=frozenset(not_ours))
        logs.configure(config.log_level)
        # Not on uvloop: it keeps the descriptors of connections that end while aiohttp makes them, and whatever gets
        # the same number later fails for good.
        asyncio.run(serve(config, partial(write_ports_file, ports_file)))


@main.command()
@click.argument("file", type=click.File(encoding="utf-8"))
@click.option("--present", type=click.File(encoding="utf-8"), help="Present FleetCluster; default: the cluster's.")
@click.option("--days", type=FiniteRange(0, 90, min_open=True), default=7.0, show_default=True, help="Window.")
@click.option(
    "--echo", default="", metavar="URL", help="Echo's API; default: the EchoStore that the spec forwards to."
)
@click.option("--token-file", type=click.Path(dir_okay=False, path_type=Path), help="File with Echo's bearer token.")
@click.option("--ca-file", type=click.Path(dir_okay=False, path_type=Path), help="Authorities of Echo's certificate.")
@click.option("--offline", is_flag=True, help="Do not ask the cluster of the kubeconfig.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def preview(
    file: IO[str], present: IO[str] | None, days: float, echo: str, token_file: Path | None, ca_file: Path | None,
    offline: bool, as_json: bool,
) -> None:  # fmt: skip
    """Show what the spec.taints of a FleetCluster would have done in the last days. Nothing is changed.

    FILE is the manifest with the proposed policy, - for standard input. Echo's record of verdicts is replayed through
    the operator's own policy, for the proposed and for the present FleetCluster: which nodes would have been tainted,
    when, for how long, and which policy checks would have prevented it.

    Exit status: 0 the preview was printed; 1 Echo or the API server did not answer, or Echo has no record of the
    cluster; 2 a manifest or a flag is wrong.

    \b
    ingero-operator preview prod.yaml
    ingero-operator preview prod.yaml --echo https://localhost:8080 --days 2
    ingero-operator preview new.yaml --present old.yaml --offline --echo https://echo:8080 --token-file t --json
    """
    import asyncio
    import json
    import time

    from ingero_operator.api_client import ApiError
    from ingero_operator.preview import command, report
    from ingero_operator.preview.echo_client import EchoError

    with exit_with_reason("ingero-operator", command.PreviewError, EchoError, ApiError):
        proposed = command.read_manifest(file, file.name)
        before = command.read_manifest(present, present.name) if present else None
        options = command.Options(days=days, echo=echo, token_file=token_file, ca_file=ca_file, offline=offline)
        found = asyncio.run(command.preview(proposed, before, options, time.time()))
    click.echo(json.dumps(report.as_json(found), indent=2) if as_json else report.as_text(found))


@main.command()
@config_flag(SLURM_CONFIG_VARIABLE)
@click.option("--release", is_flag=True, help="Undrain every node that was drained for this cluster, and end.")
@settings_flags(SlurmSettings)
def slurm(file: Path | None, release: bool, **flags: Any) -> None:
    """Drain stragglers in Slurm, with the checks, budget and override cooldown of taints. A dry run without --drain.

    Runs where scontrol may update nodes, and polls Fleet. Undrains only what it drained itself: the node's reason
    names cluster and verdict. Settings come from flags, then INGERO_OPERATOR_SLURM_* variables, then the file, then
    the defaults.

    Exit status: 0 stopped, or all released; 1 the state cannot be used, Slurm cannot be read, or nodes are still
    drained after --release; 2 a setting is wrong.

    \b
    ingero-operator slurm --fleet-url http://127.0.0.1:8080 --cluster-id prod
    ingero-operator slurm --config /etc/ingero/slurm.yaml --drain
    ingero-operator slurm --config /etc/ingero/slurm.yaml --release
    """
    import asyncio

    from ingero_kit import logs
    from ingero_operator.slurm import command
    from ingero_operator.slurm.nodes import UnreadableNodes
    from ingero_operator.slurm.scontrol import ScontrolFailed

    with exit_with_reason("ingero-operator", OSError, ScontrolFailed, UnreadableNodes):
        reserved = frozenset({SLURM_CONFIG_VARIABLE})
        settings = load(SlurmSettings, file=file, prefix=SLURM_PREFIX, flags=flags, reserved=reserved)
        logs.configure(settings.log_level)
        if not release:
            asyncio.run(command.control(settings))
            return
        left = asyncio.run(command.release(settings.model_copy(update={"drain": True})))
    if left:
        raise click.ClickException(f"{left} nodes are still drained")


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
