"""Clients that mean harm: while they are connected others are served, and nothing of theirs stays behind.

Every attack is a number of steps on loopback; between two steps an honest client asks and must be answered. What a
broken frame or head is answered with stands in `test_http1.py` and `test_http2.py`.
"""

import asyncio
import gzip
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop
import zstandard

from ingero_http.grpc_unary import GrpcService, frame_message, respond
from ingero_http.http1.messages import Request, Response
from ingero_http.http1.server import Http1Server
from ingero_http.http2 import frames as h2
from ingero_http.http2.hpack import encode_block
from ingero_http.http2.server import Http2Server
from ingero_http.limits import Limits
from ingero_testing.http2 import Client

STEPS = 20
"""Connections of an attack, or pieces of one."""

PATH = "/demo.Echo/Say"
CALL = [
    (b":method", b"POST"), (b":scheme", b"http"), (b":path", PATH.encode()), (b":authority", b"x"),
    (b"content-type", b"application/grpc"),
]  # fmt: skip
HEAD = encode_block(CALL)
LIMITS = Limits(
    connections=STEPS,
    body_bytes=64 << 10,
    decoded_bytes=256 << 10,
    unfinished_bytes=512 << 10,
    unread_bytes=256 << 10,
)  # fmt: skip


def say(request: Request) -> Response:
    return Response(200, bytes(100_000) if request.path == b"/large" else b"hello")


async def ask_http1(port: int) -> None:
    """One honest request over HTTP/1.1."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert (await asyncio.wait_for(reader.read(), 30)).endswith(b"hello")
    writer.close()


async def ask_grpc(port: int) -> None:
    """One honest call over gRPC."""
    async with Client(port) as client:
        client.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, HEAD))
        client.send(h2.frame(h2.DATA, h2.END_STREAM, 1, frame_message(b"hello")))
        assert (await client.answer(1))[1] == frame_message(b"hello")


def run(attack: Callable[[Any, Callable[[], Awaitable[None]]], Awaitable[None]], server: Any) -> None:
    """Run an attack and check what is left when the attackers have gone."""
    ask = ask_http1 if isinstance(server, Http1Server) else ask_grpc

    async def main() -> None:
        server.port = await server.start("127.0.0.1", 0)
        await attack(server, lambda: ask(server.port))
        await ask(server.port)
        async with asyncio.timeout(30):
            while server.counters.open:
                await asyncio.sleep(0.01)
        assert (server.unfinished, server.unread) == (0, 0)
        await server.stop(1)

    uvloop.run(main())


def http1() -> Http1Server:
    return Http1Server(say, limits=LIMITS)


def grpc() -> Http2Server:
    service = GrpcService(
        {PATH: lambda fields, message: respond(message)}, message_bytes=LIMITS.body_bytes,
        decoded_bytes=LIMITS.decoded_bytes,
    )  # fmt: skip
    return Http2Server(service, limits=LIMITS)


HTTP1_OPENINGS = [
    pytest.param(b"", id="silence"),
    pytest.param(b"POST /p HTTP/1.1\r\nho", id="half a head"),
    pytest.param(b"POST /p HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n" + bytes(50_000), id="half a body"),
    pytest.param(
        b"POST /p HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 5000, id="small chunks"
    ),
    pytest.param(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n" * 200, id="pipelined and never read"),
    pytest.param(b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 50_000, id="endless headers"),
]

HTTP2_OPENINGS = [
    pytest.param(b"", id="silence"),
    pytest.param(h2.PREFACE[:9], id="half a preface"),
    pytest.param(h2.PREFACE + h2.settings({}) + h2.frame(h2.HEADERS, 0, 1, HEAD), id="half a header block"),
    pytest.param(
        h2.PREFACE + h2.settings({}) + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, HEAD)
        + h2.frame(h2.DATA, 0, 1, bytes(16_000)) * 3,
        id="half a body",
    ),
    pytest.param(
        h2.PREFACE + h2.settings({h2.INITIAL_WINDOW_SIZE: 0}) + b"".join(
            h2.frame(h2.HEADERS, h2.END_HEADERS, number, HEAD)
            + h2.frame(h2.DATA, h2.END_STREAM, number, frame_message(bytes(1000)))
            for number in range(1, 200, 2)
        ),
        id="replies that have no window",
    ),
    *(
        pytest.param(h2.PREFACE + h2.settings({}) + frame * 5000, id=f"a flood of {name}")
        for name, frame in {
            "pings": h2.frame(h2.PING, 0, 0, bytes(8)),
            "settings": h2.settings({}),
            "window updates": h2.window_update(0, 1),
            "priorities": h2.frame(h2.PRIORITY, 0, 1, bytes(5)),
            "unknown frames": h2.frame(0xEE, 0, 0, b"x"),
        }.items()
    ),
]  # fmt: skip


async def flood(server: Any, ask: Callable[[], Awaitable[None]], opening: bytes) -> None:
    """Open many more connections than are allowed, say the same on each, and read nothing."""
    attackers = []
    for _ in range(2 * STEPS):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(opening)
        attackers.append(writer)
        await ask()
    assert server.counters.open <= LIMITS.connections
    assert server.unfinished <= LIMITS.unfinished_bytes
    assert server.unread <= LIMITS.unread_bytes
    for writer in attackers:
        writer.transport.abort()


@pytest.mark.parametrize("opening", HTTP1_OPENINGS)
def test_a_flood_of_http1_connections_keeps_no_client_out(opening: bytes) -> None:
    run(lambda server, ask: flood(server, ask, opening), http1())


@pytest.mark.parametrize("opening", HTTP2_OPENINGS)
def test_a_flood_of_http2_connections_keeps_no_client_out(opening: bytes) -> None:
    run(lambda server, ask: flood(server, ask, opening), grpc())


@pytest.mark.parametrize("server", [http1, grpc])
def test_a_request_sent_byte_by_byte_delays_no_other_client(server: Callable[[], Any]) -> None:
    opening = (
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
        if server is http1
        else h2.PREFACE + h2.settings({}) + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, HEAD)
    )

    async def attack(target: Any, ask: Callable[[], Awaitable[None]]) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", target.port)
        for place in range(len(opening) - 1):
            writer.write(opening[place : place + 1])
            await ask()
        writer.transport.abort()

    run(attack, server())


def deflate_bomb(octets: int) -> bytes:
    return zlib.compress(bytes(octets))


def zstd_bomb(octets: int) -> bytes:
    return zstandard.ZstdCompressor().compress(bytes(octets))


BOMBS = [
    pytest.param(b"gzip", lambda octets: gzip.compress(bytes(octets)), id="gzip"),
    pytest.param(b"gzip", lambda octets: gzip.compress(bytes(octets // 200)) * 200, id="many members"),
    pytest.param(b"deflate", deflate_bomb, id="deflate"),
    pytest.param(b"zstd", zstd_bomb, id="zstd"),
]


@pytest.mark.parametrize(("encoding", "bomb"), BOMBS)
def test_a_bomb_in_a_body_is_decompressed_no_further_than_allowed(
    encoding: bytes, bomb: Callable[[int], bytes]
) -> None:
    body = bomb(20 << 20)[: LIMITS.body_bytes - 5]

    async def attack(server: Any, ask: Callable[[], Awaitable[None]]) -> None:
        for _ in range(STEPS):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(
                b"POST /p HTTP/1.1\r\nhost: x\r\ncontent-encoding: %b\r\ncontent-length: %d\r\n\r\n"
                % (encoding, len(body)) + body
            )  # fmt: skip
            assert (await asyncio.wait_for(reader.read(), 30)).startswith(b"HTTP/1.1 413 ")
            writer.close()
            await ask()

    run(attack, http1())


@pytest.mark.parametrize(("encoding", "bomb"), BOMBS)
def test_a_bomb_in_a_message_is_decompressed_no_further_than_allowed(
    encoding: bytes, bomb: Callable[[int], bytes]
) -> None:
    body = bomb(20 << 20)[: LIMITS.body_bytes - 5]
    message = b"\1" + len(body).to_bytes(4, "big") + body
    pieces = [message[place : place + 16_000] for place in range(0, len(message), 16_000)]

    async def attack(server: Any, ask: Callable[[], Awaitable[None]]) -> None:
        async with Client(server.port) as client:
            for number in range(1, 2 * STEPS, 2):
                head = encode_block([*CALL, (b"grpc-encoding", encoding)])
                client.send(h2.frame(h2.HEADERS, h2.END_HEADERS, number, head))
                for piece in pieces:
                    client.send(h2.frame(h2.DATA, 0, number, piece))
                client.send(h2.frame(h2.DATA, h2.END_STREAM, number))
                fields = (await client.answer(number))[0]
                assert fields[b"grpc-status"] == b"8"
                await ask()

    run(attack, grpc())
