"""What goes wrong around Echo: full disks, volumes that cannot be written, clocks, senders that repeat themselves."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

from ingero_contract import attributes, echo, routes
from ingero_echo.app import Echo
from ingero_echo.concurrency import STUCK_AFTER
from ingero_echo.ingest import decode_request
from ingero_echo.retention import TRUSTED_AFTER, RetentionClock, retention_clock
from ingero_echo.settings import EchoConfig, IngestConfig, StoreConfig
from ingero_echo.store import Store
from ingero_echo.writer import WriteFailed, Writer
from ingero_kit.otlp_signal import Signal
from ingero_testing import telemetry
from ingero_testing.books import Books
from ingero_testing.needs import MOUNT
from ingero_testing.processes import BIN, Running, process, wait_until
from ingero_testing.processes import echo as start_echo
from ingero_testing.web import web

PROTOBUF = {"content-type": "application/x-protobuf"}
DAY = 86_400 * 10**9
MANY = {"query": {"max_rows": 100_000}}


@contextmanager
def volume(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system of its own of a size; skips the test where none can be mounted."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(["mount", *options], capture_output=True).returncode:
        pytest.skip(MOUNT)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def push(service: Running, message: Any) -> httpx.Response:
    return web.post(service.url("otlp/http", routes.OTLP_LOGS), content=message.SerializeToString(), headers=PROTOBUF)


def stored(service: Running) -> list[str]:
    sql = {"sql": "SELECT event_id::VARCHAR FROM events", "limit": 100_000}
    answer = web.post(service.url("api", echo.SQL), json=sql)
    assert answer.status_code == 200, answer.text
    return [row[0] for row in answer.json()["rows"]]


def push_until_refused(service: Running) -> tuple[list[str], httpx.Response, Any]:
    """The ids that were acknowledged, the refusal, and the request that was refused."""
    acknowledged: list[str] = []
    for _ in range(500):
        ids, request = telemetry.numbered(1000, cluster="full")
        answer = push(service, request)
        if answer.status_code != 200:
            return acknowledged, answer, request
        acknowledged += ids
    raise AssertionError("nothing was refused")


@pytest.mark.parametrize("wal_limit_mb", [1, 1000], ids=["full in a checkpoint", "full in the log"])
def test_on_a_full_disk_senders_get_the_reason_and_all_goes_on_when_there_is_room(
    tmp_path: Path, wal_limit_mb: int
) -> None:
    with volume(tmp_path / "volume", 5) as folder:
        change = {**MANY, "store": {"path": str(folder / "echo.duckdb"), "wal_limit_mb": wal_limit_mb}}
        ballast = folder / "ballast"
        ballast.write_bytes(bytes(3 << 20))
        with start_echo(tmp_path, change) as service:
            acknowledged, refusal, request = push_until_refused(service)

            assert refusal.status_code == 503
            assert "the disk is full: make room; nothing that was acknowledged is lost" in refusal.text
            assert int(refusal.headers["retry-after"]) >= 1
            assert sorted(stored(service)) == sorted(acknowledged)
            failing = web.get(service.url("api", echo.HEALTH)).json()

            ballast.unlink()
            wait_until(lambda: push(service, request).status_code == 200, "the request to be taken")
            well = web.get(service.url("api", echo.HEALTH)).json()
            assert (failing["status"], well["status"], well["write_failure"]) == ("failing", "ok", None)
            assert "the disk is full: make room" in failing["write_failure"]
            found = stored(service)
            assert len(found) == len(set(found)) == len(acknowledged) + 1000
            service.process.kill()
            service.process.wait(10)
        with start_echo(tmp_path, change) as service:
            assert sorted(stored(service)) == sorted(found)


def test_killed_on_a_full_disk_it_starts_when_there_is_room(tmp_path: Path) -> None:
    with volume(tmp_path / "volume", 3) as folder:
        change = {**MANY, "store": {"path": str(folder / "echo.duckdb"), "wal_limit_mb": 1000}}
        with start_echo(tmp_path, change) as service:
            acknowledged, _, _ = push_until_refused(service)
            service.process.kill()
            service.process.wait(10)
        subprocess.run(["mount", "-o", "remount,size=64m", str(folder)], check=True)
        with start_echo(tmp_path, change) as service:
            assert sorted(stored(service)) == sorted(acknowledged)


def serve(folder: Path, database: Path) -> tuple[int, str]:
    """Exit status and words of an Echo that cannot start."""
    with process(
        folder / "serve.log", str(BIN / "ingero-echo"), "serve", "--insecure", "--set", f"store.path={database}",
        "--set", "api.endpoint=127.0.0.1:0", "--set", "ingest.grpc_endpoint=127.0.0.1:0",
        "--set", "ingest.http_endpoint=127.0.0.1:0",
    ) as running:  # fmt: skip
        return running.process.wait(60), running.words()


@pytest.mark.parametrize("before", [True, False], ids=["with a database", "empty"])
def test_a_volume_that_cannot_be_written_is_named_at_the_start(tmp_path: Path, before: bool) -> None:
    with volume(tmp_path / "volume", 16) as folder:
        change = {"store": {"path": str(folder / "echo.duckdb")}}
        if before:
            with start_echo(tmp_path, change) as service:
                ids, request = telemetry.numbered(10)
                assert push(service, request).status_code == 200
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)

        status, words = serve(tmp_path, folder / "echo.duckdb")

        assert status == 1
        assert "the volume cannot be written: make it and the file writable" in words
        assert "Traceback" not in words
        if before:
            subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)
            with start_echo(tmp_path, change) as service:
                assert sorted(stored(service)) == sorted(ids)


@pytest.mark.skipif(not os.geteuid(), reason="root may write every file: run as another user")
def test_a_file_that_cannot_be_written_is_named_at_the_start(tmp_path: Path) -> None:
    with start_echo(tmp_path) as service:
        assert push(service, telemetry.numbered(10)[1]).status_code == 200
    (tmp_path / "echo.duckdb").chmod(0o444)

    status, words = serve(tmp_path, tmp_path / "echo.duckdb")

    assert status == 1
    assert "the volume cannot be written" in words


class Faltering:
    """A connection whose commits raise: after they are written, or before."""

    def __init__(self, connection: Any, written: bool) -> None:
        self._connection, self._written = connection, written
        self.left = 1

    def execute(self, sql: str, *more: Any) -> Any:
        if sql != "COMMIT" or not self.left:
            return self._connection.execute(sql, *more)
        self.left -= 1
        self._connection.execute("COMMIT" if self._written else "ROLLBACK")
        raise duckdb.IOException("IO Error: No space left on device")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.mark.parametrize("written", [True, False], ids=["after it was written", "before"])
@pytest.mark.parametrize("at", [None, 0], ids=["dated", "undated"])
def test_a_commit_that_raises_is_answered_by_what_is_in_the_database(
    tmp_path: Path, written: bool, at: int | None
) -> None:
    store = Store.open(StoreConfig(path=tmp_path / "e.duckdb"))
    writer = Writer(store, IngestConfig())
    store.connection = Faltering(store.connection, written)
    writer.start()
    body = telemetry.logs([(f"e{number}", "", {}) for number in range(150)], at=at).SerializeToString()

    def send() -> str:
        try:
            batch = decode_request(Signal.LOGS, "protobuf", body, "", time.time_ns(), lambda _: True)
            writer.put(batch, len(body)).result(60)
        except WriteFailed:
            return "again"
        return "taken"

    answers = [send()]
    while answers[-1] == "again":
        answers.append(send())
    found = store.connection.execute("SELECT count(*) FROM events").fetchall()[0][0]
    writer.stop()
    store.close()

    assert answers == (["taken"] if written else ["again", "taken"])
    assert (found, writer.counters.events, writer.counters.failures) == (150, 150, 1)


CLOCK = (
    "import sys, time; shift = int(sys.argv.pop(1)); wall, exact = time.time, time.time_ns; "
    "time.time = lambda: wall() + shift / 1e9; time.time_ns = lambda: exact() + shift; "
    "from ingero_echo.cli import main; main()"
)
"""Echo with its clock moved by so many nanoseconds."""


@contextmanager
def at_another_time(folder: Path, shift: int) -> Iterator[Running]:
    ports = folder / "ports.json"
    ports.unlink(missing_ok=True)
    listeners = ("api.endpoint", "ingest.grpc_endpoint", "ingest.http_endpoint")
    with process(
        folder / "shifted.log", sys.executable, "-c", CLOCK, str(shift), "serve", "--insecure",
        "--ports-file", str(ports), "--set", f"store.path={folder / 'echo.duckdb'}", "--set", "retention.every=0.2s",
        "--set", "retention.age=2d", *(word for name in listeners for word in ("--set", f"{name}=127.0.0.1:0")),
    ) as running:  # fmt: skip
        wait_until(lambda: ports.exists() or running.process.poll() is not None, "Echo to listen")
        assert running.process.poll() is None, running.words()
        running.ports = json.loads(ports.read_text())
        yield running


def test_when_the_clock_goes_back_nothing_is_lost_and_the_reason_is_reported(tmp_path: Path) -> None:
    before, request = telemetry.numbered(100, cluster="clock")
    with start_echo(tmp_path) as service:
        assert push(service, request).status_code == 200
    with at_another_time(tmp_path, -DAY) as service:
        assert push(service, request).status_code == 200
        ahead = ExportLogsServiceResponse.FromString(
            push(service, telemetry.numbered(10, cluster="clock")[1]).content
        )
        back, late = telemetry.numbered(100, cluster="clock", at=time.time_ns() - DAY)
        assert push(service, late).content == b""
        marker = telemetry.logs([("undated", "", {})], "clock", at=0)
        assert push(service, marker).status_code == 200
        question = service.url("api", f"{echo.TOOLS}{echo.TOOL_PREFIX}summary")
        (row,) = web.post(question, json={"cluster_id": "clock"}).json()["rows"]
        found = stored(service)

    assert ahead.partial_success.rejected_log_records == 10
    assert "ahead of Echo's clock: check both" in ahead.partial_success.error_message
    assert row["events"] == len(found) == 201
    assert set(before + back) < set(found)
    with start_echo(tmp_path) as service:
        assert sorted(stored(service)) == sorted(found)


def test_a_clock_that_is_far_ahead_for_a_while_deletes_nothing_and_refuses_nothing_good(tmp_path: Path) -> None:
    before, request = telemetry.numbered(100, cluster="clock")
    with start_echo(tmp_path) as service:
        assert push(service, request).status_code == 200
    with at_another_time(tmp_path, 40 * DAY) as service:
        swept = sweeps(service)
        during, late = telemetry.numbered(100, cluster="clock")
        answer = push(service, late)
        wait_until(lambda: sweeps(service) >= swept + 3, "a few runs of retention")
        found = stored(service)
    with start_echo(tmp_path) as service:
        after = stored(service)

    assert answer.content == b""
    assert sorted(found) == sorted(after) == sorted(before + during)


def sweeps(service: Running) -> float:
    text = web.get(service.url("api", "/metrics")).text
    return float(
        next(line.split()[1] for line in text.splitlines() if line.startswith("ingero_echo_retention_runs_total"))
    )


HOUR, START = TRUSTED_AFTER, 1_700_000_000 * 10**9


def test_a_leap_ahead_is_believed_when_the_clock_has_stood_by_it_for_an_hour() -> None:
    dates = RetentionClock(START, START, 0)

    assert dates.now(START + 40 * DAY, 10) == START + 10
    assert dates.now(START + 40 * DAY + HOUR - 1, HOUR) == START + HOUR
    assert dates.now(START + 40 * DAY + HOUR, HOUR + 10) == START + 40 * DAY + HOUR


@pytest.mark.parametrize("leap", [40 * DAY, 2 * HOUR])
def test_leaps_that_are_taken_back_are_never_believed(leap: int) -> None:
    dates, steady = RetentionClock(START, START, 0), 0
    for _ in range(100):
        steady += HOUR // 2
        assert dates.now(START + steady + leap, steady) == START + steady
        steady += HOUR // 4
        assert dates.now(START + steady, steady) == START + steady


def test_a_clock_that_goes_back_or_on_as_clocks_do_is_believed_at_once() -> None:
    dates, wall = RetentionClock(START, START, 0), START
    for steady in range(0, 48 * HOUR, HOUR):
        wall = START + steady + steady // 1000
        assert dates.now(wall, steady) == wall
    assert dates.now(wall - DAY, 48 * HOUR) == wall - DAY
    assert RetentionClock(None, START, 5).now(START, 5) == START
    assert RetentionClock(START + 40 * DAY, START, 5).now(START, 5) == START


def test_after_a_long_time_off_nothing_goes_for_an_hour() -> None:
    dates = RetentionClock(START, START + 40 * DAY, 7)

    assert dates.now(START + 40 * DAY, 7) == START
    assert dates.now(START + 40 * DAY + HOUR, HOUR + 7) == START + 40 * DAY + HOUR


def arrivals(books: Books, *minutes_ago: float) -> None:
    """Events that arrived, by Echo's clock of then, so long before a moment in 2027."""
    for number in minutes_ago:
        books.now = 1_800_000_000 * 10**9 - int(number * 60e9)
        books.put(Signal.METRICS, telemetry.gauges([("m", 1.0, {})], at=books.now))


@pytest.mark.parametrize(
    ("minutes_ago", "believed"),
    [
        ((180, 0), -179),  # a leap of three hours, in which one event arrived
        ((400, 399, 5, 4, 3, 2, 1, 0), -393),
        ((*range(80, -1, -1),), 0),
        ((5000, *range(65, -1, -1)), 0),  # the clock has kept that leap for an hour
        ((9, 0), -8),
        ((0,), 0),
    ],
)
def test_a_leap_that_events_arrived_in_is_not_believed_after_a_restart(
    tmp_path: Path, minutes_ago: tuple[float, ...], believed: int
) -> None:
    books = Books(tmp_path)
    arrivals(books, *minutes_ago)
    wall = books.now + 10**9
    try:
        clock = retention_clock(books.store, wall, 7)
        assert (clock.now(wall, 7) - books.now) / 60e9 == pytest.approx(believed, abs=0.1)
        assert clock.now(wall + HOUR, 7 + HOUR) == wall + HOUR
    finally:
        books.close()


def test_one_batch_sent_by_many_at_once_is_kept_once(tmp_path: Path) -> None:
    ids, request = telemetry.numbered(300, cluster="many")
    shuffled = telemetry.numbered(1, cluster="many")[1]
    records = shuffled.resource_logs[0].scope_logs[0].log_records
    own = next(pair.value.string_value for pair in records[0].attributes if pair.key == attributes.EVENT_ID)
    records.extend(reversed(request.resource_logs[0].scope_logs[0].log_records[100:]))
    answers: list[int] = []
    with start_echo(tmp_path) as service:
        senders = [
            threading.Thread(target=lambda message=message: answers.append(push(service, message).status_code))
            for message in (request, shuffled) * 6
        ]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()

        assert answers == [200] * 12
        assert sorted(stored(service)) == sorted([*ids, own])


def test_senders_that_give_up_while_their_push_is_written_stop_nobody_else(tmp_path: Path) -> None:
    with start_echo(tmp_path) as service:
        body = telemetry.numbered(1)[1].SerializeToString()
        head = f"POST {routes.OTLP_LOGS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", service.ports["otlp/http"])) as client:
                client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

        assert push(service, telemetry.numbered(1)[1]).status_code == 200
        assert "Exception in thread" not in service.words()


def in_process(folder: Path) -> Echo:
    return Echo(
        EchoConfig.model_validate(
            {
                "insecure": True, "store": {"path": str(folder / "e.duckdb")}, "api": {"endpoint": "127.0.0.1:0"},
                "ingest": {"http_endpoint": None, "grpc_endpoint": None},
            }
        )
    )  # fmt: skip


def test_without_its_writer_echo_is_neither_alive_nor_ready(tmp_path: Path) -> None:
    async def ask() -> list[int]:
        service = in_process(tmp_path)
        await service.start()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{service.ports['api']}") as client:
            before = [(await client.get(path)).status_code for path in ("/healthz", "/readyz")]
            writer = service._writer
            assert writer is not None
            await asyncio.to_thread(writer.stop)
            after = [(await client.get(path)).status_code for path in ("/healthz", "/readyz")]
        await service.stop()
        return before + after

    assert asyncio.run(ask()) == [200, 200, 503, 503]


def test_a_query_that_cannot_be_cancelled_has_the_process_started_anew(tmp_path: Path) -> None:
    async def ask() -> list[int]:
        service = in_process(tmp_path)
        await service.start()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{service.ports['api']}") as client:
            assert (await client.get("/api/v2/health")).status_code == 200
            limiter, timeout = service._apps._service.limiter, service.config.query.timeout
            found = []
            for seconds in (0.0, timeout, timeout + STUCK_AFTER + 1):
                limiter.clock = lambda ago=seconds: time.monotonic() - ago
                async with limiter.slot("somebody"):
                    found.append((await client.get("/healthz")).status_code)
            found.append((await client.get("/healthz")).status_code)
        await service.stop()
        return found

    assert asyncio.run(ask()) == [200, 200, 503, 200]


def test_idle_connections_close_neither_the_api_nor_the_probes_to_others(tmp_path: Path) -> None:
    with start_echo(tmp_path, {"api": {"health_endpoint": "127.0.0.1:0"}}) as service, ExitStack() as stack:
        for name in ("api", "health"):
            for _ in range(600):
                stack.enter_context(socket.create_connection(("127.0.0.1", service.ports[name]), timeout=10))
            for path in (echo.LIVE, echo.READY):
                assert web.get(service.url(name, path)).status_code == 200
        assert web.get(service.url("health", echo.SQL)).status_code == 404
