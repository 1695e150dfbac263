"""Sealing into shared tables: every row exactly once for a reader, whatever ends the process and whenever."""

import multiprocessing
import random
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pydantic import ValidationError
from pyiceberg.catalog import load_catalog

from ingero_contract import echo, routes
from ingero_echo import retention
from ingero_echo.backups import compact, restore
from ingero_echo.lake import files, plan, view
from ingero_echo.lake.catalog import LakeCatalog, LakeError, without_secrets
from ingero_echo.lake.layout import lake_columns
from ingero_echo.lake.plan import Boundary, ShardTaken
from ingero_echo.lake.sealer import open_lake
from ingero_echo.settings import RetentionConfig, StoreConfig, TableConfig
from ingero_echo.window import Window
from ingero_testing import telemetry
from ingero_testing.lakes import TABLES, Shard, open_reader, seal_until_killed, seen, table_config
from ingero_testing.processes import echo as start_echo
from ingero_testing.processes import wait_until
from ingero_testing.web import web

DAY = 86_400 * 10**9
STEPS = ("before put", "after put", "before commit", "after commit")


class Killed(BaseException):
    """Ends a sealer as a kill does: nothing of it handles this."""


class Fragile:
    """Shared tables whose user is killed at one step of one table."""

    def __init__(self, lake: Any, step: str, table: str) -> None:
        self._lake, self._at = lake, (step, table)

    def put(self, table: str, *more: Any) -> Any:
        self._pass("before put", table)
        found = self._lake.put(table, *more)
        self._pass("after put", table)
        return found

    def commit(self, table: str, *more: Any) -> None:
        self._pass("before commit", table)
        self._lake.commit(table, *more)
        self._pass("after commit", table)

    def _pass(self, step: str, table: str) -> None:
        if (step, table) == self._at:
            raise Killed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lake, name)


@pytest.fixture
def config(tmp_path: Path) -> TableConfig:
    return table_config(tmp_path / "lake")


@pytest.fixture
def shard(tmp_path: Path, config: TableConfig) -> Iterator[Shard]:
    made = Shard(tmp_path / "e.duckdb", config)
    yield made
    made.close()


def everything(shard: Shard) -> dict[str, Counter[Any]]:
    """All rows of a database by table."""
    return {table: Counter(shard.store.cursor().execute(f"FROM {table}").fetchall()) for table in TABLES}


def fill(shard: Shard) -> None:
    """Rows in most tables, on two days, with values that are easily lost on the way."""
    now = time.time_ns()
    shard.put(telemetry.verdict("n1", "straggler", at=now - 7))
    shard.put(telemetry.logs([("note", "late", {})], at=now - DAY - 1))
    shard.put(telemetry.numbered(30)[1])
    shard.put(telemetry.numbered(30)[1])


def test_rows_are_the_same_in_the_shared_tables_also_their_nanoseconds(shard: Shard, config: TableConfig) -> None:
    fill(shard)
    before = everything(shard)

    shard.seal()

    for table in TABLES:
        after = seen(config, duckdb.connect().execute(f"CREATE TABLE {table} (seq BIGINT)"), table)
        if table == "node_rollups":  # rows of one key of a range are one row there
            assert sum(row[5] for row in after) == sum(row[5] for row in before[table]) == 62
        else:
            assert after == before[table], table
    assert len(LakeCatalog(config).pin("events").files) == 3


def test_other_engines_read_the_tables(shard: Shard, config: TableConfig) -> None:
    fill(shard)
    shard.seal()

    catalog = load_catalog("ingero", **config.catalog, warehouse=config.warehouse)
    read = catalog.load_table("ingero.events").scan().to_arrow()

    assert read.num_rows == 62
    assert {field.name for field in read.schema} >= {"event_id", "timestamp", "timestamp_nanos", "cluster_id"}


def test_polars_reads_the_same_rows(shard: Shard, config: TableConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # its own planner is another package
    polars = pytest.importorskip("polars", reason="needs polars: pip install polars")
    fill(shard)
    ours = (
        shard.store.cursor().execute("SELECT epoch_ns(timestamp), metric_name, value_double FROM events").fetchall()
    )
    shard.seal()

    catalog = load_catalog("ingero", **config.catalog, warehouse=config.warehouse)
    table = catalog.load_table("ingero.events")
    frame = polars.scan_iceberg(table.metadata_location, reader_override="native")
    time_ns = polars.col("timestamp").dt.epoch("us") * 1000 + polars.col("timestamp_nanos")
    read = frame.select(time_ns, "metric_name", "value_double").collect()

    assert Counter(read.rows()) == Counter(ours)


def test_rows_stay_until_the_seal_after_their_own(shard: Shard, config: TableConfig) -> None:
    shard.put(telemetry.numbered(3)[1])
    shard.seal()
    first = shard.store.cursor().execute("SELECT count(*) FROM events").fetchall()
    shard.put(telemetry.numbered(4)[1])
    shard.seal()

    assert first == [(3,)]
    assert shard.store.cursor().execute("SELECT count(*) FROM events").fetchall() == [(4,)]
    assert sum(seen(config, shard.store.cursor()).values()) == 7


def test_killed_at_any_step_a_reader_sees_every_row_once(tmp_path: Path) -> None:
    config, path = table_config(tmp_path / "lake", max_rows=1000), tmp_path / "e.duckdb"
    expected: dict[str, Counter[Any]] = {"events": Counter(), "verdicts": Counter()}
    for kill in product(STEPS, ("node_rollups", "verdicts", "events")):
        killed = Shard(path, config, lambda config, kill=kill: Fragile(open_lake(config), *kill))
        killed.put(telemetry.verdict("n1", "straggler", at=time.time_ns() - 7))
        killed.put(telemetry.numbered(5)[1])
        hot = everything(killed)
        expected = {name: rows | hot[name] for name, rows in expected.items()}

        with pytest.raises(Killed):
            killed.seal()
        assert {name: seen(config, killed.store.cursor(), name) for name in expected} == expected, kill
        killed.close()

    again = Shard(path, config)
    again.put(telemetry.numbered(5)[1])
    again.seal()
    found = {name: seen(config, again.store.cursor(), name) for name in (*expected, "node_rollups")}
    again.close()
    assert found["verdicts"] == expected["verdicts"]
    assert (expected["events"] - found["events"], found["events"].total()) == (Counter(), 12 * 6 + 5)
    assert sum(row[5] * times for row, times in found["node_rollups"].items()) == 12 * 6 + 5


def test_killed_by_the_system_at_random_moments_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    config, path, dice = table_config(tmp_path / "lake", max_rows=20), tmp_path / "e.duckdb", random.Random(7)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["ingero_testing.lakes"])
    written: list[str] = []
    for seed in range(2):
        mine, theirs = processes.Pipe()
        child = processes.Process(target=seal_until_killed, args=(path, config, seed, theirs), daemon=True)
        child.start()
        theirs.close()
        assert mine.poll(60)
        for _ in range(dice.randrange(10, 30)):
            written.append(mine.recv())
        child.kill()
        child.join()
        try:
            while mine.poll():
                written.append(mine.recv())
        except EOFError:
            pass
        with duckdb.connect(str(path)) as database:
            found = Counter(str(row[0]) for row in seen(config, database).elements())
        expected = Counter(event for event in written if event)
        assert expected <= found, f"lost {expected - found}"
        assert max(found.values()) == 1
        assert (found - expected).total() <= seed + 1  # one may be written and not be reported


def test_a_database_from_before_is_sealed_too(tmp_path: Path, config: TableConfig) -> None:
    shard = Shard(tmp_path / "e.duckdb", config)
    shard.put(telemetry.numbered(5)[1])
    for table in TABLES:
        shard.writer.call(partial(shard.store.connection.execute, f"UPDATE {table} SET seq = 0")).result()

    shard.seal()

    assert LakeCatalog(config).pin("events").files[0].rows == 5
    shard.close()


def test_shards_that_commit_at_the_same_time_both_land(tmp_path: Path) -> None:
    shards = [Shard(tmp_path / f"{name}.duckdb", table_config(tmp_path / "lake", name)) for name in "ab"]
    open_lake(table_config(tmp_path / "lake")).create()
    for _ in range(2):
        for shard in shards:
            shard.put(telemetry.numbered(10)[1])
        sealing = [threading.Thread(target=shard.seal) for shard in shards]
        for thread in sealing:
            thread.start()
        for thread in sealing:
            thread.join()
    for shard in shards:
        shard.close()

    pinned = LakeCatalog(table_config(tmp_path / "lake")).pin("events")

    assert (sum(file.rows for file in pinned.files), {*pinned.boundaries}) == (40, {"a", "b"})


def test_another_database_under_the_same_name_is_refused_and_its_events_stay(tmp_path: Path, shard: Shard) -> None:
    config = table_config(tmp_path / "lake")
    shard.put(telemetry.numbered(5)[1])
    shard.seal()
    other = Shard(tmp_path / "other.duckdb", config)
    other.put(telemetry.numbered(7)[1])

    with pytest.raises(ShardTaken, match="another database"):
        other.seal()

    assert other.store.cursor().execute("SELECT count(*) FROM events").fetchall() == [(7,)]
    other.close()


def test_a_copy_that_is_older_is_refused(tmp_path: Path) -> None:
    config, path = table_config(tmp_path / "lake"), tmp_path / "e.duckdb"
    shard = Shard(path, config)
    shard.put(telemetry.numbered(5)[1])
    shard.seal()
    shard.writer.call(lambda: shard.store.copy(tmp_path / "copy.duckdb")).result()
    shard.put(telemetry.numbered(5)[1])
    copy = Shard(tmp_path / "copy.duckdb", config)
    copy.put(telemetry.numbered(3)[1])
    shard.seal()

    with pytest.raises(ShardTaken, match="a newer copy"):
        copy.seal()
    copy.close()
    shard.close()


def restored(tmp_path: Path, shard: str) -> Shard:
    """A backup with 5 sealed and 2 other events, restored after 10 further ones, all sealed meanwhile."""
    path = tmp_path / "e.duckdb"
    first = Shard(path, table_config(tmp_path / "lake", "a"))
    first.put(telemetry.numbered(5)[1])
    first.seal()
    first.put(telemetry.numbered(2)[1])
    first.writer.call(lambda: first.store.copy(tmp_path / "copy.duckdb")).result()
    for _ in range(2):
        first.put(telemetry.numbered(5)[1])
    first.seal()
    first.close()
    restore(tmp_path / "copy.duckdb", StoreConfig(path=path), force=True)
    return Shard(path, table_config(tmp_path / "lake", shard))


def test_an_older_backup_under_the_old_name_is_refused_however_often_it_starts(tmp_path: Path) -> None:
    shard = restored(tmp_path, "a")
    for _ in range(4):
        shard.put(telemetry.numbered(3)[1])
    with pytest.raises(ShardTaken):
        shard.seal()
    shard.close()

    again = Shard(tmp_path / "e.duckdb", table_config(tmp_path / "lake", "a"))
    with pytest.raises(ShardTaken):
        again.seal()
    again.close()


def test_an_older_backup_under_a_new_name_seals_what_came_after_it_and_nothing_twice(tmp_path: Path) -> None:
    shard = restored(tmp_path, "b")
    shard.put(telemetry.numbered(3)[1])
    shard.seal()
    rows = seen(table_config(tmp_path / "lake", "b"), shard.store.cursor(), shard="b")
    shard.close()

    assert len(rows) == rows.total() == 5 + 2 + 10 + 3


def test_a_copy_of_the_latest_state_that_is_restored_goes_on_under_its_name(tmp_path: Path) -> None:
    path, config = tmp_path / "e.duckdb", table_config(tmp_path / "lake")
    shard = Shard(path, config)
    shard.put(telemetry.numbered(5)[1])
    shard.seal()
    shard.put(telemetry.numbered(2)[1])
    shard.close()
    compact(path, tmp_path / "compact.duckdb")
    restore(tmp_path / "compact.duckdb", StoreConfig(path=path), force=True)

    again = Shard(path, config)
    again.seal()
    rows = seen(config, again.store.cursor())
    again.close()

    assert len(rows) == rows.total() == 7


def test_while_the_catalog_is_away_events_are_taken_and_sealed_later(tmp_path: Path) -> None:
    config = table_config(tmp_path / "lake")
    away = [True]

    def connect(config: TableConfig) -> Any:
        if away[0]:
            raise LakeError("away")
        return open_lake(config)

    shard = Shard(tmp_path / "e.duckdb", config, connect)
    shard.put(telemetry.numbered(5)[1])
    with pytest.raises(LakeError):
        shard.seal()
    repeats = shard.put(telemetry.numbered(5)[1])
    away[0] = False

    shard.seal()

    assert (repeats, LakeCatalog(config).pin("events").boundaries["0"].sealed) == (0, 2)
    shard.close()


class Unclear(Fragile):
    """Shared tables whose commit is lost on the way, once."""

    def _pass(self, step: str, table: str) -> None:
        if (step, table) == self._at:
            self._at = ("", "")
            raise LakeError("the connection was closed")


def test_a_commit_with_an_unknown_outcome_is_found_or_repeated(tmp_path: Path) -> None:
    config, lost = table_config(tmp_path / "lake"), [("", "")]
    shard = Shard(tmp_path / "e.duckdb", config, lambda config: Unclear(open_lake(config), *lost[0]))
    cases = list(product(("before commit", "after commit"), ("node_rollups", "events")))
    for number, lost[0] in enumerate(cases, 1):
        shard.sealer._lake = None
        shard.put(telemetry.numbered(5)[1])
        with pytest.raises(LakeError):
            shard.seal()
        shard.put(telemetry.numbered(5)[1])
        lost[0] = ("", "")
        shard.sealer._lake = None
        shard.seal()

        found = seen(config, shard.store.cursor())
        assert (len(found), sum(found.values())) == (10 * number, 10 * number)
        sums = seen(config, shard.store.cursor(), "node_rollups")
        assert sum(row[5] * times for row, times in sums.items()) == 10 * number
    shard.close()


def test_under_a_new_name_a_database_does_not_seal_again_what_it_sealed(tmp_path: Path) -> None:
    first = Shard(tmp_path / "e.duckdb", table_config(tmp_path / "lake", "old", keep=3600.0))
    first.put(telemetry.numbered(5)[1])
    first.seal()
    first.close()
    tables = table_config(tmp_path / "lake", "new", keep=3600.0)
    second = Shard(tmp_path / "e.duckdb", tables)
    second.put(telemetry.numbered(3)[1])
    with open_reader(tmp_path, tables, {"new": second}) as reader, reader.store.pinned(Window()) as sources:
        before = reader.store.cursor().execute(f"SELECT count(*) FROM {sources.tables['events']}").fetchall()
        assert sources.missing == () and [*(sources.as_of or ())] == ["new"]
    second.seal()
    second.close()

    pinned = LakeCatalog(tables).pin("events")

    assert before == [(8,)]
    assert sorted(file.rows for file in pinned.files) == [3, 5]
    assert {name: boundary.sealed for name, boundary in pinned.boundaries.items()} == {"old": 1, "new": 2}


@pytest.mark.parametrize("table", ["node_rollups", "verdicts", "events"])
def test_under_a_new_name_a_database_goes_on_after_a_seal_that_landed_in_part(tmp_path: Path, table: str) -> None:
    first = Shard(
        tmp_path / "e.duckdb", table_config(tmp_path / "lake", "old"),
        lambda config: Unclear(open_lake(config), "after commit", table),
    )  # fmt: skip
    first.put(telemetry.verdict("n1", "straggler"))
    with pytest.raises(LakeError):
        first.seal()
    first.close()
    tables = table_config(tmp_path / "lake", "new", former_shard="old")
    second = Shard(tmp_path / "e.duckdb", tables)
    second.put(telemetry.verdict("n2", "straggler"))
    second.seal()
    found = {name: seen(tables, second.store.cursor(), name, "new") for name in TABLES}
    second.close()

    assert found["events"].total() == found["verdicts"].total() == 2
    assert sum(row[5] * times for row, times in found["node_rollups"].items()) == 2


def test_only_what_this_database_sealed_counts_under_the_name_that_it_had() -> None:
    known = {"old": Boundary(7, "mine")}

    assert plan.sealed_formerly("old", known, "mine", 9) == 7
    assert plan.sealed_formerly("old", known, "another", 9) == plan.NOTHING
    assert plan.sealed_formerly("unknown", known, "mine", 9) == plan.NOTHING
    assert plan.sealed_formerly(None, known, "mine", 9) == plan.NOTHING
    with pytest.raises(ShardTaken, match="a newer copy"):
        plan.sealed_formerly("old", known, "mine", 6)


def test_retention_by_size_spares_what_is_not_sealed(shard: Shard) -> None:
    rule = RetentionConfig(size_mb=1, age=1e9)
    shard.put(telemetry.logs([("wide", "x" * 2000 + uuid.uuid4().hex, {}) for _ in range(1500)]))
    sweep = lambda: retention.sweep(shard.store, rule, time.time_ns(), sealing=True)  # noqa: E731

    before = shard.writer.call(sweep).result()
    shard.seal()
    after = shard.writer.call(sweep).result()

    assert (before, after > 1500) == (0, True)


def test_a_file_is_written_twice_with_the_same_bytes(shard: Shard, config: TableConfig, tmp_path: Path) -> None:
    fill(shard)
    ids = {column.name: number for number, column in enumerate(lake_columns("events"), 1)}
    for name in ("one", "two"):
        day = files.days(shard.store.cursor(), "events", -1, 9)[-1]
        files.write_day(shard.store.cursor(), "events", -1, 9, day, ids, tmp_path / name, 256)

    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_files_are_pruned_by_time(shard: Shard, config: TableConfig) -> None:
    fill(shard)
    shard.seal()
    pinned, now = LakeCatalog(config).pin("events"), time.time_ns()

    recent = view.needed("events", pinned, Window(since=now - DAY // 2))
    assert 0 < len(recent) < len(pinned.files)
    assert len(view.needed("events", pinned, Window(until=now - DAY // 2))) == 1
    assert view.needed("events", pinned, Window(since=now + DAY)) == []
    assert len(view.needed("verdicts", pinned, Window(since=now + DAY))) == len(pinned.files)


# What is decided, as values.


@pytest.mark.parametrize(
    ("counts", "end"),
    [([], None), ([(3, 99)], 3), ([(3, 4), (4, 4), (5, 4)], 4), ([(3, 4), (4, 6)], 4), ([(1, 10), (2, 1)], 1)],
)
def test_a_range_ends_with_a_transaction(counts: list[tuple[int, int]], end: int | None) -> None:
    assert plan.cut(counts, 10) == end


def test_a_boundary_is_committed_once_and_only_from_the_one_before() -> None:
    wanted = Boundary(9, "me", 1)
    assert plan.landed("s", Boundary(9, "me"), 4, wanted)
    assert not plan.landed("s", Boundary(4, "me"), 4, wanted)
    assert not plan.landed("s", Boundary(), -1, wanted)
    for found in (Boundary(9, "other"), Boundary(4, "other"), Boundary(7, "me"), Boundary()):
        with pytest.raises(ShardTaken):
            plan.landed("s", found, 4, wanted)


def test_boundaries_survive_as_properties() -> None:
    properties = {
        **plan.boundary_properties("a-1", Boundary(5, "x", 7)),
        **plan.boundary_properties("b", Boundary(6, "y")),
    }
    assert plan.boundaries({**properties, "owner": "me"}) == {"a-1": Boundary(5, "x", 7), "b": Boundary(6, "y")}


@pytest.mark.parametrize(("now", "keep", "through"), [(9, 0, 2), (9, 7, 1), (9, 100, -1), (3, 0, 2)])
def test_rows_are_deleted_after_their_time_and_never_those_of_the_last_seal(
    now: int, keep: int, through: int
) -> None:
    assert plan.deletable([(1, 1.0), (2, 3.0), (3, 9.0)], now, keep) == through


@pytest.mark.parametrize(("lag", "nice"), [(0, plan.NICE), (90, plan.NICE), (91, 0)])
def test_sorting_has_the_priority_of_ingest_once_more_than_an_interval_waits(lag: float, nice: int) -> None:
    assert plan.niceness(lag, 60) == nice


def test_the_lag_counts_from_the_last_seal_of_everything(tmp_path: Path, shard: Shard) -> None:
    counters = shard.sealer.counters
    counters.whole_at -= 1000
    for _ in range(3):  # 60 events with at most 50 in a seal
        shard.put(telemetry.numbered(20)[1])
    assert shard.sealer.seal()
    partly = counters.lag
    assert not shard.sealer.seal()
    wholly = counters.lag
    counters.whole_at -= 1000
    assert not shard.sealer.seal()

    assert partly > 1000 > wholly
    assert counters.lag < 1000


def test_after_a_restart_what_waits_is_reported_since_it_arrived(tmp_path: Path) -> None:
    before = time.time()
    shard = Shard(tmp_path / "e.duckdb", table_config(tmp_path / "lake"))
    shard.put(telemetry.numbered(5)[1])
    arrived = time.time()
    shard.close()

    shard = Shard(tmp_path / "e.duckdb", table_config(tmp_path / "lake"))
    waiting = shard.sealer.counters.until
    shard.seal()

    assert before <= waiting <= arrived < shard.sealer.counters.until
    shard.close()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (LakeError("OSError: When getting information for key: AWS Error ACCESS_DENIED"), "credentials_refused"),
        (LakeError('OperationalError: FATAL: password authentication failed for user "echo"'), "credentials_refused"),
        (LakeError("UnauthorizedError: token expired"), "credentials_refused"),
        (LakeError("OSError: AWS Error NETWORK_CONNECTION: curlCode: 7"), "tables_unavailable"),
        (LakeError("OperationalError: connection refused"), "tables_unavailable"),
        (OSError("no space left on device"), "local"), (duckdb.IOException("write"), "local"),
    ],
)  # fmt: skip
def test_why_nothing_is_sealed_is_reported_in_kinds(error: Exception, kind: str) -> None:
    assert plan.seal_failure(error) == kind


# Settings and processes.


@pytest.mark.parametrize(
    "catalog",
    [{"uri": "postgresql://me:secret@host/db"}, {"s3.secret-access-key": "x"}, {"token": "x"}, {"credential": "a:b"}],
)
def test_secrets_in_the_settings_are_refused(catalog: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="credentials_file"):
        TableConfig(catalog=catalog, warehouse="s3://b")


def test_secrets_are_not_in_errors(tmp_path: Path) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text("uri: postgresql+psycopg2://me:hunter2hunter2@127.0.0.1:1/db\n")
    config = TableConfig(catalog={"type": "sql"}, credentials_file=secret, warehouse="file:///x")

    with pytest.raises(LakeError) as failed:
        LakeCatalog(config).create()

    assert "hunter2" not in str(failed.value)


@pytest.mark.parametrize(
    ("text", "secrets", "shown"),
    [
        ("OSError: a bucket of eu-1 at x", {"a-long-password", "e", "x"}, "OSError: a bucket of eu-1 at ***"),
        ("bad a-long-passwordX", {"a-long-password"}, "bad ***X"),
        ("key=topsecret-and-more", {"topsecret", "topsecret-and-more"}, "key=***"),
        ("bad\nfirst line\nsecond", {"first line\nsecond"}, "bad\n***"),
        ("password '7', true", {"7", "true"}, "password '***', ***"),
        ("nothing", {""}, "nothing"),
    ],
)
def test_errors_stay_readable_without_the_secrets(text: str, secrets: set[str], shown: str) -> None:
    assert without_secrets(text, secrets) == shown


def test_without_tables_nothing_of_them_is_loaded() -> None:
    code = (
        "import sys, ingero_echo.app, ingero_echo.query_service, ingero_echo.json_api; "
        "print([name for name in ('pyiceberg', 'sqlalchemy', 'psycopg2') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout == b"[]\n"


def test_a_running_echo_seals_what_was_pushed(tmp_path: Path) -> None:
    config = table_config(tmp_path / "lake", every=0.1)
    change = {"table": config.model_dump(mode="json", exclude_none=True)}
    with start_echo(tmp_path, change) as service:
        body = telemetry.numbered(20)[1].SerializeToString()
        url = service.url("otlp/http", routes.OTLP_LOGS)
        assert web.post(url, content=body, headers={"content-type": "application/x-protobuf"}).status_code == 200
        metrics = service.url("api", echo.METRICS_PAGE)
        wait_until(lambda: "ingero_echo_sealed_events_total 20.0" in web.get(metrics).text, "the seal")
        health = web.get(service.url("api", echo.HEALTH)).json()[echo.SEALING]
        assert health["failure"] is None and health["files"] > 0 and health["until"] <= time.time()

    assert sum(file.rows for file in LakeCatalog(config).pin("events").files) == 20
