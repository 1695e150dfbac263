"""What stands before the questions: wrong tokens, strange pages, greedy clients, values that no format holds."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from click.testing import CliRunner

from ingero_contract import echo, routes
from ingero_echo.auth import MAX_BUCKETS, Callers, RateLimit
from ingero_echo.backups import compact
from ingero_echo.cli import main
from ingero_echo.errors import EchoApiError
from ingero_echo.json_api import make_api
from ingero_echo.mcp_tools import compact_schema
from ingero_echo.middleware import (
    CHUNK_BYTES,
    MAX_UNREAD_BYTES,
    WRONG_TOKENS_AT_ONCE,
    AuditLog,
    AuthMiddleware,
    UnreadResponses,
)
from ingero_echo.query_service import TOOLS
from ingero_echo.settings import StoreConfig
from ingero_echo.store import Store
from ingero_echo.stress import Plan
from ingero_echo.stress import run as run_stress
from ingero_testing import telemetry
from ingero_testing.processes import Running
from ingero_testing.processes import echo as start_echo
from ingero_testing.web import web

MCP = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
Answer = tuple[int, dict[str, str], str]


@contextmanager
def answering(*answers: Answer) -> Iterator[str]:
    """The address of a server that gives these answers (status, headers, body) in turn, the last one for ever."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body.encode())

        do_POST = do_GET

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


HELLO = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}  # fmt: skip


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with start_echo(tmp_path_factory.mktemp("open")) as running:
        answered = web.post(
            running.url("otlp/http", routes.OTLP_LOGS),
            content=telemetry.logs([("note", "", {})], "yes", "4").SerializeToString(),
            headers={"content-type": "application/x-protobuf"},
        )
        assert answered.status_code == 200
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "tokens").write_text("right name=right\nother name=other\n")
    change = {
        "auth": {"tokens_file": str(folder / "tokens"), "audit_file": str(folder / "audit.jsonl")},
        "api": {"mcp_sessions": 16},
    }
    with start_echo(folder, change) as running:
        yield running


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def sql(service: Running, text: str, accept: str = "application/json") -> httpx.Response:
    return web.post(service.url("api", echo.SQL), json={"sql": text}, headers={"accept": accept})


# Who comes in.


def test_wrong_tokens_leave_lines_and_meet_a_limit_that_right_ones_do_not(guarded: Running) -> None:
    url = guarded.url("api", echo.WHOAMI)
    wrong = [web.get(url, headers=bearer("wrong-one")).status_code for _ in range(WRONG_TOKENS_AT_ONCE + 30)]
    right = web.get(url, headers=bearer("right"))
    lines = [json.loads(line) for line in (guarded.log.parent / "audit.jsonl").read_text().splitlines()]
    failed = [line for line in lines if line["status"] == 401]

    assert wrong[:WRONG_TOKENS_AT_ONCE] == [401] * WRONG_TOKENS_AT_ONCE
    assert 429 in wrong
    assert right.status_code == 200
    assert WRONG_TOKENS_AT_ONCE <= len(failed) < len(wrong)
    assert {(line["name"], len(line["token_sha256"]), line["source"]) for line in failed} == {(None, 64, "127.0.0.1")}
    assert "wrong-one" not in (guarded.log.parent / "audit.jsonl").read_text()


def test_a_rate_limit_forgets_who_asked_longest_ago() -> None:
    limit = RateLimit(1.0, 1, clock=lambda: 0.0)
    for number in range(MAX_BUCKETS + 1):
        assert limit.wait(str(number)) == 0

    assert limit.wait(str(MAX_BUCKETS)) > 0
    assert limit.wait("0") == 0


@pytest.mark.parametrize("path", [echo.MCP, echo.SQL, echo.HEALTH])
@pytest.mark.parametrize("origin", ["https://evil.example", "http://evil.example:80", "null"])
def test_without_tokens_no_page_of_another_host_may_ask(service: Running, path: str, origin: str) -> None:
    answered = web.request(
        "GET" if path == echo.HEALTH else "POST", service.url("api", path), json=HELLO,
        headers={**MCP, "origin": origin},
    )  # fmt: skip

    assert answered.status_code == 403
    assert web.get(service.url("api", echo.HEALTH), headers={"origin": "http://localhost:3000"}).status_code == 200


@pytest.mark.parametrize("strange", [{"host": "evil.example"}, {"origin": "https://evil.example"}])
def test_without_tokens_no_page_of_another_host_may_push(service: Running, strange: dict[str, str]) -> None:
    url, headers = service.url("otlp/http", routes.OTLP_LOGS), {"content-type": "application/json"}

    assert web.post(url, content=b"{}", headers={**headers, **strange}).status_code == 403
    assert web.post(url, content=b"{}", headers=headers).status_code == 200


def test_what_echo_writes_is_for_nobody_else(tmp_path: Path) -> None:
    old = tmp_path / "echo.duckdb"
    Store.open(StoreConfig(path=old)).close()
    old.chmod(0o644)
    (tmp_path / "tokens").write_text("right scopes=backup\n")
    change = {
        "auth": {"tokens_file": str(tmp_path / "tokens"), "audit_file": str(tmp_path / "audit.jsonl")},
        "store": {"backup_folder": str(tmp_path / "backups")},
    }
    with start_echo(tmp_path, change) as service:
        answered = web.post(service.url("api", echo.BACKUPS), headers=bearer("right"))
        written = [*tmp_path.glob("echo.duckdb*"), tmp_path / "audit.jsonl", *(tmp_path / "backups").iterdir()]

        assert answered.status_code == 200, answered.text
        assert {oct(file.stat().st_mode & 0o777) for file in written} <= {"0o600", "0o700"}


# Who takes much.


def test_who_does_not_read_gets_no_further_answers() -> None:
    async def play() -> None:
        unread, reading, sent = UnreadResponses(), asyncio.Event(), []

        async def send(message: Any) -> None:
            sent.append(message)
            await reading.wait()

        body = {"type": "http.response.body", "body": b"x" * (MAX_UNREAD_BYTES // 2 + 1)}
        waiting = [asyncio.create_task(unread.send("greedy", body, send)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(EchoApiError) as refused:
            unread.check("greedy")
        unread.check("other")
        assert [len(message["body"]) for message in sent] == [CHUNK_BYTES, CHUNK_BYTES]
        reading.set()
        await asyncio.gather(*waiting)
        unread.check("greedy")

        assert refused.value.status == 429
        assert sum(len(message["body"]) for message in sent) == 2 * len(body["body"])
        assert [message["more_body"] for message in sent].count(False) == 2

    asyncio.run(play())


def test_sessions_of_one_token_lock_nobody_out(guarded: Running) -> None:
    url = guarded.url("api", echo.MCP)

    def hello(token: str) -> str:
        answered = web.post(url, json=HELLO, headers={**MCP, **bearer(token)})
        assert answered.status_code == 200, answered.text
        return answered.headers["mcp-session-id"]

    def usable(token: str, session: str) -> int:
        ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        return web.post(url, json=ready, headers={**MCP, **bearer(token), "mcp-session-id": session}).status_code

    first = hello("other")
    many = [hello("right") for _ in range(20)]

    assert usable("other", first) == 202
    assert [usable("right", session) for session in many[:-2]] == [404] * 18
    assert [usable("right", session) for session in many[-2:]] == [202] * 2


# What has no place in a format.


@pytest.mark.parametrize(
    ("text", "accept", "status"),
    [
        ("SELECT " + "abs(" * 700 + "1" + ")" * 700, "application/json", 422),
        ("SELECT DATE '20000-01-01'", "application/json", 422),
        ("SELECT TIMESTAMP '20000-01-01'", "application/json", 422),
        ("SELECT 'infinity'::TIMESTAMP, 'infinity'::DATE", "application/json", 422),
        ("SELECT [DATE '20000-01-01']", "text/csv", 422),
        ("SELECT DATE '20000-01-01'", "text/csv", 422),
        ("SELECT 'infinity'::DOUBLE, 'nan'::DOUBLE", "application/json", 200),
        ("SELECT 'ab'::BLOB, uuid(), INTERVAL 1 DAY, TIME '24:00:00', 1.5::DECIMAL(9, 2)", "text/csv", None),
        ("SELECT 'ab'::BLOB AS b, [1, 2] AS l, {'a': 1} AS s, INTERVAL 1 DAY AS i, true AS t", "text/csv", 200),
        ("SELECT 170141183460469231731687303715884105727::HUGEINT, 'x'::BLOB, now()", "text/csv", 200),
        ("SELECT 1 WHERE false", "text/csv", 200),
    ],
)
def test_what_a_format_cannot_hold_is_refused_in_words(
    service: Running, text: str, accept: str, status: int | None
) -> None:
    answered = sql(service, text, accept)

    assert answered.status_code == status or (status is None and answered.status_code in (200, 422)), answered.text
    if answered.status_code != 200:
        assert set(answered.json()) == {"code", "message", "hint", "request_id"}


@pytest.mark.parametrize(
    "arguments",
    [
        {"since": "9999-12-31T00:00:00Z"},
        {"since": "0001-01-01T00:00:00+14:00"},
        {"until": "9" * 60 + "d"},
        {"since": "1e300d"},
        {"length": "9" * 30 + "d", "apart": "9" * 30 + "d"},
        {"length": "90000d", "apart": "90000d"},
    ],
)
def test_absurd_times_are_refused_in_words_or_clipped(service: Running, arguments: dict[str, str]) -> None:
    tool = "compare_windows" if "length" in arguments else "summary"
    asked = {"metric_name": "m", **arguments} if "length" in arguments else arguments
    answered = web.post(service.url("api", echo.TOOLS + echo.TOOL_PREFIX + tool), json=asked)

    assert answered.status_code in (200, 422), answered.text
    assert answered.headers["content-type"] == "application/json"


def test_a_refused_method_gets_the_allowed_ones(service: Running) -> None:
    for path, allowed in (
        (echo.SQL, "POST"),
        (echo.HEALTH, "GET"),
        (echo.TOOLS + echo.TOOL_PREFIX + "summary", "POST"),
    ):
        answered = web.request("PUT", service.url("api", path))

        assert (answered.status_code, answered.headers["allow"]) == (405, allowed)
        assert answered.json()["code"] == "method_not_allowed"
        assert answered.json()["hint"].startswith(f"use {allowed}; ")


def test_a_body_nested_without_end_is_refused_in_words(service: Running) -> None:
    answered = web.post(
        service.url("api", echo.SQL), content=b"[" * 200_000, headers={"content-type": "application/json"}
    )

    assert answered.status_code in (400, 422)
    assert set(answered.json()) == {"code", "message", "hint", "request_id"}


# For agents, and for people.


def test_the_catalogue_of_agents_is_short() -> None:
    said = sum(
        len(
            orjson.dumps(
                [
                    tool.name,
                    tool.description,
                    compact_schema(tool.input_schema),
                    compact_schema(tool.output_schema, words=False),
                ]
            )
        )
        for tool in TOOLS.values()
    )

    assert said < 26_000


def test_tables_and_columns_can_be_asked_for(service: Running) -> None:
    url = service.url("api", echo.TOOLS + echo.TOOL_PREFIX + "describe")
    every, one = web.post(url, json={}).json(), web.post(url, json={"table": "verdicts"}).json()

    assert {"table": "events", "column": "value_double", "type": "DOUBLE"} in every["rows"]
    assert {row["table"] for row in one["rows"]} == {"verdicts"}
    assert web.post(url, json={"table": "schema_versions"}).status_code == 422
    assert "describe" in sql(service, "DESCRIBE events").json()["hint"]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [(["node_id=4"], True), (["cluster_id=yes"], True), (["node_id=5"], False), (["node_id=4", "limit=1"], True)],
)
def test_the_command_line_takes_text_as_text(service: Running, arguments: list[str], found: bool) -> None:
    done = CliRunner().invoke(
        main, ["ask", "event_history", *arguments, "until=now", "--api", service.url("api"), "--json"]
    )

    assert done.exit_code == 0, done.output
    assert bool(json.loads(done.output)["rows"]) == found


@pytest.mark.parametrize("value", ["limit=[", "limit=2026-13-45"])
def test_a_value_that_is_not_yaml_is_refused_by_echo(service: Running, value: str) -> None:
    done = CliRunner().invoke(main, ["ask", "summary", value, "--api", service.url("api")])

    assert done.exit_code == 1
    assert "limit: Input should be a valid integer" in done.output


@pytest.mark.parametrize("address", ["http://[", "echo:18081", "http://", "http://echo:99999"])
def test_what_is_no_address_is_a_wrong_flag(address: str) -> None:
    done = CliRunner().invoke(main, ["ask", "summary", "--api", address])

    assert done.exit_code == 2
    assert "is not an address" in done.output


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (200, "{}", "is this an Echo?"), (200, "[1]", "is this an Echo?"), (404, "[1]", "is this an Echo?"),
        (404, '{"detail": "Not Found"}', "HTTP 404"), (200, "[" * 100_000, "is this an Echo?"),
        (403, '{"code": "forbidden", "message": "not for you"}', "not for you"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", [["ask", "summary"], ["backup"]])
def test_another_service_is_told_from_an_echo(command: list[str], status: int, body: str, error: str) -> None:
    with answering((status, {}, body)) as address:
        done = CliRunner().invoke(main, [*command, "--api", address])

    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit) and error in done.output


@pytest.mark.parametrize("wait", ["Wed, 21 Oct 2015 07:28:00 GMT", "-5", "0"])
def test_the_command_line_waits_as_any_retry_after_says(wait: str) -> None:
    busy = (503, {"retry-after": wait}, "busy")
    with answering(busy, (200, {}, '{"tools": [{"name": "fleet.cluster.summary", "description": "d"}]}')) as address:
        done = CliRunner().invoke(main, ["ask", "list", "--api", address])

    assert done.exit_code == 0, done.output
    assert done.output.startswith("summary")


def test_a_copy_of_a_database_that_is_not_in_use_has_no_free_blocks(tmp_path: Path) -> None:
    large = tmp_path / "echo.duckdb"
    store = Store.open(StoreConfig(path=large))
    store.connection.execute(
        "INSERT INTO events SELECT uuid(), now()::TIMESTAMP, now()::TIMESTAMP, 'logs', 'c', 'n', 'm', i, NULL, NULL, "
        "NULL, "
        "uuid()::VARCHAR || uuid()::VARCHAR, NULL, 1 FROM range(60000) r(i)"
    )
    store.checkpoint()
    store.connection.execute("DELETE FROM events WHERE value_double >= 100")
    store.close()
    compact(large, tmp_path / "small.duckdb")
    copied = Store.open(StoreConfig(path=tmp_path / "small.duckdb"))
    rows = copied.connection.execute("SELECT count(*), sum(value_double) FROM events").fetchall()
    copied.close()

    assert rows == [(100, 4950.0)]
    assert (tmp_path / "small.duckdb").stat().st_size < large.stat().st_size / 2


@pytest.mark.parametrize(
    ("endpoint", "words"), [("", "HTTP 401"), ("127.0.0.1:1", "no answer within 0.1 s"), ("no.such.invalid:1", "")]
)
def test_the_load_generator_ends_with_the_reason_when_nothing_can_be_sent(
    guarded: Running, endpoint: str, words: str
) -> None:
    endpoint = endpoint or f"127.0.0.1:{guarded.ports['otlp/http']}"
    plan = Plan(endpoint=endpoint, protocol="http", nodes=2, events=5, token="wrong", give_up_seconds=0.1)

    outcome = run_stress(plan)

    assert not outcome.clean
    assert outcome.problem.startswith(f"{endpoint}: ") and words in outcome.problem


@pytest.mark.parametrize(("tokens", "who"), [("", "callers without tokens together"), ("t name=t\n", "this token")])
def test_the_limit_of_requests_names_whom_it_is_for(tmp_path: Path, tokens: str, who: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(tokens)
    sent: list[Any] = []

    async def api(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    guard = AuthMiddleware(
        api, api, lambda: None, lambda: None, Callers(file if tokens else None, 0), RateLimit(0.001, 1),
        AuditLog(None), lambda *_: None, UnreadResponses(),
    )  # fmt: skip
    scope = {"type": "http", "method": "GET", "path": echo.WHOAMI, "headers": [(b"authorization", b"Bearer t")]}
    for _ in range(2):
        asyncio.run(guard(scope, None, send))  # type: ignore[arg-type]

    assert [message["status"] for message in sent if "status" in message] == [200, 429]
    assert f"more requests from {who} than" in orjson.loads(sent[-1]["body"])["message"]


def test_a_fault_of_the_server_has_the_shape_of_every_error(tmp_path: Path) -> None:
    def broken() -> str | None:
        raise RuntimeError("secret")

    api = make_api(None, lambda: True, (), dict, lambda: None, broken)  # type: ignore[arg-type]  # not asked
    guard = AuthMiddleware(
        api, api, lambda: None, lambda: None, Callers(None, 0), RateLimit(1, 1), AuditLog(None), lambda *_: None,
        UnreadResponses(),
    )  # fmt: skip

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(guard, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get(echo.HEALTH)

    answer = asyncio.run(ask())

    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert set(answer.json()) == {"code", "message", "hint", "request_id"}
    assert "secret" not in answer.text
