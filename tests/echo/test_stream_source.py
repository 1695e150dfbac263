"""Echo reads a stream of a real NATS server: every record once, also when the process, server or volume is lost."""

import asyncio
import contextlib
import gzip
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.client import JetStreamContext
from pydantic import ValidationError

from ingero_contract import echo, routes
from ingero_echo.lake import plan
from ingero_echo.lake.catalog import LakeCatalog
from ingero_echo.lake.plan import Boundary
from ingero_echo.lake.sealer import open_lake
from ingero_echo.settings import EchoConfig, NatsSourceConfig, TableConfig
from ingero_echo.source_position import SourcePosition, format_position, parse_position, start_after
from ingero_echo.stream_source import DecodeLimits, NatsSource
from ingero_echo.tables import TABLES
from ingero_echo.verify import verify
from ingero_echo.window import Window
from ingero_fleet.exporter_settings import NatsExporterConfig
from ingero_fleet.nats_exporter import NatsOtlpClient
from ingero_kit.nats_settings import otlp_subject
from ingero_kit.otlp_signal import Signal
from ingero_kit.stream_reader import StreamReader, end_if_cancelled
from ingero_operator.api.nats import EchoSource
from ingero_operator.api.v1alpha1 import FleetClusterSpec
from ingero_operator.render import fleet as render_fleet
from ingero_operator.render.common import Owner
from ingero_operator.render.echo import source_config
from ingero_operator.render.fleet import FleetInputs
from ingero_testing import telemetry
from ingero_testing.lakes import Shard, open_reader, seen, table_config
from ingero_testing.processes import echo as start_echo
from ingero_testing.processes import fleet, wait_until
from ingero_testing.web import web
from scripts.nats_servers import BIN, NatsServers, nats_servers
from tests.fleet.test_nats_connection import nkey

pytestmark = pytest.mark.skipif(not (BIN / "nats-server").exists(), reason="needs nats-server: make setup")

SECONDS = 60.0
PROTOBUF = {"content-type": "application/x-protobuf"}
LIMITS = DecodeLimits(1 << 20, lambda now: 0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    with nats_servers(tmp_path_factory.mktemp("nats")) as servers:
        yield servers


def settings(servers: NatsServers, stream: str) -> NatsSourceConfig:
    return NatsSourceConfig(servers=tuple(servers.urls), stream=stream, max_bytes=16 << 20)


def opened(folder: Path, lake: TableConfig, connect: Any = open_lake) -> Shard:
    return Shard(folder / "e.duckdb", lake, connect, source=True)


@asynccontextmanager
async def reading(shard: Shard, config: NatsSourceConfig) -> AsyncIterator[NatsSource]:
    """A shard that reads its stream."""
    source = NatsSource(config, shard.store, shard.writer, shard.sealer, LIMITS, every=0.02)
    task = asyncio.create_task(source.run())
    try:
        async with asyncio.timeout(SECONDS):
            yield source
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def publisher(servers: NatsServers) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(servers.urls)
    try:
        yield client.jetstream()
    finally:
        await client.close()


async def publish(jetstream: JetStreamContext, stream: str, message: Any, signal: Signal = Signal.LOGS) -> None:
    body = message if isinstance(message, bytes) else gzip.compress(message.SerializeToString())
    await jetstream.publish(otlp_subject(stream, signal), body, headers={"Content-Encoding": "gzip"})


async def until(done: Callable[[], Any]) -> None:
    while not await asyncio.to_thread(done):
        await asyncio.sleep(0.01)


async def exists(jetstream: JetStreamContext, stream: str) -> None:
    while True:
        with contextlib.suppress(nats.js.errors.NotFoundError):
            await jetstream.stream_info(stream)
            return
        await asyncio.sleep(0.01)


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(story())  # type: ignore[arg-type]


def names(shard: Shard) -> Counter[str]:
    """The messages of the events in the database."""
    return Counter(row[0] for row in shard.store.cursor().execute("SELECT message FROM events").fetchall())


def position(shard: Shard) -> int:
    found = shard.store.source_position()
    return found.sequence if found else 0


def note(name: str) -> Any:
    return telemetry.logs([("note", name, {})])


def test_what_cannot_be_read_is_counted_and_left_out(server: NatsServers, tmp_path: Path) -> None:
    lake = table_config(tmp_path / "lake")

    async def story() -> None:
        config = settings(server, "rubbish")
        shard = opened(tmp_path, lake)
        async with publisher(server) as jetstream, reading(shard, config) as source:
            await asyncio.to_thread(shard.seal)
            await exists(jetstream, "rubbish")
            for message in (note("a"), b"no gzip", gzip.compress(b"\xff\xff no OTLP"), note("b"), b""):
                await publish(jetstream, "rubbish", message)
            await until(lambda: position(shard) == 5)
            assert source.stats.malformed == 3
        shard.close()

        again = opened(tmp_path, lake)
        async with publisher(server) as jetstream, reading(again, config) as source:
            await asyncio.to_thread(again.seal)
            await publish(jetstream, "rubbish", note("c"))
            await until(lambda: position(again) == 6 and source.stats.messages)
            assert source.stats.messages == 1 and source.stats.malformed == 0
            assert names(again) == Counter("abc")
        again.close()

    run(story)


def test_what_came_during_a_transaction_is_the_next_one(
    server: NatsServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream had nothing after any of these messages when the server sent it."""
    readers: list[StreamReader] = []
    begin = StreamReader.open

    async def observed(*arguments: Any) -> StreamReader:
        readers.append(await begin(*arguments))
        return readers[-1]

    monkeypatch.setattr(StreamReader, "open", observed)

    async def story() -> None:
        shard, released = opened(tmp_path, table_config(tmp_path / "lake")), threading.Event()
        async with publisher(server) as jetstream, reading(shard, settings(server, "busy")) as source:
            await asyncio.to_thread(shard.seal)
            await exists(jetstream, "busy")
            busy = shard.writer.call(lambda: released.wait(SECONDS))
            for number in range(21):
                await publish(jetstream, "busy", note(f"m{number}"))
                await until(lambda: shard.writer.waiting_bytes)
            await until(lambda: readers[-1].behind == 20)
            released.set()
            await until(lambda: position(shard) == 21 and source.stats.messages == 21)
            assert busy.result() and shard.writer.counters.groups == 2
            assert readers[-1].behind == source.stats.waiting == 0
        shard.close()

    run(story)


class HalfSealed(BaseException):
    """Ends a seal as a kill does."""


class EndingLake:
    """Shared tables whose user is killed after the commit of one table."""

    def __init__(self, lake: Any, table: str) -> None:
        self._lake, self._table = lake, table

    def commit(self, table: str, *more: Any) -> None:
        self._lake.commit(table, *more)
        if table == self._table:
            raise HalfSealed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lake, name)


@pytest.mark.parametrize("last", ["node_rollups", "verdicts", "events"])
def test_a_lost_volume_loses_and_doubles_nothing(server: NatsServers, tmp_path: Path, last: str) -> None:
    """The last seal of the lost database ended after the commit of one table."""
    lake = table_config(tmp_path / "lake")
    stream = f"lost-{last}"
    config = settings(server, stream)

    async def story() -> None:
        shard = opened(tmp_path / "first", lake)
        async with publisher(server) as jetstream, reading(shard, config):
            await asyncio.to_thread(shard.seal)
            await exists(jetstream, stream)
            await publish(jetstream, stream, note("sealed"))
            await until(lambda: position(shard) == 1)
            await asyncio.to_thread(shard.seal)
            while (await jetstream.stream_info(stream)).state.messages:
                await asyncio.sleep(0.01)
            await publish(jetstream, stream, telemetry.verdict("n1", "straggler"))
            await publish(jetstream, stream, telemetry.gauges([("x", 1.0, {})]), Signal.METRICS)
            await publish(jetstream, stream, note("half sealed"))
            await until(lambda: position(shard) == 4)
            shard.sealer._lake = EndingLake(shard.sealer._lake, last)
            with pytest.raises(HalfSealed):
                await asyncio.to_thread(shard.seal)
            await publish(jetstream, stream, telemetry.verdict("n2", "straggler"))
            await publish(jetstream, stream, note("not sealed"))
            await until(lambda: position(shard) == 6)
        shard.close()

        empty = opened(tmp_path / "second", lake)
        empty.put(note("pushed"))
        async with reading(empty, config):
            await asyncio.to_thread(empty.seal)
            await until(lambda: position(empty) == 6)
            check(empty, lake)
            await asyncio.to_thread(empty.seal)
            check(empty, lake)
        empty.close()

        third = opened(tmp_path / "third", lake)
        async with publisher(server) as jetstream, reading(third, config):
            await asyncio.to_thread(third.seal)
            await publish(jetstream, stream, telemetry.logs([]))
            await until(lambda: position(third) == 7)
            check(third, lake)
            await asyncio.to_thread(third.seal)
            # A reader that takes the rest from the writer, and the comparison of tables and database.
            with (
                open_reader(tmp_path / "reader", lake, {"0": third}) as reader,
                reader.store.pinned(Window()) as sources,
            ):
                counted = f"SELECT count(*), count(DISTINCT event_id) FROM ({sources.tables['events']})"
                assert reader.store.cursor().execute(counted).fetchall() == [(7, 7)]
        third.close()
        compared = EchoConfig(insecure=True, store=third.store.config, table=lake)
        assert verify(compared, third.store.config.path).differences == []

    run(story)


def check(shard: Shard, lake: TableConfig) -> None:
    """A reader sees every event and every row that was derived from one once."""
    found = {table: seen(lake, shard.store.cursor(), table) for table in TABLES}
    assert sum(found["events"].values()) == 7
    assert sum(found["verdicts"].values()) == 2
    assert sum(row[5] * count for row, count in found["node_rollups"].items()) == 7


def test_accounts_with_the_documented_permissions_suffice(tmp_path: Path) -> None:
    reader, public = nkey(tmp_path, "echo")
    sender, other = nkey(tmp_path, "fleet")
    text = (Path(__file__).resolve().parents[2] / "docs/echo.md").read_text()
    users = text.partition("authorization {")[2].partition("```")[0]
    extra = "authorization {" + users.replace("ECHO_NKEY", public).replace("FLEET_NKEY", other)

    async def story() -> None:
        with nats_servers(tmp_path / "nats", extra=extra) as servers:
            config = settings(servers, "prod-0").model_copy(update={"credentials_file": reader})
            exporter = NatsExporterConfig(servers=config.servers, stream="prod-0", credentials_file=sender)
            client, shard = NatsOtlpClient(exporter), opened(tmp_path, table_config(tmp_path / "lake"))
            async with reading(shard, config) as source:
                await asyncio.to_thread(shard.seal)
                body = note("a").SerializeToString()
                while (await client.send(Signal.LOGS, body)).failure:
                    await asyncio.sleep(0.01)
                await until(lambda: position(shard) == 1)
                await asyncio.to_thread(shard.seal)
                while not source.stats.deleted:
                    await asyncio.sleep(0.01)
                assert names(shard) == Counter("a")
                assert not source.stats.events["client_error"]
            await client.close()
            shard.close()

    run(story)


def test_while_the_server_is_away_pushes_are_taken_and_afterwards_all_is_read(tmp_path: Path) -> None:
    async def story() -> None:
        with nats_servers(tmp_path / "nats") as servers:
            shard = opened(tmp_path, table_config(tmp_path / "lake"))
            async with reading(shard, settings(servers, "away")) as source:
                await asyncio.to_thread(shard.seal)
                async with publisher(servers) as jetstream:
                    await exists(jetstream, "away")
                    await publish(jetstream, "away", note("a"))
                    await until(lambda: position(shard) == 1)
                servers.kill(0)
                await until(lambda: source.stats.away_since is not None)
                await asyncio.to_thread(shard.put, note("b"))
                await asyncio.to_thread(shard.seal)
                assert names(shard) == Counter("ab")
                servers.start(0)
                async with publisher(servers) as jetstream:
                    await exists(jetstream, "away")
                    await publish(jetstream, "away", note("c"))
                    await until(lambda: position(shard) == 2)
                assert names(shard)["c"] == 1
                await until(lambda: source.stats.away_since is None)
            shard.close()

    run(story)


def test_a_stream_that_was_made_anew_is_read_from_its_begin(server: NatsServers, tmp_path: Path) -> None:
    async def story() -> None:
        shard = opened(tmp_path, table_config(tmp_path / "lake"))
        async with publisher(server) as jetstream, reading(shard, settings(server, "anew")):
            await asyncio.to_thread(shard.seal)
            await exists(jetstream, "anew")
            await publish(jetstream, "anew", note("a"))
            await publish(jetstream, "anew", note("b"))
            await until(lambda: position(shard) == 2)
            await jetstream.delete_stream("anew")
            await exists(jetstream, "anew")
            await publish(jetstream, "anew", note("c"))
            await until(lambda: position(shard) == 1)
            assert names(shard) == Counter("abc")
        shard.close()

    run(story)


def rendered(servers: NatsServers) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the operator renders for the second writer of a store with a stream, and for a Fleet of its shard."""
    nats = {"servers": servers.urls, "stream": "chain", "maxSize": "16Mi"}
    source = EchoSource.model_validate({"nats": nats}).nats
    spec = FleetClusterSpec.model_validate(
        {"clusterId": "c", "fleet": {"forward": {"echoStore": "prod", "nats": {}}}}
    )
    owner = Owner(kind="FleetCluster", namespace="ml", name="f", uid="u")
    tree = render_fleet.config(owner, spec, FleetInputs(echo_shard=1, echo_stream=source))
    exporting = {
        "exporters": {"nats": tree["exporters"]["nats"] | {"batch_bytes": 1024}},
        "service": {"pipelines": tree["service"]["pipelines"]},
    }
    return source_config(source, 1), exporting


def test_a_killed_echo_reads_on_and_what_a_fleet_took_comes_once(tmp_path: Path) -> None:
    """With the settings that the operator renders; Echo starts while NATS is away."""
    with nats_servers(tmp_path / "nats") as servers:
        chain(servers, tmp_path)


def chain(servers: NatsServers, tmp_path: Path) -> None:
    lake = table_config(tmp_path / "lake", every=0.1)
    reading, exporting = rendered(servers)
    change = {"table": lake.model_dump(mode="json", exclude_none=True), **reading}

    def away_since(service: Any) -> float | None:
        found: dict[str, float | None] = web.get(service.url("api", echo.HEALTH)).json()[echo.SEALING]
        return found["source_away_since"]

    def written(service: Any) -> float:
        page = web.get(service.url("api", echo.METRICS_PAGE)).text
        return float(page.partition("\ningero_echo_source_messages_total ")[2].partition("\n")[0] or 0)

    def sealed() -> int:
        return sum(file.rows for file in LakeCatalog(lake).pin("events").files)

    with fleet(tmp_path / "fleet", exporting) as judge:
        bodies = [note(f"m{number}").SerializeToString() for number in range(60)]

        def push(some: list[bytes]) -> None:
            for body in some:
                answer = web.post(judge.url("otlp/http", routes.OTLP_LOGS), content=body, headers=PROTOBUF)
                assert answer.status_code == 200

        servers.kill(0)
        with start_echo(tmp_path / "echo", change) as service:
            push(bodies[:30])
            wait_until(lambda: away_since(service) is not None, "the health answer to say that the stream is away")
            servers.start(0)
            wait_until(lambda: written(service) > 0, "the first messages")
            push(bodies[30:40])
            service.process.kill()
            service.process.wait(30)
        push(bodies[40:])
        with start_echo(tmp_path / "echo", change) as service:
            wait_until(lambda: sealed() >= 60, "all events")
            wait_until(
                lambda: "ingero_echo_source_waiting 0.0" in web.get(service.url("api", echo.METRICS_PAGE)).text,
                "the end of the stream",
            )
            assert away_since(service) is None
    assert sealed() == 60


@pytest.mark.parametrize("package", ["ingero_echo.app", "ingero_fleet.app"])
def test_without_a_stream_its_client_is_not_loaded(package: str) -> None:
    code = f"import sys, {package}; print('nats' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout == b"False\n"


def test_a_source_needs_tables() -> None:
    with pytest.raises(ValidationError, match="source needs table"):
        EchoConfig.model_validate({"insecure": True, "source": {"nats": {"servers": ["a"]}}})


def test_positions_are_of_one_stream() -> None:
    here = SourcePosition("2026-01-01T00:00:00+00:00", 7)
    assert parse_position(format_position(here)) == here
    assert parse_position("") is None
    assert start_after(None, here.stream, 9) == 0
    assert start_after(here, here.stream, 9) == 7
    assert start_after(here, here.stream, 5) == 5
    assert start_after(here, "another", 9) == 0


def test_only_a_new_database_takes_the_place_of_one_with_a_source() -> None:
    here = SourcePosition("s", 7)
    lost = Boundary(3, "lost", 0, here)
    assert plan.continues(lost, "new", plan.NOTHING, None)
    assert not plan.continues(Boundary(3, "lost", 0), "new", plan.NOTHING, None)
    assert not plan.continues(lost, "lost", plan.NOTHING, None)
    assert not plan.continues(lost, "new", 2, None)
    assert not plan.continues(lost, "new", plan.NOTHING, here)


def test_a_cancellation_that_the_client_lost_ends_the_task_all_the_same() -> None:
    async def loses() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        end_if_cancelled()

    async def story() -> None:
        end_if_cancelled()
        task = asyncio.create_task(loses())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(story)
