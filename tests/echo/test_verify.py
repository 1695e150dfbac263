"""`ingero-echo verify`: names what is lost, doubled or changed, and nothing else."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml
from click.testing import CliRunner, Result
from pyiceberg.catalog import load_catalog

from ingero_echo import retention
from ingero_echo.cli import main
from ingero_echo.lake.catalog import NAME, LakeCatalog, catalog_properties
from ingero_echo.lake.plan import file_name, sealed_by
from ingero_echo.lake.sealer import open_lake
from ingero_echo.lake.view import LakeFile
from ingero_echo.rollups import BUCKET_NANOS
from ingero_echo.settings import TableConfig
from ingero_kit.otlp_signal import Signal
from ingero_testing import telemetry
from ingero_testing.lakes import Shard, table_config

DAY = 86_400 * 10**9
MIDNIGHT = 2 * BUCKET_NANOS
"""Nanoseconds after midnight UTC in which five minutes before are of the day before."""
Damage = Callable[[LakeFile, Path], None]


def verify(path: Path, config: TableConfig | None = None, *more: str) -> Result:
    settings = path.with_name("echo.yaml")
    table = config.model_dump(mode="json", exclude_defaults=True) if config else None
    settings.write_text(yaml.safe_dump({"insecure": True, "store": {"path": str(path)}, "table": table}))
    return CliRunner().invoke(main, ["verify", "--config", str(settings), *more])


def facts(path: Path, config: TableConfig | None = None) -> dict[str, Any]:
    done = verify(path, config, "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.exit_code == (0 if found["status"] == "whole" else 1)
    return found


def kinds(report: dict[str, Any]) -> set[tuple[str, str]]:
    """What differs; of data files that were written again the size may be the same by chance."""
    return {(one["kind"], one["table"]) for one in report["differences"]} - {("file", "events")}


def fill(shard: Shard) -> None:
    """Rows in most tables, on two days: all but one of one day, at every time of day."""
    now = time.time_ns()
    if now % DAY < MIDNIGHT:
        now -= MIDNIGHT
    shard.put(telemetry.verdict("n1", "straggler", at=now - 7))
    shard.put(telemetry.logs([("note", "late", {})], at=now - DAY))
    shard.put(telemetry.numbered(30, at=now)[1])
    bucket = now // BUCKET_NANOS * BUCKET_NANOS
    for moment in range(3):
        shard.put(telemetry.gauges([("gpu", 0.1 + moment, {})], at=bucket - 1 - moment), Signal.METRICS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "e.duckdb"


def sealed(path: Path, keep: float) -> TableConfig:
    """A database that is sealed; with `keep` 0 all but its last row were deleted there."""
    config = table_config(path.parent / "lake", keep=keep, max_rows=1000)
    shard = Shard(path, config)
    fill(shard)
    shard.seal()
    shard.put(telemetry.numbered(1)[1])
    shard.seal()
    shard.put(telemetry.numbered(3)[1])
    shard.close()
    return config


def change(file: LakeFile, columns: str, more: str = "") -> None:
    """Write a data file again with other columns or rows."""
    place = file.location.removeprefix("file://")
    with duckdb.connect() as engine:
        engine.execute(f"CREATE TABLE rows AS FROM '{place}'")
        engine.execute(f"COPY (SELECT {columns} FROM rows {more}) TO '{place}' (FORMAT parquet)")


def largest(config: TableConfig, table: str = "events") -> LakeFile:
    return max(LakeCatalog(config).pin(table).files, key=lambda file: file.rows)


def test_a_database_alone_is_compared_with_its_sums(path: Path) -> None:
    shard = Shard(path, table_config(path.parent / "lake"))
    fill(shard)
    shard.close()
    whole = verify(path)
    with duckdb.connect(str(path)) as database:
        database.execute("INSERT INTO events FROM events WHERE metric_name = 'stress' LIMIT 1")
        database.execute("UPDATE node_rollups SET total = total + 1e-6 WHERE metric_name = 'gpu'")

    damaged = verify(path)
    report = facts(path)

    assert (whole.exit_code, whole.stdout.splitlines()[-1]) == (0, "whole")
    assert (damaged.exit_code, damaged.stdout.splitlines()[-1]) == (1, "not whole")
    assert kinds(report) == {("doubled_rows", "events"), ("sums", "node_rollups")}
    assert report["tables"]["events"]["rows"] == 36
    assert {one["rows"]: one["examples"] for one in report["differences"]}[2] == ["c/n0/gpu", "c/n0/stress"]


def test_deletion_in_the_middle_of_five_minutes_leaves_the_sums_of_what_stays(path: Path) -> None:
    shard = Shard(path, table_config(path.parent / "lake"))
    begin = (time.time_ns() - DAY) // BUCKET_NANOS * BUCKET_NANOS
    for second in (10, 100, 200, 290, 310):
        shard.put(telemetry.logs([("note", "", {})], at=begin + second * 10**9))
    deleted = shard.writer.call(lambda: retention.delete_before(shard.store.connection, begin + 150 * 10**9)).result()
    left = shard.store.cursor().execute("SELECT events, seq FROM node_rollups ORDER BY seq").fetchall()
    shard.close()

    assert (deleted, left) == (2 + 4, [(1, 3), (1, 4), (1, 5)])
    assert facts(path)["status"] == "whole"


def test_hot_and_sealed_rows_are_the_same(path: Path) -> None:
    config = sealed(path, keep=3600.0)

    report = facts(path, config)

    events = report["tables"]["events"]
    assert report["status"] == "whole", report
    assert [events[name] for name in ("rows", "compared", "files", "sealed_rows")] == [39, 36, 3, 36]
    assert report["tables"]["verdicts"]["compared"] == 1


def rename(file: LakeFile, place: Path) -> None:
    place.rename(place.with_suffix(".lost"))


def cut(file: LakeFile, place: Path) -> None:
    place.write_bytes(place.read_bytes()[:-100])


DAMAGES: dict[str, tuple[Damage, set[tuple[str, str]]]] = {
    "a lost file": (rename, {("missing_file", "events"), ("missing_rows", "events"), ("sums", "node_rollups")}),
    "a cut file": (cut, {("unreadable_file", "events"), ("missing_rows", "events"), ("sums", "node_rollups")}),
    "a doubled row": (
        lambda file, place: change(file, "*", "UNION ALL (FROM rows LIMIT 1)"),
        {("doubled_rows", "events"), ("sums", "node_rollups")},
    ),
    "a changed value": (
        lambda file, place: change(
            file, "* REPLACE (CASE WHEN value_double > 2 THEN 7.0 ELSE value_double END AS value_double)"
        ),
        {("changed_rows", "events"), ("sums", "node_rollups")},
    ),
}


def test_damage_is_named(path: Path) -> None:
    config = sealed(path, keep=3600.0)
    file = largest(config)
    place = Path(file.location.removeprefix("file://"))
    content = place.read_bytes()
    for damage, expected in DAMAGES.values():
        damage(file, place)
        report = facts(path, config)
        place.write_bytes(content)

        assert kinds(report) == expected, report["differences"]
        rows = report["tables"]["events"]["sealed_rows"]
        named = place.name in " ".join(one["message"] for one in report["differences"])
        assert named or rows == 36


def test_damage_to_rows_that_left_the_database_is_named_by_sums_and_boundaries(path: Path) -> None:
    config = sealed(path, keep=0.0)
    whole = facts(path, config)
    change(largest(config), "* REPLACE (CASE WHEN value_double > 2 THEN 7.0 ELSE value_double END AS value_double)")
    changed = facts(path, config)
    lake = LakeCatalog(config)
    lake.replace("events", lake.pin("events").files)
    with load_catalog(NAME, **catalog_properties(config)).load_table("ingero.node_rollups").transaction() as to:
        to.set_properties({"ingero.sealed.0": "1"})
    gone = facts(path, config)

    assert (whole["status"], whole["tables"]["events"]["rows"]) == ("whole", 4)
    assert kinds(changed) == {("sums", "node_rollups")}
    assert kinds(gone) == {("missing_rows", "events"), ("sums", "node_rollups"), ("boundary", "node_rollups")}


class Ending:
    """Shared tables whose user is killed before events are committed."""

    def __init__(self, lake: Any) -> None:
        self._lake = lake

    def commit(self, table: str, *more: Any) -> None:
        if table == "events":
            raise KeyboardInterrupt
        self._lake.commit(table, *more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lake, name)


def test_a_seal_that_a_kill_ended_is_whole(path: Path) -> None:
    config = table_config(path.parent / "lake", keep=3600.0)
    shard = Shard(path, config, lambda config: Ending(open_lake(config)))
    fill(shard)
    with pytest.raises(KeyboardInterrupt):
        shard.seal()
    shard.close()

    report = facts(path, config)

    assert report["status"] == "whole", report["differences"]
    assert report["tables"]["node_rollups"]["files"] == 2


def test_what_cannot_be_checked_has_another_exit_status(path: Path) -> None:
    config = table_config(path.parent / "lake")
    absent = verify(path, config)
    shard = Shard(path, config)
    used = verify(path, config)
    shard.close()
    away = verify(path, config.model_copy(update={"catalog": {"type": "sql", "uri": "sqlite:////nowhere/at/all.db"}}))

    assert [one.exit_code for one in (absent, used, away)] == [2, 2, 2]
    assert "in use by process" in used.stderr


def test_a_file_of_another_kind_is_called_no_database(tmp_path: Path) -> None:
    other = tmp_path / "rows.json"
    other.write_text('{"a": 1}')

    done = CliRunner().invoke(main, ["verify", "--database", str(other)])

    assert done.exit_code == 2 and "not a valid DuckDB database" in done.stderr


def test_names_of_files_tell_shard_and_range() -> None:
    name = file_name("node_rollups", "2026-01-01", "prod-0-a", "0123456789ab", 6, 12)

    assert sealed_by(f"s3://bucket/ingero/{name}") == ("prod-0-a", 12)
    assert sealed_by("s3://bucket/data/day=2026-01-01/events-0123456789abcdef.parquet") is None
