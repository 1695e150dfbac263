"""The `diagnose` command."""

import json
import sys
from typing import Any

import click
from rich.console import Console


@click.command("diagnose")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--format", "form", type=click.Choice(["json", "table"]), help="[default: table on a terminal, else json]"
)
@click.option("--quiet", is_flag=True, help="No progress bar.")
def command(files: tuple[str, ...], form: str | None, quiet: bool) -> None:
    """Say who holds a synchronised job back: a rank, its partition into stages, its sequence lengths, or nobody.

    FILE is CSV or Parquet by its suffix, `-` CSV on standard input, with a row for every operation: `rank`, `op`,
    `kind` (compute or collective), `start` and `duration` in seconds; optional `step`, `group` (communicator), `seq`,
    `stage`, `data_parallel`. Clocks of ranks need not agree: only durations and differences on one clock are used.

    Exit status 0 whatever is found, 2 when a file cannot be used.

    \b
    ingero-fleet diagnose timeline.parquet
    ingero-fleet diagnose --format json rank-*.csv | jq '.ranks'
    """
    from ingero_detect.diagnosis import diagnose
    from ingero_fleet.diagnose.timelines import read
    from ingero_fleet.replay.reading import reading

    with reading("diagnose", files, "reading", quiet) as advance:
        recorded = read(files, advance)
    found = diagnose(recorded.line)
    evidence: dict[str, Any] = dict(found.evidence)
    for name in ("excess_share_of_step", "lag_seconds"):
        if name in evidence:
            evidence[name] = {str(recorded.ranks[int(rank)]): value for rank, value in evidence[name].items()}
    if "stage" in evidence:
        evidence["stage"] = recorded.stages[evidence["stage"]]
    answer = {
        "kind": str(found.cause),
        "ranks": [recorded.ranks[rank] for rank in found.ranks],
        "slowdown": round(found.slowdown, 6),
        "seconds_lost_per_step": round(found.seconds_lost_per_step, 9),
        "evidence": evidence,
    }
    if form == "json" or (form is None and not sys.stdout.isatty()):
        print(json.dumps(answer))
    else:
        _table(answer, Console(highlight=False))


def _table(answer: dict[str, Any], console: Console) -> None:
    sentences = {
        "node": f"rank {', '.join(map(str, answer['ranks']))} holds the job back",
        "stage_imbalance": "no node is to blame: the pipeline's stages are uneven",
        "sequence_imbalance": "no node is to blame: steps differ by their data, on whichever rank it falls",
        "none": "nobody holds the job back",
    }
    console.print(f"[bold]{sentences[answer['kind']]}[/]")
    if answer["kind"] != "none":
        lost = answer["seconds_lost_per_step"]
        console.print(
            f"every step loses {lost:.4g} s; the job takes {answer['slowdown']:.3f} times as long as it could"
        )
    for name, value in answer["evidence"].items():
        console.print(f"  {name}: {value}", style="dim")
