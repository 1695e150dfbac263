"""ASGI applications on the listener: silent clients, clients that do not read, other protocols, a stop."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs

from ingero_http.asgi import QUIET_SECONDS, AsgiServer, head_as_get
from ingero_http.limits import Limits
from ingero_testing.web import stop_reading

GET = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


class App:
    """Answers with the body; `/large` with much, `/slow` when `gate` opens."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.asked = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked += 1
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if scope["path"] == "/slow":
            await self.gate.wait()
        answer = bytes(4 << 20) if scope["path"] == "/large" else scope["method"].encode() + b" " + body
        length = b"%d" % len(answer)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        await send({"type": "http.response.body", "body": answer})


Scenario = Callable[[AsgiServer, App, int], Awaitable[None]]


def run(scenario: Scenario, limits: Limits | None = None) -> AsgiServer:
    async def main() -> AsgiServer:
        app = App()
        server = AsgiServer(head_as_get(app), limits or Limits(connections=8))
        port = await server.start("127.0.0.1", 0)
        try:
            await asyncio.wait_for(scenario(server, app, port), 30)
        finally:
            await server.stop(1)
        return server

    return uvloop.run(main())


async def talk(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()


def test_idle_connections_are_closed_for_new_ones() -> None:
    async def scenario(_server: AsgiServer, _app: App, port: int) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for _ in range(3):
            assert (await talk(port, GET)).endswith(b"GET ")
        for _, writer in silent:
            writer.close()

    assert run(scenario).counters.gave_way >= 12


@pytest.mark.parametrize("said", [b"", b"GET / HT", b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf"])
def test_clients_that_never_finish_a_request_are_closed(said: bytes) -> None:
    async def scenario(_server: AsgiServer, _app: App, port: int) -> None:
        assert b" 200 " not in await talk(port, said)

    run(scenario, Limits(read_seconds=0.1))


def test_requests_that_are_no_http_are_counted_and_said_once_in_a_while_with_who_sent_them() -> None:
    async def scenario(server: AsgiServer, _app: App, port: int) -> None:
        for _ in range(5):
            assert b" 400 " in await talk(port, b"\x16\x03\x01 rubbish\r\n\r\n")
        server.unreadable(("192.0.2.7", 5), time.monotonic() + QUIET_SECONDS)

    with capture_logs() as logged:
        server = run(scenario)

    assert server.counters.malformed == 6
    assert [(line["event"], line["count"], line["latest_from"]) for line in logged] == [
        ("unreadable_requests", 1, "127.0.0.1"), ("unreadable_requests", 5, "192.0.2.7")
    ]  # fmt: skip


def test_idle_clients_are_closed() -> None:
    async def scenario(_server: AsgiServer, _app: App, port: int) -> None:
        assert (await talk(port, GET.replace(b"connection: close\r\n", b""))).endswith(b"GET ")

    run(scenario, Limits(read_seconds=0.2, idle_seconds=0.2))


def test_connections_whose_responses_are_not_read_are_closed() -> None:
    async def scenario(server: AsgiServer, _app: App, port: int) -> None:
        writers = []
        for _ in range(4):
            _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 10)
            stop_reading(writer)
            writer.write(GET.replace(b"/", b"/large", 1) * 3)
            writers.append(writer)
        while server.counters.unread < 4:
            await asyncio.sleep(0.01)
        assert server.unread == 0
        assert (await talk(port, GET)).endswith(b"GET ")
        for writer in writers:
            writer.transport.abort()

    run(scenario, Limits(read_seconds=0.4, send_seconds=0.2))


def test_an_upgrade_is_ignored_and_the_request_is_served() -> None:
    async def scenario(_server: AsgiServer, _app: App, port: int) -> None:
        wish = b"connection: Upgrade, close\r\nupgrade: h2c\r\n"
        asked = b"POST / HTTP/1.1\r\nhost: x\r\n" + wish + b"content-length: 4\r\n\r\nbody"
        assert (await talk(port, asked)).endswith(b"POST body")

    run(scenario)


def test_head_is_answered_as_get_is_without_a_body() -> None:
    async def scenario(_server: AsgiServer, _app: App, port: int) -> None:
        head, _, body = (await talk(port, GET.replace(b"GET", b"HEAD"))).partition(b"\r\n\r\n")
        assert (head[:12], b"content-length: 4" in head, body) == (b"HTTP/1.1 200", True, b"")

    run(scenario)


def test_a_stop_waits_only_for_responses_under_way() -> None:
    async def scenario(server: AsgiServer, app: App, port: int) -> None:
        slow = asyncio.create_task(talk(port, GET.replace(b"/", b"/slow", 1)))
        silent = asyncio.create_task(talk(port, b""))
        while not app.asked or server.counters.open < 2:
            await asyncio.sleep(0)
        stopping = asyncio.create_task(server.stop(10))
        assert await silent == b""
        app.gate.set()
        assert (await slow).endswith(b"GET ")
        await stopping

    run(scenario)


def test_clients_may_connect_before_the_port_is_served() -> None:
    async def scenario(_server: AsgiServer, _app: App, port: int) -> None:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()

    run(scenario)
