"""The `audit` command."""

import json
import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click

from ingero_analyze.figures import PlotError
from ingero_analyze.flags import chosen_columns, plot_flag, with_tables
from ingero_kit.flags import FiniteRange

ROLES = (
    "gpu",
    "slot",
    "node",
    "group",
    "cluster",
    "value",
    "run",
    "time",
    "clock",
    "power",
    "temperature",
    "model",
    "benchmark",
    "unit",
    "status",
)


def with_tables_and_logs(
    context: click.Context, parameter: click.Parameter, paths: tuple[str, ...]
) -> tuple[str, ...]:
    """The callback of an argument of files: those given, with the tables and logs in it for every folder.

    Logs are read if they are of a benchmark that is known, or have results.
    """

    from ingero_analyze.audit.benchmark_logs import LOOKED_AT, is_log
    from ingero_analyze.audit.log_results import are_results

    return with_tables(context, parameter, paths, lambda begin: is_log(begin) or are_results(begin), LOOKED_AT)


def _pattern(_: click.Context, parameter: click.Parameter, text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise click.BadParameter(f"{text!r} is no regular expression: {error}", param=parameter) from None


@click.command("audit")
@click.argument("files", nargs=-1, metavar="[FILE]...", callback=with_tables_and_logs)
@click.option(
    "--fdr", type=FiniteRange(min=0, max=0.5, min_open=True, max_open=True), default=0.05, show_default=True,
    help="Rate of false discoveries; in a healthy fleet, the chance that anything is named.",
)  # fmt: skip
@click.option(
    "--min-loss", type=FiniteRange(min=0, max=0.9), default=0.02, show_default=True,
    help="Share of the usual speed below which a loss is not reported.",
)  # fmt: skip
@click.option(
    "--lower-is-better/--higher-is-better", "lower", default=None, help="[default: by unit and column names]"
)
@click.option(
    "--value", "-v", "values", multiple=True, metavar="COLUMN",
    help="Column of the measured value; several, each with --value, are judged apart.",
)  # fmt: skip
@click.option("--gpu", metavar="COLUMN", help="Column of the GPU.")
@click.option("--node", metavar="COLUMN", help="Column of the node.")
@click.option(
    "--node-from-file", metavar="REGEX", callback=_pattern,
    help="Where no column names the node: what this finds in the path of FILE, or its first group; a second group is "
    "the GPU.",
)  # fmt: skip
@click.option("--group", metavar="COLUMN", help="Column of a group of nodes, such as the rack.")
@click.option("--run", metavar="COLUMN", help="Column of the run.")
@click.option(
    "--column", multiple=True, metavar="ROLE=COLUMN", help=f"Any other column; ROLE is one of {', '.join(ROLES)}."
)
@click.option(
    "--run-effects/--no-run-effects", default=True, show_default=True, help="Remove what all chips of a run share."
)
@click.option(
    "--ledger", type=click.Path(dir_okay=False, path_type=Path),
    help="File of JSON lines with all audits: says who is new, still on the list, or back.",
)  # fmt: skip
@click.option(
    "--repaired", multiple=True, metavar="NAME", help="Note a repair in the ledger, such as 'gpu GPU-8a1c'."
)
@click.option(
    "--at", metavar="TIME", help="Time of this audit for the ledger (RFC 3339).  [default: latest in FILE, or now]"
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@plot_flag
@click.option("--quiet", is_flag=True, help="No progress bar.")
def command(
    files: tuple[str, ...],
    fdr: float,
    min_loss: float,
    lower: bool | None,
    values: tuple[str, ...],
    node_from_file: re.Pattern[str] | None,
    column: tuple[str, ...],
    run_effects: bool,
    ledger: Path | None,
    repaired: tuple[str, ...],
    at: str | None,
    as_json: bool,
    plot: Path | None,
    quiet: bool,
    **columns: str | None,
) -> None:
    """Name chips and nodes that are chronically slower than their like.

    FILE is CSV (any delimiter), JSON, JSON lines or Parquet, what nccl-tests, gpu-burn, HPL, nvbandwidth, dcgmi diag,
    LAMMPS or MLPerf training print, all also packed (gzip, bzip2, xz, zstd, ZIP), or a folder of such; `-` is
    standard input. A row is one result: a GPU or a node, and a value; optional run or time, cluster, model,
    benchmark, unit, group (rack), clock, power and temperature. Columns are recognised by their names, with units in
    them; others are named and left out. Clusters, models and benchmarks are judged apart.

    A chip is slow if it is an outlier among all chips of its model over its runs. A node most of whose chips are slow
    is one finding. Populations that are too small are refused with the reason.

    Exit status 0 whether or not anything is named, 1 when the plot cannot be written, 2 when a flag or a file cannot
    be used.

    \b
    ingero-fleet audit gemm.csv
    ingero-fleet audit --value 'Perf (ms)' --fdr 0.01 --plot fleet.png 2026-*.csv
    ingero-fleet audit --node-from-file '(gpu-node-[0-9]+)' burn/*.log
    ingero-fleet audit --ledger lemons.jsonl acceptance.parquet --json | jq '.findings[].name'
    ingero-fleet audit --ledger lemons.jsonl --repaired 'gpu node-7/3'
    """
    from ingero_analyze.audit.ledger import append
    from ingero_kit.clock import rfc3339

    chosen = {role: name for role, name in columns.items() if name} | dict(chosen_columns(column, ROLES))
    values = tuple(dict.fromkeys(values))
    if len(values) == 1:
        chosen["value"], values = values[0], ()
    moment = _time(at)
    if repaired and ledger is None:
        raise click.UsageError("--repaired needs --ledger")
    if not files and not repaired:
        raise click.UsageError("a FILE is needed")
    if repaired and ledger is not None:
        try:
            _known(repaired, ledger)
            append(ledger, {"time": rfc3339(moment or time.time()), "repaired": list(repaired)})
        except OSError as error:
            _end(2, f"{ledger}: {error.strerror or error}")
    if files:
        answer, draw = _audit(
            files, fdr, min_loss, chosen, values, lower, run_effects, ledger, moment, quiet, node_from_file
        )
        _show(answer, as_json)
        try:
            if plot:
                draw(plot)
        except PlotError as error:
            _end(1, str(error))


def _known(names: tuple[str, ...], ledger: Path) -> None:
    """End the command if the ledger has never had one of the names."""
    from ingero_analyze.audit.ledger import read_ledger
    from ingero_analyze.table_errors import TableError

    try:
        known = read_ledger(ledger)
    except TableError as error:
        _end(2, str(error))
    for name in names:
        near = known.nearest(name)
        if near != [name]:
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            _end(2, f"--repaired {name!r}: {ledger} has no such name{hint}")


def _time(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC).timestamp()
    except (ValueError, OverflowError):
        raise click.UsageError(f"--at {text}: not an RFC 3339 time") from None


def _audit(
    files: tuple[str, ...],
    fdr: float,
    min_loss: float,
    chosen: dict[str, str],
    values: tuple[str, ...],
    lower: bool | None,
    run_effects: bool,
    ledger: Path | None,
    moment: float | None,
    quiet: bool,
    node_from_file: re.Pattern[str] | None,
) -> tuple[dict[str, Any], Callable[[Path], None]]:
    """The answer, and what draws it."""
    from ingero_analyze.audit import plot as plots
    from ingero_analyze.audit.file_nodes import places_of_files
    from ingero_analyze.audit.ledger import read_ledger
    from ingero_analyze.audit.measurements import Measurements, ReadingOptions
    from ingero_analyze.audit.report import to_json
    from ingero_analyze.audit.slow_days import audited
    from ingero_analyze.file_progress import progress_over_files

    with progress_over_files("audit", files, "reading", quiet) as advance:
        places = places_of_files(files, node_from_file)
        options = ReadingOptions(chosen, lower, run_effects, values, places, node_from_file is not None)
        measured = Measurements(options)
        for file in files:
            measured.read(file, advance)
        result, inputs = audited(measured.populations(), fdr, min_loss)
        answer = to_json(result, inputs, fdr, min_loss)
        answer["summary"] |= measured.summary()
        if ledger is not None:
            moment = moment or measured.latest or time.time()
            known = read_ledger(ledger, moment)
            answer["summary"]["ledger"] = _record(known, ledger, answer, measured, inputs, moment)
    return answer, partial(plots.draw, result, inputs)


def _record(
    known: Any, file: Path, answer: dict[str, Any], measured: Any, inputs: Any, moment: float
) -> dict[str, Any]:
    """Say of every finding what the ledger knows, and add this audit to it, once."""
    from ingero_analyze.audit.ledger import append, audit_line
    from ingero_analyze.audit.report import identities, in_doubt

    for one in answer["findings"]:
        one["ledger"] = known.story(f"{one['kind']} {one['name']}")
    losses = {f"{one['kind']} {one['name']}": one["loss"] for one in reversed(answer["findings"])}
    judged = {
        name
        for given, found in zip(inputs, answer["summary"]["populations"], strict=True)
        if not found["refused"]
        for name in identities(given)
    } - in_doubt(answer, inputs)
    cleared = known.cleared_by(judged, losses)
    new = measured.digest not in known.digests
    if new:
        append(file, audit_line(moment, measured.digest, answer["summary"]["fdr"], judged, losses, cleared))
    return {"audits_before": known.audits, "recorded": new, "cleared": cleared, "unreadable_lines": known.unreadable}


def _show(answer: dict[str, Any], as_json: bool) -> None:
    from ingero_analyze.audit.report import print_table
    from ingero_analyze.terminal import listed, output

    problems = answer["summary"]["problems"]
    for line in problems["first"]:
        click.echo(f"ingero-fleet audit: {line}", err=True)
    if as_json:
        print(json.dumps(answer, ensure_ascii=False))
        return
    console = output()
    print_table(answer, console)
    about = answer["summary"]
    left = [f"{problems['count']} values or rows could not be used"] if problems["count"] else []
    if about["failed"]:
        names = [f"{name} ({rows} row{'s' if rows > 1 else ''})" for name, rows in about["failed"].items()]
        left.append(f"not judged, none of their rows can be used: {listed(names[:20], len(names))}")
    left += [f"{about['repeated_rows']} repeated rows counted once"] if about["repeated_rows"] else []
    left += (
        [f"columns not used to judge: {', '.join(about['unknown_columns'][:20])}"] if about["unknown_columns"] else []
    )
    if about.get("ledger", {}).get("unreadable_lines"):
        left.append(f"{about['ledger']['unreadable_lines']} lines of the ledger could not be read")
    if about.get("ledger", {}).get("cleared"):
        left.append(f"no longer on the list: {', '.join(about['ledger']['cleared'][:20])}")
    if "ledger" in about and not about["ledger"]["recorded"]:
        left.append("these rows are in the ledger already; not recorded again")
    for line in left:
        console.print(line, style="dim", markup=False)


def _end(status: int, reason: str) -> NoReturn:
    click.echo(f"ingero-fleet audit: {reason}", err=True)
    sys.exit(status)
