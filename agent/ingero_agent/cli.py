"""The `ingero-agent` command."""

import asyncio
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ingero_kit.addresses import parse_listen
from ingero_kit.settings import SettingsError, load, parse_duration

if TYPE_CHECKING:
    from ingero_agent.trace.service import TraceSettings

PREFIX = "INGERO_AGENT_"
CONFIG_VARIABLE = "INGERO_AGENT_CONFIG"


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="ingero")
def main() -> None:
    """Measures a node and pushes its health."""


def _flags(command: Callable[..., None]) -> Callable[..., None]:
    """One flag for every setting, with the setting's own documentation as its help."""
    from ingero_agent.settings import AgentSettings

    for name, field in reversed(AgentSettings.model_fields.items()):
        flag = "--" + name.replace("_", "-")
        text = (field.description or "").replace("`", "")
        if field.annotation is bool:
            option = click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=text)
        elif name in ("watch_pid", "signal_pid"):
            option = click.option(flag, name, multiple=True, type=int, help=text)
        else:
            option = click.option(flag, name, default=None, help=text)
        command = option(command)
    return command


@main.command("fleet-push")
@click.option(
    "--config", "file", type=click.Path(dir_okay=False, path_type=Path), envvar=CONFIG_VARIABLE, help="YAML file."
)
@_flags
def fleet_push(file: Path | None, **flags: Any) -> None:
    """Push this node's health to Fleet and learn from the answer whether it is a straggler.

    Settings come from flags, then INGERO_AGENT_* variables, then the file, then the defaults.

    \b
    ingero-agent fleet-push --stub --fleet-endpoint 127.0.0.1:4318 --fleet-insecure --fleet-cluster-id lab
    ingero-agent fleet-push --watch-command train.py --fleet-endpoint fleet:4318 --fleet-cluster-id lab --remediate
    """
    from ingero_agent.app import fleet_push as push
    from ingero_agent.settings import AgentSettings
    from ingero_kit import logs

    for name in ("watch_pid", "signal_pid"):
        flags[name] = flags[name] or None
    try:
        config = load(AgentSettings, file=file, prefix=PREFIX, flags=flags, reserved=frozenset({CONFIG_VARIABLE}))
        logs.configure(config.log_level)
        asyncio.run(push(config))
    except (SettingsError, OSError) as error:
        click.echo(f"ingero-agent: {error}", err=True)
        sys.exit(2 if isinstance(error, SettingsError) else 1)


_database = click.option(
    "--db", type=click.Path(dir_okay=False, path_type=Path), default="/var/lib/ingero/ingero.db", show_default=True,
    envvar="INGERO_AGENT_TRACE_DB", help="Database of the trace; fleet-push --signal-db-path reads it.",
)  # fmt: skip


def _address(_: click.Context, __: click.Parameter, text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    try:
        return parse_listen(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _seconds(_: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    value = parse_duration(text) if text is not None else None
    try:
        return None if value is None else float(str(value))
    except ValueError:
        raise click.BadParameter(f"{text}: a duration such as 90s, 10m or 7d was expected") from None


def _size(_: click.Context, __: click.Parameter, text: str) -> int:
    number, unit = text.strip().lower().removesuffix("b").removesuffix("i"), 1
    for letter, factor in (("k", 2**10), ("m", 2**20), ("g", 2**30), ("t", 2**40)):
        if number.endswith(letter):
            number, unit = number[:-1], factor
    try:
        return int(float(number) * unit)
    except ValueError:
        raise click.BadParameter(f"{text}: a size such as 500m or 10g was expected") from None


def _pattern(_: click.Context, __: click.Parameter, text: str | None) -> "re.Pattern[str] | None":
    try:
        return re.compile(text) if text else None
    except re.error as error:
        raise click.BadParameter(f"{text}: {error}") from None


def _trace_config(
    *, db: Path, keep: float, max_db: int, prometheus: tuple[str, int] | None, otlp: str | None, otlp_insecure: bool,
    otlp_token_file: Path | None, otlp_interval: float, node: str, cluster: str,
    only_command: "re.Pattern[str] | None",
    exclude_command: "re.Pattern[str] | None", gpu_interval: float, remediate: bool, remediate_socket: Path | None,
    remediate_gid: int | None, annotate: bool, annotate_socket: Path | None, annotate_socket_gid: int | None,
    **others: Any,
) -> "TraceSettings":  # fmt: skip
    """The settings behind the flags; `others` are settings under their own names."""
    from ingero_agent.event_socket import default_socket_path
    from ingero_agent.trace.export import ExportConfig
    from ingero_agent.trace.selection import Selection
    from ingero_agent.trace.service import ANNOTATE_SOCKET, EVENT_SOCKET, TraceSettings
    from ingero_agent.trace.store import Retention

    export = None
    if otlp:
        export = ExportConfig(
            endpoint=otlp, node=node, cluster=cluster, insecure=otlp_insecure, token_file=otlp_token_file,
            interval=otlp_interval,
        )  # fmt: skip
    events = (remediate_socket or default_socket_path(EVENT_SOCKET), remediate_gid)
    annotations = (annotate_socket or default_socket_path(ANNOTATE_SOCKET), annotate_socket_gid)
    return TraceSettings(
        database=db, retention=Retention(seconds=keep, max_bytes=max_db), listen=prometheus, export=export,
        selection=Selection(only_command, exclude_command), gpu_period=gpu_interval,
        events=events if remediate else None, annotations=annotations if annotate else None, **others,
    )  # fmt: skip


@main.command("trace")
@_database
@click.option(
    "--period", type=click.FloatRange(0.1, 60), default=1.0, show_default=True, help="Seconds between looks."
)
@click.option("--duration", callback=_seconds, help="End by itself after this long.")
@click.option(
    "--budget",
    type=click.FloatRange(0.0001, 1),
    default=0.005,
    show_default=True,
    help="Share of one processor that tracing may cost a process.",
)
@click.option(
    "--own-budget",
    type=click.FloatRange(0.001, 1),
    default=0.01,
    show_default=True,
    help="Share of one processor that the agent may take itself; above it, it looks less often.",
)
@click.option(
    "--max-db", callback=_size, default="10g", show_default=True, help="Largest database; oldest goes first."
)
@click.option("--keep", callback=_seconds, default="7d", show_default=True, help="How long counts are kept.")
@click.option("--prometheus", callback=_address, help="Serve /metrics on host:port (no authentication).")
@click.option("--otlp", help="Send metrics onward to this OTLP/HTTP address.")
@click.option("--otlp-insecure", is_flag=True, help="Speak plain HTTP to it.")
@click.option(
    "--otlp-token-file", type=click.Path(dir_okay=False, path_type=Path), help="File with a bearer token for it."
)
@click.option(
    "--otlp-interval",
    callback=_seconds,
    default="10s",
    show_default=True,
    help="How often; Fleet cannot name a late rank sooner than it hears of it.",
)
@click.option("--node", default=socket.gethostname, show_default="the host name", help="This node's name.")
@click.option("--cluster", default="", help="The cluster that this node belongs to.")
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write every operation of every rank to this CSV or Parquet file, for ingero-fleet diagnose.",
)
@click.option(
    "--attach",
    type=click.Choice(["auto", "multi", "perf"]),
    default="auto",
    show_default=True,
    help="Links of many functions, or one for each of the most important ones, as before Linux 6.6.",
)
@click.option(
    "--returns",
    type=click.Choice(["auto", "never"]),
    default="auto",
    show_default=True,
    help="Time calls, or only count them. auto tries whether a process in a container survives being timed.",
)
@click.option("--only-command", callback=_pattern, help="Trace only processes whose command line has this pattern.")
@click.option(
    "--exclude-command", callback=_pattern, help="Leave processes alone whose command line has this pattern."
)
@click.option(
    "--gpu-interval", callback=_seconds, default="1s", show_default=True, help="How often GPUs are asked; 0s: never."
)
@click.option("--remediate", is_flag=True, help="Offer memory and straggle events on a unix socket.")
@click.option(
    "--remediate-socket", type=click.Path(path_type=Path), help="Its path.  [default: /run/ingero/trace.sock]"
)
@click.option("--remediate-gid", type=click.IntRange(0), help="Group that may connect; only this user without it.")
@click.option("--annotate", is_flag=True, help="Listen on a unix socket for what programs say of themselves.")
@click.option(
    "--annotate-socket", type=click.Path(path_type=Path), help="Its path.  [default: /run/ingero/annotate.sock]"
)
@click.option(
    "--annotate-socket-gid", type=click.IntRange(0), help="Group that may write; only this user without it."
)
def trace(duration: float | None, **flags: Any) -> None:
    """Count the CUDA and NCCL calls of every process on this node through eBPF. Needs root.

    \b
    ingero-agent trace --db /var/lib/ingero/ingero.db
    ingero-agent trace --otlp fleet:4318 --cluster prod --prometheus 127.0.0.1:9466
    ingero-agent trace --record run.parquet --duration 10m
    """
    import signal
    import threading
    import time

    from ingero_agent.trace.loader import CannotTrace
    from ingero_agent.trace.service import run_service
    from ingero_kit import logs

    logs.configure("info")
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    config = _trace_config(**flags)
    end = None if duration is None else time.monotonic() + duration

    def ended(seconds: float) -> bool:
        left = seconds if end is None else min(seconds, max(0.0, end - time.monotonic()))
        return over.wait(left) or (end is not None and time.monotonic() >= end)

    try:
        run_service(config, ended)
    except (CannotTrace, SettingsError, ImportError, OSError) as error:
        click.echo(f"ingero-agent: {error}", err=True)
        sys.exit(2 if isinstance(error, SettingsError) else 1)


@main.command("check")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@_database
def check(as_json: bool, db: Path) -> None:
    """Say what of tracing works on this machine, what does not, and what to do about it.

    Tries everything for real and leaves nothing behind. Exit status 0: this machine can be traced; 1: it cannot.

    \b
    ingero-agent check
    ingero-agent check --json
    """
    import json

    from ingero_agent.trace.capabilities import Support, can_trace, evaluate
    from ingero_agent.trace.check import collect_facts
    from ingero_kit import logs

    logs.configure("error")
    found = evaluate(collect_facts(db))
    able = can_trace(found)
    if as_json:
        click.echo(json.dumps({"can_trace": able, "capabilities": [one.as_dict() for one in found]}, indent=2))
    else:
        for one in found:
            click.echo(f"{one.state:<9} {one.name:<11} {one.reason}")
            if one.fix and one.state is not Support.OK:
                click.echo(f"{'':<21} fix: {one.fix}")
        click.echo("this machine can be traced" if able else "this machine cannot be traced")
    sys.exit(0 if able else 1)


def _print_table(columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    cells = [columns, *(tuple("" if cell is None else str(cell) for cell in row) for row in rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(columns))]
    for row in cells:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@main.command("query")
@_database
@click.option("--since", callback=_seconds, default="1h", show_default=True, help="How far back.")
@click.option("--pid", type=int, help="Only this process.")
@click.option("--op", "operation", default="", help="Only operations with this in their name.")
@click.option("--collectives", is_flag=True, help="Single collectives instead of sums.")
@click.option("--annotations", is_flag=True, help="What programs said of themselves instead.")
@click.option("--gpus", is_flag=True, help="Memory, clocks and throttling of GPUs instead.")
@click.option("--limit", type=click.IntRange(1, 1_000_000), default=100, show_default=True, help="Most rows.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def query(
    db: Path, since: float, pid: int | None, operation: str, collectives: bool, annotations: bool, gpus: bool,
    limit: int, as_json: bool,
) -> None:  # fmt: skip
    """Show what was traced: calls by process and operation, single collectives, annotations, or GPUs.

    \b
    ingero-agent query --since 10m
    ingero-agent query --collectives --op AllReduce --json
    """
    import json
    import sqlite3
    import time

    from ingero_agent.trace import queries

    now = time.time()
    wanted = queries.Filter(begin=now - since, end=now, pid=pid, operation=operation, limit=limit)
    columns: tuple[str, ...]
    try:
        if collectives:
            columns, rows = queries.COLLECTIVES, queries.collective_rows(queries.collectives(db, wanted))
        elif annotations:
            columns, rows = queries.ANNOTATIONS, queries.annotations(db, wanted)
        elif gpus:
            columns, rows = queries.GPUS, queries.gpus(db, wanted)
        else:
            columns, rows = queries.OPERATIONS, queries.operations(db, wanted)
    except (queries.CannotRead, sqlite3.Error) as error:
        click.echo(f"ingero-agent: {error}", err=True)
        sys.exit(1)
    if as_json:
        click.echo(json.dumps([dict(zip(columns, row, strict=True)) for row in rows]))
    else:
        _print_table(columns, rows)


@main.command("explain")
@_database
@click.option("--since", callback=_seconds, default="5m", show_default=True, help="How far back.")
@click.option("--pid", type=int, help="Only this process.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def explain(db: Path, since: float, pid: int | None, as_json: bool) -> None:
    """Say why things were slow on this node: causes with their evidence, and what to do.

    \b
    ingero-agent explain
    ingero-agent explain --since 30m --json
    """
    import json
    import sqlite3
    import time

    from ingero_agent.trace import queries
    from ingero_agent.trace.evidence import read_time_window
    from ingero_agent.trace.findings import find_causes

    now = time.time()
    try:
        findings = find_causes(read_time_window(db, queries.Filter(begin=now - since, end=now, pid=pid)))
    except (queries.CannotRead, sqlite3.Error) as error:
        click.echo(f"ingero-agent: {error}", err=True)
        sys.exit(1)
    if as_json:
        click.echo(json.dumps([finding.as_dict() for finding in findings], indent=2))
        return
    for finding in findings:
        click.echo(f"{finding.severity} {finding.kind} [{finding.id}]: {finding.summary}")
        for line in finding.evidence:
            click.echo(f"    seen: {line}")
        for line in finding.advice:
            click.echo(f"    do:   {line}")
    if not findings:
        click.echo("nothing in this time explains a slow-down")


@main.command("annotate")
@click.argument("labels", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("--pid", type=int, help="The process that this is about; without it the one that runs this command.")
@click.option("--socket", "path", type=click.Path(path_type=Path), help="Path that the tracer listens on.")
def annotate(labels: tuple[str, ...], pid: int | None, path: Path | None) -> None:
    """Tell the tracer what a process is doing, such as the step that it is in.

    \b
    ingero-agent annotate step=12 phase=backward
    """
    import os

    from ingero_agent.event_socket import default_socket_path
    from ingero_agent.trace.annotations import send_annotation
    from ingero_agent.trace.service import ANNOTATE_SOCKET

    if bad := [label for label in labels if "=" not in label]:
        raise click.BadParameter(f"{bad[0]}: KEY=VALUE was expected")
    path = path or default_socket_path(ANNOTATE_SOCKET)
    try:
        refusal = send_annotation(
            path, dict(label.split("=", 1) for label in labels), os.getppid() if pid is None else pid
        )
    except OSError as error:
        refusal = f"{path}: {error.strerror or error}: run `ingero-agent trace --annotate` first"
    if refusal:
        click.echo(f"ingero-agent: {refusal}", err=True)
        sys.exit(1)
