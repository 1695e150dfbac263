"""Long tables with rows of several metrics: one is chosen, and nothing is judged while it is open which."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from ingero_fleet.cli import main


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, arguments)])


def judged(*arguments: str | Path) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def metrics(folder: Path, column: str = "metric", value: str = "value", by_metric: bool = False) -> Path:
    """Six nodes with three metrics each; n2 loses 40 % of its rate from tick 60 on, its heat stays."""
    random = np.random.default_rng(3)
    rows = []
    for tick in range(120):
        for node in range(6):
            rate = 100 * np.exp(0.03 * random.normal()) * (0.6 if node == 2 and tick >= 60 else 1)
            for name, number in (
                ("tokens_per_second", rate), ("step_time_ms", 1e5 / rate), ("heat", 600 + random.normal()),
                ("text", -1),
            ):  # fmt: skip
                rows.append((name if by_metric else "", tick, node, name, number))
    rows.sort(key=lambda row: row[0])
    lines = [
        f"time,node,{column},{value}",
        *(f"{t * 10},n{node},{name},{number:.2f}" for _, t, node, name, number in rows),
    ]
    file = folder / "metrics.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.mark.parametrize("by_metric", [False, True])
def test_rows_of_several_metrics_are_never_put_together(tmp_path: Path, by_metric: bool) -> None:
    done = run(metrics(tmp_path, by_metric=by_metric), "--column", "rate=value")

    assert done.exit_code == 2
    assert "column metric: rows of a node are of several metrics (" in done.stderr
    assert "tokens_per_second" in done.stderr
    assert "--metric NAME" in done.stderr


@pytest.mark.parametrize("column", ["metric", "__name__", "_field", "key", "variable"])
@pytest.mark.parametrize("metric", ["tokens_per_second", "step_time_ms"])
def test_the_name_of_a_chosen_metric_says_what_its_values_are(tmp_path: Path, column: str, metric: str) -> None:
    found = judged(metrics(tmp_path, column), "--metric", metric)

    (episode,) = found["episodes"]
    assert (episode["node"], episode["severity"]) == ("n2", pytest.approx(0.4, abs=0.05))
    assert episode["evidence"]["expected"] == pytest.approx(100 if metric == "tokens_per_second" else 1, rel=0.1)
    assert found["summary"]["rows"] == 720


def test_a_metric_whose_name_says_nothing_needs_a_role(tmp_path: Path) -> None:
    file = metrics(tmp_path)

    unknown = run(file, "--metric", "heat")

    assert unknown.exit_code == 2
    assert "--column rate=value" in unknown.stderr
    assert not judged(file, "--metric", "heat", "--column", "rate=value")["episodes"]


@pytest.mark.parametrize("others", [(), ("heat", "text")], ids=["alone", "beside others"])
def test_the_only_metric_whose_name_says_what_it_is_is_judged(tmp_path: Path, others: tuple[str, ...]) -> None:
    file = metrics(tmp_path)
    kept = ("tokens_per_second", *others, "metric")
    lines = [line for line in file.read_text().splitlines() if line.split(",")[2] in kept]
    file.write_text("\n".join(lines) + "\n")

    found = judged(file)

    assert [episode["node"] for episode in found["episodes"]] == ["n2"]
    among = ", of tokens_per_second, heat, text" if others else ""
    assert f"the metric tokens_per_second is judged{among}" in found["summary"]["notes"]


def test_the_only_metric_of_a_file_needs_a_role_if_its_name_says_nothing(tmp_path: Path) -> None:
    file = metrics(tmp_path)
    lines = [line for line in file.read_text().splitlines() if line.split(",")[2] in ("heat", "metric")]
    file.write_text("\n".join(lines) + "\n")

    assert "what the metric 'heat' means is not certain; choose one with --column rate=value" in run(file).stderr


def test_files_of_different_metrics_are_not_put_together(tmp_path: Path) -> None:
    lines = metrics(tmp_path).read_text().splitlines()
    for metric in ("tokens_per_second", "samples_per_second"):
        kept = [line.replace("tokens_per", "samples_per") if metric[0] == "s" else line for line in lines]
        kept = [line for line in kept if line.split(",")[2] in (metric, "metric")]
        (tmp_path / f"{metric}.csv").write_text("\n".join(kept) + "\n")

    done = run(tmp_path / "samples_per_second.csv", tmp_path / "tokens_per_second.csv")

    assert done.exit_code == 2
    assert "no row is of the metric 'samples_per_second' (there are: tokens_per_second)" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--metric", "tokens", "--column", "rate=value"], "no row is of the metric 'tokens' (there are: tok"),
        (["--column", "metric=", "--metric", "heat", "--column", "rate=value"], "no column says which row"),
    ],
)  # fmt: skip
def test_a_metric_that_cannot_be_found_is_said(tmp_path: Path, arguments: list[str], text: str) -> None:
    done = run(metrics(tmp_path), *arguments)

    assert done.exit_code == 2
    assert text in done.stderr


def test_the_metric_that_says_most_about_work_is_judged(tmp_path: Path) -> None:
    found = judged(metrics(tmp_path))

    assert [episode["node"] for episode in found["episodes"]] == ["n2"]
    assert any("the metric tokens_per_second is judged, of " in note for note in found["summary"]["notes"])


@pytest.mark.parametrize("column", ["kind_of_row", "metric"])
def test_rows_of_one_time_that_differ_much_put_the_result_in_doubt(tmp_path: Path, column: str) -> None:
    chosen = ["--column", "metric="] if column == "metric" else []

    (doubt,) = judged(metrics(tmp_path, column), "--column", "rate=value", *chosen)["summary"]["doubts"]

    assert "--column metric=COLUMN" in doubt


def test_a_tag_that_does_not_tell_rows_of_a_node_apart_is_no_metric(tmp_path: Path) -> None:
    file = metrics(tmp_path)
    lines = [
        line
        for line in file.read_text().splitlines()
        if "heat" not in line and "ms" not in line and "text" not in line
    ]
    file.write_text(
        "\n".join(line.replace("tokens_per_second", f"tag-{line.split(',')[1]}") for line in lines) + "\n"
    )

    assert [episode["node"] for episode in judged(file, "--column", "rate=value")["episodes"]] == ["n2"]


@pytest.mark.parametrize(("column", "kind"), [("gpu_util", "stopped"), ("throughput", "collapse")])
def test_shares_in_whole_percent_are_no_numbers_of_events(tmp_path: Path, column: str, kind: str) -> None:
    """They differ like counts, of which one may be 0 by chance; a GPU that is not used has stopped."""
    random = np.random.default_rng(2)
    values = random.poisson(30, (120, 8))
    values[80:, 3] = 0
    rows = [f"{60 * tick},n{node},{values[tick, node]}" for tick in range(120) for node in range(8)]
    file = tmp_path / "use.csv"
    file.write_text("\n".join((f"time,node,{column}", *rows)))

    assert [(one["node"], one["kind"]) for one in judged(file)["episodes"]] == [("n3", kind)]
