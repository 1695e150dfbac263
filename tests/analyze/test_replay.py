"""Histories through the command: formats, errors with their place, several files and plots."""

import gzip
import json
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet
from rich.console import Console

from ingero_analyze.replay import judge
from ingero_analyze.replay.reading import SEVERAL
from ingero_analyze.replay.recorded_history import RecordedHistory
from ingero_analyze.replay.report import print_table
from ingero_analyze.table_errors import TableError
from ingero_analyze.tables import read_columns
from ingero_detect.nodes.parameters import Parameters
from ingero_fleet.cli import main
from ingero_testing.replays import shown_twice


def rates(ticks: int = 120, nodes: int = 6) -> np.ndarray[Any, np.dtype[np.float64]]:
    values = 100 * np.exp(0.03 * np.random.default_rng(3).normal(size=(ticks, nodes)))
    values[60:100, 2] *= 0.6
    return np.asarray(values)


def rows(measure: str = "rate", step: float = 5.0, calendar: bool = False) -> list[str]:
    out = [f"time,node,{measure}"]
    for tick, values in enumerate(rates()):
        moment = f"2026-01-01T00:{tick * 5 // 60:02d}:{tick * 5 % 60:02d}Z" if calendar else f"{tick * step:g}"
        for node, value in enumerate(values):
            shown = {"rate": value, "step_seconds": 1 / value, "score": min(1.0, value / 130)}[measure]
            out.append(f"{moment},n{node},{shown!r}".replace("np.float64(", "").replace(")", ""))
    return out


def run(*arguments: str | Path, text: str | None = None) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, arguments)], input=text)


def replay(*arguments: str | Path, text: str | None = None) -> dict[str, Any]:
    done = run(*arguments, "--json", text=text)
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def written(folder: Path, lines: list[str], name: str = "history.csv") -> Path:
    file = folder / name
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.mark.parametrize("measure", ["rate", "step_seconds", "score"])
def test_every_measure_names_the_slow_node(tmp_path: Path, measure: str) -> None:
    found = replay(written(tmp_path, rows(measure)))

    (episode,) = found["episodes"]
    assert (episode["node"], episode["kind"]) == ("n2", "slow")
    assert episode["start"] == pytest.approx(300.0, abs=5)
    assert 300 <= episode["detected"] <= 320
    assert episode["end"] == pytest.approx(500, abs=15)
    assert episode["severity"] == pytest.approx(0.4, abs=0.05)
    assert found["summary"]["nodes"] == 6
    assert found["summary"]["budget"] == 1e-4


def test_times_come_back_in_the_unit_of_the_file(tmp_path: Path) -> None:
    (episode,) = replay(written(tmp_path, rows(calendar=True)))["episodes"]

    assert episode["start"] in ("2026-01-01T00:05:00.000Z", "2026-01-01T00:04:55.000Z")


def test_standard_input_parquet_and_split_files_give_the_same(tmp_path: Path) -> None:
    lines = rows()
    whole = replay(written(tmp_path, lines))
    table = pa.table(
        {
            "time": [float(line.split(",")[0]) for line in lines[1:]],
            "node": [line.split(",")[1] for line in lines[1:]],
            "rate": [float(line.split(",")[2]) for line in lines[1:]],
        }
    )
    parquet.write_table(table, tmp_path / "history.parquet", row_group_size=100)
    one = written(tmp_path, [lines[0], *(line for line in lines[1:] if ",n0," in line)], "one.csv")
    rest = written(tmp_path, [lines[0], *(line for line in lines[1:] if ",n0," not in line)], "rest.csv")

    for other in (
        replay("-", text="\n".join(lines)),
        replay(tmp_path / "history.parquet"),
        replay(one, rest),
    ):
        assert other["episodes"] == whole["episodes"]
        assert other["summary"]["digest"] == whole["summary"]["digest"]


def test_rows_further_apart_than_the_tick_widen_it(tmp_path: Path) -> None:
    found = replay(written(tmp_path, rows(step=60.0)))

    assert found["summary"]["parameters"]["tick_seconds"] == 60.0
    assert [episode["node"] for episode in found["episodes"]] == ["n2"]


def test_several_rows_of_a_node_in_one_tick_count_once(tmp_path: Path) -> None:
    lines = rows()
    doubled = [lines[0], *(line for row in lines[1:] for line in (row, row.rsplit(",", 1)[0] + ",1", row))]

    found = replay(written(tmp_path, doubled))

    assert [episode["node"] for episode in found["episodes"]] == ["n2"]
    assert SEVERAL in found["summary"]["notes"]
    assert SEVERAL not in replay(written(tmp_path, lines))["summary"]["notes"]


@pytest.mark.parametrize("gap", [5, 20])
def test_ticks_without_any_row_are_silence_after_which_nodes_have_time_to_warm_up(tmp_path: Path, gap: int) -> None:
    dice = np.random.default_rng(3)
    values = 100 * np.exp(0.02 * dice.normal(size=(400, 16)))
    since = np.arange(400 - 200 - gap)[:, None]
    values[200 + gap :] *= 1 - 0.5 * np.exp(-since / dice.uniform(1, 5, 16))
    lines = ["time,node,rate"]
    for tick in (*range(200), *range(200 + gap, 400)):
        lines += [f"{tick * 5},n{node},{value}" for node, value in enumerate(values[tick])]

    assert replay(written(tmp_path, lines))["episodes"] == []


@pytest.mark.parametrize("column", ["gpu", "local_rank", "Device ID"])
def test_each_gpu_of_a_node_is_judged_by_itself(tmp_path: Path, column: str) -> None:
    lines = [f"time,node,{column},rate"]
    for tick, values in enumerate(rates(nodes=8)):
        lines += [f"{tick * 5},n{number // 4},{number % 4},{value}" for number, value in enumerate(values)]
    found = replay(written(tmp_path, lines))

    assert [episode["node"] for episode in found["episodes"]] == ["n0/2"]
    assert found["summary"]["notes"] == [f"each GPU is judged by itself, as node/{column}"]


def test_a_column_with_the_one_gpu_of_each_node_changes_no_name(tmp_path: Path) -> None:
    lines = rows()
    with_gpu = [f"{lines[0]},gpu", *(f"{line},0" for line in lines[1:])]

    assert [episode["node"] for episode in replay(written(tmp_path, with_gpu))["episodes"]] == ["n2"]


def test_states_and_cohorts_are_heeded_and_other_columns_ignored(tmp_path: Path) -> None:
    lines = ["time,colour,node,cohort,rate,state"]
    for tick, values in enumerate(rates()):
        for node, value in enumerate(values):
            idle = node == 4 and tick >= 80
            lines.append(f"{tick * 5},red,n{node},train,{'' if idle else value},{'idle' if idle else 'active'}")

    found = {episode["node"]: episode for episode in replay(written(tmp_path, lines))["episodes"]}

    assert found["n4"]["kind"] == "stopped"
    assert found["n4"]["detected"] == 405
    assert found["n2"]["cohort"] == "train"


def test_the_published_rule_can_be_compared(tmp_path: Path) -> None:
    found = replay(written(tmp_path, rows()), "--rule", "mad")

    assert len(found["episodes"]) > 10


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    done = run(written(tmp_path, rows()), "--plot", tmp_path / "plot.png")

    assert done.exit_code == 0, done.stderr
    assert "n2" in done.stdout
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("nodes", "said"), [(60, ""), (70, " (60 of 70)")])
def test_a_plot_of_some_nodes_says_how_many_there_are(tmp_path: Path, nodes: int, said: str) -> None:
    lines = [f"{5 * tick},n{node},{100 + (tick + node) % 3}" for tick in range(40) for node in range(nodes)]

    run(written(tmp_path, ["time,node,rate", *lines]), "--plot", tmp_path / "plot.svg")

    assert f"<!-- speed of nodes{said} relative to what was expected" in (tmp_path / "plot.svg").read_text()


GOOD = "time,node,rate\n0,a,1\n5,a,1\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("time,node,rate\n", "there are no rows"),
        ("time,rate\n0,1\n", "no column 'node' (there are: time, rate); choose one with --column node=COLUMN"),
        (
            "time,node\n0,a\n",
            "exactly one of the columns score, rate, step_seconds, counter is needed; there is none",
        ),
        ("time,node,rate,score\n0,a,1,1\n", "there are score and rate"),
        ("time,node,score\n0,a,2\n", "a score lies between 0 and 1, this is 2: nothing can be used"),
        ("time,node,step_seconds\n0,a,0\n", "0 is not positive"),
        ("time,node,step_seconds\n0,a,1e-320\n", "row 2, column step_seconds: 9.99989e-321 is too small"),
        ("time,time,node,rate\n0,0,a,1\n", "the column time is there twice"),
        ("time,node,rate\n0,a,nan\n", "row 2, column rate: no row has a value"),
        (
            GOOD + '10,"a,1\n' + 50 * "15,a,1\n",
            "row 4: 51 lines are one value from here on, because a quotation mark",
        ),
    ],
)
def test_a_file_of_which_nothing_can_be_used_is_refused_with_the_place(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "bad.csv"
    file.write_text(text)

    done = run(file)

    assert done.exit_code == 2
    assert words in done.stderr
    assert "bad.csv" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GOOD + "10,a,-1\n", "row 4, column rate: -1 is negative"),
        (GOOD + "10,a,fast\n", "row 4, column rate: 'fast' is not a number"),
        (GOOD + "10,a,1_000\n", "row 4, column rate: '1_000' is not a number"),
        (GOOD + ",a,1\n", "row 4, column time: a time is missing"),
        (GOOD + "soon,a,1\n", "row 4, column time: 'soon' is no time"),
        (GOOD + "10,,1\n", "row 4, column node: a node needs a name"),
        (GOOD + "10,a\n", "row 4: 2 values where 3 columns were expected"),
        ("time,node,rate\n0,a\n0,b,1\n\n1,a,2,3\n5,b,x\n5,a,1\n9,a,1\n", "row 6, column rate: 'x' is not a number"),
        (GOOD + "\n,,\n10,a,x\n", "row 6, column rate: 'x' is not a number"),
        (GOOD + "1800000000000,a,1\n", "row 4, column time: 1.8e+12 is too large: seconds are expected"),
        ("time,node,rate\n,a,1\n2026-01-01T00:00:00Z,a,1\n", "row 2, column time: a time is missing"),
        ("time,node,rate\n2026-01-01T25:00:00Z,a,1\n2026-01-01T00:00:00Z,a,1\n", "'2026-01-01T25:00:00Z' is no ISO"),
        ("time,node,score\n0,a,1\n5,a,2\n", "row 3, column score: a score lies between 0 and 1, this is 2"),
        (
            "time,node,rate,state\n0,a,1,active\n5,a,1,asleep\n",
            "row 3, column state: 'asleep' is none of active",
        ),
    ],
)
def test_a_row_that_cannot_be_used_is_said_with_its_place_and_the_others_are_judged(
    tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "bad.csv"
    file.write_text(text)

    done = run(file, "--json")

    assert done.exit_code == 0
    summary = json.loads(done.stdout)["summary"]
    assert words in done.stderr
    assert any(f"{file}, " in line and words in line for line in summary["problems"]["first"])
    given = [line for line in text.splitlines()[1:] if line.strip(",")]
    assert summary["rows"] + summary["problems"]["count"] == len(given)


def test_a_row_without_end_is_refused_in_words(tmp_path: Path) -> None:
    file = tmp_path / "long.csv"
    file.write_text(GOOD + "10,a," + 9_000_000 * "0")

    done = run(file)

    assert done.exit_code == 2
    assert "a row of more than 4 MiB; perhaps a quotation mark" in done.stderr


def test_nodes_that_never_do_anything_are_no_stragglers(tmp_path: Path) -> None:
    idle = [line if line.startswith("time") else f"{line.rsplit(',', 1)[0]},0" for line in rows()]

    found = replay(written(tmp_path, idle))

    assert found["episodes"] == []


def test_all_rows_that_cannot_be_used_are_counted_and_twenty_described(tmp_path: Path) -> None:
    lines = rows()
    bad = [f"{line.rsplit(',', 1)[0]},fast" if 100 <= place < 130 else line for place, line in enumerate(lines)]

    file = written(tmp_path, bad)
    found, done = shown_twice(str(file))

    assert found["summary"]["problems"]["count"] == 30
    assert len(found["summary"]["problems"]["first"]) == len(done.stderr.splitlines()) == 20
    assert "30 rows could not be used, first" in done.stdout
    assert [episode["node"] for episode in found["episodes"]] == ["n2"]


def test_a_row_without_a_value_is_no_report_of_that_node(tmp_path: Path) -> None:
    lines, cells = rows(), ["", "nan", "NaN", "null", "None", "NA", "N/A", "-", "+Inf", "-Inf", " "]
    places = {50 + 53 * number: cell for number, cell in enumerate(cells)}
    gaps = [
        f"{line.rsplit(',', 1)[0]},{places.get(place, line.rsplit(',', 1)[1])}" for place, line in enumerate(lines)
    ]
    without = [line for place, line in enumerate(lines) if place not in places]

    file = written(tmp_path, gaps)
    found, done = shown_twice(str(file))

    assert found["episodes"] == replay(written(tmp_path, without, "without.csv"))["episodes"]
    first = f"{file}, row 51, column rate"
    assert found["summary"]["without_value"] == {"count": len(cells), "first": first}
    assert found["summary"]["problems"] == {"count": 0, "first": []}
    text = " ".join(done.stdout.split())
    assert f"no report: {len(cells)} rows without a value, first" in text
    assert done.stderr == ""


def test_text_that_is_not_utf8_is_said_with_its_row(tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes(GOOD.encode() + b"10,n\xe4,1\n15,a,1\n")

    done = run(tmp_path / "latin.csv")

    assert done.exit_code == 0
    assert "latin.csv, row 4, column node: not UTF-8 text" in done.stderr


@pytest.mark.parametrize(
    ("columns", "status", "words"),
    [
        ({"time": pa.array([None, 5], pa.timestamp("us", "UTC"))}, 0, "row 1, column time: a time is missing"),
        ({"node": [b"a", b"\xff"]}, 0, "row 2, column node: not UTF-8 text"),
        ({"rate": pa.array([None, 1.0])}, 0, ""),
        ({"node": [[1], [2]]}, 2, "column node: list<element: int64> is neither text nor a number"),
        ({"node": [{"a": 1}, {"a": 2}]}, 2, "there is no column 'node' (there are: time, node.a, rate)"),
        ({"rate": [[1.0], [1.0]]}, 2, "column rate: list<element: double> is no number"),
        ({"time": [[1.0], [1.0]]}, 2, "column time: list<element: double> is no number"),
    ],
)
def test_parquet_that_cannot_be_used_is_said_with_its_place(
    tmp_path: Path, columns: dict[str, Any], status: int, words: str
) -> None:
    table = pa.table({"time": [0, 5], "node": ["a", "a"], "rate": [1.0, 1.0], **columns})
    parquet.write_table(table, tmp_path / "bad.parquet")

    done = run(tmp_path / "bad.parquet")

    assert done.exit_code == status
    assert words in done.stderr


def test_damaged_parquet_is_said_with_its_file(tmp_path: Path) -> None:
    table = pa.table({"time": list(range(500)), "node": ["a"] * 500, "rate": [1.0] * 500})
    parquet.write_table(table, tmp_path / "bad.parquet")
    content = bytearray((tmp_path / "bad.parquet").read_bytes())
    content[40:60] = bytes(20)
    (tmp_path / "bad.parquet").write_bytes(content)

    done = run(tmp_path / "bad.parquet")

    assert done.exit_code == 2
    assert "bad.parquet: not a Parquet file, or damaged" in done.stderr


def test_histories_packed_with_gzip_are_read_and_damage_is_said(tmp_path: Path) -> None:
    packed = gzip.compress("\n".join(rows()).encode())
    (tmp_path / "history.csv.gz").write_bytes(packed)
    (tmp_path / "cut.csv.gz").write_bytes(packed[: len(packed) // 2])

    assert [episode["node"] for episode in replay(tmp_path / "history.csv.gz")["episodes"]] == ["n2"]
    done = run(tmp_path / "cut.csv.gz")
    assert done.exit_code == 2
    assert "cut.csv.gz: not gzip, or cut off" in done.stderr


@pytest.mark.parametrize("nanoseconds", ["123456789Z", "123456789+00:00", "5z"])
def test_times_may_have_nanoseconds(tmp_path: Path, nanoseconds: str) -> None:
    lines = [line.replace("Z,", f".{nanoseconds},") for line in rows(calendar=True)]
    seconds = [int(np.datetime64(line.split("Z")[0], "ns").astype(int)) for line in rows(calendar=True)[1:]]
    parquet.write_table(
        pa.table({
            "time": pa.array([moment + 123456789 for moment in seconds], pa.timestamp("ns", "UTC")),
            "node": [line.split(",")[1] for line in lines[1:]],
            "rate": [float(line.split(",")[2]) for line in lines[1:]],
        }),
        tmp_path / "history.parquet",
    )  # fmt: skip

    assert [episode["node"] for episode in replay(written(tmp_path, lines))["episodes"]] == ["n2"]
    assert [episode["node"] for episode in replay(tmp_path / "history.parquet")["episodes"]] == ["n2"]


@pytest.mark.parametrize("name", ["[/red]", "[red]n2", "$n2$", "n\x1b[31m2"])
@pytest.mark.filterwarnings("ignore:Glyph 27")
def test_names_are_shown_as_they_are_but_for_control_characters(tmp_path: Path, name: str) -> None:
    file = written(tmp_path, [line.replace(",n2,", f",{name},") for line in rows()])

    done = run(file, "--plot", tmp_path / "plot.png")

    assert done.exit_code == 0, done.stderr
    assert name.replace("\x1b", "\N{REPLACEMENT CHARACTER}") in done.stdout


def test_a_node_that_was_slow_from_the_start_is_shown_with_the_rate_of_its_peers(tmp_path: Path) -> None:
    values = 1000 * np.exp(0.02 * np.random.default_rng(1).normal(size=(200, 8)))
    values[:, 2] *= 0.6
    lines = [f"{tick * 5},n{node},{value}" for tick, row in enumerate(values) for node, value in enumerate(row)]
    file = written(tmp_path, ["time,node,rate", *lines])

    (episode,) = replay(file)["episodes"]

    evidence = episode["evidence"]
    assert (episode["node"], episode["kind"]) == ("n2", "slow_from_start")
    assert evidence["expected"] == pytest.approx(1000, rel=0.03)
    assert evidence["value"] == pytest.approx(600, rel=0.1)
    assert 1 - evidence["value"] / evidence["expected"] == pytest.approx(evidence["severity"], abs=1e-6)
    assert 1 - np.exp(evidence["residual"]) == pytest.approx(evidence["severity"], abs=1e-6)
    shown = f"{evidence['value']:.4g} / {evidence['expected']:.4g}; "
    assert shown in run(file).stdout
    assert "expected: its peers' median" in run(file).stdout


LONG = "gpu-node-02.cluster.example.com"


def test_a_table_that_is_piped_is_never_cut(tmp_path: Path) -> None:
    lines = rows(calendar=True)
    file = written(tmp_path, [line.replace(",n2,", f",{LONG},") for line in lines])

    heading, _, episode, *_ = (line for line in run(file).stdout.splitlines() if line[0] in "┃┡│")

    assert "value / expected when named; evidence / level" in heading
    shown = [cell.strip() for cell in episode.split("│")[1:-1]]
    assert shown[:3] == [LONG, "slow", "2026-01-01 00:05:00"]
    assert all("…" not in cell and cell for cell in shown)


@pytest.mark.parametrize("width", [20, 40, 60, 71])
def test_a_terminal_that_is_too_narrow_for_a_table_shows_each_value_on_a_line(tmp_path: Path, width: int) -> None:
    file = written(tmp_path, rows(calendar=True))
    console = Console(width=width, file=StringIO())

    print_table(judge.replay(RecordedHistory([str(file)], 5.0), "ingero", Parameters()), console)

    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= width
    assert lines[0] == "n2" and "  kind: slow" in lines
    text = " ".join("".join(f"{line}\n" for line in lines).split())
    assert (
        "since: 2026-01-01 00:05:00" in text
        and "named: +" in text
        and "node-hours: " in text
        and "evidence / level: " in text
    )
    assert not set(text) & set("…┃│━")


@pytest.mark.parametrize("width", [72, 80, 120])
def test_a_table_on_a_narrow_terminal_is_folded_and_not_cut(tmp_path: Path, width: int) -> None:
    file = written(tmp_path, [line.replace(",n2,", f",{LONG},") for line in rows(calendar=True)])
    console = Console(width=width, file=StringIO())

    print_table(judge.replay(RecordedHistory([str(file)], 5.0), "ingero", Parameters()), console)

    text = console.file.getvalue()  # type: ignore[attr-defined]
    cells = zip(*(line.split("│")[1:-1] for line in text.splitlines() if line.startswith("│")), strict=True)
    columns = ["".join(part.strip() for part in cell) for cell in cells]
    assert "…" not in text
    assert max(map(len, text.split("\n")[:3])) <= width
    assert [column.replace(" ", "") for column in columns[:3]] == [LONG, "slow", "2026-01-0100:05:00"]


def test_a_table_without_episodes_says_so_and_names_a_slow_job(tmp_path: Path) -> None:
    lines = [f"{tick * 5},n{node},{50 if tick > 120 else 100}" for tick in range(200) for node in range(3)]

    done = run(written(tmp_path, ["time,node,rate", *lines]))

    assert "nobody was accused" in done.stdout
    assert "all nodes lost 50 % together" in done.stdout


@pytest.mark.parametrize("clusters", [1, 12])
def test_losses_of_all_nodes_that_come_again_are_one_line_for_each_cohort(tmp_path: Path, clusters: int) -> None:
    phases = [100 if tick // 50 % 2 == 0 else 50 - 5 * (tick // 250) for tick in range(300)]
    lines = [
        f"c{cluster},{tick * 5},n{node},{rate}"
        for tick, rate in enumerate(phases) for cluster in range(clusters) for node in range(3)
    ]  # fmt: skip
    file = written(tmp_path, ["cluster,time,node,rate", *lines])

    text, jobs = run(file).stdout, replay(file)["summary"]["job_slow"]

    told = [line for line in text.splitlines() if "together" in line]
    assert len(jobs) == 3 * clusters
    assert len(told) == min(clusters, 10)
    lost = sorted({f"{100 * job['severity']:.0f}" for job in jobs}, key=int)
    assert f"lost {' to '.join((lost[0], lost[-1]))} % together, 3 times, from 245 to 1245: new phases" in told[0]
    assert ("so did 2 more cohorts; --json has them all" in text) == (clusters == 12)


def test_the_cost_of_episodes_is_told_in_node_hours(tmp_path: Path) -> None:
    file = written(tmp_path, rows(step=60.0))

    found, text = replay(file), run(file).stdout

    (episode,) = found["episodes"]
    hours = (episode["end"] - episode["start"]) / 3600
    assert hours == pytest.approx(40 / 60, abs=0.05)
    assert episode["lost_node_hours"] == pytest.approx(0.4 * hours, abs=0.02)
    assert found["summary"]["lost_node_hours"] == episode["lost_node_hours"]
    assert f"1 episode that cost {episode['lost_node_hours']:.2f} node-hours" in text
    assert f"│ {episode['lost_node_hours']:10.3g} │" in text


@pytest.mark.parametrize("flag", ["--tick=nan", "--tick=inf", "--budget=nan", "--warmup=99999999999999999999"])
def test_a_flag_that_is_no_usable_number_is_refused(tmp_path: Path, flag: str) -> None:
    assert run(written(tmp_path, rows()), flag).exit_code == 2


@pytest.mark.parametrize("name", ["no.csv", "no.parquet"])
def test_a_missing_file_is_said(tmp_path: Path, name: str) -> None:
    done = run(tmp_path / name)

    assert done.exit_code == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["random.csv", "random.parquet"])
def test_a_file_of_another_kind_is_said(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b"x" * 1000))

    done = run(tmp_path / name)

    assert done.exit_code == 2
    assert "Traceback" not in done.stderr


def test_a_row_one_tick_late_is_still_taken(tmp_path: Path) -> None:
    lines = rows()
    lines[40], lines[44] = lines[44], lines[40]

    assert [episode["node"] for episode in replay(written(tmp_path, lines))["episodes"]] == ["n2"]


@pytest.mark.parametrize(
    ("name", "words"), [("plot.xyz", "plot.xyz: the suffix is none of"), ("none/plot.png", "cannot be written")]
)
def test_a_plot_that_cannot_be_written_is_refused_before_anything_is_read(
    tmp_path: Path, name: str, words: str
) -> None:
    done = run("no-such-history.csv", "--plot", tmp_path / name)

    assert done.exit_code == 2
    assert words in done.stderr.replace("\n", "")
    assert "no-such-history" not in done.stderr
    assert "2 when a flag, such as --plot with a file that cannot be written" in " ".join(
        run("--help").stdout.split()
    )


def test_a_plot_that_fails_in_the_end_takes_no_result_away(tmp_path: Path) -> None:
    (tmp_path / "plot.png").symlink_to("/dev/full")

    done = run(written(tmp_path, rows()), "--json", "--plot", tmp_path / "plot.png")

    assert (done.exit_code, len(json.loads(done.stdout)["episodes"])) == (1, 1)
    assert "plot.png: [Errno 28]" in done.stderr


@pytest.mark.parametrize("flags", [["--json"], ["--format", "json"], ["--format=table", "--json"]])
def test_json_has_one_flag_and_its_old_name_still_works(tmp_path: Path, flags: list[str]) -> None:
    done = run(written(tmp_path, rows()), *flags)

    assert json.loads(done.stdout)["episodes"]
    assert "--format" not in run("--help").stdout


def test_standard_input_that_is_closed_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)

    with pytest.raises(TableError, match="standard input is closed"):
        next(read_columns("-", lambda names: names))


@pytest.mark.parametrize(
    ("ticks", "nodes", "words"),
    [
        (200, 2, ("2 nodes cannot be judged, in 1 cohort with fewer than 3", "on average", "too few nodes to tell")),
        (200, 1, ("1 node cannot be judged",)),
        (20, 6, ("no more ticks than the warm-up (30): nobody is judged",)),
    ],
)
def test_a_history_that_is_too_small_to_accuse_anybody_says_so(
    tmp_path: Path, ticks: int, nodes: int, words: tuple[str, ...]
) -> None:
    lines = [
        f"{5 * tick},n{node},{60 if tick > 100 and not node else 100}"
        for tick in range(ticks)
        for node in range(nodes)
    ]
    file = written(tmp_path, ["time,node,rate", *lines])

    text = " ".join(run(file).stdout.split())

    assert "nobody was accused" in text
    assert all(word in text for word in words), text
    assert "together" not in text
    assert replay(file)["summary"]["small_cohorts"] == ({"": nodes} if nodes < 3 else {})
