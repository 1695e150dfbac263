"""The `ingero-echo` command."""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
import yaml

from ingero_kit.files import write_ports_file
from ingero_kit.flags import CONTEXT, CommandGroup, FiniteRange, SecondsRange, config_flag, ports_file_flag, set_flag
from ingero_kit.settings import SettingsError, load

PREFIX = "INGERO_ECHO_"
CONFIG_VARIABLE = "INGERO_ECHO_CONFIG"


class _Commands(CommandGroup):
    """Prints errors that a user can remove as one line: exit status 2 for settings, 1 for others."""

    def invoke(self, ctx: click.Context) -> Any:
        from ingero_echo.errors import UserError

        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (SettingsError, OSError, UserError) as error:
            hint = f" ({error.hint})" if isinstance(error, UserError) and error.hint else ""
            click.echo(f"ingero-echo: {error}{hint}", err=True)
            sys.exit(2 if isinstance(error, SettingsError) else 1)


@click.group(cls=_Commands, context_settings=CONTEXT)
@click.version_option(package_name="ingero")
def main() -> None:
    """Stores every event and answers questions about them: which node straggles, since when, why, at what cost."""
    os.umask(0o077)  # databases, copies, exports and audit lines contain data that is protected by tokens


_config = config_flag(CONFIG_VARIABLE)
_set = set_flag("retention.age=7d")
_insecure = click.option(
    "--insecure", is_flag=True, default=None, help="Plain text, and no token unless configured; loopback only."
)


def _read(file: Path | None, settings: tuple[str, ...], insecure: bool | None = None) -> Any:
    from ingero_echo.settings import EchoConfig

    return load(
        EchoConfig, file=file, prefix=PREFIX, flags={"insecure": insecure}, assignments=settings,
        reserved=frozenset({CONFIG_VARIABLE}),
    )  # fmt: skip


@main.command()
@_config
@_set
@_insecure
@ports_file_flag()
def serve(file: Path | None, settings: tuple[str, ...], insecure: bool | None, ports_file: Path | None) -> None:
    """Run Echo until SIGTERM; SIGHUP reopens the audit file.

    Settings come from --set, then INGERO_ECHO_* variables (two underscores between the parts of a path), then the
    file, then the defaults; an unknown name anywhere is an error.

    \b
    ingero-echo serve --insecure
    ingero-echo serve --config echo.yaml --set retention.age=7d
    """
    from ingero_echo import allocators

    allocators.configure()
    from ingero_echo import app
    from ingero_kit import logs

    config = _read(file, settings, insecure)
    logs.configure(config.log_level)
    app.run(config, partial(write_ports_file, ports_file))


@main.command()
@_config
@_set
@_insecure
@ports_file_flag()
def read(file: Path | None, settings: tuple[str, ...], insecure: bool | None, ports_file: Path | None) -> None:
    """Answer questions from shared tables and the writers that seal into them, until SIGTERM; keeps nothing.

    The settings are those of `serve`, with the sections `table` and `read`; those of ingest are not used.

    \b
    ingero-echo read --config echo.yaml
    """
    from ingero_echo import allocators

    allocators.configure()
    from ingero_echo import reader_app
    from ingero_kit import logs

    config = _read(file, settings, insecure)
    logs.configure(config.log_level)
    reader_app.run(config, partial(write_ports_file, ports_file))


@main.command()
@_config
@_set
@_insecure
def validate(file: Path | None, settings: tuple[str, ...], insecure: bool | None) -> None:
    """Check settings and print all of them, defaults included, as YAML; exit status 2 when they are invalid."""
    config = _read(file, settings, insecure)
    click.echo(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False).rstrip())


def _token(file: Path | None) -> str:
    from ingero_kit.tokens import read_tokens

    return read_tokens(file)[0].split()[0] if file else ""


def _client(command: Any) -> Any:
    """The flags of a command that calls a server."""
    path = click.Path(dir_okay=False, path_type=Path)
    command = click.option("--ca-file", type=path, help="Authorities of the server.")(command)
    return click.option("--token-file", type=path, help="File with the bearer token.")(command)


@main.command()
@click.option("--endpoint", default="127.0.0.1:4317", show_default=True, help="OTLP endpoint, host:port.")
@click.option("--protocol", type=click.Choice(["grpc", "http"]), default="grpc", show_default=True)
@click.option("--nodes", default=8, show_default=True, type=click.IntRange(1, 1000), help="Senders.")
@click.option("--events", default=250, show_default=True, type=click.IntRange(1), help="Events of each sender.")
@click.option("--batch", default=100, show_default=True, type=click.IntRange(1, 10_000), help="Events of a request.")
@click.option(
    "--seconds",
    type=SecondsRange(0),
    metavar="SECONDS",
    default=0.0,
    help="Begin no request after this time; 0 sends all events.",
)
@click.option(
    "--age", type=FiniteRange(0), default=0.0, show_default=True, help="Hours before now at which events happened."
)
@click.option(
    "--give-up", type=SecondsRange(0), metavar="SECONDS", default=60.0, show_default=True,
    help="Seconds for which a request is tried again.",
)  # fmt: skip
@click.option("--cluster", default="stress", show_default=True, help="Cluster that the events belong to.")
@click.option("--api", default="", help="Address of the JSON API: afterwards every event is searched by its id.")
@click.option("--tls/--no-tls", default=False, help="Speak TLS.")
@_client
@click.option("--json", "as_json", is_flag=True, help="Print the facts as one JSON object.")
def stress(
    endpoint: str, protocol: Any, nodes: int, events: int, batch: int, seconds: float, age: float, give_up: float,
    cluster: str, api: str, tls: bool, token_file: Path | None, ca_file: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Push numbered events as fast as they are acknowledged, then check that each of them is stored.

    An interrupt (Ctrl-C) ends the sending early; what was acknowledged until then is checked. Exit status 1 when
    anything failed, or is missing, doubled or changed.
    """
    import signal

    from ingero_echo.stress import Plan, run
    from ingero_kit.tls import ClientTls

    plan = Plan(
        endpoint=endpoint, protocol=protocol, nodes=nodes, events=events, batch=batch, seconds=seconds,
        age_seconds=3600 * age, give_up_seconds=give_up, cluster=cluster, api=api, token=_token(token_file),
        tls=ClientTls(ca_file=ca_file).context() if tls else None,
        ca=ca_file.read_bytes() if ca_file else None,
    )  # fmt: skip
    signal.signal(signal.SIGINT, lambda *_: plan.stop.set())
    outcome = run(plan)
    facts = outcome.facts()
    if outcome.problem:
        click.echo(f"ingero-echo: {outcome.problem}", err=True)
    if as_json:
        click.echo(json.dumps(facts))
    else:
        for name, value in facts.items():
            click.echo(f"{name:18} {value}")
    sys.exit(0 if outcome.clean else 1)


_api = click.option(
    "--api", default="http://127.0.0.1:18081", envvar="INGERO_ECHO_API", show_default=True, help="Address of Echo."
)


def _connect(api: str, token_file: Path | None, ca_file: Path | None) -> Any:
    from ingero_echo.client import EchoHttpClient
    from ingero_kit.tls import ClientTls

    tls = ClientTls(ca_file=ca_file).context() if api.startswith("https") else None
    return EchoHttpClient(api.rstrip("/"), _token(token_file), tls)


@main.command()
@click.argument("name")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@_api
@_client
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON.")
def ask(
    name: str, arguments: tuple[str, ...], api: str, token_file: Path | None, ca_file: Path | None, as_json: bool
) -> None:
    """Ask a running Echo, e.g. find_stragglers cluster_id=prod since=2h; `ask list` names all questions.

    \b
    ingero-echo ask summary
    ingero-echo ask why_not node_id=gpu-node-7 --json
    ingero-echo ask run_analysis sql='SELECT count(*) FROM events'
    """
    from ingero_contract import echo

    client = _connect(api, token_file, ca_file)
    tools = client.request("GET", echo.TOOLS_LIST, key="tools")["tools"]
    if name == "list":
        for tool in tools:
            click.echo(f"{tool['name'].removeprefix(echo.TOOL_PREFIX):26} {tool['description']}")
        return
    full = echo.TOOL_PREFIX + name.removeprefix(echo.TOOL_PREFIX)
    known = {tool["name"]: tool["inputSchema"].get("properties", {}) for tool in tools}.get(full, {})
    given: dict[str, Any] = {}
    for item in arguments:
        key, equals, value = item.partition("=")
        if not equals:
            raise SettingsError(f"{item}: KEY=VALUE was expected")
        given[key] = _value(value, known.get(key, {}))
    answer = client.tool(full, given)
    if as_json:
        click.echo(json.dumps(answer))
        return
    if "summary" in answer:
        click.echo(answer["summary"])
    else:
        click.echo(json.dumps(answer["columns"]))
    for row in answer["rows"]:
        click.echo(json.dumps(row))


def _value(text: str, schema: dict[str, Any]) -> Any:
    """Convert a value to the type in the question's schema: text stays text, even if it is a number."""
    kinds = {kind.get("type") for kind in (schema, *schema.get("anyOf", ()))}
    if "string" in kinds or not text:
        return text
    if "array" in kinds and not text.startswith("["):
        return text.split(",")
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float | list) else text


@main.command()
@_api
@_client
def mcp(api: str, token_file: Path | None, ca_file: Path | None) -> None:
    """Serve MCP on standard input and output, answering from a running Echo; for editors and agents."""
    import anyio
    from mcp.server.stdio import stdio_server

    from ingero_echo.auth import ANONYMOUS
    from ingero_echo.client import RemoteQueryService
    from ingero_echo.mcp_tools import make_server
    from ingero_echo.schema_versions import schema_text

    service: Any = RemoteQueryService(_connect(api, token_file, ca_file))
    server = make_server(service, schema_text, lambda _: ANONYMOUS)

    async def talk() -> None:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    anyio.run(talk)


@main.command()
@_api
@_client
@click.option("--database", type=click.Path(dir_okay=False, path_type=Path), help="Copy this file instead.")
@click.option("--to", "target", type=click.Path(dir_okay=False, path_type=Path), help="Where to, with --database.")
def backup(
    api: str, token_file: Path | None, ca_file: Path | None, database: Path | None, target: Path | None
) -> None:
    """Make a running Echo write a copy into its backup folder, or copy the live data of a database not in use."""
    from ingero_contract import echo
    from ingero_echo.backups import compact

    if database is None:
        click.echo(json.dumps(_connect(api, token_file, ca_file).request("POST", echo.BACKUPS, key="name")))
        return
    if target is None or not database.exists():
        raise SettingsError(f"{database}: --database needs a file that is there, and --to")
    compact(database, target)
    click.echo(f"wrote {target}")


@main.command()
@click.argument("copy", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--database", required=True, type=click.Path(dir_okay=False, path_type=Path), help="Its store.path.")
@click.option("--force", is_flag=True, help="Go on when there is a database; it is kept next to the new one.")
def restore(copy: Path, database: Path, force: bool) -> None:
    """Replace a database that is not in use by a backup."""
    from ingero_echo.backups import restore as put_back
    from ingero_echo.settings import StoreConfig

    put_back(copy, StoreConfig(path=database), force=force)
    click.echo(f"restored {database}")


@main.command()
@_config
@_set
@click.option("--database", type=click.Path(dir_okay=False, path_type=Path), help="A backup, instead of store.path.")
@click.option("--since", default="all", show_default=True, help="Check days from this time on: 7d, or RFC 3339.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
def verify(file: Path | None, settings: tuple[str, ...], database: Path | None, since: str, as_json: bool) -> None:
    """Check that nothing is lost, doubled or changed in a database that is not in use, and in its shared tables.

    Sums are compared with events, and rows of the database with the same rows in the files of the tables. Exit
    status: 0 whole, 1 something differs, 2 it cannot be checked.

    \b
    ingero-echo verify --config echo.yaml
    ingero-echo verify --config echo.yaml --database echo-copy.duckdb --since 7d --json
    """
    import time

    import duckdb

    from ingero_echo.errors import UserError
    from ingero_echo.verify import verify as check
    from ingero_echo.window import parse_moment

    config = _read(file, settings, insecure=None if file else True)
    try:
        report = check(config, database or config.store.path, parse_moment(since, time.time_ns()))
    except (UserError, OSError, ValueError, duckdb.Error) as error:
        hint = f" ({error.hint})" if isinstance(error, UserError) and error.hint else ""
        click.echo(f"ingero-echo: cannot be checked: {error}{hint}", err=True)
        sys.exit(2)
    for line in [json.dumps(report.facts())] if as_json else report.lines():
        click.echo(line)
    sys.exit(0 if report.whole else 1)


@main.command()
@click.option("--database", required=True, type=click.Path(dir_okay=False, path_type=Path), help="A backup.")
@click.option("--to", "target", required=True, type=click.Path(path_type=Path), help="Folder, or file.")
@click.option("--table", "tables", multiple=True, default=("events",), show_default=True, help="What to write.")
@click.option("--scores", "what", flag_value="scores", help="One file of health scores, for ingero-fleet replay.")
@click.option("--timeline", "what", flag_value="timeline", help="One file of collectives, for ingero-fleet diagnose.")
@click.option("--cluster", help="The cluster of the timeline, where there are several.")
def export(database: Path, target: Path, tables: tuple[str, ...], what: str | None, cluster: str | None) -> None:
    """Write Parquet from a backup or a database that is not in use: tables by day and cluster, or one file.

    \b
    ingero-echo export --database echo-copy.duckdb --to events/
    ingero-echo export --database echo-copy.duckdb --to scores.parquet --scores
    ingero-echo export --database echo-copy.duckdb --to timeline.parquet --timeline --cluster prod
    """
    from ingero_echo import export as parquet
    from ingero_echo.settings import StoreConfig
    from ingero_echo.store import Store

    if not database.exists():
        raise SettingsError(f"{database}: no such file")
    store = Store.open(StoreConfig(path=database))
    try:
        if what == "scores":
            click.echo(f"{target}: {parquet.export_scores(store, target)} rows")
        if what == "timeline":
            click.echo(f"{target}: {parquet.export_timeline(store, target, cluster)} rows")
        for table in () if what else tables:
            click.echo(f"{target / table}: {parquet.export(store, target, table)} rows")
    finally:
        store.close()
