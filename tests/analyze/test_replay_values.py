"""Values as tools write them: separators of thousands, counters, and rows of which most cannot be used."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from ingero_analyze.replay.cells import form_of
from ingero_analyze.replay.cells import numbers as cells_as_numbers
from ingero_analyze.replay.counters import Increases
from ingero_analyze.replay.reading import COARSE, COUNTER, POINTS
from ingero_analyze.replay.zero_runs import placeholders
from ingero_fleet.cli import main


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, arguments)])


def replay(*arguments: str | Path) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def written(folder: Path, lines: list[str]) -> Path:
    file = folder / "history.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def slow_node(form: Callable[[float], str], delimiter: str = ",") -> list[str]:
    """Rows of 8 nodes at about 1150 of which n3 loses 20 % from tick 60 on; `form` writes a value."""
    values = 1150 * np.exp(0.02 * np.random.default_rng(1).normal(size=(120, 8)))
    values[60:, 3] *= 0.8
    lines = [delimiter.join(("time", "node", "rate"))]
    for tick, row in enumerate(values):
        lines += [delimiter.join((f"{5 * tick}", f"n{node}", form(value))) for node, value in enumerate(row)]
    return lines


FORMS: dict[str, Callable[[float], str]] = {
    "english": lambda value: f'"{value:,.1f}"',
    "whole": lambda value: f'"{value:,.0f}"',
    "swiss": lambda value: f"{value:,.2f}".replace(",", "'"),
    "space": lambda value: f"{1000 * value:,.1f}".replace(",", " "),
    "no-break": lambda value: f"{1000 * value:,.1f}".replace(",", "\N{NO-BREAK SPACE}"),
    "german": lambda value: f"{value:,.0f}".replace(",", "."),
    "fixed": lambda value: f"{value:.3f}",
    "rounded": lambda value: f"{value:.0f}",
    "short": lambda value: f"{value / 100:.3f}".rstrip("0").rstrip("."),
    "quarters": lambda value: f"{round(value * 4) / 4:g}",
}


@pytest.mark.parametrize("name", ["english", "whole", "swiss", "space", "no-break"])
def test_separators_of_thousands_are_read(tmp_path: Path, name: str) -> None:
    found = replay(written(tmp_path, slow_node(FORMS[name])))

    assert [(one["node"], round(one["severity"], 1)) for one in found["episodes"]] == [("n3", 0.2)]
    assert found["summary"]["problems"]["count"] == 0


DECIMAL_COMMAS: dict[str, Callable[[float], str]] = {
    "thousandths": lambda value: f"{value / 1000:.3f}".replace(".", ","),
    "tenths": lambda value: f"{value:.1f}".replace(".", ","),
    "points": lambda value: f"{value:,.2f}".translate(str.maketrans(",.", ".,")),
    "mixed": lambda value: f"{value:,.1f}".translate(str.maketrans(",.", ".,")).removesuffix(",0"),
}


@pytest.mark.parametrize("name", DECIMAL_COMMAS)
def test_commas_of_decimals_are_read(tmp_path: Path, name: str) -> None:
    found = replay(written(tmp_path, slow_node(DECIMAL_COMMAS[name], ";")))

    assert [(one["node"], round(one["severity"], 1)) for one in found["episodes"]] == [("n3", 0.2)]
    assert (found["summary"]["problems"]["count"], found["summary"]["doubts"]) == (0, [])
    scale = 1 if name == "thousandths" else 1000
    assert found["episodes"][0]["evidence"]["expected"] == pytest.approx(1.15 * scale, rel=0.05)


@pytest.mark.parametrize("unit", [" MHz", "%", " tok/s"])
def test_a_unit_behind_every_number_is_read(tmp_path: Path, unit: str) -> None:
    blanks = iter(range(10_000))
    found = replay(written(tmp_path, slow_node(lambda value: f"{value:.1f}{unit}" if next(blanks) % 50 else "[N/A]")))

    assert [(one["node"], round(one["severity"], 1)) for one in found["episodes"]] == [("n3", 0.2)]
    assert found["summary"]["problems"]["count"] == 0


@pytest.mark.parametrize(
    ("first", "later", "numbers"),
    [
        (["1.03 K", "1.10 K"], ["987", "1.2 Mil", "N/A", "5 foo"], [0.987, 1200, None, None]),
        (["987", "900"], ["1.03 K", "980"], [1030, 980]),
        (["1.03 s", "987 ms"], ["300 \xb5s", "1 s", ""], [3e-4, 1, None]),
        (["980 ops/s", "1.02 kops/s"], ["1.5K ops/s", "7 ops/s"], [1500, 7]),
        (["98 %", "97 %"], ["96", "95 %"], [96, 95]),
        (["1,5 s", "900 ms"], ["1,6 s"], [1.6]),
    ],
)
def test_units_of_one_column_may_differ_by_their_prefix(
    first: list[str], later: list[str], numbers: list[float | None]
) -> None:
    cells = cells_as_numbers(pa.array(later), form_of(pa.array(first)))

    assert cells.values.tolist() == pytest.approx([np.nan if one is None else one for one in numbers], nan_ok=True)
    assert cells.wrong.tolist() == [one.endswith("foo") for one in later]


def test_a_word_among_numbers_with_a_unit_costs_its_row_only(tmp_path: Path) -> None:
    count = iter(range(10_000))
    found = replay(written(tmp_path, slow_node(lambda value: f"{value:.1f}%" if next(count) % 50 else "broken")))

    assert [(one["node"], round(one["severity"], 1)) for one in found["episodes"]] == [("n3", 0.2)]
    assert found["summary"]["problems"]["count"] == 20


@pytest.mark.parametrize(("unit", "seconds"), [("ms", 1e-3), (" s", 1.0), ("s/it", 1.0)])
def test_a_unit_behind_times_of_steps_is_that_of_the_time(tmp_path: Path, unit: str, seconds: float) -> None:
    lines = slow_node(lambda value: f"{1e6 / value:.2f}{unit}")

    (episode,) = replay(written(tmp_path, [lines[0].replace("rate", "step_time"), *lines[1:]]))["episodes"]

    assert episode["evidence"]["expected"] == pytest.approx(1150e-6 / seconds, rel=0.05)


@pytest.mark.parametrize(
    "word", ["<nil>", "undefined", "No data", "-nan", "[Not Supported]", "[Unknown Error]", "<unknown>"]
)
def test_words_of_tools_for_no_value_are_no_report(tmp_path: Path, word: str) -> None:
    count = iter(range(10_000))
    summary = replay(written(tmp_path, slow_node(lambda value: f"{value:.1f}" if next(count) % 20 else word)))[
        "summary"
    ]

    assert (summary["problems"]["count"], summary["without_value"]["count"]) == (0, 48)


@pytest.mark.parametrize(
    ("measure", "usual", "digits", "coarse"),
    [
        ("step_time", 1.25, 1, True),
        ("step_time", 4.3, 0, True),
        ("step_time", 1.25, 2, False),
        ("step_time", 870.0, 0, False),
        ("rate", 1.9, 1, True),
        ("rate", 11.5, 0, False),
        ("rate", 1150.0, 1, False),
    ],
)
def test_values_that_are_rounded_coarsely_put_the_result_in_doubt(
    tmp_path: Path, measure: str, usual: float, digits: int, coarse: bool
) -> None:
    sign = 1 if measure == "rate" else -1
    lines = slow_node(lambda value: f"{usual * (value / 1150) ** sign:.{digits}f}")

    found = replay(written(tmp_path, [lines[0].replace("rate", measure), *lines[1:]]))["summary"]["doubts"]

    assert found == ([COARSE] if coarse else [])


DATES: dict[str, str] = {
    "nvidia-smi": "%Y/%m/%d %H:%M:%S.500",
    "german": "%d.%m.%Y %H:%M:%S",
    "american": "%m/%d/%Y %I:%M:%S %p",
    "grafana": "%m/%d/%Y, %I:%M:%S %p",
    "british": "%d/%m/%Y %H:%M:%S",
    "dashes": "%d-%m-%Y %H:%M:%S",
    "american dashes": "%m-%d-%Y %H:%M:%S",
    "go": "%Y-%m-%d %H:%M:%S +0000 UTC",
    "go-zone": "%Y-%m-%d %H:%M:%S.5 +0000 GMT m=+0.01",
}


@pytest.mark.parametrize("name", DATES)
def test_dates_as_tools_write_them_are_read(tmp_path: Path, name: str) -> None:
    start = datetime(2026, 1, 31, 23, 55, tzinfo=UTC)
    lines = slow_node("{:.1f}".format)
    rows = [line.split(",") for line in lines[1:]]
    shown = [(start + timedelta(seconds=float(row[0]))).strftime(DATES[name]) for row in rows]

    (episode,) = replay(
        written(tmp_path, [lines[0], *(f'"{t}",{n},{v}' for t, (_, n, v) in zip(shown, rows, strict=True))])
    )["episodes"]

    assert episode["start"][:19] == f"{start + timedelta(seconds=300):%Y-%m-%dT%H:%M:%S}"


@pytest.mark.parametrize("date", ["02/01/2026", "02-01-2026"])
def test_a_date_whose_day_and_month_cannot_be_told_apart_is_refused(tmp_path: Path, date: str) -> None:
    done = run(written(tmp_path, ["time,node,rate", f"{date} 10:00:00,a,1"]))

    assert done.exit_code == 2
    assert "may begin with the day or the month; write it as 2026-01-31" in done.stderr


def test_a_history_of_which_most_rows_cannot_be_used_is_refused(tmp_path: Path) -> None:
    lines = slow_node(lambda value: f"{value:.1f}" if value < 1000 else f"{value:.1f} tok/s")
    file = written(tmp_path, lines)

    done = run(file, "--json")

    assert (done.exit_code, done.stdout) == (2, "")
    place = f"{file}, row 2, column rate: '"
    assert place in done.stderr
    assert re.search(r"tok/s' is not a number: \d\d\d of 960 rows cannot be used", done.stderr)


@pytest.mark.parametrize("name", ["german", "fixed", "rounded", "short", "quarters"])
def test_points_that_seem_to_separate_thousands_are_said(tmp_path: Path, name: str) -> None:
    file = written(tmp_path, slow_node(FORMS[name]))

    assert replay(file)["summary"]["doubts"] == ([POINTS] if name == "german" else [])
    assert ("in doubt: values such as 1.040" in run(file).stdout) == (name == "german")


def rows_of(name: str, values: np.ndarray[Any, np.dtype[np.float64]]) -> list[str]:
    """A row for every node and tick of 5 s."""
    lines = [f"{5 * tick},n{node},{value}" for tick, row in enumerate(values) for node, value in enumerate(row)]
    return [f"time,node,{name}", *lines]


def counted() -> tuple[np.ndarray[Any, np.dtype[np.float64]], np.ndarray[Any, np.dtype[np.float64]]]:
    """Rates of 8 nodes of which n3 loses 20 % from tick 60 on, and their counters, of which n5's begins anew."""
    rate = 1000 * np.exp(0.02 * np.random.default_rng(1).normal(size=(120, 8)))
    rate[60:, 3] *= 0.8
    total = np.cumsum(5 * rate, 0)
    total[90:, 5] -= total[89, 5]
    return rate, total


def test_values_that_only_rise_are_said_to_be_a_counter(tmp_path: Path) -> None:
    rate, total = counted()
    ramp = rate * np.linspace(1, 2, 120)[:, None]

    found = [
        replay(written(tmp_path, rows_of("rate", values)))["summary"]["doubts"] for values in (total, rate, ramp)
    ]

    assert found == [[COUNTER], [], []]


def test_a_counter_is_judged_by_its_increase_per_second(tmp_path: Path) -> None:
    rate, total = counted()
    file = written(tmp_path, rows_of("tokens_total", total))

    found = replay(file, "--column", "counter=tokens_total")

    (episode,) = found["episodes"]
    assert (episode["node"], episode["kind"]) == ("n3", "slow")
    assert episode["severity"] == pytest.approx(0.2, abs=0.02)
    assert episode["evidence"]["value"] == pytest.approx(rate[int(episode["detected"]) // 5, 3])
    assert (found["summary"]["doubts"], found["summary"]["ticks"]) == ([], 119)


def repeated(total: Any, node: int, often: range, rows: int) -> None:
    """Make an exporter repeat a counter in so many rows before some."""
    for tick in often:
        total[tick - rows : tick, node] = total[tick - rows - 1, node]


def test_a_counter_that_its_exporter_repeats_accuses_nobody(tmp_path: Path) -> None:
    _, total = counted()
    repeated(total, 6, range(20, 121, 10), 3)

    found = replay(written(tmp_path, rows_of("tokens_total", total)))

    assert {episode["node"] for episode in found["episodes"]} == {"n3"}


def test_a_counter_that_stands_still_and_goes_on_as_before_has_stopped(tmp_path: Path) -> None:
    rate, _ = counted()
    rate[60:, 3] *= 1.25
    rate[50:60, 6] = 0
    rate[90:100, 6] = 0

    found = replay(written(tmp_path, rows_of("tokens_total", np.cumsum(5 * rate, axis=0))))

    assert {(episode["node"], episode["kind"]) for episode in found["episodes"]} == {("n6", "stopped")}


def test_counters_of_gpus_and_rows_that_come_late_are_each_followed_by_themselves(tmp_path: Path) -> None:
    _, total = counted()
    lines = [
        f"{5 * tick + (node % 2)},n{node // 4},{node % 4},{value if (tick + node) % 50 else ''}"
        for tick, row in enumerate(total) for node, value in enumerate(row)
    ]  # fmt: skip
    lines[100], lines[108] = lines[108], lines[100]

    found = replay(written(tmp_path, ["time,node,gpu,counter", *lines]))

    assert [(one["node"], round(one["severity"], 1)) for one in found["episodes"]] == [("n0/3", 0.2)]


def test_counters_are_followed_from_batch_to_batch() -> None:
    random = np.random.default_rng(1)
    source = random.permutation(np.repeat(np.arange(5), 40))
    time, value = np.arange(200.0), np.cumsum(random.uniform(0, 9, 200))
    value[random.choice(200, 20, replace=False)] = np.nan
    value[150:] -= 500

    whole, batches = Increases(), Increases()
    rates, kept = whole.rates(source, time, value)
    parts = [batches.rates(source[part], time[part], value[part]) for part in np.array_split(np.arange(200), 7)]

    assert np.array_equal(np.concatenate([part[1] for part in parts]), kept)
    assert np.array_equal(np.concatenate([part[0] for part in parts])[kept], rates[kept], equal_nan=True)
    assert (rates[kept & np.isfinite(value)] >= 0).all()


def test_a_counter_with_one_row_for_each_node_is_refused(tmp_path: Path) -> None:
    done = run(written(tmp_path, ["time,node,counter", "0,a,1", "0,b,1"]))

    assert done.exit_code == 2
    assert "no counter rises from one row of a node to the next" in done.stderr


def filled(seed: int, share: float, longest: int) -> Any:
    """Rates of 8 nodes in 400 ticks of 30 s with zeros at random in runs of up to so many ticks."""
    random = np.random.default_rng(seed)
    rates = 100 * np.exp(0.02 * random.normal(size=(400, 8)))
    for tick, node in np.argwhere(random.random((400, 8)) < share):
        rates[tick : tick + random.integers(1, longest + 1), node] = 0
    return rates


def rows_of_rates(rates: Any) -> list[str]:
    return ["time,node,rate"] + [f"{30 * tick},n{node},{value:.3f}" for (tick, node), value in np.ndenumerate(rates)]


@pytest.mark.parametrize(("share", "longest"), [(0.02, 5), (0.3, 1)])
def test_zeros_that_all_nodes_have_now_and_then_are_missing_values(
    tmp_path: Path, share: float, longest: int
) -> None:
    rates = filled(1, share, longest)
    assert replay(written(tmp_path, rows_of_rates(rates)))["episodes"] == []

    rates[250:, 3] *= 0.75
    found = replay(written(tmp_path, rows_of_rates(rates)))
    assert [episode["node"] for episode in found["episodes"]] == ["n3"]
    assert any("as all nodes are now and then" in note for note in found["summary"]["notes"])


def test_a_node_that_stops_among_zeros_for_missing_values_is_named(tmp_path: Path) -> None:
    rates = filled(2, 0.02, 5)
    rates[250:310, 3] = 0
    rates[np.random.default_rng(3).random(400) < 0.3, 6] = 0

    found = replay(written(tmp_path, rows_of_rates(rates)))

    assert {(episode["node"], episode["kind"]) for episode in found["episodes"]} == {
        ("n3", "stopped"),
        ("n6", "stopped"),
    }


@pytest.mark.parametrize("placeholder", [0, 1, 0.001])
def test_what_a_single_node_has_for_missing_values_accuses_nobody(tmp_path: Path, placeholder: float) -> None:
    rates = filled(4, 0, 1)
    rates[np.random.default_rng(5).random(400) < 0.1, 6] = placeholder
    found = replay(written(tmp_path, rows_of_rates(rates)))
    assert found["episodes"] == []
    assert any("they count as no reports" in note for note in found["summary"]["notes"])

    rates[250:, 6] = np.minimum(rates[250:, 6], 0.7 * rates[250:, 6] + placeholder)
    assert [episode["node"] for episode in replay(written(tmp_path, rows_of_rates(rates)))["episodes"]] == ["n6"]


def test_zeros_that_a_fault_or_chance_brings_are_no_placeholders() -> None:
    random = np.random.default_rng(6)
    usual, nobody = 100 * np.exp(0.02 * random.normal(size=600)), np.zeros(600, np.int64)
    late, partly = usual.copy(), usual.copy()
    late[300:] *= random.random(300) > 0.1
    stops = np.arange(20, 580, 28)
    partly[stops], partly[stops - 1], partly[stops + 1] = 0, 30, 60

    assert not placeholders(nobody, late).any()
    assert not placeholders(nobody, partly).any()
    assert not placeholders(nobody, random.poisson(5, 600).astype(float)).any()
    assert placeholders(nobody, usual * (random.random(600) > 0.1)).any()
