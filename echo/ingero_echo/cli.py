"""The `ingero-echo` command."""

import json
import sys
from pathlib import Path
from typing import Any

import click
import yaml

from ingero_kit.settings import SettingsError, load

PREFIX = "INGERO_ECHO_"
CONFIG_VARIABLE = "INGERO_ECHO_CONFIG"


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="ingero")
def main() -> None:
    """Keeps every event and answers questions about them."""


_config = click.option(
    "--config", "file", type=click.Path(dir_okay=False, path_type=Path), envvar=CONFIG_VARIABLE, help="YAML file."
)
_set = click.option(
    "--set", "settings", multiple=True, metavar="PATH=VALUE", help="Set one value, e.g. retention.age=7d."
)
_insecure = click.option(
    "--insecure", is_flag=True, default=None, help="Plain text, and no token unless configured; loopback only."
)


def _read(file: Path | None, settings: tuple[str, ...], insecure: bool | None = None) -> Any:
    from ingero_echo.settings import EchoConfig

    flags: dict[str, Any] = {"insecure": insecure}
    for item in settings:
        path, equals, value = item.partition("=")
        if not equals:
            raise SettingsError(f"--set {item}: PATH=VALUE was expected")
        flags[path.strip()] = yaml.safe_load(value)
    return load(EchoConfig, file=file, prefix=PREFIX, flags=flags, reserved=frozenset({CONFIG_VARIABLE}))


def _fail(error: Exception, status: int = 1) -> None:
    click.echo(f"ingero-echo: {error}", err=True)
    sys.exit(2 if isinstance(error, SettingsError) else status)


@main.command()
@_config
@_set
@_insecure
@click.option("--ports-file", type=click.Path(path_type=Path), help="Write the ports taken, as JSON, when ready.")
def serve(file: Path | None, settings: tuple[str, ...], insecure: bool | None, ports_file: Path | None) -> None:
    """Run Echo until SIGTERM; SIGHUP reads tokens and certificates again.

    Settings come from --set, then INGERO_ECHO_* variables (two underscores between the parts of a path), then the
    file, then the defaults; an unknown name anywhere is an error.

    \b
    ingero-echo serve --insecure
    ingero-echo serve --config echo.yaml --set retention.age=7d
    """
    from ingero_echo import app
    from ingero_echo.lock import Locked
    from ingero_echo.store import StoreError
    from ingero_kit import logs

    def announce(ports: dict[str, int]) -> None:
        if ports_file:
            part = ports_file.with_suffix(".part")
            part.write_text(json.dumps(ports))
            part.replace(ports_file)

    try:
        config = _read(file, settings, insecure)
        logs.configure(config.log_level)
        app.run(config, announce)
    except (SettingsError, OSError, StoreError, Locked) as error:
        _fail(error)


@main.command()
@_config
@_set
@_insecure
def validate(file: Path | None, settings: tuple[str, ...], insecure: bool | None) -> None:
    """Check settings and print them whole, defaults included, as YAML; exit status 2 when they cannot be used."""
    try:
        config = _read(file, settings, insecure)
    except SettingsError as error:
        _fail(error)
    click.echo(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False).rstrip())


def _token(file: Path | None) -> str:
    from ingero_kit.tokens import read_tokens

    return read_tokens(file)[0].split()[0] if file else ""


_endpoint_options = [
    click.option("--token-file", type=click.Path(dir_okay=False, path_type=Path), help="File with the bearer token."),
    click.option("--ca-file", type=click.Path(dir_okay=False, path_type=Path), help="Authorities of the server."),
]


def _client(command: Any) -> Any:
    for option in reversed(_endpoint_options):
        command = option(command)
    return command


@main.command()
@click.option("--endpoint", default="127.0.0.1:4317", show_default=True, help="OTLP endpoint, host:port.")
@click.option("--protocol", type=click.Choice(["grpc", "http"]), default="grpc", show_default=True)
@click.option("--nodes", default=8, show_default=True, type=click.IntRange(1, 1000), help="Senders.")
@click.option("--events", default=250, show_default=True, type=click.IntRange(1), help="Events of each sender.")
@click.option("--batch", default=100, show_default=True, type=click.IntRange(1, 10_000), help="Events of a request.")
@click.option("--cluster", default="stress", show_default=True, help="Cluster that the events belong to.")
@click.option("--api", default="", help="Address of the JSON API: afterwards every event is looked for by its id.")
@click.option("--tls/--no-tls", default=False, help="Speak TLS.")
@_client
@click.option("--json", "as_json", is_flag=True, help="Print the facts as one JSON object.")
def stress(
    endpoint: str, protocol: Any, nodes: int, events: int, batch: int, cluster: str, api: str, tls: bool,
    token_file: Path | None, ca_file: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Push numbered events as fast as they are acknowledged, then look for every one of them.

    Exit status 1 when anything failed, or is missing, doubled or changed.
    """
    from ingero_echo.stress import Plan, run
    from ingero_kit.tls import ClientTls

    try:
        plan = Plan(
            endpoint=endpoint, protocol=protocol, nodes=nodes, events=events, batch=batch, cluster=cluster, api=api,
            token=_token(token_file), tls=ClientTls(ca_file=ca_file).context() if tls else None,
            ca=ca_file.read_bytes() if ca_file else None,
        )  # fmt: skip
        outcome = run(plan)
    except (SettingsError, OSError) as error:
        _fail(error)
    facts = outcome.facts()
    if as_json:
        click.echo(json.dumps(facts))
    else:
        for name, value in facts.items():
            click.echo(f"{name:18} {value}")
    sys.exit(0 if outcome.clean else 1)
