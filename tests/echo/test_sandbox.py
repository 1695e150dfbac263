"""Every published way out of a DuckDB sandbox, by name, against the function and against the real server."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingero_contract import attributes, echo
from ingero_echo import functions
from ingero_echo.errors import EchoApiError
from ingero_echo.query_runner import run_query
from ingero_echo.sandbox import check, sandbox_query
from ingero_echo.settings import QueryConfig, StoreConfig
from ingero_echo.store import Store
from ingero_echo.window import Window
from ingero_testing import telemetry
from ingero_testing.lakes import Shard, open_reader, table_config
from ingero_testing.processes import Running, echo_reader
from ingero_testing.processes import echo as start_echo
from ingero_testing.web import web

SECRET = "the-other-tenant"
FILE = "/etc/hostname"

WAYS_OUT = {
    "read_text": f"SELECT * FROM read_text('{FILE}')",
    "read_blob": f"SELECT * FROM read_blob('{FILE}')",
    "read_csv": f"SELECT * FROM read_csv('{FILE}')",
    "read_csv_auto": f"SELECT * FROM read_csv_auto('{FILE}')",
    "read_json": f"SELECT * FROM read_json('{FILE}')",
    "read_ndjson": f"SELECT * FROM read_ndjson('{FILE}')",
    "read_parquet": f"SELECT * FROM read_parquet('{FILE}')",
    "parquet_scan": f"SELECT * FROM parquet_scan('{FILE}')",
    "parquet_metadata": f"SELECT * FROM parquet_metadata('{FILE}')",
    "sniff_csv": f"SELECT * FROM sniff_csv('{FILE}')",
    "read_duckdb": f"SELECT * FROM read_duckdb('{FILE}')",
    "glob": "SELECT * FROM glob('/*')",
    "file as table": f"SELECT * FROM '{FILE}'",
    "url as table": "SELECT * FROM 'https://example.com/x.csv'",
    "file as quoted table": f'SELECT * FROM "{FILE}"',
    "copy to": "COPY events TO '/tmp/stolen.csv'",
    "copy from": f"COPY events FROM '{FILE}'",
    "export": "EXPORT DATABASE '/tmp/stolen'",
    "import": "IMPORT DATABASE '/tmp/stolen'",
    "attach file": "ATTACH '/tmp/other.duckdb' AS o",
    "attach memory": "ATTACH ':memory:' AS o",
    "detach": "DETACH memory",
    "use": "USE memory",
    "install": "INSTALL httpfs",
    "load": "LOAD httpfs",
    "set": "SET memory_limit = '100GB'",
    "set global": "SET GLOBAL threads = 64",
    "reset": "RESET memory_limit",
    "recursion": "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 5) SELECT sum(n) FROM t",
    "recursion inside": "SELECT (WITH RECURSIVE t AS (SELECT 1 AS n UNION SELECT n FROM t) SELECT max(n) FROM t)",
    "pragma": "PRAGMA database_list",
    "pragma version": "PRAGMA version",
    "call": "CALL pragma_version()",
    "vacuum": "VACUUM",
    "checkpoint": "CHECKPOINT",
    "analyze": "ANALYZE",
    "insert": "INSERT INTO events SELECT * FROM events",
    "insert returning": "INSERT INTO events SELECT * FROM events RETURNING *",
    "update": "UPDATE events SET node_id = 'x'",
    "delete": "DELETE FROM events",
    "merge": "MERGE INTO events USING events s ON false WHEN NOT MATCHED THEN INSERT *",
    "truncate": "TRUNCATE events",
    "drop": "DROP TABLE events",
    "create table": "CREATE TABLE t (i INTEGER)",
    "create temp table": "CREATE TEMP TABLE t AS SELECT 1",
    "create view": "CREATE VIEW v AS SELECT 1",
    "create macro": "CREATE MACRO m() AS TABLE SELECT * FROM events",
    "create secret": "CREATE SECRET s (TYPE s3)",
    "alter": "ALTER TABLE events ADD COLUMN x INTEGER",
    "prepare": "PREPARE p AS SELECT 1",
    "execute": "EXECUTE p",
    "begin": "BEGIN",
    "explain analyze": "EXPLAIN ANALYZE SELECT 1",
    "two statements": "SELECT 1; SELECT 2",
    "two statements, one hidden": "SELECT 1; /* x */ DROP TABLE events",
    "closing the parenthesis": "SELECT 1) UNION ALL (SELECT 1",
    "closing and commenting": "SELECT * FROM events) -- ",
    "comment across the end": "SELECT 1 /*",
    "settings function": "SELECT * FROM duckdb_settings()",
    "secrets function": "SELECT * FROM duckdb_secrets()",
    "databases function": "SELECT * FROM duckdb_databases()",
    "tables function": "SELECT * FROM duckdb_tables()",
    "logs function": "SELECT * FROM duckdb_logs()",
    "extensions function": "SELECT * FROM duckdb_extensions()",
    "temporary files function": "SELECT * FROM duckdb_temporary_files()",
    "pragma function": "SELECT * FROM pragma_database_size()",
    "storage info": "SELECT * FROM pragma_storage_info('events')",
    "current_setting": "SELECT current_setting('memory_limit')",
    "getenv": "SELECT getenv('HOME')",
    "getvariable": "SELECT getvariable('x')",
    "current_database": "SELECT current_database()",
    "current_catalog as column": "SELECT current_catalog",
    "type that cannot be shown: bits": "SELECT '101'::BIT",
    "type that cannot be shown: unsigned": "SELECT 1::UHUGEINT",
    "type that cannot be shown: zone": "SELECT '01:02:03+02'::TIMETZ",
    "session user as column": "SELECT session_user",
    "version": "SELECT version()",
    "system view": "SELECT * FROM duckdb_columns",
    "information_schema": "SELECT * FROM information_schema.tables",
    "pg_catalog": "SELECT * FROM pg_catalog.pg_tables",
    "sqlite_master": "SELECT * FROM sqlite_master",
    "query()": "SELECT * FROM query('SELECT 1')",
    "query_table()": "SELECT * FROM query_table('events')",
    "json_execute_serialized_sql": "SELECT * FROM json_execute_serialized_sql('{}')",
    "json_serialize_sql": "SELECT json_serialize_sql('SELECT 1')",
    "write_log": "SELECT write_log('x')",
    "sleep": "SELECT sleep_ms(100000)",
    "nextval": "SELECT nextval('s')",
    "setseed": "SELECT setseed(0.5)",
    "python scan": "SELECT * FROM pandas_scan(0)",
    "arrow scan": "SELECT * FROM arrow_scan(0, 0, 0)",
    "seq_scan": "SELECT * FROM seq_scan('events')",
    "qualified table": "SELECT * FROM main.events",
    "fully qualified table": "SELECT * FROM echo.main.events",
    "temp schema": "SELECT * FROM temp.main.events",
    "schema versions": "SELECT * FROM schema_versions",
    "registered rows": "SELECT * FROM rows",
    "qualified function": "SELECT main.abs(1)",
    "system function": "SELECT system.main.abs(1)",
    "function by method": "SELECT 'HOME'.getenv()",
    "in a subquery": f"SELECT (SELECT content FROM read_text('{FILE}'))",
    "in a lateral join": f"SELECT * FROM events, LATERAL (SELECT * FROM read_text('{FILE}'))",
    "in a union": f"SELECT 1 UNION ALL SELECT content FROM read_text('{FILE}')",
    "in WITH": f"WITH x AS (SELECT * FROM read_text('{FILE}')) SELECT * FROM x",
    "in WHERE": f"SELECT 1 WHERE EXISTS (SELECT * FROM glob('{FILE}'))",
    "in ORDER BY": f"SELECT 1 ORDER BY (SELECT count(*) FROM glob('{FILE}'))",
    "in LIMIT": f"SELECT 1 LIMIT (SELECT count(*) FROM glob('{FILE}'))",
    "in GROUP BY": f"SELECT 1 GROUP BY (SELECT count(*) FROM glob('{FILE}'))",
    "in HAVING": f"SELECT count(*) FROM events HAVING (SELECT count(*) FROM glob('{FILE}')) > 0",
    "in QUALIFY": f"SELECT 1 FROM events QUALIFY (SELECT count(*) FROM glob('{FILE}')) > 0",
    "in a join condition": f"SELECT 1 FROM events a JOIN events b ON (SELECT count(*) FROM glob('{FILE}')) > 0",
    "in VALUES": f"VALUES ((SELECT count(*) FROM glob('{FILE}')))",
    "in CASE": f"SELECT CASE WHEN true THEN (SELECT count(*) FROM glob('{FILE}')) END",
    "in a window": f"SELECT sum(1) OVER (ORDER BY (SELECT count(*) FROM glob('{FILE}')))",
    "in a filter": f"SELECT count(*) FILTER (WHERE (SELECT count(*) FROM glob('{FILE}')) > 0)",
    "in a lambda": "SELECT list_transform([1], lambda x: getenv('HOME'))",
    "in a struct": "SELECT {'a': getenv('HOME')}",
    "in REPLACE": "SELECT * REPLACE (getenv('HOME') AS node_id) FROM events",
    "in COLUMNS": "SELECT COLUMNS(c -> getenv(c) = 'x') FROM events",
    "in unnest": f"SELECT unnest((SELECT list(file) FROM glob('{FILE}')))",
    "name bound elsewhere": "SELECT * FROM pg_tables WHERE EXISTS (WITH pg_tables AS (SELECT 1) SELECT * FROM pg_tables)",  # noqa: E501
    "name bound by itself": "WITH pg_tables AS (SELECT * FROM pg_tables) SELECT * FROM pg_tables",
    "describe": "DESCRIBE events",
    "summarize": "SUMMARIZE events",
    "show": "SHOW ALL TABLES",
    "pivot": "PIVOT events ON node_id",
    "parameter": "SELECT $1",
    "user type": "SELECT 1::main.t",
    "array of a billion": "SELECT NULL::INTEGER[1000000000]",
    "repeat": "SELECT repeat('x', 2000000000)",
    "lpad": "SELECT lpad('x', 2000000000, 'y')",
    "range as value": "SELECT range(1000000000)",
    "list_resize": "SELECT list_resize([1], 1000000000)",
    "printf": "SELECT printf('%1000000000d', 1)",
    "format": "SELECT format('{:1000000000}', 1)",
    "bar": "SELECT bar(1, 0, 1, 1000000000)",
    "bitstring": "SELECT bitstring('1', 1000000000)",
    "deep parentheses of functions": "SELECT " + "abs(" * 400 + "1" + ")" * 400,
    "deep operators": "SELECT 1" + " + 1" * 400,
    "deep subqueries": "SELECT " + "(SELECT " * 80 + "1" + ")" * 80,
    "deep lists": "SELECT " + "[" * 400 + "1" + "]" * 400,
    "names that double": "WITH c0 AS NOT MATERIALIZED (SELECT 1 i), "
    + ", ".join(f"c{k} AS NOT MATERIALIZED (SELECT a.* FROM c{k - 1} a, c{k - 1} b)" for k in range(1, 24))
    + " SELECT count(*) FROM c23",
    "names that double inside": "SELECT (WITH a AS (SELECT 1 i), b AS ("
    + " UNION ALL ".join(["FROM a"] * 20)
    + "), c AS ("
    + " UNION ALL ".join(["FROM b"] * 20)
    + ") SELECT count(*) FROM c)",
    "too long": "SELECT " + "1+" * 10_000 + "1",
    "not SQL": "hello",
    "empty": "",
    "nul": "SELECT '\0'",
}

FINE = [
    "SELECT count(*) FROM events",
    "SELECT node_id, avg(value_double) FROM events GROUP BY node_id HAVING count(*) > 0 ORDER BY 2 DESC LIMIT 3",
    "WITH x AS (SELECT * FROM events) SELECT a.node_id FROM x a JOIN verdicts v USING (cluster_id, node_id)",
    "SELECT * FROM range(3) r(i), unnest([1, 2]) u(k)",
    "SELECT CASE WHEN rank IS NULL THEN 0 ELSE rank::BIGINT END FROM events -- a comment",
    "SELECT 1 /* a comment */ ;",
    "SELECT json_extract_string(attributes, '$.k'), attributes->>'$.k' FROM events",
    "SELECT row_number() OVER (PARTITION BY node_id ORDER BY timestamp) FROM events",
    "VALUES (1), (2)",
    "FROM events SELECT max(timestamp) - min(timestamp)",
    "SELECT * EXCLUDE (message) FROM events WHERE timestamp > now()::TIMESTAMP - INTERVAL 1 HOUR",
]


FILL = (
    "INSERT INTO events SELECT uuid(), now()::TIMESTAMP, now()::TIMESTAMP, 'logs', ?, 'n', 'm', i, NULL, NULL, "
    "NULL, NULL, '{\"k\": 1}', 1 FROM range(1000) r(i)"
)


@pytest.fixture(scope="module", params=["embedded", "reader"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A database, or the reader of one that is sealed."""
    folder = tmp_path_factory.mktemp("sandbox")
    if request.param == "embedded":
        opened = Store.open(StoreConfig(path=folder / "echo.duckdb"))
        for cluster in ("mine", SECRET):
            opened.connection.execute(FILL, [cluster])
        yield opened
        opened.close()
        return
    shard = Shard(folder / "echo.duckdb", table_config(folder / "lake"))
    for cluster in ("mine", SECRET):
        shard.store.connection.execute(FILL, [cluster])
    shard.seal()
    with open_reader(folder, table_config(folder / "lake"), {"0": shard}) as reader:
        yield reader.store
    shard.close()


def answer(store: Store, text: str, seconds: float = 5.0) -> list[list[Any]]:
    window = Window(clusters=frozenset({"mine"}))
    with store.pinned(window) as sources:
        sql = sandbox_query(text, window, store.cursor(), sources.tables)
        return run_query(store.cursor(), sql, {}, QueryConfig(timeout=seconds), 1000).lists()


@pytest.mark.parametrize("name", WAYS_OUT)
def test_no_way_out(store: Store, name: str) -> None:
    with pytest.raises(EchoApiError) as refused:
        sandbox_query(WAYS_OUT[name], Window(), store.cursor())

    assert refused.value.code == "sql_refused"
    assert str(refused.value)
    assert "serialized" not in str(refused.value) or "serialized" in WAYS_OUT[name]


@pytest.mark.parametrize("text", FINE)
def test_useful_queries_are_answered(store: Store, text: str) -> None:
    assert answer(store, text) is not None


TENANT = [
    "SELECT DISTINCT cluster_id FROM events",
    "WITH events AS (SELECT * FROM events) SELECT DISTINCT cluster_id FROM events",
    "WITH a AS (SELECT * FROM events), events AS (SELECT * FROM a) SELECT DISTINCT cluster_id FROM events",
    "SELECT DISTINCT x.cluster_id FROM (SELECT * FROM events) x",
    "SELECT DISTINCT cluster_id FROM events WHERE EXISTS (SELECT 1 FROM events e WHERE e.cluster_id <> 'mine') OR true",  # noqa: E501
    'SELECT cluster_id FROM events UNION SELECT cluster_id FROM EVENTS UNION SELECT cluster_id FROM "Events"',
    "SELECT DISTINCT e.cluster_id FROM verdicts v RIGHT JOIN events e ON true",
    "SELECT DISTINCT l.cluster_id FROM range(1) r, LATERAL (SELECT * FROM events) l",
    "SELECT DISTINCT (SELECT max(cluster_id) FROM events) FROM range(1)",
    "SELECT DISTINCT cluster_id FROM events POSITIONAL JOIN verdicts",
]


@pytest.mark.parametrize("text", TENANT)
def test_a_tenant_sees_its_own_rows_only(store: Store, text: str) -> None:
    try:
        found = {value for row in answer(store, text) for value in row}
    except EchoApiError as refused:
        found = {"mine"}
        assert refused.code in ("sql_refused", "bad_query")

    assert found == {"mine"}


ENDLESS = "SELECT count(*) FROM range(1000000000000) a WHERE a.range % 7 = -1"
"""Takes time and no memory."""


@pytest.mark.parametrize(
    "text",
    [
        ENDLESS,
        "SELECT count(*) FROM range(100000000) a, range(100000000) b WHERE a.range % 7 = b.range % 3",
        "SELECT string_agg(a.range::VARCHAR, '') FROM range(100000000) a, range(1000) b",
        "SELECT list(a.range) FROM range(100000000) a, range(1000) b",
        "SELECT * FROM range(100000000) a ORDER BY hash(a.range)",
        "SELECT count(*) FROM events a, events b, events c, events d, events e",
        "SELECT regexp_matches(string_agg(i::VARCHAR, 'a'), '(a+)+$') FROM range(100000000) r(i)",
        "SELECT count(DISTINCT (a.range, b.range)) FROM range(100000) a, range(100000) b",
    ],
)
def test_bombs_end_in_time_and_memory(store: Store, text: str) -> None:
    with pytest.raises(EchoApiError) as refused:
        answer(store, text, seconds=1.0)

    assert refused.value.code in ("timeout", "too_large", "bad_query")
    assert answer(store, "SELECT 1") == [[1]]


@pytest.mark.parametrize("seconds", [1e-6, 1e-4, 1e-3])
def test_a_time_that_is_over_before_the_query_has_begun_ends_it_all_the_same(store: Store, seconds: float) -> None:
    with pytest.raises(EchoApiError) as refused:
        answer(store, ENDLESS, seconds)

    assert refused.value.code == "timeout"


def test_a_time_that_is_over_between_two_rows_ends_the_query_in_words(store: Store) -> None:
    text = "SELECT i FROM range(1000000000000) t(i) WHERE i < 5000 OR i > 999999999999"
    with pytest.raises(EchoApiError) as refused:
        run_query(store.cursor(), sandbox_query(text, Window(), store.cursor()), {}, QueryConfig(timeout=0.3), 10_000)

    assert refused.value.code == "timeout"


@pytest.mark.parametrize("wrong", ["'x' || i", "CASE WHEN i < 5000 THEN '1' ELSE 'x' END"])
def test_a_row_that_cannot_be_made_is_the_askers_error(store: Store, wrong: str) -> None:
    text = f"SELECT CAST({wrong} AS BIGINT) FROM range(9000) t(i)"
    with pytest.raises(EchoApiError) as refused:
        run_query(store.cursor(), sandbox_query(text, Window(), store.cursor()), {}, QueryConfig(), 10_000)

    assert refused.value.code == "bad_query"
    assert "Could not convert" in str(refused.value)


def test_enormous_results_are_cut(store: Store) -> None:
    result = run_query(
        store.cursor(),
        sandbox_query("SELECT * FROM range(1000000000)", Window(), store.cursor()),
        {},
        QueryConfig(),
        100,
    )

    assert (len(result.lists()), result.truncated) == (100, True)


def test_what_the_tree_may_hold_is_pinned() -> None:
    known = duckdb.connect()
    kinds = "'scalar', 'aggregate', 'macro', 'window'"
    rows = known.execute(
        f"SELECT lower(function_name) FROM duckdb_functions() WHERE function_type IN ({kinds})"
    ).fetchall()
    built_in = {"coalesce", "ifnull", "==", "**", "struct_pack", "unnest", "<>", "->"}
    dangerous = {
        "getenv", "getvariable", "current_setting", "query", "nextval", "currval", "setseed", "sleep_ms", "pg_sleep",
        "write_log", "repeat", "lpad", "rpad", "range", "generate_series", "printf", "format", "list_resize",
        "array_resize", "bitstring", "bar", "json_serialize_sql", "json_deserialize_sql", "json_execute_serialized_sql",  # noqa: E501
        "version", "current_database", "current_schema", "current_query", "txid_current", "stats", "in_search_path",
    }  # fmt: skip

    assert {row[0] for row in rows} | built_in >= functions.FUNCTIONS
    assert not dangerous & functions.FUNCTIONS
    assert not {"list_aggregate", "list_aggr", "aggregate", "invoke", "apply", "reduce"} & functions.FUNCTIONS


# The grammar, fuzzed: whatever comes through must neither write, nor read outside, nor show another tenant's row.

NAMES = st.sampled_from(
    ["events", "verdicts", "main.events", "echo.main.events", "x", "pg_tables", f"'{FILE}'", "duckdb_settings()", "rows",  # noqa: E501
     f"read_text('{FILE}')", "query('SELECT 1')", "query_table('events')", "range(3)", "(VALUES (1)) v(cluster_id)"]
)  # fmt: skip
ITEMS = st.sampled_from(
    ["*", "cluster_id", "count(*)", "max(cluster_id)", "getenv('HOME')", "current_setting('threads')", "current_database()",  # noqa: E501
     "(SELECT max(cluster_id) FROM main.events)", "(SELECT max(cluster_id) FROM events)", "COLUMNS(*)", "1"]
)  # fmt: skip
SELECTS = st.recursive(
    st.builds(lambda item, name: f"SELECT {item} FROM {name}", ITEMS, NAMES),
    lambda inner: st.one_of(
        st.builds(lambda a, b: f"SELECT * FROM ({a}) q, ({b}) r", inner, inner),
        st.builds(lambda a, b: f"({a}) UNION ALL ({b})", inner, inner),
        st.builds(
            lambda n, a, b: f"WITH {n} AS ({a}) {b}", st.sampled_from(["x", "events", "pg_tables"]), inner, inner
        ),
        st.builds(lambda a, b: f"{a} WHERE EXISTS ({b})", inner, inner),
        st.builds(lambda a: f"{a} ORDER BY 1 LIMIT 5", inner),
        st.builds(
            lambda a, tail: a + tail,
            inner,
            st.sampled_from([";", "; SELECT 1", ") --", " -- x", "/*", ") q, (SELECT 1"]),
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=400)
@given(SELECTS)
def test_fuzzed_queries_stay_inside(store: Store, text: str) -> None:
    before = store.connection.execute("SELECT count(*) FROM events").fetchone()
    try:
        found = answer(store, text, seconds=2.0)
    except EchoApiError:
        found = []

    assert SECRET not in str(found)
    assert Path(FILE).read_text().strip() not in {value for row in found for value in row if isinstance(value, str)}
    assert store.connection.execute("SELECT count(*) FROM events").fetchone() == before


@settings(max_examples=300)
@given(st.text(max_size=60))
def test_any_text_is_refused_or_harmless(store: Store, text: str) -> None:
    try:
        check(text, store.cursor())
    except EchoApiError as refused:
        assert refused.code == "sql_refused"


# Against the real server.


@pytest.fixture(scope="module", params=["embedded", "reader"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """An Echo, or the reader of one that seals."""
    folder = tmp_path_factory.mktemp("echo")
    (folder / "tokens").write_text("all name=all\ntenant clusters=mine\n")
    change: dict[str, Any] = {
        "auth": {"tokens_file": str(folder / "tokens")}, "api": {"sql_for_tenants": True}, "query": {"timeout": "1s"},
    }  # fmt: skip
    if request.param == "reader":
        change["table"] = table_config(folder / "lake", every=0.1).model_dump(mode="json", exclude_none=True)
    with start_echo(folder, change) as running, ExitStack() as more:
        for cluster in ("mine", SECRET):
            message = telemetry.logs([("e", "", {attributes.JOB_ID: "j"})], cluster)
            answered = web.post(
                running.url("otlp/http", "/v1/logs"), content=message.SerializeToString(),
                headers={"content-type": "application/x-protobuf", "authorization": "Bearer all"},
            )  # fmt: skip
            assert answered.status_code == 200
        if request.param == "reader":
            (folder / "token").write_text("all\n")
            read = {"shards": {"0": running.url("api")}, "token_file": str(folder / "token")}
            running = more.enter_context(echo_reader(folder / "reader", {**change, "read": read}))
        yield running


def ask(service: Running, text: str, token: str = "tenant") -> httpx.Response:
    return web.post(service.url("api", echo.SQL), json={"sql": text}, headers={"authorization": f"Bearer {token}"})


def test_the_server_refuses_every_way_out(service: Running) -> None:
    for name, text in WAYS_OUT.items():
        answered = ask(service, text)

        assert answered.status_code == 422, name
        assert set(answered.json()) == {"code", "message", "hint", "request_id"}
    assert ask(service, "SELECT count(*) FROM events", "all").json()["rows"] == [[2]]


def test_the_server_shows_a_tenant_its_own_rows(service: Running) -> None:
    for text in TENANT:
        answered = ask(service, text)

        assert SECRET not in answered.text
    assert ask(service, "SELECT cluster_id FROM events").json()["rows"] == [["mine"]]
