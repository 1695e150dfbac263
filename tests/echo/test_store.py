"""The database: refused with the way out when it cannot be used, bounded by retention, whole after every failure."""

import json
import subprocess
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from ingero_contract import echo, metrics, routes
from ingero_echo import retention, rollups
from ingero_echo.cli import main
from ingero_echo.database_file import StoreError
from ingero_echo.schema_versions import migrations, schema_text
from ingero_echo.settings import RetentionConfig, StoreConfig
from ingero_echo.store import Store
from ingero_testing import telemetry
from ingero_testing.processes import BIN, Running, wait_until
from ingero_testing.processes import echo as start_echo
from ingero_testing.web import web

PROTOBUF = {"content-type": "application/x-protobuf"}
DAY = 86_400 * 10**9


def push(service: Running, message: Any, path: str = routes.OTLP_LOGS) -> httpx.Response:
    return web.post(service.url("otlp/http", path), content=message.SerializeToString(), headers=PROTOBUF)


def count(service: Running, where: str = "true") -> int:
    sql = {"sql": f"SELECT count(*) FROM events WHERE {where}"}
    answer = web.post(service.url("api", echo.SQL), json=sql)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["rows"][0][0])


FIRST_EVENTS = (
    "INSERT INTO events SELECT uuid(), make_timestamp_ns(? + i * 1000), now()::TIMESTAMP, 'metrics', 'c', 'n', "
    "'m', ?, 1, 8, NULL, uuid()::VARCHAR, '{}' FROM range(?) r(i)"
)
EVENTS = FIRST_EVENTS.replace(" FROM range", ", 1 FROM range")


def fill(store: Store, day: int, rows: int, value: float = 1.0) -> None:
    store.connection.execute(EVENTS, [day * DAY, value, rows])


def test_migrations_are_applied_once_and_described(tmp_path: Path) -> None:
    config = StoreConfig(path=tmp_path / "e.duckdb")
    for _ in range(2):
        store = Store.open(config)
        rows = store.connection.execute("SELECT number, name FROM schema_versions ORDER BY number").fetchall()
        store.close()

    assert rows == [(item.number, item.name) for item in migrations()]
    assert "events(event_id UUID" in schema_text()


def test_an_older_database_is_brought_up_to_date_with_its_events(tmp_path: Path) -> None:
    path = tmp_path / "e.duckdb"
    first, *_ = migrations()
    with duckdb.connect(str(path)) as old:
        old.execute("CREATE TABLE schema_versions (number INTEGER, name VARCHAR, applied TIMESTAMP)")
        old.execute(first.sql)
        old.execute("INSERT INTO schema_versions VALUES (1, ?, now()::TIMESTAMP)", [first.name])
        old.execute(FIRST_EVENTS, [DAY, 2.0, 20])
        old.execute(FIRST_EVENTS, [DAY, None, 5])

    store = Store.open(StoreConfig(path=path))

    assert store.connection.execute("SELECT count(*) FROM events").fetchall() == [(25,)]
    assert store.connection.execute("SELECT events, samples, total FROM node_rollups").fetchall() == [(25, 20, 40.0)]
    store.close()


def test_a_newer_database_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "e.duckdb"
    Store.open(StoreConfig(path=path)).close()
    with duckdb.connect(str(path)) as other:
        other.execute("INSERT INTO schema_versions VALUES (999, 'future', now()::TIMESTAMP)")

    with pytest.raises(StoreError, match=r"newer ingero-echo .*use that version"):
        Store.open(StoreConfig(path=path))


@pytest.mark.parametrize("damage", ["rubbish", "cut"])
def test_a_corrupt_database_is_refused_with_the_way_out(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "e.duckdb"
    store = Store.open(StoreConfig(path=path))
    fill(store, 0, 10_000)
    store.close()
    whole = path.read_bytes()
    path.write_bytes(b"rubbish" * 1000 if damage == "rubbish" else whole[: len(whole) // 3])

    with pytest.raises(StoreError, match="ingero-echo restore"):
        Store.open(StoreConfig(path=path))


def test_a_copy_holds_everything_and_opens(tmp_path: Path) -> None:
    store = Store.open(StoreConfig(path=tmp_path / "e.duckdb"))
    fill(store, 0, 1000)
    store.copy(tmp_path / "copies/e.duckdb")
    fill(store, 1, 10)
    with pytest.raises(StoreError, match="exists already"):
        store.copy(tmp_path / "copies/e.duckdb")
    store.close()

    copy = Store.open(StoreConfig(path=tmp_path / "copies/e.duckdb"))
    assert copy.connection.execute("SELECT count(*) FROM events").fetchall() == [(1000,)]
    copy.close()


def test_restore_keeps_what_was_there(tmp_path: Path) -> None:
    config = StoreConfig(path=tmp_path / "e.duckdb")
    store = Store.open(config)
    fill(store, 0, 5)
    store.copy(tmp_path / "copy.duckdb")
    fill(store, 0, 5)
    store.close()
    arguments = ["restore", str(tmp_path / "copy.duckdb"), "--database", str(config.path)]

    refused = CliRunner().invoke(main, arguments)
    done = CliRunner().invoke(main, [*arguments, "--force"])

    assert (refused.exit_code, done.exit_code) == (1, 0)
    assert "--force" in refused.output
    restored = Store.open(config)
    assert restored.connection.execute("SELECT count(*) FROM events").fetchall() == [(5,)]
    restored.close()
    assert (tmp_path / "e.duckdb.before-restore").exists()


def test_events_go_by_age(tmp_path: Path) -> None:
    store = Store.open(StoreConfig(path=tmp_path / "e.duckdb"))
    for day in range(5):
        fill(store, day, 100)

    deleted = retention.sweep(store, RetentionConfig(age=2 * 86_400.0), 5 * DAY)

    assert deleted == 300
    assert store.connection.execute("SELECT count(*) FROM events").fetchall() == [(200,)]
    store.close()


def test_the_oldest_events_go_by_size_and_the_file_stays_bounded(tmp_path: Path) -> None:
    path = tmp_path / "e.duckdb"
    store = Store.open(StoreConfig(path=path))
    for day in range(8):
        fill(store, day, 60_000)
        retention.sweep(store, RetentionConfig(size_mb=8, age=1e9), day * DAY)
    oldest = store.connection.execute("SELECT min(epoch_ns(timestamp)) FROM events").fetchall()[0][0]

    assert store.live_bytes() <= 8 << 20
    assert oldest > DAY
    store.close()
    assert path.stat().st_size < 3 * (8 << 20)


def test_partial_sums_are_merged_without_changing_what_they_say(tmp_path: Path) -> None:
    store = Store.open(StoreConfig(path=tmp_path / "e.duckdb"))
    whole = "SELECT sum(samples), sum(total), min(lowest), max(highest) FROM node_rollups"
    for value in (1.0, 2.0, 3.0):
        store.connection.execute("CREATE OR REPLACE TEMP TABLE rows AS SELECT * FROM events LIMIT 0")
        fill(store, 1, 10, value)
        store.connection.execute("INSERT INTO rows SELECT * FROM events WHERE value_double = ?", [value])
        store.connection.execute(rollups.ADD, {"seq": 1})
    before = store.connection.execute(whole).fetchall()

    saved = rollups.merge(store.connection, DAY, DAY + 3600 * 10**9)

    assert saved == 2
    assert store.connection.execute(whole).fetchall() == before == [(30, 60.0, 1.0, 3.0)]
    store.close()


def test_long_and_short_windows_agree(tmp_path: Path) -> None:
    with start_echo(tmp_path) as service:
        for number in range(4):
            points: list[telemetry.Point] = [(metrics.HEALTH_SCORE, 0.2 if number == 2 else 0.9, {})]
            assert push(service, telemetry.gauges(points, "c", f"n{number}"), routes.OTLP_METRICS).status_code == 200
        assert push(service, telemetry.logs([("note", "", {})], "c", "n9")).status_code == 200
        for tool in ("find_stragglers", "find_outlier_nodes", "summary"):
            url = service.url("api", f"{echo.TOOLS}{echo.TOOL_PREFIX}{tool}")
            short, long = (web.post(url, json={"since": since}).json()["rows"] for since in ("10m", "all"))

            assert short == long
            assert len(long) == 1
        assert (long[0]["nodes"], long[0]["events"], long[0]["lowest_node"]) == (5, 5, "n2")


def test_when_the_disk_is_full_senders_come_back_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    megabytes = 2
    change = {"ingest": {"group_wait": 0}, "store": {"wal_limit_mb": 1000}}
    sent: list[str] = []
    with start_echo(tmp_path, change, "prlimit", f"--fsize={megabytes << 20}") as service:
        refused = None
        for _ in range(60):
            ids, request = telemetry.numbered(1000, cluster="full")
            answer = push(service, request)
            if answer.status_code != 200:
                refused = answer
                break
            sent += ids
        assert refused is not None
        assert refused.status_code in (429, 503), refused.text
        assert int(refused.headers["retry-after"]) >= 1
        service.process.kill()
        service.process.wait(10)
    with start_echo(tmp_path) as service:
        assert push(service, request).status_code == 200
        found = web.post(
            service.url("api", echo.SQL), json={"sql": "SELECT count(*), count(DISTINCT event_id) FROM events"}
        ).json()["rows"][0]

        assert found == [len(sent) + 1000] * 2


def test_a_full_queue_asks_senders_to_retry(tmp_path: Path) -> None:
    change = {"ingest": {"queue_mb": 1, "group_rows": 1, "max_decoded_body_size": 64 << 20}}
    with start_echo(tmp_path, change) as service:
        done = subprocess.run(
            [
                str(BIN / "ingero-echo"), "stress", "--protocol", "http", "--nodes", "32", "--events", "1000",
                "--batch", "1000", "--endpoint", f"127.0.0.1:{service.ports['otlp/http']}", "--api",
                service.url("api"), "--json",
            ],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        facts = json.loads(done.stdout)

        assert facts["retries"] > 0
        assert (facts["missing"], facts["doubled"], facts["failed"]) == (0, 0, 0)


def test_a_repeat_is_known_after_a_restart(tmp_path: Path) -> None:
    _, request = telemetry.numbered(500, cluster="again")
    for _ in range(2):
        with start_echo(tmp_path) as service:
            assert push(service, request).status_code == 200
            assert count(service) == 500


def test_export_writes_parquet_by_day_and_cluster(tmp_path: Path) -> None:
    with start_echo(tmp_path) as service:
        for cluster in ("a", "b/c"):
            push(service, telemetry.numbered(10, cluster=cluster)[1])
        scores: list[telemetry.Point] = [(metrics.HEALTH_SCORE, 0.5, {})]
        push(service, telemetry.gauges(scores, "a"), routes.OTLP_METRICS)
    database = str(tmp_path / "echo.duckdb")
    done = CliRunner().invoke(main, ["export", "--database", database, "--to", str(tmp_path / "out")])
    replay = CliRunner().invoke(
        main, ["export", "--database", database, "--to", str(tmp_path / "scores.parquet"), "--scores"]
    )

    assert (done.exit_code, replay.exit_code) == (0, 0), done.output + replay.output
    parts = sorted((tmp_path / "out/events").rglob("*.parquet"))
    assert [part.parent.name for part in parts] == ["cluster=a", "cluster=b%2Fc"]
    assert sum(pq.ParquetFile(part).metadata.num_rows for part in parts) == 21
    table = pq.ParquetFile(tmp_path / "scores.parquet").read()
    assert table.column_names == ["time", "cluster", "node", "cohort", "state", "score"]
    assert table["score"].to_pylist() == [0.5]


def test_ready_only_when_the_database_is_open(tmp_path: Path) -> None:
    with start_echo(tmp_path) as service:
        wait_until(lambda: web.get(service.url("api", echo.READY)).status_code == 200, "readiness")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ([], "tls is required"),
        (["--insecure", "--set", "api.endpoint=0.0.0.0:1"], "loopback"),
        (["--insecure", "--set", "ingest.grpc_endpoint=10.0.0.1:1"], "loopback"),
        (["--insecure", "--set", "retention.aeg=1d"], "retention.aeg: no such setting"),
        (["--insecure", "--set", "store.memory_limit_mb=1"], "store.memory_limit_mb:"),
        (["--set", "tls.cert_file=a", "--set", "tls.key_file=b"], "tokens_file is required"),
    ],
)
def test_settings_that_are_not_safe_are_refused(settings: list[str], words: str) -> None:
    result = CliRunner().invoke(main, ["validate", *settings])

    assert result.exit_code == 2
    assert words in result.output
