"""Users' SQL runs in processes that may be ended: what it can take, what it sees, and who waits for whom."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from ingero_contract import echo
from ingero_echo import allocators
from ingero_echo.concurrency import MAX_WAITING, ConcurrencyLimiter
from ingero_echo.errors import EchoApiError
from ingero_echo.query_runner import CancelToken
from ingero_echo.settings import EchoConfig
from ingero_echo.snapshots import SnapshotRegistry, Version
from ingero_echo.sql_pool import SqlPool
from ingero_echo.store import Store
from ingero_testing.processes import Running, wait_until
from ingero_testing.processes import echo as start_echo
from ingero_testing.web import web

ENDLESS = "SELECT count(*) FROM range(1000000000000) a WHERE a.range % 7 = -1"
"""Takes time and no memory."""

BOMBS = {
    "one call that cannot be interrupted":
        "SELECT levenshtein(a, a) FROM (SELECT string_agg(i::VARCHAR, '') a FROM range(60000) r(i))",
    "a matrix": "SELECT damerau_levenshtein(a, a) FROM (SELECT string_agg(i::VARCHAR, '') a FROM range(10000) r(i))",
    "doubling": "SELECT length(hex(hex(hex(hex(hex(hex(a))))))) FROM "
        "(SELECT string_agg(i::VARCHAR, '') a FROM range(3000000) r(i))",
    "replacing": "SELECT length(replace(replace(replace(a, '1', a), '2', a), '3', a)) FROM "
        "(SELECT string_agg(i::VARCHAR, '') a FROM range(1000) r(i))",
    "replacing by pattern": "SELECT length(regexp_replace(regexp_replace(a, '.', a, 'g'), '.', a, 'g')) FROM "
        "(SELECT string_agg(i::VARCHAR, '') a FROM range(1000) r(i))",
    "counting the most frequent": "SELECT approx_top_k(i, 900000) FROM range(9) r(i) GROUP BY i",
    "a sample": "SELECT reservoir_quantile(i, 0.5, 1000000000) FROM range(9) r(i)",
    "concatenating": "SELECT length(h || h || h || h) FROM (SELECT g || g || g || g AS h FROM (SELECT string_agg("
        "repeated, '') AS g FROM (SELECT a AS repeated FROM (SELECT string_agg(i::VARCHAR, '') a FROM range(2000000) "
        "r(i)), range(20))))",
}  # fmt: skip


def most_memory(pid: int) -> int:
    """Largest resident memory of a process so far, bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    change = {"query": {"timeout": "2s", "sql_memory_mb": 96, "queue_wait": "60s"}}
    with start_echo(tmp_path_factory.mktemp("echo"), change) as running:
        yield running


def ask(service: Running, text: str) -> httpx.Response:
    return web.post(service.url("api", echo.SQL), json={"sql": text})


@pytest.mark.parametrize("name", BOMBS)
def test_no_query_takes_the_service_down_or_its_memory(service: Running, name: str) -> None:
    assert ask(service, "SELECT 1").json()["rows"] == [[1]]
    before = most_memory(service.process.pid)

    answered = ask(service, BOMBS[name])

    assert answered.status_code in (408, 422), answered.text
    assert answered.json()["code"] in ("timeout", "too_large", "bad_query"), answered.text
    assert "Stack Trace" not in answered.text
    assert most_memory(service.process.pid) - before < 64 << 20
    assert ask(service, "SELECT 1").json()["rows"] == [[1]]


def test_the_system_bounds_the_memory_of_the_process_that_runs_sql(service: Running) -> None:
    ask(service, "SELECT 1")
    (child,) = [int(pid) for pid in children(service)]
    limits = Path(f"/proc/{child}/limits").read_text().splitlines()
    bound = next(int(line.split()[3]) for line in limits if line.startswith("Max data size"))

    assert bound < 1 << 30
    assert Path(f"/proc/{child}/oom_score_adj").read_text() == "1000\n"
    assert not [
        entry for entry in Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        if entry and not entry.startswith((b"PYTHON", b"PATH="))
        and entry.decode().partition("=")[0] not in allocators.ENVIRONMENT
    ]  # fmt: skip


def children(service: Running) -> list[str]:
    return Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children").read_text().split() or [
        pid
        for task in Path(f"/proc/{service.process.pid}/task").iterdir()
        for pid in (task / "children").read_text().split()
    ]


def test_a_process_that_dies_is_replaced(service: Running) -> None:
    ask(service, "SELECT 1")
    for child in children(service):
        os.kill(int(child), 9)

    assert ask(service, "SELECT 2").json()["rows"] == [[2]]


def test_ten_panels_of_a_dashboard_are_all_answered(service: Running) -> None:
    with ThreadPoolExecutor(10) as panels:
        sql = list(panels.map(lambda number: ask(service, f"SELECT {number}").status_code, range(10)))
        path = service.url("api", echo.TOOLS + echo.TOOL_PREFIX + "summary")
        tools = list(panels.map(lambda _: web.post(path, json={}).status_code, range(10)))

    assert sql == tools == [200] * 10


def test_a_client_that_goes_away_gives_its_place_back(tmp_path: Path) -> None:
    change = {"query": {"timeout": "300s", "sql_at_once": 1, "queue_wait": "60s"}}
    with start_echo(tmp_path, change) as service:
        assert ask(service, "SELECT 1").status_code == 200
        body = json.dumps({"sql": ENDLESS}).encode()
        head = f"POST {echo.SQL} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: "
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", service.ports["api"])) as gone:
                gone.sendall(f"{head}{len(body)}\r\n\r\n".encode() + body)
                wait_until(lambda: running(service) == 1, "the question to run")

        assert ask(service, "SELECT 1").json()["rows"] == [[1]]
        assert running(service) == 0


def running(service: Running) -> int:
    """Questions in SQL that run, by the metrics page."""
    page = web.get(service.url("api", echo.METRICS_PAGE)).text
    line = next(line for line in page.splitlines() if line.startswith('ingero_echo_questions_running{kind="sql"}'))
    return int(float(line.rsplit(" ", 1)[1]))


# What it sees.


INSERT = (
    "INSERT INTO events SELECT uuid(), now()::TIMESTAMP, now()::TIMESTAMP, 'logs', 'c', 'n' || i, 'm', "
    "CASE WHEN i % 2 = 0 THEN 1 ELSE -1 END, i, NULL, NULL, repeat('x', 200), NULL, 1 FROM range(?) r(i)"
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    config = EchoConfig.model_validate(
        {"insecure": True, "store": {"path": tmp_path / "echo.duckdb", "wal_limit_mb": 1}}
    )
    opened = Store.open(config.store)
    yield opened
    opened.close()


def pool_of(store: Store, **query: object) -> SqlPool:
    values = {"insecure": True, "store": store.config.model_dump(), "query": query}
    return SqlPool(EchoConfig.model_validate(values))


def test_a_question_sees_all_that_was_committed_before_it(store: Store) -> None:
    pool, text = pool_of(store), "SELECT count(*), sum(value_double) FROM events"
    for number in range(20):
        store.connection.execute(INSERT, [1000])
        if number % 5 == 3:
            store.checkpoint()
        if number % 7 == 5:
            store.connection.execute("DELETE FROM events WHERE rank < 500")
        if number == 12:
            store.reopen()
        store.checkpoint_if_due()
        kept = [list(row) for row in store.connection.execute(text).fetchall()]

        assert pool.run(store.snapshots, text, None, 10, CancelToken()).lists() == kept, number
    assert pool.ended == 0
    pool.close()


def test_questions_are_right_while_the_file_changes_under_them(store: Store) -> None:
    pool, done = pool_of(store, sql_at_once=2), threading.Event()

    def write() -> int:
        rounds = 0
        while not done.is_set():
            store.connection.execute(INSERT, [2000])
            store.checkpoint_if_due()
            if rounds % 3 == 2:
                store.connection.execute('DELETE FROM events WHERE rank >= 1000 AND "timestamp" < now()::TIMESTAMP')
                store.checkpoint()
            rounds += 1
            done.wait(0.1)
        return rounds

    def read(_: int) -> list[list[object]]:
        text = "SELECT count(*), sum(value_double), count(DISTINCT message) FROM events"
        seen: list[list[object]] = []
        while len(seen) < 6:
            try:
                seen += pool.run(store.snapshots, text, None, 10, CancelToken()).lists()
            except EchoApiError as refused:
                assert refused.status == 503, refused  # overtaken twice; the client is asked to retry
        return seen

    with ThreadPoolExecutor(3) as threads:
        writer = threads.submit(write)
        answers = [row for rows in threads.map(read, range(2)) for row in rows]
        done.set()
        assert writer.result(60) > 0
    pool.close()

    assert all(isinstance(count, int) and count % 1000 == 0 for count, _, _ in answers)
    assert all(total in (0, None) for _, total, _ in answers)


def test_two_checkpoints_end_a_question_and_one_does_not(tmp_path: Path) -> None:
    class Fake:
        version: Version | None = None
        busy = False
        ended = 0

        def end(self) -> None:
            self.ended += 1

    snapshots, slow, quick, resting = SnapshotRegistry(tmp_path / "echo.duckdb"), Fake(), Fake(), Fake()
    with snapshots.opening(slow) as slow.version:
        slow.busy = True
    with snapshots.checkpointing():
        pass
    assert (slow.ended, snapshots.has_stale_readers()) == (0, True)
    for reader in (quick, resting):
        with snapshots.opening(reader) as reader.version:
            reader.busy = reader is quick
    with snapshots.checkpointing():
        assert slow.ended == 1

    assert (quick.ended, snapshots.has_stale_readers()) == (0, True)
    with snapshots.checkpointing():
        assert (quick.ended, resting.ended) == (1, 0)
    with snapshots.exclusive():
        assert resting.ended == 1


def test_another_program_cannot_write_to_the_file_meanwhile(store: Store, tmp_path: Path) -> None:
    open_it = f"import duckdb; duckdb.connect({str(store.config.path)!r})"
    done = subprocess.run([sys.executable, "-c", open_it], capture_output=True, text=True, timeout=60)

    assert done.returncode == 1
    assert "lock" in done.stderr


# Who waits for whom.


def test_askers_take_turns() -> None:
    order: list[str] = []

    async def one(limiter: ConcurrencyLimiter, caller: str) -> None:
        async with limiter.slot(caller):
            order.append(caller)
            await asyncio.sleep(0)

    async def play() -> None:
        limiter = ConcurrencyLimiter(places=1, max_wait=60)
        async with limiter.slot("greedy"):
            tasks = [asyncio.create_task(one(limiter, caller)) for caller in ["greedy"] * 5 + ["a", "b"]]
            await asyncio.sleep(0)
            assert limiter.waiting == 7
        await asyncio.gather(*tasks)
        assert (limiter.running, limiter.waiting) == (0, 0)

    asyncio.run(play())

    assert order == ["a", "b", *["greedy"] * 5]  # the first question of the greedy one had the place before


def test_one_asker_never_holds_every_place() -> None:
    async def play() -> None:
        limiter = ConcurrencyLimiter(places=3, max_wait=60)
        async with AsyncExitStack() as held:
            await held.enter_async_context(limiter.slot("greedy"))
            await held.enter_async_context(limiter.slot("greedy"))
            third = asyncio.create_task(held.enter_async_context(limiter.slot("greedy")))
            await asyncio.sleep(0)
            async with limiter.slot("other"):
                assert not third.done()
            third.cancel()
            await asyncio.gather(third, return_exceptions=True)

        assert (limiter.running, limiter.waiting) == (0, 0)

    asyncio.run(play())


def test_who_waits_too_long_or_behind_too_many_is_asked_to_retry() -> None:
    async def play() -> None:
        limiter = ConcurrencyLimiter(places=1, max_wait=0.01)
        async with limiter.slot("a"):
            with pytest.raises(EchoApiError) as late:
                async with limiter.slot("b"):
                    raise AssertionError
            patient = ConcurrencyLimiter(places=1, max_wait=60)
            async with patient.slot("a"):
                waiting = [asyncio.create_task(patient.slot("b").__aenter__()) for _ in range(MAX_WAITING)]
                await asyncio.sleep(0)
                with pytest.raises(EchoApiError) as many:
                    async with patient.slot("b"):
                        raise AssertionError
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
            assert (patient.running, patient.waiting) == (0, 0)

        assert (late.value.status, late.value.code, late.value.retry_seconds) == (429, "busy", 1)
        assert (many.value.status, many.value.code) == (429, "busy")

    asyncio.run(play())


def test_a_question_that_is_cancelled_ends_in_its_process(store: Store) -> None:
    pool, cancel = pool_of(store, timeout=300), CancelToken()
    threading.Timer(0.2, cancel.request).start()
    began = time.monotonic()
    with pytest.raises(EchoApiError) as refused:
        pool.run(store.snapshots, ENDLESS, None, 10, cancel)
    pool.close()

    assert refused.value.code == "cancelled"
    assert time.monotonic() - began < 200
