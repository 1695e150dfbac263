"""Folders in place of files, for the commands that read tables."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ingero_analyze.folders import MOST_FILES, with_tables_of_folders
from ingero_analyze.table_errors import TableError
from ingero_fleet.cli import main

RUNS = 4


def run(command: str, *arguments: object) -> Result:
    return CliRunner().invoke(main, [command, "--json", "--quiet", *map(str, arguments)])


def acceptance(folder: Path) -> None:
    """A table for every run, in folders of months, of 24 nodes of which one is slow; and files that are no tables."""
    for number in range(RUNS):
        month = folder / f"2026-{number + 1}"
        month.mkdir()
        lines = [f"node-{node},{100 + (node * 7 + number * 3) % 5 / 10 + 15 * (node == 4)}" for node in range(24)]
        (month / "gemm.csv").write_text("\n".join(["node,time_ms", *lines]) + "\n")
        (month / "notes.txt").write_text("fans replaced\n")
    (folder / ".gemm.csv.swp.csv").write_text("half a table")


def test_audit_reads_the_tables_of_a_folder(tmp_path: Path) -> None:
    acceptance(tmp_path)

    found = json.loads(run("audit", tmp_path).stdout)

    assert [one["name"] for one in found["findings"]] == ["node-4"]
    assert found == json.loads(run("audit", *sorted(tmp_path.glob("2026-*/*.csv"))).stdout)


def test_replay_reads_the_tables_of_a_folder(tmp_path: Path) -> None:
    for node in range(6):
        rows: list[Any] = [f"{5 * tick},n{node},{100 if node != 2 or tick < 150 else 50}" for tick in range(200)]
        (tmp_path / f"{node}.csv").write_text("\n".join(["time,node,rate", *rows]) + "\n")

    found = json.loads(run("replay", tmp_path).stdout)

    assert {one["node"] for one in found["episodes"]} == {"n2"}


@pytest.mark.parametrize("command", ["audit", "replay", "diagnose"])
def test_a_folder_without_tables_is_refused(tmp_path: Path, command: str) -> None:
    (tmp_path / "README").write_text("nothing")

    done = run(command, tmp_path)

    assert (done.exit_code, "there is no table in this folder" in done.stderr) == (2, True)


def test_numbers_in_names_are_in_their_order_and_files_stay_as_given(tmp_path: Path) -> None:
    for number in (10, 9, 1):
        (tmp_path / f"run{number}.csv.gz").touch()

    found = with_tables_of_folders(["b.txt", str(tmp_path), "-"])

    assert found == ("b.txt", *(str(tmp_path / f"run{number}.csv.gz") for number in (1, 9, 10)), "-")


def test_a_folder_of_very_many_tables_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingero_analyze.folders.MOST_FILES", 2)
    for number in range(3):
        (tmp_path / f"{number}.csv").touch()

    with pytest.raises(TableError, match="more than 2 tables"):
        with_tables_of_folders([str(tmp_path)])
    assert MOST_FILES >= 10_000


def test_replay_reads_logs_of_values_in_a_folder_packed_or_not(tmp_path: Path) -> None:
    for node in range(6):
        lines = [
            f"[2026-01-01 {10 + tick // 720}:{tick // 12 % 60:02d}:{tick % 12 * 5:02d}] iteration {tick} | "
            "loss: 2.5 | "
            f"elapsed time per iteration (ms): {(300 if node == 2 and tick >= 120 else 200) + (tick + node) % 5}.0 |"
            for tick in range(240)
        ]
        text = "\n".join(lines).encode()
        (tmp_path / f"n{node}.log.gz").write_bytes(gzip.compress(text)) if node else (
            tmp_path / f"n{node}.log"
        ).write_bytes(text)
    (tmp_path / "notes.txt").write_text("fans replaced\n")
    (tmp_path / "broken.log.gz").write_bytes(b"\x1f\x8b\x08broken")

    found = json.loads(run("replay", tmp_path).stdout)

    assert [episode["node"] for episode in found["episodes"]] == ["n2"]
    assert found["summary"]["nodes"] == 6
