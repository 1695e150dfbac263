"""The `ingero-agent` command."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ingero_kit.settings import SettingsError, load

PREFIX = "INGERO_AGENT_"
CONFIG_VARIABLE = "INGERO_AGENT_CONFIG"


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="ingero")
def main() -> None:
    """Measures a node and pushes its health."""


def _flags(command: Callable[..., None]) -> Callable[..., None]:
    """One flag for every setting, with the setting's own documentation as its help."""
    from ingero_agent.settings import AgentConfig

    for name, field in reversed(AgentConfig.model_fields.items()):
        flag = "--" + name.replace("_", "-")
        text = (field.description or "").replace("`", "")
        if field.annotation is bool:
            option = click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=text)
        elif name == "watch_pid":
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
    from ingero_agent.settings import AgentConfig
    from ingero_kit import logs

    if not flags["watch_pid"]:
        flags["watch_pid"] = None
    try:
        config = load(AgentConfig, file=file, prefix=PREFIX, flags=flags, reserved=frozenset({CONFIG_VARIABLE}))
        logs.configure(config.log_level)
        asyncio.run(push(config))
    except (SettingsError, OSError) as error:
        click.echo(f"ingero-agent: {error}", err=True)
        sys.exit(2 if isinstance(error, SettingsError) else 1)


@main.command("trace")
@click.option(
    "--db", type=click.Path(dir_okay=False, path_type=Path), default="/var/lib/ingero/ingero.db", show_default=True,
    envvar="INGERO_AGENT_TRACE_DB", help="Database to keep counts in; fleet-push --signal-db-path reads it.",
)  # fmt: skip
@click.option(
    "--period", type=click.FloatRange(0.1, 60), default=1.0, show_default=True, help="Seconds between looks."
)
def trace(db: Path, period: float) -> None:
    """Count the CUDA runtime and NCCL calls of every process on this node through eBPF. Needs root.

    \b
    ingero-agent trace --db /var/lib/ingero/ingero.db
    """
    import signal
    import threading

    from ingero_agent.trace.loader import CannotTrace
    from ingero_agent.trace.tracer import run
    from ingero_kit import logs

    logs.configure("info")
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    try:
        run(db, period, over.wait)
    except (CannotTrace, OSError) as error:
        click.echo(f"ingero-agent: {error}", err=True)
        sys.exit(1)


@main.command("check")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@click.option(
    "--db", type=click.Path(dir_okay=False, path_type=Path), default="/var/lib/ingero/ingero.db", show_default=True,
    envvar="INGERO_AGENT_TRACE_DB", help="Where the trace is to be kept.",
)  # fmt: skip
def check(as_json: bool, db: Path) -> None:
    """Say what of tracing works on this machine, what does not, and what to do about it.

    Tries everything for real and leaves nothing behind. Exit status 0: this machine can be traced; 1: it cannot.

    \b
    ingero-agent check
    ingero-agent check --json
    """
    import json

    from ingero_agent.trace.capabilities import State, can_trace, evaluate
    from ingero_agent.trace.check import collect
    from ingero_kit import logs

    logs.configure("error")
    found = evaluate(collect(db))
    able = can_trace(found)
    if as_json:
        click.echo(json.dumps({"can_trace": able, "capabilities": [one.as_dict() for one in found]}, indent=2))
    else:
        for one in found:
            click.echo(f"{one.state:<9} {one.name:<11} {one.reason}")
            if one.fix and one.state is not State.OK:
                click.echo(f"{'':<21} fix: {one.fix}")
        click.echo("this machine can be traced" if able else "this machine cannot be traced")
    sys.exit(0 if able else 1)
