"""Lines of name=value pairs are rows of a history; other text is not taken for them."""

import io
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

from ingero_analyze.log_lines import are_logs, is_log, row_of, rows_of
from ingero_fleet.cli import main

START = 1_764_000_000


def logfmt(time: int, node: str, step: float) -> str:
    moment = datetime.fromtimestamp(time, UTC)
    return f'ts={moment:%Y-%m-%dT%H:%M:%SZ} msg="step \\"done\\" x=1" node={node} step_time={step:.4f}s'


def log(time: int, node: str, step: float) -> str:
    moment = datetime.fromtimestamp(time, UTC)
    return f"[{moment:%Y-%m-%d %H:%M:%S,250}] INFO trainer: node={node}, step_time={step:.4f}s, loss=2.5"


def behind_a_time(time: int, node: str, step: float) -> str:
    moment = datetime.fromtimestamp(time, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S},250 [INFO] " + json.dumps({"host": node, "step_time": step, "more": {"x": 1}})


def printed(time: int, node: str, step: float) -> str:
    return str({"timestamp": time, "host": node, "step_time": step, "note": "it's on", "last": None})


def entries(time: int, node: str, step: float) -> str:
    moment = datetime.fromtimestamp(time, UTC)
    return (
        f" [{moment:%Y-%m-%d %H:%M:%S}] iteration        3/  500000 | host: {node} | consumed samples:        3072 | "
        f"elapsed time per iteration (ms): {1000 * step:.1f} | learning rate: 1.5E-04 |"
    )


def line_protocol(time: int, node: str, step: float) -> str:
    return f'train,host={node},job=a step_time={step:.4f},time=3i,state="running on" {time}000000000'


def lines(form: Callable[[int, str, float], str]) -> list[str]:
    """Six nodes, a row every 5 s; n2 loses a third of its speed from tick 60 on."""
    return [
        form(
            START + 5 * tick,
            f"n{node}",
            (1 + 0.001 * ((7 * tick + 3 * node) % 11)) * (1.5 if node == 2 and tick >= 60 else 1),
        )
        for tick in range(120)
        for node in range(6)
    ]


def judged(file: Path, *arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(main, ["replay", str(file), "--json", *arguments])
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = orjson.loads(done.stdout)
    return found


@pytest.mark.parametrize("form", [logfmt, log, behind_a_time, printed, entries, line_protocol])
@pytest.mark.parametrize("others", [0, 3], ids=["alone", "with other lines"])
def test_a_history_of_pairs_is_judged(tmp_path: Path, form: Callable[[int, str, float], str], others: int) -> None:
    given = lines(form)
    if others and form is not printed:
        given = ["Starting on 6 nodes: see docs", *given[:400], "warning, the disk is slow", "", *given[400:]]
    (tmp_path / "run.log").write_text("\n".join(given) + "\n")

    found = judged(tmp_path / "run.log")

    (episode,) = found["episodes"]
    assert episode["node"] == "n2"
    assert str(episode["start"]).startswith(("2025-11-24T16:05:0", f"{START + 300}"))
    assert found["summary"]["rows"] == 720
    assert not found["summary"]["problems"]["count"]


def rows(text: str, read: int) -> Sequence[tuple[int, dict[str, str]]]:
    data = text.encode()
    return list(rows_of(data[:read], io.BytesIO(data[read:]), lambda said, line: None))


@pytest.mark.parametrize("read", [0, 5, 40])
def test_rows_do_not_depend_on_what_was_read_before(read: int) -> None:
    text = 'ts=1 node=a msg="two words, \\"quoted\\"" x=\nno pairs here\r\n2026-01-31 10:00:00.5 rank=3 tokens/s=12.5'

    assert rows(text, read) == [
        (1, {"ts": "1", "node": "a", "msg": 'two words, "quoted"', "x": ""}),
        (3, {"rank": "3", "tokens/s": "12.5", "timestamp": "2026-01-31 10:00:00.5"}),
    ]


def test_a_field_called_time_is_not_the_time_of_a_point() -> None:
    assert rows("train,host=a time=3.5,n=4i 1764000000000000000\n", 10) == [
        (1, {"host": "a", "train.time": "3.5", "n": "4", "timestamp": "1764000000000000000"})
    ]


@pytest.mark.parametrize(
    "line",
    [
        "time,node,rate",
        "time node rate",
        "2026-01-31 10:00:00 note: disk",
        "step: 3, loss: 2.5",
        "the lr=3e-4 and wd=0.1 were used",
        "key=value",
        'a,"b=1 c=2",d',
        "",
    ],
)
def test_other_lines_are_not_those_of_pairs(line: str) -> None:
    assert not is_log(line)


def test_a_column_of_labels_does_not_make_a_table_one_of_pairs(tmp_path: Path) -> None:
    table = ["time,labels,node,rate"]
    table += [
        f"{START + 5 * tick},job=a zone=b,n{node},{(10 if node == 2 and tick >= 60 else 100) + (tick + node) % 5}"
        for tick in range(120)
        for node in range(6)
    ]
    assert are_logs("\n".join(table))
    (tmp_path / "table.csv").write_text("\n".join(table))

    found = judged(tmp_path / "table.csv")

    assert [episode["node"] for episode in found["episodes"]] == ["n2"]


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("2026-01-31 10:00:00 INFO trainer: step: 3, tokens/s: 12.5", {"step": "3", "tokens/s": "12.5"}),
        ("[2026-01-31 10:00:00] [rank3] loss: 2.5; node=n1", {"loss": "2.5", "node": "n1"}),
        (
            "[2026-01-31 10:00:00] n17: GPU 3: 812.5 TFLOPS, 71 C",
            {"host": "n17", "GPU": "3", "TFLOPS": "812.5", "temperature": "71"},
        ),
        ("2026-01-31 10:00:00 gpu17: GPU 3: 812.5 TFLOPS", {"host": "gpu17", "GPU": "3", "TFLOPS": "812.5"}),
        ("2026-01-31 10:00:00 gpu17: step 3, loss 2.5", {"step": "3", "loss": "2.5"}),
        ('2026-01-31 10:00:00 {"a": {"b": 1}}', {"a.b": "1"}),
        ("2026-01-31 10:00:00 {'a': '\\d', 'b': True}", {"a": "\\d", "b": "true"}),
        ("2026-01-31 10:00:00 the disk is slow", {}),
        ("2026-01-31 10:00:00 {not an object}", {}),
        ("2026-01-31 10:00:00 {{'a': 1}}", {}),
        (
            "2026-01-31 10:00:00 {1: (2, 3), (4, 5): 6, 'b': {7}, 'c': {8: b'x'}}",
            {"1": "2,3", "b": "{7}", "c.8": "b'x'"},
        ),
    ],
)
def test_cells_behind_a_time(line: str, row: dict[str, str]) -> None:
    assert row_of(line) == (row and {**row, "timestamp": "2026-01-31 10:00:00"})


@pytest.mark.parametrize("named", ["", "tokens_per_second"], ids=["unnamed", "named"])
def test_rows_of_series_have_their_labels(tmp_path: Path, named: str) -> None:
    table = ["Series;Time;Value"]
    table += [
        f'"{named}{{instance=""n{node}:9400"", zone=""b""}}";{START + 5 * tick};'
        f"{(10 if node == 2 and tick >= 60 else 100) + (tick + node) % 5}"
        for node in range(6) for tick in range(120)
    ]  # fmt: skip
    (tmp_path / "table.csv").write_text("\n".join(table))

    found = judged(tmp_path / "table.csv", *([] if named else ["--column", "rate=Value"]))

    assert [episode["node"] for episode in found["episodes"]] == ["n2:9400"]


def test_an_audit_reads_results_from_a_log(tmp_path: Path) -> None:
    results = ["gemm burn-in started"]
    results += [
        f"2026-01-0{run + 1} 10:00:00 INFO gemm: node=n{node:02d} gpu={gpu} run={run} "
        f"gflops={(700 if (node, gpu) == (7, 2) else 800) + (5 * node + 3 * gpu + run) % 11}"
        for run in range(4) for node in range(12) for gpu in range(4)
    ]  # fmt: skip
    (tmp_path / "gemm.log").write_text("\n".join(results) + "\n")

    done = CliRunner().invoke(main, ["audit", str(tmp_path / "gemm.log"), "--json"])

    assert done.exit_code == 0, done.stderr
    assert [finding["name"] for finding in orjson.loads(done.stdout)["findings"]] == ["n07/2"]
