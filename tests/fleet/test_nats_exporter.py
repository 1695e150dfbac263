"""The exporter into a stream of a real NATS server: stored once, halved where too large, kept while it is away."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
from nats.js.api import DiscardPolicy, StreamConfig
from nats.js.client import JetStreamContext

from ingero_fleet.exporter_settings import NatsExporterConfig
from ingero_fleet.nats_exporter import NatsOtlpClient
from ingero_http.content import decompress
from ingero_kit.otlp_client import DeliveryFailure, Disposition
from ingero_kit.otlp_signal import Signal
from scripts.nats_servers import BIN, NatsServers, nats_servers

pytestmark = pytest.mark.skipif(not (BIN / "nats-server").exists(), reason="needs nats-server: make setup")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    with nats_servers(tmp_path_factory.mktemp("nats"), extra="max_payload: 64KB") as servers:
        yield servers


@asynccontextmanager
async def exporter(servers: NatsServers, stream: str, seconds: float = 30.0) -> AsyncIterator[NatsOtlpClient]:
    config = NatsExporterConfig(servers=tuple(servers.urls), stream=stream, timeout=seconds)
    client = NatsOtlpClient(config)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def stream_of(servers: NatsServers, name: str, max_bytes: int | None = None) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(servers.urls)
    try:
        found = client.jetstream()
        await found.add_stream(
            StreamConfig(name=name, subjects=[f"{name}.*"], discard=DiscardPolicy.NEW, max_bytes=max_bytes)
        )
        yield found
    finally:
        await client.close()


def test_a_request_that_is_sent_again_is_stored_once(server: NatsServers) -> None:
    async def story() -> None:
        body = b"request" * 100
        equal = bytes(bytearray(body))
        async with stream_of(server, "once") as jetstream, exporter(server, "once") as client:
            for one in (body, body, equal):
                assert (await client.send(Signal.LOGS, one)).failure is None
            assert (await jetstream.stream_info("once")).state.messages == 2  # equal content is another request
            found = await jetstream.get_msg("once", 1)
            assert found.subject == "once.logs" and found.data and found.headers
            assert decompress(found.headers["Content-Encoding"].encode(), found.data, 1 << 20) == body

    asyncio.run(story())


def test_what_exceeds_a_message_is_halved_by_the_exporter(server: NatsServers) -> None:
    async def story() -> None:
        async with exporter(server, "large") as client:
            result = await client.send(Signal.LOGS, os.urandom(70_000))
            assert result.disposition is Disposition.SPLIT

    asyncio.run(story())


def test_a_full_or_missing_stream_is_tried_again(server: NatsServers) -> None:
    async def story() -> None:
        async with exporter(server, "none") as client:
            missing = await client.send(Signal.LOGS, b"request")
            assert missing.disposition is Disposition.RETRY and missing.answered is False
        async with stream_of(server, "full", max_bytes=1024), exporter(server, "full") as client:
            full = await client.send(Signal.LOGS, os.urandom(2000))
            assert (full.failure, full.disposition) == (DeliveryFailure.BUSY, Disposition.RETRY)

    asyncio.run(story())


def test_a_server_that_is_away_is_tried_again(tmp_path: Path) -> None:
    async def story() -> None:
        with nats_servers(tmp_path) as servers:
            servers.kill(0)
            async with exporter(servers, "away", seconds=0.05) as client:
                away = await client.send(Signal.LOGS, b"request")
                assert (away.failure, away.disposition) == (DeliveryFailure.TIMEOUT, Disposition.RETRY)

    asyncio.run(story())
