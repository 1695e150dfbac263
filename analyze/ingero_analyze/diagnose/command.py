"""The `diagnose` command."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console

from ingero_analyze.figures import PlotError
from ingero_analyze.flags import chosen_columns, json_flag, plot_flag
from ingero_analyze.terminal import plain
from ingero_kit.flags import SecondsRange


@click.command("diagnose")
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option(
    "--flight-recorder",
    multiple=True,
    metavar="PATH",
    help="PyTorch Flight Recorder dumps, pickle or JSON, or what `fr_trace` prints: files or folders.",
)
@click.option(
    "--nccl-inspector", multiple=True, metavar="PATH",
    help="NCCL Inspector's JSON lines, or its metrics as a Collector writes them (OTLP JSON): files or folders.",
)  # fmt: skip
@click.option(
    "--kineto", multiple=True, metavar="PATH", help="PyTorch profiler traces of several ranks: files or folders."
)
@click.option(
    "--ras",
    multiple=True,
    metavar="PATH|HOST:PORT",
    help="NCCL RAS: files with what `ncclras -f json` prints, or the service itself (localhost:28028).",
)
@click.option(
    "--wait",
    type=SecondsRange(0, 3600),
    default=0.0,
    metavar="SECONDS",
    help="Ask the address of --ras again after so long; 30 or more show whether the job moves.",
)
@click.option(
    "--hung",
    is_flag=True,
    help="The job of --flight-recorder is known to hang, also if its dumps were written just after its last call.",
)
@click.option("--dcgm", multiple=True, metavar="FILE|URL", help="dcgm-exporter pages: which GPUs are throttled.")
@click.option(
    "--topology", metavar="FILE", help="Nodes, NICs and switches (YAML or JSON): which part of the network is slow."
)
@click.option(
    "--column", multiple=True, metavar="ROLE=COLUMN",
    help="The column of FILE that has a role, such as op=kernel; ROLE is one of the names below, `end`, "
    "`tensor_parallel`, `node`, `local_rank`, `size` or `job`.",
)  # fmt: skip
@click.option(
    "--unit",
    type=click.Choice(["s", "ms", "us", "ns"]),
    help="Of times in FILE, where names of columns say none.  [default: seconds, or what the times themselves show]",
)
@json_flag("--json/--table", "[default: a table on a terminal, else JSON]")
@plot_flag
@click.option("--quiet", is_flag=True, help="No progress bar.")
def command(
    files: tuple[str, ...],
    flight_recorder: tuple[str, ...],
    nccl_inspector: tuple[str, ...],
    kineto: tuple[str, ...],
    ras: tuple[str, ...],
    wait: float,
    hung: bool,
    dcgm: tuple[str, ...],
    topology: str | None,
    column: tuple[str, ...],
    unit: str | None,
    as_json: bool | None,
    plot: Path | None,
    quiet: bool,
) -> None:
    """Say who holds a synchronised job back: a rank, its partition into stages, its sequence lengths, or nobody.

    FILE is CSV or JSON, also packed (gzip, bzip2, xz, zstd, ZIP), or Parquet by its suffix, `-` standard input, with
    a row for every operation: `rank`, `op`, `kind` (compute or collective), `start` and `duration` in seconds;
    optional `step`, `group` (communicator), `seq`, `stage`, `data_parallel`, and `work` of compute (such as tokens,
    in any one unit), with which longer sequences are no lateness. Clocks of ranks need not agree: only durations and
    differences on one clock are used. Columns are known by usual names too, such as optype, start_ts, dur_us,
    pp_rank; without `kind` the names of operations show what a collective is. A row may also be a step of a rank,
    with a column for the time of every operation. The output says how the file was read.

    Instead of FILE, what other tools have written: one of --flight-recorder and --ras (where does the job hang),
    --nccl-inspector and --kineto; --dcgm with any of them, or alone. Most such files are known by how they begin, so
    that the flag may be left out. The answer says what they can show and what they cannot, and names whatever could
    not be read.

    The answer's `network` says which groups have collectives that last longer after their last rank has arrived, and
    with --topology (FILE, --kineto or --nccl-inspector) which NIC, link or switch makes them.

    Exit status 0 whatever is found, 1 when the plot cannot be written, 2 when nothing can be used.

    \b
    ingero-fleet diagnose timeline.parquet
    ingero-fleet diagnose --column op=kernel --unit us rank*.csv
    ingero-fleet diagnose --plot job.png traces/
    ingero-fleet diagnose --flight-recorder /tmp/nccl_traces/
    ingero-fleet diagnose --ras localhost:28028 --wait 30
    ingero-fleet diagnose --kineto traces/ --dcgm http://node-4:9400/metrics --json | jq '.ranks'
    """
    from ingero_kit.ras_client import is_address

    files, taken = _by_kind(files)
    own = {"--flight-recorder": flight_recorder, "--nccl-inspector": nccl_inspector, "--kineto": kineto, "--ras": ras,
           "--dcgm": dcgm}  # fmt: skip
    flight_recorder, nccl_inspector, kineto, ras, dcgm = (paths + taken.get(flag, ()) for flag, paths in own.items())
    given = {"FILE": files, "--flight-recorder": flight_recorder, "--nccl-inspector": nccl_inspector,
             "--kineto": kineto, "--ras": ras}  # fmt: skip
    used = [name for name, paths in given.items() if paths]
    if len(used) > 1:
        raise click.UsageError(f"{' and '.join(used)} cannot be judged together; ask once for each")
    if not used and not dcgm:
        raise click.UsageError("a FILE, --flight-recorder, --nccl-inspector, --kineto, --ras or --dcgm is needed")
    if topology and (not used or used[0] in ("--flight-recorder", "--ras")):
        raise click.UsageError("--topology needs a FILE, --kineto or --nccl-inspector")
    if wait and not any(map(is_address, ras)):
        raise click.UsageError("--wait needs --ras HOST:PORT")
    if hung and not flight_recorder:
        raise click.UsageError("--hung needs --flight-recorder")
    if (column or unit) and not files:
        raise click.UsageError("--column and --unit need a FILE")
    ports = _ports(topology) if topology else None
    answer, recorded = (
        _timeline(files, _columns(column), unit, quiet, ports) if files
        else _others(used[0] if used else "", given, dcgm, ports=ports, wait=wait, hung=hung)
    )  # fmt: skip
    if files and dcgm:
        answer, _ = _others("", given, dcgm, answer)
    if as_json or (as_json is None and not sys.stdout.isatty()):
        print(json.dumps(answer))
    else:
        _table(answer, Console(highlight=False))
    if plot:
        _draw(recorded, answer, plot)


def _draw(recorded: Any, answer: dict[str, Any], file: Path) -> None:
    from ingero_analyze.diagnose import plot, table

    try:
        if recorded is None:
            raise PlotError("--plot draws times of operations, and what hangs has none")
        stages = answer["kind"] != "stage_imbalance"
        plot.draw(recorded, table.headline(answer), answer["ranks"], stages, file)
    except PlotError as error:
        click.echo(f"ingero-fleet diagnose: {error}", err=True)
        sys.exit(1)


def _ports(file: str) -> dict[str, Any]:
    from ingero_analyze.diagnose.sources import SourceError
    from ingero_analyze.diagnose.topology import read_topology

    try:
        return dict(read_topology(file))
    except SourceError as error:
        click.echo(f"ingero-fleet diagnose: {error}", err=True)
        sys.exit(2)


def _verdict(recorded: Any, ports: dict[str, Any] | None, comparable: Any = None) -> dict[str, Any]:
    from ingero_analyze.diagnose.timeline_files import verdict
    from ingero_analyze.diagnose.topology import with_network

    return with_network(verdict(recorded), comparable or recorded, ports)


def _by_kind(files: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """The files that are timelines, and those that another tool wrote by the flag that takes them."""
    from ingero_analyze.diagnose.columns import RECORD
    from ingero_analyze.diagnose.file_kinds import flag_of_files
    from ingero_analyze.diagnose.sources import SourceError
    from ingero_analyze.diagnose.timeline_reader import BEGIN_OF_LOG, has_timers
    from ingero_analyze.folders import with_tables_of_folders
    from ingero_analyze.table_errors import TableError

    try:
        flag = flag_of_files(files)
        if flag is not None:
            return (), {flag: files}
        instead = f", and no log has timers of ranks; {RECORD}"
        return with_tables_of_folders(files, has_timers, BEGIN_OF_LOG, instead), {}
    except (SourceError, TableError) as error:
        raise click.UsageError(str(error)) from None


def _columns(given: tuple[str, ...]) -> dict[str, str]:
    from ingero_analyze.diagnose.columns import ROLES

    return dict(chosen_columns(given, ROLES, once=ROLES))


def _timeline(
    files: tuple[str, ...], columns: dict[str, str], unit: str | None, quiet: bool, ports: dict[str, Any] | None
) -> tuple[dict[str, Any], Any]:
    """The answer, and the timeline."""
    from ingero_analyze.diagnose import several_jobs
    from ingero_analyze.diagnose.hosts import with_hosts
    from ingero_analyze.diagnose.sources import Problems
    from ingero_analyze.diagnose.timeline_reader import read_timelines
    from ingero_analyze.file_progress import progress_over_files

    problems = Problems()
    with progress_over_files("diagnose", files, "reading", quiet) as advance:
        jobs = read_timelines(files, problems, advance, columns, unit)
    if len(jobs) > 1:
        problems.add("", several_jobs.told_of({job: recorded.ranks for job, recorded in jobs.items()}))
    _show(problems.shown)
    answers = {job: with_hosts(_verdict(recorded, ports), recorded.hosts) for job, recorded in jobs.items()}
    answer = several_jobs.worst_of(answers) if len(jobs) > 1 else next(iter(answers.values()))
    recorded = jobs[answer["evidence"].get("job", "")]
    return {**answer, "read": dict(recorded.read), "problems": problems.answer()}, recorded


def _others(
    used: str,
    given: dict[str, tuple[str, ...]],
    pages: tuple[str, ...],
    known: dict[str, Any] | None = None,
    ports: dict[str, Any] | None = None,
    wait: float = 0.0,
    hung: bool = False,
) -> tuple[dict[str, Any], Any]:
    """What other tools' files say, and their timeline if they have one; with `known`, what DCGM's pages add to it."""
    from ingero_analyze.diagnose import dcgm, flight_recorder_dumps, hangs, inspector, kineto, ras_hangs, ras_status
    from ingero_analyze.diagnose.sources import Problems, SourceError
    from ingero_analyze.diagnose.timeline_files import verdict

    problems, hosts, recorded = Problems(), dict[str, str](), None
    claims: dict[str, Any] = {}
    answer: dict[str, Any] = known or {"kind": "none", "ranks": [], "evidence": {}}
    try:
        if used == "--flight-recorder":
            claims["flight_recorder"] = asdict(hangs.CLAIMS)
            read = flight_recorder_dumps.read_dumps(given[used], problems)
            if not read.dumps:
                _end(problems)
            hang = hangs.find_hang(read.dumps, read.unreadable, hung)
            hangs.report_earlier_runs(hang, problems)
            if hang.kind == hangs.HangKind.NONE and problems.count:
                hang = replace(hang, kind=hangs.HangKind.UNKNOWN)
            recorded = read.rows.recorded() if hang.kind == hangs.HangKind.NONE else None
            answer = verdict(recorded) if recorded else hang.answer()
        elif used == "--ras":
            claims["ras"] = asdict(ras_hangs.CLAIMS)
            statuses = ras_status.read_statuses(given[used], problems, wait)
            if not statuses:
                _end(problems)
            answer = ras_hangs.find_ras_hang(statuses, damaged=problems.count > 0)
            hosts = answer["evidence"]["nodes"]
        elif used:
            module = inspector if used == "--nccl-inspector" else kineto
            claims[used.removeprefix("--").replace("-", "_")] = asdict(module.CLAIMS)
            answer, recorded, hosts = _of_jobs(module, given[used], problems, ports)
    except SourceError as error:
        problems.add("", str(error))
        _end(problems)
    if pages:
        claims["dcgm"] = asdict(dcgm.CLAIMS)
        gpus = dcgm.read_metrics(pages, problems)
        if not gpus and not used and known is None:
            _end(problems)
        answer["gpu"] = dcgm.answer(gpus, hosts, answer["kind"] if used or known else "", answer["ranks"])
    _show(problems.shown)
    before = answer.get("problems", {"count": 0, "first": []})
    found_here = problems.answer()
    both = {"count": before["count"] + found_here["count"], "first": [*before["first"], *found_here["first"]]}
    return {**answer, "claims": claims, "problems": both}, recorded


Judged = tuple[dict[str, Any], Any, dict[str, str]]
"""An answer, its timeline, and the hosts of ranks."""


def _of_jobs(module: Any, paths: Sequence[str], problems: Any, ports: dict[str, Any] | None) -> Judged:
    """What the files of a tool say, of each job alone where they are of several."""
    from ingero_analyze.diagnose import several_jobs

    found = module.read_events(paths, problems)
    contents = {file: several_jobs.FileContent(cells) for file, cells in found.cells.items()}
    jobs = several_jobs.jobs_of(contents, shared=0.0) if found.repeated else {}
    if not jobs:
        return _of_recordings(module, found, problems, ports)
    problems.count, problems.shown = 0, []
    judged = {
        job: _of_recordings(module, module.read_events(files, problems), problems, ports)
        for job, files in jobs.items()
    }
    problems.add("", several_jobs.told_of({job: recorded.ranks for job, (_, recorded, _) in judged.items()}))
    answer = several_jobs.worst_of({job: own for job, (own, *_) in judged.items()})
    return answer, *judged[answer["evidence"]["job"]][1:]


def _of_recordings(module: Any, found: Any, problems: Any, ports: dict[str, Any] | None) -> Judged:
    """What the recordings of one job say."""
    from ingero_analyze.diagnose import absent_ranks as absence
    from ingero_analyze.diagnose import kineto
    from ingero_analyze.diagnose.hosts import with_hosts

    recorded = found.rows.recorded()
    if recorded is None:
        _end(problems, f"; files whose names end in {' or '.join(module.SUFFIXES)} are read")
    absent = absence.absent_ranks(recorded, found)
    answer = _verdict(recorded, ports, absence.comparable(recorded, absent))
    answer = kineto.with_kernel_counts(answer, found.kernels)
    answer = absence.with_absent(answer, recorded, absent, problems)
    left_out = {name: count for name, count in found.left_out.items() if count}
    answer["evidence"] |= {"left_out": left_out} if left_out else {}
    return with_hosts(answer, found.hosts), recorded, found.hosts


def _end(problems: Any, expected: str = "") -> NoReturn:
    _show(problems.shown or [f"there is nothing in these files that can be judged{expected}"])
    sys.exit(2)


def _show(lines: Sequence[str]) -> None:
    for line in lines:
        click.echo(f"ingero-fleet diagnose: {line}", err=True)


def _table(answer: dict[str, Any], console: Console) -> None:
    from ingero_analyze.diagnose import table

    console.print(f"[bold]{plain(table.headline(answer))}[/]")
    for line in table.lines(answer):
        console.print(plain(line), style="dim" if line.startswith(" ") else None)
    for source, claims in answer.get("claims", {}).items():
        console.print(f"what {source} can show: {'; '.join(claims['can'])}", style="dim")
        console.print(f"what it cannot: {'; '.join(claims['cannot'])}", style="dim")
    count = answer.get("problems", {}).get("count", 0)
    if count:
        console.print(f"{count} {'thing' if count == 1 else 'things'} could not be used; the first are named above")
