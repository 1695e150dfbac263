"""Maintenance of the shared tables: every version has each row once, and nothing that is named is deleted."""

import os
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyiceberg.catalog import load_catalog

from ingero_echo.errors import UserError
from ingero_echo.lake import maintenance
from ingero_echo.lake.catalog import LakeCatalog
from ingero_echo.lake.layout import restored
from ingero_echo.lake.maintainer import Maintainer
from ingero_echo.lake.maintenance import Lease, StoredObject
from ingero_echo.lake.sealer import open_lake
from ingero_echo.lake.view import LakeFile
from ingero_echo.settings import TableConfig
from ingero_testing import telemetry
from ingero_testing.lakes import Shard, seen, table_config

DAY = 86_400
DAY_NS = DAY * 10**9
OLD = (time.time_ns() // DAY_NS - 3) * DAY_NS + DAY_NS // 2
"""Noon of a day that has ended, also when midnight passes during a test."""

MOMENTS = count()
"""Equal events of one moment would be repeats."""

STEPS = (("claim", False), ("fetch", False), ("put", True), ("replace", True), ("expire", True), ("stored", False),
         ("remove", True))  # fmt: skip
"""Steps, and whether the kill comes after them; between two of them nothing is written."""


class Killed(BaseException):
    """Ends maintenance as a kill does: nothing of it handles this."""


class Fragile:
    """Shared tables whose user is killed before or after one step; `later` is added to the time of the storage."""

    def __init__(self, config: TableConfig, step: str = "", after: bool = False, later: float = 0.0) -> None:
        self._lake, self._at, self._after, self._later = LakeCatalog(config), step, after, later

    def storage_time(self) -> float:
        return self._lake.storage_time() + self._later

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._lake, name)

        def fragile(*given: Any) -> Any:
            here = name == self._at and (name == "claim" or given[0] == "events")
            if here and not self._after:
                raise Killed
            answer = found(*given)
            if here:
                raise Killed
            return answer

        return fragile


@pytest.fixture
def config(tmp_path: Path) -> TableConfig:
    return table_config(tmp_path / "lake")


@pytest.fixture
def shard(tmp_path: Path, config: TableConfig) -> Iterator[Shard]:
    made = Shard(tmp_path / "e.duckdb", config)
    for _ in range(3):
        made.put(telemetry.logs([("note", "old", {}), ("note", "older", {})], at=OLD + next(MOMENTS)))
        made.put(telemetry.numbered(4)[1])
        made.seal()
    yield made
    made.close()


def maintain(tmp_path: Path, config: TableConfig, lake: Any = open_lake) -> Maintainer:
    made = Maintainer(lake, config, tmp_path / "maintenance")
    made.maintain()
    return made


def versions(config: TableConfig, table: str = "events") -> list[Counter[Any]]:
    """The rows of every version of a table that can be read."""
    loaded = load_catalog("ingero", **config.catalog, warehouse=config.warehouse).load_table(f"ingero.{table}")
    found = []
    for snapshot in loaded.snapshots():
        files = [one.file.file_path for one in loaded.scan(snapshot_id=snapshot.snapshot_id).plan_files()]
        query = f"SELECT {restored(table)} FROM read_parquet({[one.removeprefix('file://') for one in files]})"
        found.append(Counter(duckdb.connect().execute(query).fetchall()) if files else Counter())
    return found


def old_files(config: TableConfig) -> int:
    return sum(file.first // 10**6 // DAY == OLD // DAY_NS for file in LakeCatalog(config).pin("events").files)


def age_objects(tmp_path: Path, seconds: float) -> None:
    for path in (tmp_path / "lake" / "tables").rglob("*.*"):
        os.utime(path, (time.time() - seconds,) * 2)


def test_files_of_an_ended_day_are_merged_and_every_version_has_the_same_rows(
    tmp_path: Path, config: TableConfig, shard: Shard
) -> None:
    before = seen(config, shard.store.cursor())
    others = {table: versions(config, table)[-1] for table in ("node_rollups", "verdicts") if versions(config, table)}

    counters = maintain(tmp_path, config).counters

    after = versions(config)
    assert counters.merged >= 6  # events and rollups
    assert old_files(config) == 1
    assert after[-1] == before
    assert [rows.total() for rows in after][:4] == [6, 12, 18, 18]
    assert all(versions(config, table)[-1] == rows for table, rows in others.items())
    maintain(tmp_path, config)
    shard.put(telemetry.numbered(2)[1])
    shard.seal()
    assert sum(seen(config, shard.store.cursor()).values()) == 20


def test_killed_at_any_step_no_row_is_lost_or_doubled(tmp_path: Path, config: TableConfig, shard: Shard) -> None:
    totals = {6, 12, 18}
    for step, after in STEPS:
        shard.put(telemetry.logs([("note", "old", {})], at=OLD + next(MOMENTS)))
        shard.seal()
        expected = seen(config, shard.store.cursor())
        totals.add(expected.total())
        age_objects(tmp_path, 2 * DAY)
        with pytest.raises(Killed):
            maintain(tmp_path, config, partial(Fragile, step=step, after=after))
        killed = versions(config)
        assert {rows.total() for rows in killed} <= totals, step
        assert killed[-1] == expected, step

    maintain(tmp_path, config)
    assert versions(config)[-1] == expected
    assert old_files(config) == 1


def test_replaced_versions_expire_and_their_objects_go_but_never_one_that_is_named(
    tmp_path: Path, config: TableConfig, shard: Shard
) -> None:
    expected = seen(config, shard.store.cursor())
    maintain(tmp_path, config)
    left = tmp_path / "lake" / "tables" / "ingero" / "events" / "data" / "left.parquet"
    young = left.with_name("young.parquet")
    left.write_bytes(b"x")
    age_objects(tmp_path, 2 * DAY)
    young.write_bytes(b"x")

    kept = maintain(tmp_path, config)
    before = versions(config)
    short = config.model_copy(update={"snapshots": -60.0})
    gone = maintain(tmp_path, short)

    assert (kept.counters.snapshots, left.exists(), young.exists()) == (0, False, True)
    assert [rows.total() for rows in before][:4] == [6, 12, 18, 18]
    assert (gone.counters.snapshots > 0, gone.counters.removed > 3) == (True, True)
    assert versions(config) == [expected]


def test_with_a_wrong_clock_nothing_is_deleted_and_with_wrong_times_of_objects_nothing_that_is_named(
    tmp_path: Path, config: TableConfig, shard: Shard
) -> None:
    for later in (-2.0 * DAY, 2.0 * DAY):
        with pytest.raises(UserError, match="clocks"):
            maintain(tmp_path, config, partial(Fragile, later=later))
    refused = [rows.total() for rows in versions(config)]
    age_objects(tmp_path, 1000 * DAY)
    maintain(tmp_path, config)

    assert refused == [6, 12, 18]
    assert {rows.total() for rows in versions(config)} == {6, 12, 18}


def test_retention_deletes_whole_days_only(tmp_path: Path, config: TableConfig, shard: Shard) -> None:
    day = config.model_copy(update={"retention": float(DAY)})

    counters = maintain(tmp_path, day).counters

    assert counters.expired == 6  # events and rollups
    assert versions(config)[-1].total() == 12
    assert maintain(tmp_path, day).counters.expired == 0


def test_one_shard_maintains_the_tables_and_a_second_one_cannot_double_rows(
    tmp_path: Path, config: TableConfig, shard: Shard
) -> None:
    lake = LakeCatalog(config)
    old = [file for file in lake.pin("events").files if file.last < (time.time() - DAY) * 1e6]
    maintain(tmp_path, config)
    other = Maintainer(open_lake, config.model_copy(update={"shard": "b"}), tmp_path / "b")

    assert not other.maintain()
    assert not lake.replace("events", old)
    assert versions(config)[-1].total() == 18


# What is decided, as values.


def lake_file(day: int, size: int, name: str = "") -> LakeFile:
    return LakeFile(f"{day}-{size}-{name}", size, 1, day * DAY * 10**6, day * DAY * 10**6 + 5)


def test_groups_are_of_one_ended_day_and_within_the_size() -> None:
    files = [lake_file(1, 40, "a"), lake_file(1, 40, "b"), lake_file(1, 40, "c"), lake_file(2, 9), lake_file(3, 9),
             lake_file(3, 8), lake_file(1, 200), LakeFile("unknown", 1, 1)]  # fmt: skip
    groups = maintenance.compactions(files, 3.5 * DAY, 100)
    assert [[file.location for file in group] for group in groups] == [["1-40-a", "1-40-b"]]


def test_one_late_row_does_not_rewrite_a_large_file_and_many_do() -> None:
    few = [lake_file(1, 90), lake_file(1, 1)]
    many = [lake_file(1, 80), *(lake_file(1, 1, str(number)) for number in range(7))]
    assert maintenance.compactions(few, 9 * DAY, 100) == []
    assert [len(group) for group in maintenance.compactions(many, 9 * DAY, 100)] == [8]


def test_days_expire_when_they_ended_long_enough_ago() -> None:
    files = [lake_file(1, 1), lake_file(2, 1), LakeFile("unknown", 1, 1)]
    assert maintenance.expired_files(files, 3 * DAY - 1, DAY) == []
    assert maintenance.expired_files(files, 3 * DAY, DAY) == files[:1]


def test_objects_are_deleted_when_they_are_old_and_not_named() -> None:
    objects = [StoredObject("named", 0), StoredObject("left", 0), StoredObject("young", 2 * DAY)]
    assert maintenance.unreferenced(objects, {"named"}, 2 * DAY) == ["left"]


def test_a_lease_is_taken_renewed_and_inherited() -> None:
    mine = maintenance.next_lease(Lease(), "a", 100, 10)
    assert mine == Lease("a", 115)
    assert maintenance.next_lease(mine, "a", 101, 10) == Lease("a", 116)
    assert maintenance.next_lease(mine, "b", 114, 10) is None
    assert maintenance.next_lease(mine, "b", 115, 10) == Lease("b", 130)
    assert maintenance.parse_lease("a 115") == mine
    assert maintenance.parse_lease("rubbish") == Lease()
