"""The `ingero-agent` command."""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

import click

from ingero_agent.settings import AgentSettings, read_settings
from ingero_agent.settings_file import CONFIG_VARIABLE
from ingero_agent.state_file import DEFAULT_PATH, check_node
from ingero_kit.flags import CONTEXT, LazyGroup, config_flag, exit_with_reason, settings_flags

TRACE_COMMANDS: Final = ("trace", "check", "query", "explain", "annotate")


@click.group(
    cls=LazyGroup, lazy={name: f"ingero_agent.trace.commands:{name}" for name in TRACE_COMMANDS},
    context_settings=CONTEXT,
)  # fmt: skip
@click.version_option(package_name="ingero")
def main() -> None:
    """Measures a node and pushes its health."""


@main.command("fleet-push")
@config_flag(CONFIG_VARIABLE)
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

    with exit_with_reason("ingero-agent", OSError):
        settings = read_settings(flags, file)
        logs.configure(settings.log_level)
        asyncio.run(push(settings))


@main.command("healthy")
@click.option(
    "--state-file",
    type=click.Path(path_type=Path),
    envvar="INGERO_AGENT_STATE_FILE",
    default=DEFAULT_PATH,
    show_default=True,
    help="What fleet-push --state-file writes.",
)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def healthy(state_file: Path, as_json: bool) -> None:
    """Report whether this node is a straggler, for Slurm's HealthCheckProgram, LBNL NHC and scripts.

    Reads the state that fleet-push wrote last; asks nobody and waits for nothing. Only what Fleet finds makes a
    straggler, because it compares the node with its peers.

    Exit status: 0 healthy, which includes calibrating and idle; 1 straggler; 3 unknown, as when the agent does not
    run, cannot read its signals, or calls the node slow without Fleet; 2 a flag is wrong.

    \b
    ingero-agent healthy
    ingero-agent healthy --json --state-file /run/ingero/state.json
    """
    found = check_node(state_file, time.time())
    status = found.status.name.lower()
    click.echo(json.dumps({"status": status, "reason": found.reason}) if as_json else f"{status}: {found.reason}")
    sys.exit(found.status)
