"""The `replay` command."""

import dataclasses
import sys
from pathlib import Path
from typing import Any, Literal

import click

from ingero_analyze.figures import PlotError
from ingero_analyze.flags import chosen_columns, json_flag, plot_flag, with_tables
from ingero_detect.nodes.parameters import Parameters
from ingero_kit.flags import FiniteRange, SecondsRange


def _settings(file: Path | None, flags: dict[str, Any]) -> tuple[Parameters, tuple[str, ...]]:
    """Parameters, flag over file over default, and the labels that nodes of a cohort share."""
    from ingero_analyze.replay.column_names import LABELS

    given = {name: value for name, value in flags.items() if value is not None}
    if file is None:
        return Parameters(**given), LABELS
    from ingero_fleet.live_detector import parameters_of
    from ingero_fleet.settings import read_config

    config = read_config(file).processors.ingero
    return dataclasses.replace(parameters_of(config), **given), (*config.cohort.by, "measure", "cohort")


def _columns(given: tuple[str, ...]) -> dict[str, list[str]]:
    """Columns by the role that was chosen for them; none where a role is given without a column."""
    from ingero_analyze.replay.column_names import LABELS
    from ingero_analyze.replay.columns import ROLES, WORK

    found: dict[str, list[str]] = {}
    once = [role for role in (*ROLES, WORK) if role not in LABELS]
    for role, name in chosen_columns(given, (*ROLES, WORK), once=once, empty=True):
        found.setdefault(role, []).extend([name] if name else [])
    return found


def _with_tables_and_logs(
    context: click.Context, parameter: click.Parameter, paths: tuple[str, ...]
) -> tuple[str, ...]:
    """The files that were given, with the tables and logs of values in it for every folder."""

    from ingero_analyze.csv_batches import SAMPLE_BYTES
    from ingero_analyze.log_lines import are_logs

    return with_tables(context, parameter, paths, are_logs, SAMPLE_BYTES)


@click.command("replay")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", callback=_with_tables_and_logs)
@click.option(
    "--config", "file", type=click.Path(dir_okay=False, path_type=Path),
    help="Fleet's settings, to judge as that Fleet does; the flags below override it.",
)  # fmt: skip
@click.option(
    "--tick", type=SecondsRange(min=0.001, max=86_400), metavar="SECONDS", help="Seconds of a tick.  [default: 5]"
)
@click.option(
    "--warmup",
    type=click.IntRange(min=5, max=100_000),
    help="Working ticks that a node is learnt from.  [default: 30]",
)
@click.option(
    "--budget", type=FiniteRange(min=1e-9, max=10),
    help="False alarms allowed per node-hour.  [default: 0.0001, and no more than 0.01 in the whole history]",
)  # fmt: skip
@click.option(
    "--rule", type=click.Choice(["ingero", "mad"]), default="ingero", show_default=True,
    help="The detector, or the published rule for comparison.",
)  # fmt: skip
@click.option(
    "--column", multiple=True, metavar="ROLE=COLUMN",
    help="The column of a role, such as rate='Tokens/s' or cohort=rack; without a column the role has none.",
)  # fmt: skip
@click.option(
    "--wide", type=click.Choice(["score", "rate", "step_seconds", "counter"]),
    help="Every column but the time is a node, whose cells are such values.",
)  # fmt: skip
@click.option("--metric", metavar="NAME", help="The metric to judge, where rows of several are in one file.")
@json_flag("--json", "One JSON object.")
@plot_flag
@click.option("--quiet", is_flag=True, help="No progress bar.")
def command(
    files: tuple[str, ...],
    file: Path | None,
    tick: float | None,
    warmup: int | None,
    budget: float | None,
    rule: Literal["ingero", "mad"],
    column: tuple[str, ...],
    wide: str | None,
    metric: str | None,
    as_json: bool | None,
    plot: Path | None,
    quiet: bool,
) -> None:
    """Judge a recorded history by Fleet's detector, with --config exactly as Fleet would have judged it live.

    Without --config a tick is 5 s, and 3 nodes are enough to be compared (Fleet's defaults: 10 s, 5 nodes).

    FILE is CSV or JSON, also packed (gzip, bzip2, xz, zstd, lz4, ZIP), or Parquet by its suffix, `-` standard input;
    several files, or folders of them, are merged by time. JSON is an object a line, an array of objects, or the
    answer of Prometheus to a range query. Columns: time, node, and one value, which is a score (0 to 1), a rate
    (larger is better), the time of a step or a counter, whose increase is the rate; optional cluster, gpu, metric and
    state (active, idle, calibrating). Nodes, or their GPUs or workloads where a node has rows of several at one time,
    are compared only with those of the same workload, job, GPU model, stage and cohort, where there are such columns.
    Columns are known by usual names, such as timestamp, host, slurm_job_id, tokens_per_second, 'Step time (ms)';
    --column chooses others. The output says how the file was read, and which columns, cells and rows were not used.

    Exit status 0 whether or not somebody is accused, 1 when writing the picture fails in the end, 2 when a flag, such
    as --plot with a file that cannot be written, or a file cannot be used, or most rows of the files.

    \b
    ingero-fleet replay history.csv
    ingero-fleet replay --tick 60 --plot week.png week.parquet
    ingero-fleet replay --column step_seconds=latency --column cohort=rack history.csv
    ingero-fleet replay --wide rate grafana.csv
    ingero-fleet replay --metric tokens_per_second metrics.csv
    ingero-fleet replay history.csv.gz --json | jq '.episodes[].node'
    """
    from ingero_analyze.file_progress import progress_over_files
    from ingero_analyze.replay import judge, report
    from ingero_analyze.replay import plot as plots
    from ingero_analyze.replay.recorded_history import RecordedHistory
    from ingero_analyze.replay.result import Watch
    from ingero_analyze.replay.rows import learnt_work
    from ingero_analyze.terminal import output

    chosen = _columns(column)
    with progress_over_files("replay", files, "judging", quiet) as advance:
        parameters, labels = _settings(file, {"tick_seconds": tick, "warmup": warmup, "budget": budget})
        learns = rule == "ingero" and not file
        history = RecordedHistory(
            files, parameters.tick_seconds, advance, chosen, labels, metric, wide, bool(tick or file),
            work=learnt_work(files, chosen, labels, metric, wide) if learns else (),
        )  # fmt: skip
        done = judge.replay(
            history, rule, parameters, Watch() if plot else None, live=bool(file),
            most_false=judge.MOST_FALSE if budget is None else None,
        )  # fmt: skip
    if done.history.tick_seconds != parameters.tick_seconds and not done.history.reading.steps:
        asked, found = parameters.tick_seconds, done.history.tick_seconds
        click.echo(f"the rows are {found:g} s apart, so that is the tick, not {asked:g} s", err=True)
    for line in done.history.reading.problems.shown:
        click.echo(f"ingero-fleet replay: {line}", err=True)
    if as_json:
        report.print_json(done)
    else:
        report.print_table(done, output())
    try:
        if plot:
            plots.draw(done, plot)
    except PlotError as error:
        click.echo(f"ingero-fleet replay: {error}", err=True)
        sys.exit(1)
