"""Readers of shared tables: the writer's answers, each row once at any moment, and what is missing is said."""

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ingero_contract import echo, routes
from ingero_echo.auth import ANONYMOUS
from ingero_echo.errors import EchoApiError, UserError
from ingero_echo.lake.file_cache import FileCache
from ingero_echo.lake.tail import read_page, tail_page
from ingero_echo.lake.view import LakeFile
from ingero_echo.query_service import ANALYSIS, DESCRIBE, TOOLS, QueryService
from ingero_echo.settings import EchoConfig
from ingero_echo.store import Store
from ingero_echo.window import Window
from ingero_testing import telemetry
from ingero_testing.lakes import OpenReader, Shard, open_reader, table_config
from ingero_testing.mcp_client import call
from ingero_testing.processes import Running, echo_reader, unready_reader, wait_until
from ingero_testing.processes import echo as start_echo
from ingero_testing.web import web

IDS = "SELECT event_id FROM events"


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Shard]:
    made = Shard(tmp_path / "e.duckdb", table_config(tmp_path / "lake", keep=3600.0))
    yield made
    made.close()


@pytest.fixture
def reader(tmp_path: Path, shard: Shard) -> Iterator[OpenReader]:
    """Follows when a test says so: a writer that is not heard of meanwhile is not missing."""
    with open_reader(tmp_path, table_config(tmp_path / "lake"), {"0": shard}, missing_after=3600.0) as opened:
        yield opened


def asked(store: Store, config: EchoConfig, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    patient = config.query.model_copy(update={"timeout": 120.0})
    service = QueryService(config.model_copy(update={"query": patient}), lambda: store)
    try:
        return asyncio.run(service.call(ANONYMOUS, tool, arguments)).body
    finally:
        service.close()


def rows(store: Store, sql: str = IDS) -> list[Any]:
    """The result of a query over what the store reads, without the sandbox."""
    with store.pinned(Window()) as sources:
        text = " ".join(f"{name} AS (FROM {source})," for name, source in sources.tables.items())
        found = store.cursor().execute(f"WITH {text} last AS (SELECT 1) {sql}" if text else sql).fetchall()
    return [row[0] if len(row) == 1 else row for row in found]


def fill(shard: Shard, nodes: int = 3) -> None:
    for number in range(nodes):
        shard.put(telemetry.verdict(f"n{number}", "straggler"))
        shard.put(telemetry.numbered(4, node=f"n{number}")[1])


def test_every_question_has_the_same_rows_sealed_or_not(shard: Shard, reader: OpenReader) -> None:
    fill(shard)
    shard.seal()
    fill(shard)
    reader.follow()
    embedded = EchoConfig(insecure=True, store=shard.store.config)
    needs = {"node_id": "n1", "cluster_id": "c"}

    for tool, described in TOOLS.items():
        if tool in (ANALYSIS, DESCRIBE):
            continue
        known, required = described.input_schema["properties"], described.input_schema.get("required", ())
        for since in {"all", "1h"} if "since" in known else {""}:
            given = {name: needs[name] for name in required if name in needs} | ({"since": since} if since else {})
            if {*required} - {*given}:
                continue
            mine, theirs = (
                asked(store, config, tool, given)
                for store, config in ((shard.store, embedded), (reader.store, reader.config))
            )
            assert theirs["rows"] == mine["rows"], tool
            assert theirs["missing"] == []
    everything = {"sql": "SELECT * FROM events ORDER BY ALL"}
    mine, theirs = (
        asked(store, config, ANALYSIS, everything)
        for store, config in ((shard.store, embedded), (reader.store, reader.config))
    )
    assert (theirs["columns"], theirs["rows"]) == (mine["columns"], mine["rows"])
    assert theirs["row_count"] == 30
    assert theirs["as_of"]["0"] > "2026"


def test_a_reader_sees_each_row_once_in_every_order_of_seals_and_polls(tmp_path: Path) -> None:
    dice, tables = random.Random(3), table_config(tmp_path / "lake", max_rows=7)
    shard = Shard(tmp_path / "e.duckdb", tables)
    written: set[str] = set()
    with open_reader(tmp_path, tables, {"0": shard}) as reader:
        seen = 0
        for _ in range(60):
            match dice.randrange(4):
                case 0:
                    ids, message = telemetry.numbered(dice.randrange(1, 9))
                    shard.put(message)
                    written |= {*ids}
                case 1:
                    shard.sealer.seal()
                case 2:
                    reader.lake.refresh()
                case _:
                    reader.lake.poll("0")
            found = [str(one) for one in rows(reader.store)]
            assert len(found) == len({*found}), "a row is there twice"
            assert {*found} <= written
            assert len(found) >= seen or not found, "rows that were there are gone"
            seen = len(found)
        reader.follow()
        reader.follow()
        assert {str(one) for one in rows(reader.store)} == written
    shard.close()


def test_a_reader_that_was_overtaken_begins_anew_and_is_whole(tmp_path: Path) -> None:
    tables = table_config(tmp_path / "lake", max_rows=5)
    shard = Shard(tmp_path / "e.duckdb", tables)
    shard.put(telemetry.numbered(5)[1])
    with open_reader(tmp_path, tables, {"0": shard}) as reader:
        for _ in range(3):
            shard.put(telemetry.numbered(5)[1])
            shard.seal()
        during = rows(reader.store)
        reader.lake.poll("0")
        reader.follow()

        assert len(during) == 5
        assert len({*rows(reader.store)}) == len(rows(reader.store)) == 20
    shard.close()


def test_a_question_that_lost_rows_on_the_way_is_refused(shard: Shard, reader: OpenReader) -> None:
    with pytest.raises(EchoApiError, match="replaced"), reader.store.pinned(Window()):
        reader.lake._drop(reader.lake._writers["0"])


def test_a_writer_that_does_not_answer_is_named_and_sealed_rows_stay(tmp_path: Path, shard: Shard) -> None:
    fill(shard)
    shard.seal()
    fill(shard)
    tables = table_config(tmp_path / "lake")
    with open_reader(tmp_path, tables, {}) as reader:
        reader.lake.refresh()
        body = asked(reader.store, reader.config, echo.TOOL_PREFIX + "summary", {"since": "all"})

    assert body["missing"] == ["0"]
    assert body["summary"].endswith("The newest events of 0 are missing.")
    assert sum(row["events"] for row in body["rows"]) == 15
    assert body["as_of"]["0"] > "2026"


def test_rows_that_are_sealed_are_dropped_once_no_question_needs_them(shard: Shard, reader: OpenReader) -> None:
    fill(shard)
    reader.follow()
    shard.seal()
    reader.follow()
    held = "SELECT count(*) FROM unsealed0.events"
    before = reader.store.cursor().execute(held).fetchall()
    reader.lake._grace = -1.0
    reader.follow()

    assert (before, reader.store.cursor().execute(held).fetchall()) == ([(15,)], [(0,)])
    assert len(rows(reader.store)) == 15


def test_while_the_storage_is_away_a_reader_has_every_row_of_before_and_after(
    tmp_path: Path, shard: Shard, reader: OpenReader
) -> None:
    for _ in range(2):
        fill(shard)
        shard.seal()
        reader.follow()
    fill(shard)
    shard.seal()
    away = tmp_path / "away"
    (tmp_path / "lake").rename(away)
    with pytest.raises((UserError, OSError)):
        reader.lake.refresh()
    fill(shard)
    while reader.lake.poll("0"):
        pass
    during = rows(reader.store)
    away.rename(tmp_path / "lake")
    reader.follow()

    assert len(during) == len(set(during)) == 4 * 15
    assert sorted(rows(reader.store)) == sorted(during)


def test_a_version_whose_added_files_cannot_be_read_is_not_used(
    monkeypatch: pytest.MonkeyPatch, shard: Shard, reader: OpenReader
) -> None:
    fill(shard)
    reader.follow()
    shard.seal()

    def refused(*_: Any) -> None:
        raise UserError("the storage is away")

    monkeypatch.setattr(reader.lake._lake, "fetch", refused)
    with pytest.raises(EchoApiError, match="storage is away"):
        reader.lake.refresh()

    assert len(rows(reader.store)) == 15


def test_files_without_rows_of_the_clusters_of_a_question_are_not_read(tmp_path: Path) -> None:
    tables = table_config(tmp_path / "lake")
    shard = Shard(tmp_path / "e.duckdb", tables)
    for cluster in ("a", "m" * 40, "z"):
        shard.put(telemetry.verdict("n1", "straggler", cluster=cluster))
        shard.seal()
    with open_reader(tmp_path, tables, {"0": shard}) as reader:
        counted = {}
        for cluster in ("a", "m" * 40, "z", "none"):
            before = reader.lake.cache.fetched
            with reader.store.pinned(Window(clusters=frozenset({cluster}))) as sources:
                sql = f"SELECT count(*) FROM {sources.tables['verdicts']} WHERE cluster_id = '{cluster}'"
                found = reader.store.cursor().execute(sql).fetchall()[0][0]
            counted[cluster] = (found, reader.lake.cache.fetched - before)
    shard.close()

    assert {cluster: found for cluster, (found, _) in counted.items()} == {"a": 1, "m" * 40: 1, "z": 1, "none": 0}
    assert counted["none"][1] == 0
    assert counted["a"][1] == counted["m" * 40][1] == counted["z"][1] > 0


def test_a_reader_that_is_not_ready_says_what_is_missing(tmp_path: Path, shard: Shard) -> None:
    with open_reader(tmp_path, table_config(tmp_path / "lake"), {"0": shard}) as opened:
        ready = opened.lake.unready()
        opened.lake._writers["0"].asked = False
        waiting = opened.lake.unready()
        opened.lake._pins.clear()
        unread = opened.lake.unready()

    assert ready is None
    assert waiting and (str(waiting), "read.shards" in waiting.hint) == ("not heard of yet: 0", True)
    assert unread and (str(unread), "table.catalog" in unread.hint) == ("the shared tables were not read yet", True)


def test_a_page_ends_with_a_transaction_and_says_whether_there_are_more(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingero_echo.lake.tail.PAGE_ROWS", 6)
    for size in (4, 2, 3):
        shard.put(telemetry.numbered(size)[1])

    first = read_page(tail_page(shard.store, -1))
    second = read_page(tail_page(shard.store, first.through))
    third = read_page(tail_page(shard.store, second.through))

    assert [(page.through, page.complete, page.tables["events"].num_rows) for page in (first, second, third)] == [
        (2, False, 6), (3, True, 3), (3, True, 0),
    ]  # fmt: skip
    with pytest.raises(UserError, match="not a page"):
        read_page(b"<html>")


# The cache.


def files(*sizes: int) -> list[tuple[str, LakeFile]]:
    return [("events", LakeFile(f"s3://b/{number}", size, 1)) for number, size in enumerate(sizes)]


def write(table: str, file: LakeFile, target: Path) -> None:
    target.write_bytes(b"x" * file.size)


def test_the_cache_is_bounded_and_forgets_what_was_used_longest_ago(tmp_path: Path) -> None:
    cache = FileCache(tmp_path / "c", 100, write)
    a, b, c = files(40, 40, 40)
    for group in ([a], [b], [a], [c], [a]):
        with cache.using(group) as paths:
            assert [path.stat().st_size for path in paths.values()] == [40]

    assert (cache.fetched, cache.hits, cache.bytes) == (3, 2, 80)
    with pytest.raises(EchoApiError, match="data files"), cache.using([a, b, c]):
        pass
    with cache.using([a, c]), pytest.raises(EchoApiError, match="whole cache"), cache.using([b]):
        pass
    with cache.using([b]):
        assert len([*(tmp_path / "c").iterdir()]) == 2


def test_a_cached_file_that_was_cut_is_fetched_again_and_one_with_another_length_is_refused(tmp_path: Path) -> None:
    cache = FileCache(tmp_path / "c", 100, write)
    (file,) = files(40)
    with cache.using([file]) as paths:
        (path,) = paths.values()
    path.write_bytes(b"")
    with cache.using([file]):
        assert path.stat().st_size == 40

    short = FileCache(tmp_path / "d", 100, lambda table, file, target: write(table, LakeFile("", 3, 1), target))
    with pytest.raises(EchoApiError, match="3 bytes instead of 40"), short.using([file]):
        pass


def test_a_question_does_not_wait_for_a_storage_that_hangs_and_finds_its_file_there_later(tmp_path: Path) -> None:
    goes_on = threading.Event()

    def fetch(table: str, file: LakeFile, target: Path) -> None:
        assert goes_on.wait(60)
        write(table, file, target)

    cache = FileCache(tmp_path / "c", 100, fetch, patience=0.05)
    late, other = files(60, 60)
    with pytest.raises(EchoApiError, match="1 of its 1 data files are still being copied"), cache.using([late]):
        pass
    with pytest.raises(EchoApiError, match="whole cache"), cache.using([other]):
        pass  # what is being copied keeps its room
    goes_on.set()
    wait_until(lambda: any((tmp_path / "c").glob("*.parquet")), "the file")
    with cache.using([late]) as paths:
        assert [path.stat().st_size for path in paths.values()] == [60]
    assert cache.fetched == 1


def test_a_cache_is_emptied_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "left.parquet").write_bytes(b"x")
    FileCache(tmp_path / "c", 100, write)
    assert [*(tmp_path / "c").iterdir()] == []


# Real processes.


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Running]]:
    """A writer with events of two clusters, some sealed, and a reader of it."""
    folder = tmp_path_factory.mktemp("pair")
    tokens = folder / "tokens"
    tokens.write_text("all name=all\ntenant name=tenant clusters=mine\nsender name=sender scopes=ingest\n")
    (folder / "token").write_text("all\n")
    table = table_config(folder / "lake", every=0.2).model_dump(mode="json", exclude_none=True)
    common = {"table": table, "auth": {"tokens_file": str(tokens)}, "api": {"sql_for_tenants": True}}
    with start_echo(folder / "writer", common) as writer:
        page, sealed = writer.url("api", echo.METRICS_PAGE), "ingero_echo_sealed_events_total 10.0"
        push_both(writer)
        wait_until(lambda: sealed in web.get(page, headers=bearer("all")).text, "the seal")
        push_both(writer)
        read = {"shards": {"0": writer.url("api")}, "token_file": str(folder / "token"), "every": "200ms"}
        with echo_reader(folder / "reader", {**common, "read": read}) as reader:
            yield writer, reader


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def push_both(service: Running) -> None:
    for cluster in ("mine", "secret"):
        push(service, telemetry.numbered(5, cluster=cluster)[1])


def push(service: Running, message: Any) -> None:
    headers = {"content-type": "application/x-protobuf", **bearer("all")}
    answered = web.post(
        service.url("otlp/http", routes.OTLP_LOGS), content=message.SerializeToString(), headers=headers
    )
    assert answered.status_code == 200


def count(service: Running, token: str = "all") -> Any:
    sql = {"sql": "SELECT cluster_id, count(*), count(DISTINCT event_id) FROM events GROUP BY ALL ORDER BY ALL"}
    answered = web.post(service.url("api", echo.SQL), json=sql, headers=bearer(token))
    assert answered.status_code == 200, answered.text
    return answered.json()


def test_a_reader_is_ready_once_the_catalog_answers(tmp_path: Path) -> None:
    table = table_config(tmp_path / "lake").model_dump(mode="json", exclude_none=True)
    table["catalog"]["uri"] = f"sqlite:///{tmp_path}/later/catalog.db"
    with unready_reader(tmp_path / "reader", {"table": table, "read": {"every": "200ms"}}) as reader:
        url = reader.url("api", echo.READY)
        refused = web.get(url)
        live = web.get(reader.url("api", echo.LIVE))
        (tmp_path / "later").mkdir()
        wait_until(lambda: web.get(url).status_code == 200, "readiness")

    assert (refused.status_code, live.status_code) == (503, 200)
    assert "not read yet" in refused.text


def test_a_reader_answers_over_http_sql_and_mcp(pair: tuple[Running, Running]) -> None:
    _, reader = pair
    wait_until(lambda: count(reader)["rows"] == [["mine", 10, 10], ["secret", 10, 10]], "all rows")

    assert count(reader)["missing"] == []
    url = reader.url("api", echo.TOOLS + echo.TOOL_PREFIX + "summary")
    summary = web.post(url, json={}, headers=bearer("all")).json()
    assert sum(row["events"] for row in summary["rows"]) == 20
    result = call(reader.url("api", echo.MCP), (echo.TOOL_PREFIX + "summary", {}), token="all")[0]
    assert result.structured_content["as_of"]["0"] > "2026"
    arrow = web.post(
        reader.url("api", echo.SQL), json={"sql": "SELECT 1"},
        headers={**bearer("all"), "accept": "application/vnd.apache.arrow.stream"},
    )  # fmt: skip
    assert arrow.headers["x-missing"] == ""


def test_a_reader_shows_tenants_their_own_rows(pair: tuple[Running, Running]) -> None:
    _, reader = pair
    wait_until(lambda: count(reader, "tenant")["rows"] == [["mine", 10, 10]], "the tenant's rows")
    summary = web.post(
        reader.url("api", echo.TOOLS + echo.TOOL_PREFIX + "summary"), json={}, headers=bearer("tenant")
    )
    assert "secret" not in summary.text


@pytest.mark.parametrize("sql", ["FROM unsealed0.events", "FROM main.events", "FROM read_parquet('/etc/passwd')"])
def test_a_reader_has_no_other_tables(pair: tuple[Running, Running], sql: str) -> None:
    refused = web.post(pair[1].url("api", echo.SQL), json={"sql": f"SELECT * {sql}"}, headers=bearer("all"))
    assert (refused.status_code, refused.json()["code"]) == (422, "sql_refused")


def test_the_tail_is_for_readers_of_all_clusters_only(pair: tuple[Running, Running]) -> None:
    url = pair[0].url("api", echo.TAIL + "?after=-1")
    assert [web.get(url, headers=bearer(token)).status_code for token in ("tenant", "sender", "?")] == [403, 403, 401]
    assert web.get(url, headers=bearer("all")).status_code in (200, 410)


def test_a_writer_that_ends_is_missing_and_what_is_here_is_still_answered(pair: tuple[Running, Running]) -> None:
    writer, reader = pair
    wait_until(lambda: sum(row[1] for row in count(reader)["rows"]) == 20, "all rows")
    writer.process.kill()
    writer.process.wait()

    wait_until(lambda: count(reader)["missing"] == ["0"], "the writer to be missing")

    assert count(reader)["rows"] == [["mine", 10, 10], ["secret", 10, 10]]


def test_two_writers_are_answered_as_one_and_a_missing_one_is_named(tmp_path: Path) -> None:
    """Cluster a moves from the first writer to the second one, as when a shard is added."""
    tokens = tmp_path / "tokens"
    tokens.write_text("all name=all\n")
    with ExitStack() as stack:
        common, writers = {"auth": {"tokens_file": str(tokens)}}, []
        for shard, every in (("0", 0.2), ("1", 3600.0)):  # the second one seals once, before anything has arrived
            table = table_config(tmp_path / "lake", shard=shard, every=every).model_dump(
                mode="json", exclude_none=True
            )
            writers.append(stack.enter_context(start_echo(tmp_path / shard, {**common, "table": table})))
        first, second = writers
        push(first, telemetry.numbered(5, cluster="a")[1])
        push(first, telemetry.verdict("n1", "straggler", "a"))
        page, sealed = first.url("api", echo.METRICS_PAGE), "ingero_echo_sealed_events_total 6.0"
        wait_until(lambda: sealed in web.get(page, headers=bearer("all")).text, "the seal")
        push(second, telemetry.numbered(5, cluster="a")[1])
        push(second, telemetry.numbered(7, cluster="b")[1])
        push(second, telemetry.verdict("n2", "straggler", "b"))
        shards = {str(number): writer.url("api") for number, writer in enumerate(writers)}
        read = {"shards": shards, "token_file": str(tokens), "every": "200ms", "missing_after": "1s"}
        reader = stack.enter_context(echo_reader(tmp_path / "reader", {**common, "table": table, "read": read}))
        wait_until(lambda: count(reader)["rows"] == [["a", 11, 11], ["b", 8, 8]], "the rows of both")

        named = {row["node_id"] for row in whole_answer(reader, "find_stragglers")["rows"]}
        summary = whole_answer(reader, "summary")
        second.process.kill()
        second.process.wait()
        wait_until(lambda: count(reader)["missing"] == ["1"], "the writer to be missing")

    assert named == {"n1", "n2"} and set(summary["as_of"]) == {"0", "1"}
    assert {row["cluster_id"]: row["events"] for row in summary["rows"]} == {"a": 11, "b": 8}


def whole_answer(reader: Running, tool: str) -> Any:
    """An answer in which no writer is missing: on a busy machine one may be for a moment."""
    answers: list[Any] = []

    def whole() -> bool:
        answers.append(ask(reader, tool))
        return answers[-1]["missing"] == []

    wait_until(whole, "an answer without a missing writer")
    return answers[-1]


def ask(service: Running, tool: str) -> Any:
    answered = web.post(service.url("api", echo.TOOLS + echo.TOOL_PREFIX + tool), json={}, headers=bearer("all"))
    assert answered.status_code == 200, answered.text
    return answered.json()
