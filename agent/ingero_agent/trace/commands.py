"""The commands `trace`, `check`, `query`, `explain` and `annotate`.

All but the first take the paths of the database and the socket from the settings of `trace`.
"""

import json
import os
import sqlite3
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from ingero_agent.settings_file import CONFIG_VARIABLE
from ingero_agent.trace.settings import TraceSettings, read_settings
from ingero_kit.flags import RenamedOption, config_flag, exit_with_reason, settings_flags
from ingero_kit.settings import parse_duration

PROGRAM: Final = "ingero-agent"

MAX_COLLECTIVES: Final = 200_000
"""Most single collectives that `explain` reads, the newest."""

database_option = click.option(
    "--db", help=f"Database of the trace.  [default: {TraceSettings.model_fields['db'].default}]"
)


def _duration(_: click.Context, __: click.Parameter, text: str) -> float:
    try:
        return float(str(parse_duration(text)))
    except ValueError:
        raise click.BadParameter(f"{text}: a duration such as 90s, 10m or 7d was expected") from None


def _settings(**flags: Any) -> TraceSettings:
    with exit_with_reason(PROGRAM):
        return read_settings(flags)


@click.command("trace")
@config_flag(CONFIG_VARIABLE)
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

    with exit_with_reason("ingero-agent", CannotTrace, ImportError, OSError):
        settings = read_settings(flags, file)
        logs.configure(settings.log_level)
        run(settings)


@click.command("check")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@click.option(
    "--termination-log",
    type=click.Path(path_type=Path),
    help="File to write the reasons into for which this node is not traced, or only in part; status 0 in any case.",
)
@database_option
def check(as_json: bool, termination_log: Path | None, db: str | None) -> None:
    """Report which parts of tracing work on this machine, which do not, and what to do about it.

    Tries each part for real and leaves nothing behind. Exit status 0: this machine can be traced; 1: it cannot.

    \b
    ingero-agent check
    ingero-agent check --json
    """
    from ingero_agent.trace.capabilities import Support, can_trace, evaluate
    from ingero_agent.trace.check import collect_facts, machine_facts
    from ingero_agent.trace.problems import find_problems
    from ingero_contract.node_problems import format_problems
    from ingero_kit import logs

    logs.configure("error")
    try:
        facts = collect_facts(_settings(db=db).db)
    except Exception as error:
        if not termination_log:
            raise
        # An init container that failed would keep the tracer from starting.
        click.echo(f"not tried: {type(error).__name__}: {error}", err=True)
        facts = machine_facts()
    found = evaluate(facts)
    if termination_log:
        termination_log.write_text(format_problems(find_problems(found)))
    able = can_trace(found)
    if as_json:
        click.echo(json.dumps({"can_trace": able, "capabilities": [asdict(one) for one in found]}, indent=2))
    else:
        for one in found:
            click.echo(f"{one.state:<9} {one.name:<11} {one.reason}")
            if one.fix and one.state is not Support.OK:
                click.echo(f"{'':<21} fix: {one.fix}")
        click.echo("this machine can be traced" if able else "this machine cannot be traced")
    sys.exit(0 if able or termination_log else 1)


def _print_table(columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    cells = [columns, *(tuple("" if cell is None else str(cell) for cell in row) for row in rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(columns))]
    for row in cells:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@click.command("query")
@database_option
@click.option("--since", callback=_duration, default="1h", show_default=True, help="How far back.")
@click.option("--pid", type=int, help="Only this process.")
@click.option("--op", "operation", default="", help="Only operations with this in their name.")
@click.option("--collectives", "view", flag_value="collectives", help="Single collectives instead of sums.")
@click.option("--annotations", "view", flag_value="annotations", help="Annotations of programs instead.")
@click.option("--gpus", "view", flag_value="gpus", help="Memory, clocks and throttling of GPUs instead.")
@click.option("--stacks", "view", flag_value="stacks", help="Sampled call stacks of late ranks instead.")
@click.option("--limit", type=click.IntRange(1, 1_000_000), default=100, show_default=True, help="Most rows.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def query(
    db: str | None, since: float, pid: int | None, operation: str, view: str | None, limit: int, as_json: bool
) -> None:  # fmt: skip
    """Show what was traced: calls by process and operation, single collectives, annotations, or GPUs.

    \b
    ingero-agent query --since 10m
    ingero-agent query --collectives --op AllReduce --json
    """
    from ingero_agent.trace import queries

    now = time.time()
    wanted = queries.Filter(begin=now - since, end=now, pid=pid, operation=operation, limit=limit)
    columns, read = queries.VIEWS[view or "operations"]
    with exit_with_reason(PROGRAM, OSError, sqlite3.Error):
        rows = read(_settings(db=db).db, wanted)
    if as_json:
        click.echo(json.dumps([dict(zip(columns, row, strict=True)) for row in rows]))
    else:
        _print_table(columns, rows)


@click.command("explain")
@database_option
@click.option("--since", callback=_duration, default="5m", show_default=True, help="How far back.")
@click.option("--pid", type=int, help="Only this process.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def explain(db: str | None, since: float, pid: int | None, as_json: bool) -> None:
    """Report why jobs were slow on this node: causes with their evidence, and what to do.

    \b
    ingero-agent explain
    ingero-agent explain --since 30m --json
    """
    from ingero_agent.trace import queries
    from ingero_agent.trace.evidence import read_time_window
    from ingero_agent.trace.findings import find_causes

    now = time.time()
    with exit_with_reason(PROGRAM, OSError, sqlite3.Error):
        wanted = queries.Filter(begin=now - since, end=now, pid=pid, limit=MAX_COLLECTIVES)
        findings = find_causes(read_time_window(_settings(db=db).db, wanted))
    if as_json:
        click.echo(json.dumps([{"id": one.id, **asdict(one)} for one in findings], indent=2))
        return
    for finding in findings:
        click.echo(f"{finding.severity} {finding.kind} [{finding.id}]: {finding.summary}")
        for line in finding.evidence:
            click.echo(f"    seen: {line}")
        for line in finding.advice:
            click.echo(f"    do:   {line}")
    if not findings:
        click.echo("nothing in this time explains a slow-down")


@click.command("annotate")
@click.argument("labels", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("--pid", type=int, help="The process that this is about; without it the one that runs this command.")
@click.option(
    "--annotate-socket", "path", type=click.Path(path_type=Path), cls=RenamedOption, old="--socket",
    help="Path that the tracer listens on.",
)  # fmt: skip
def annotate(labels: tuple[str, ...], pid: int | None, path: Path | None) -> None:
    """Send the tracer labels of what a process is doing, such as its current step.

    \b
    ingero-agent annotate step=12 phase=backward
    """
    from ingero_agent.trace.annotations import send_annotation
    from ingero_agent.trace.app import annotate_path

    if bad := [label for label in labels if "=" not in label]:
        raise click.BadParameter(f"{bad[0]}: KEY=VALUE was expected")
    path = path or annotate_path(_settings())
    try:
        refusal = send_annotation(
            path, dict(label.split("=", 1) for label in labels), os.getppid() if pid is None else pid
        )
    except OSError as error:
        refusal = f"{path}: {error.strerror or error}: run `ingero-agent trace --annotate` first"
    if refusal:
        click.echo(f"ingero-agent: {refusal}", err=True)
        sys.exit(1)
