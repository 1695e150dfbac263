"""Histories as exporters, spreadsheets and logs write them: Prometheus' text, UTF-16, dates with names of months."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from ingero_fleet.cli import main

BEGIN = datetime(2025, 11, 24, 16, tzinfo=UTC)

Row = tuple[datetime, str, float]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, arguments)], terminal_width=300)


def rows() -> list[Row]:
    """Six nodes in 120 ticks of 30 s; n2 loses 30 % from tick 80 on."""
    rates = 1000 * np.exp(np.random.default_rng(5).normal(0, 0.02, (120, 6)))
    rates[80:, 2] *= 0.7
    return [
        (BEGIN + timedelta(seconds=30 * tick), f"n{node}", float(rates[tick, node]))
        for tick in range(120) for node in range(6)
    ]  # fmt: skip


def csv_text(form: str) -> str:
    return "time,node,rate\n" + "".join(f'"{time.strftime(form)}",{node},{rate:.2f}\n' for time, node, rate in rows())


def named(done: Result) -> tuple[str, str]:
    """The node and the start of the only episode."""
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    (episode,) = found["episodes"]
    return episode["node"], episode["start"]


@pytest.mark.parametrize(
    "form",
    [
        "%d/%b/%Y:%H:%M:%S +0000", "%a, %d %b %Y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y", "%a %b %d %H:%M:%S UTC %Y",
        "%d-%b-%Y %H:%M:%S", "%b %d, %Y, %I:%M:%S %p", "%d %B %Y %H:%M:%S+00:00", "%Y%m%dT%H%M%SZ", "%Y%m%d%H%M%S",
        "%Y%m%d_%H%M%S",
    ],
)  # fmt: skip
def test_dates_with_names_of_months_and_without_separators_are_read(tmp_path: Path, form: str) -> None:
    (tmp_path / "history.csv").write_text(csv_text(form))
    assert named(run(tmp_path / "history.csv", "--json")) == ("n2", "2025-11-24T16:40:00.000Z")


@pytest.mark.parametrize(
    ("form", "hours"),
    [
        ("%a %b %d %H:%M:%S CET %Y", 1), ("%a %b %d %I:%M:%S %p EST %Y", -5), ("%d %b %Y %H:%M:%S PDT", -7),
        ("%Y-%m-%d %H:%M:%S CEST", 2), ("%Y-%m-%d %I:%M:%S %p JST", 9), ("%d.%m.%Y %H:%M:%S CET", 1),
    ],
)  # fmt: skip
def test_zones_are_known_by_their_names(tmp_path: Path, form: str, hours: int) -> None:
    (tmp_path / "history.csv").write_text(csv_text(form))
    done = run(tmp_path / "history.csv", "--json")
    start = (datetime(2025, 11, 24, 16, 40) - timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    assert named(done) == ("n2", start)
    assert not [note for note in json.loads(done.stdout)["summary"]["notes"] if "without a zone" in note]


@pytest.mark.parametrize("form", ["%a %b %d %H:%M:%S XYZ %Y", "%Y-%m-%d %H:%M:%S XYZ", "%b %d %H:%M:%S"])
def test_other_names_of_zones_and_dates_without_a_year_are_refused_with_the_place(tmp_path: Path, form: str) -> None:
    (tmp_path / "history.csv").write_text(csv_text(form))
    done = run(tmp_path / "history.csv")
    assert done.exit_code == 2
    assert "row 2, column time" in done.stderr


@pytest.mark.parametrize("code", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_spreadsheets_in_utf_16_are_read(tmp_path: Path, code: str) -> None:
    mark = "\ufeff" if code[-3:] in ("-le", "-be") else ""
    (tmp_path / "history.csv").write_bytes((mark + csv_text("%Y-%m-%d %H:%M:%S")).encode(code))
    assert named(run(tmp_path / "history.csv", "--json"))[0] == "n2"


@pytest.mark.parametrize("kind", ["exporter", "openmetrics", "dump"])
def test_samples_of_prometheus_with_times_are_rows(tmp_path: Path, kind: str) -> None:
    lines = []
    for time, node, rate in rows():
        seconds = int(time.timestamp())
        if kind == "dump":
            lines.append(f'{{__name__="tokens_per_second", instance="{node}"}} {rate:.2f} {1000 * seconds}\n')
        else:
            lines.append(
                f'tokens_per_second{{instance="{node}",note="a \\"b\\", {{c}}"}} {rate:.6e} '
                f"{seconds if kind == 'openmetrics' else 1000 * seconds}\n"
            )
            lines.append(f'loss{{instance="{node}"}} NaN {seconds}\n')
    head = "" if kind == "dump" else "# HELP tokens_per_second of a node\n# TYPE tokens_per_second gauge\n"
    (tmp_path / "samples.txt").write_text(head + "".join(lines) + ("# EOF\n" if kind == "openmetrics" else ""))

    assert named(run(tmp_path / "samples.txt", "--metric", "tokens_per_second", "--json"))[0] == "n2"


def test_one_scrape_of_an_exporter_is_no_history(tmp_path: Path) -> None:
    (tmp_path / "metrics").write_text('# TYPE rate gauge\nrate{node="n1"} 3.5\nrate{node="n2"} 3.6\n')
    done = run(tmp_path / "metrics")
    assert done.exit_code == 2
    assert "one scrape of an exporter is no history" in done.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"PAR1....", "must end in .parquet"),
        (b"2025-11-24 16:00:00,n0,976.2\n2025-11-24 16:00:30,n0,980.1\n", "the first line holds values"),
        (b"2025-11-24T16:00:00Z,n0,89%\n2025-11-24T16:00:30Z,n0,88%\n", "the first line holds values"),
        (b"JobID|NodeList|Start|Elapsed\n7|n0|2025-11-24T16:00:00|00:01:00\n", "rows are jobs"),
        (b"# rates of all nodes\n", "only comments, and no table"),
    ],
    ids=["parquet", "no names", "no names, times of ISO 8601", "jobs", "comments"],
)
def test_what_to_do_with_other_files_is_said(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "history.csv").write_bytes(content)
    done = run(tmp_path / "history.csv")
    assert done.exit_code == 2
    assert said in done.stderr


def test_a_history_as_short_as_the_warm_up_names_the_option(tmp_path: Path) -> None:
    text = csv_text("%Y-%m-%d %H:%M:%S")
    (tmp_path / "history.csv").write_text("".join(text.splitlines(keepends=True)[: 1 + 6 * 20]))
    assert "--warmup 10" in run(tmp_path / "history.csv").stdout


@pytest.mark.parametrize("form", ["%m/%d/%y %H:%M:%S", "%m/%d/%y %I:%M:%S %p"])
def test_dates_of_two_digit_years_begin_with_the_month_where_the_second_part_is_a_day(
    tmp_path: Path, form: str
) -> None:
    (tmp_path / "history.csv").write_text(csv_text(form))
    assert named(run(tmp_path / "history.csv", "--json")) == ("n2", "2025-11-24T16:40:00.000Z")


def test_a_date_that_may_begin_with_the_year_is_refused(tmp_path: Path) -> None:
    (tmp_path / "history.csv").write_text(csv_text("%y/%m/%d %H:%M:%S"))
    assert "may begin with the day, the month or the year" in run(tmp_path / "history.csv").stderr


@pytest.mark.parametrize(
    ("date", "time"), [("%Y-%m-%d", "%H:%M:%S"), ("%d.%m.%Y", "%H:%M:%S"), ("%m/%d/%Y", "%I:%M:%S %p")]
)
@pytest.mark.parametrize("wide", [True, False])
def test_dates_and_times_of_day_in_two_columns_are_one_time(tmp_path: Path, date: str, time: str, wide: bool) -> None:
    found = rows()
    lines = ["Date,Time,node,rate", *(f"{at:{date},{time}},{node},{rate:.2f}" for at, node, rate in found)]
    if wide:
        lines = ["Date,Time," + ",".join(node for _, node, _ in found[:6])]
        lines += [
            f"{found[place][0]:{date},{time}}," + ",".join(f"{rate:.2f}" for *_, rate in found[place : place + 6])
            for place in range(0, len(found), 6)
        ]
    (tmp_path / "history.csv").write_text("\n".join(lines) + "\n")
    done = run(tmp_path / "history.csv", "--json", *(["--wide", "rate"] if wide else []))
    assert named(done) == ("n2", "2025-11-24T16:40:00.000Z")
    assert json.loads(done.stdout)["summary"]["columns"]["ignored"] == []


@pytest.mark.parametrize(
    "form", ["{hours}:{minutes:02d}:{seconds:02d}", "0 days {hours:02d}:{minutes:02d}:{seconds:02d}"]
)
def test_times_since_a_start_are_read(tmp_path: Path, form: str) -> None:
    lines = ["elapsed,node,rate"]
    for at, node, rate in rows():
        minutes, seconds = divmod(int((at - BEGIN).total_seconds()), 60)
        lines.append(f"{form.format(hours=minutes // 60, minutes=minutes % 60, seconds=seconds)},{node},{rate:.2f}")
    (tmp_path / "history.csv").write_text("\n".join(lines) + "\n")
    assert named(run(tmp_path / "history.csv", "--json")) == ("n2", 2400.0)


def test_times_of_day_that_pass_midnight_are_in_doubt(tmp_path: Path) -> None:
    lines = [f"{at + timedelta(hours=7, minutes=30):%H:%M:%S},{node},{rate:.2f}" for at, node, rate in rows()]
    (tmp_path / "history.csv").write_text("\n".join(["time,node,rate", *lines]) + "\n")
    done = run(tmp_path / "history.csv", "--json")
    assert "fall by a day" in json.loads(done.stdout)["summary"]["doubts"][0]


def test_days_of_a_spreadsheet_are_read(tmp_path: Path) -> None:
    lines = [f"{25569 + at.timestamp() / 86400:.6f},{node},{rate:.2f}" for at, node, rate in rows()]
    (tmp_path / "history.csv").write_text("\n".join(["time,node,rate", *lines]) + "\n")
    node, start = named(run(tmp_path / "history.csv", "--json"))
    assert (node, start[:17]) == ("n2", "2025-11-24T16:40:") or (node, start[:17]) == ("n2", "2025-11-24T16:39:")


def plain() -> list[dict[str, Any]]:
    return [{"time": int(time.timestamp()), "node": node, "rate": round(rate, 2)} for time, node, rate in rows()]


@pytest.mark.parametrize(
    ("header", "line"),
    [
        ("Throughput of cluster A\nexported by x\n\ntime,node,rate", "{time},{node},{rate}"),
        ("time        node   rate", "{time}  {node:>6}   {rate:>12}"),
        ("time,node,rate", "{time},{node},{rate},"),
        ('time, "node", "rate"', '{time}, "{node}", "{rate}"'),
        ("time,node,rate,note", "{time},{node},{rate}"),
        ("# time,node,rate", "{time},{node},{rate}"),
    ],
)
def test_titles_padding_quotes_and_rows_that_are_short_or_end_in_a_delimiter_are_read(
    tmp_path: Path, header: str, line: str
) -> None:
    lines = [header, *(line.format(**row) for row in plain())]
    (tmp_path / "history.txt").write_text("\n".join(lines) + "\n")
    assert named(run(tmp_path / "history.txt", "--json"))[0] == "n2"


@pytest.mark.parametrize("shape", ["records in an object", "lists", "pandas split", "pandas columns", "pandas index"])
def test_json_of_other_shapes_is_read(tmp_path: Path, shape: str) -> None:
    found = plain()
    names = list(found[0])
    shaped: dict[str, Any] = {
        "records in an object": {"cluster": {"name": "a"}, "rows": found},
        "lists": {name: [row[name] for row in found] for name in names},
        "pandas split": {"columns": names, "index": [*range(len(found))], "data": [[*row.values()] for row in found]},
        "pandas columns": {name: {str(place): row[name] for place, row in enumerate(found)} for name in names},
        "pandas index": {str(place): row for place, row in enumerate(found)},
    }
    (tmp_path / "history.json").write_text(json.dumps(shaped[shape]))
    assert named(run(tmp_path / "history.json", "--json"))[0] == "n2"


@pytest.mark.parametrize("command", ["replay", "diagnose", "audit"])
def test_json_that_is_nested_without_end_is_refused(tmp_path: Path, command: str) -> None:
    file = tmp_path / "deep.json"
    file.write_text("[" * 100_000)

    done = CliRunner().invoke(main, [command, str(file)])

    assert done.exit_code == 2
    assert f"ingero-fleet {command}: {file}: no JSON object" in done.output


@pytest.mark.parametrize("flags", [(), ("--column", "rate=pclk")])
def test_names_of_columns_may_be_in_comments_that_come_again(tmp_path: Path, flags: tuple[str, ...]) -> None:
    head = (
        "#Date       Time        gpu    pwr  gtemp     sm   pclk \n"
        "#YYYYMMDD   HH:MM:SS    Idx      W      C      %    MHz \n"
    )  # fmt: skip
    for host in range(4):
        lines = []
        for tick in range(240):
            lines += [head] if tick % 20 == 0 else []
            for gpu in range(4):
                clock = 1410 if (host, gpu) == (2, 3) and tick >= 120 else 1950 + 15 * ((tick + gpu + host) % 3)
                moment = datetime(2025, 11, 24, 16, tzinfo=UTC) + timedelta(seconds=5 * tick)
                lines.append(f" {moment:%Y%m%d    %H:%M:%S} {gpu:6d}{650 + tick % 7:7d}{60:7d}{97:7d}{clock:7d} \n")
        (tmp_path / f"node{host}.csv").write_text("".join(lines))

    done = run(tmp_path, *flags, "--json")

    assert named(done) == ("node2/3", "2025-11-24T16:10:00.000Z")
    assert not json.loads(done.stdout)["summary"]["problems"]["count"]


def test_lines_of_ranks_after_sentences_of_a_launcher_are_a_log(tmp_path: Path) -> None:
    """As `torchrun --tee` writes them: the sentence has as many commas as the lines."""
    begin = "*****\nSetting OMP_NUM_THREADS for each process to be 1, to avoid an overload\n*****\n"
    lines = [
        f"[default{node[1:]}]:[titan] {time:%Y-%m-%d %H:%M:%S},000 - root - INFO - step: 1  loss:  8.0500  "
        f"memory:  0.95GiB(2.02%)  tps: {rate:.2f}\n"
        for time, node, rate in rows()
    ]
    file = tmp_path / "console.log"
    file.write_text(begin + "".join(lines))

    assert named(run("--json", file))[0] == "2"
