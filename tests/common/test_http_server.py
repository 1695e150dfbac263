"""The small HTTP server against raw sockets: order, limits, slow and broken clients."""

import asyncio
import gzip
import itertools
import zlib
from collections.abc import Awaitable, Callable

import pytest
import uvloop
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from ingero_kit.http_server import HttpServer, Limits, Request, Response


def echo(request: Request) -> Response:
    return Response(200, request.method + b" " + request.path + b" " + request.body)


async def talk(port: int, data: bytes, *, close: bool = True) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    if close and writer.can_write_eof():
        await writer.drain()
    try:
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()


def post(body: bytes, *lines: str, length: int | None = None) -> bytes:
    head = ["POST /p HTTP/1.1", "host: x", f"content-length: {len(body) if length is None else length}", *lines]
    return "\r\n".join([*head, "", ""]).encode() + body


def run(scenario: Callable[[int], Awaitable[None]], server: HttpServer) -> None:
    async def main() -> None:
        port = await server.start("127.0.0.1", 0)
        try:
            await asyncio.wait_for(scenario(port), 30)
        finally:
            await server.stop(1)

    uvloop.run(main())


CLOSE = "connection: close"


@pytest.mark.parametrize(
    ("encoding", "squeeze"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("zstd", lambda data: zstandard.ZstdCompressor().compress(data)),
        ("identity", lambda data: data),
    ],
)
def test_compressed_bodies_are_opened(encoding: str, squeeze: Callable[[bytes], bytes]) -> None:
    async def scenario(port: int) -> None:
        answer = await talk(port, post(squeeze(b"hello"), f"content-encoding: {encoding}", CLOSE))
        assert answer.endswith(b"POST /p hello")

    run(scenario, HttpServer(echo))


def bomb() -> bytes:
    return gzip.compress(bytes(50 << 20))


@pytest.mark.parametrize(
    ("data", "status"),
    [
        pytest.param(post(b"x", "content-encoding: br"), 415, id="unknown encoding"),
        pytest.param(post(b"rubbish", "content-encoding: gzip"), 400, id="not gzip"),
        pytest.param(post(gzip.compress(b"hello")[:-9], "content-encoding: gzip"), 400, id="truncated gzip"),
        pytest.param(post(bomb(), "content-encoding: gzip"), 413, id="gzip bomb"),
        pytest.param(post(b"", length=1 << 30), 413, id="huge length"),
        pytest.param(post(b"", "transfer-encoding: chunked")[:-2] + b"\r\n", 400, id="length and chunks"),
        pytest.param(b"\x16\x03\x01\x02\x00 TLS hello", 400, id="TLS on a plain port"),
        pytest.param(post(b"", "x: " + "y" * 20_000), 431, id="huge header"),
        pytest.param(b"GET " + b"/" * 20_000 + b" HTTP/1.1\r\n\r\n", 431, id="huge path"),
    ],
)
def test_what_cannot_be_served_is_answered_and_closed(data: bytes, status: int) -> None:
    server = HttpServer(echo, limits=Limits(body_bytes=1 << 20, decoded_bytes=4 << 20))

    async def scenario(port: int) -> None:
        answer = await talk(port, data)
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert (await talk(port, post(b"next", CLOSE))).endswith(b"next")

    run(scenario, server)


def test_chunked_bodies_are_bounded_too() -> None:
    async def scenario(port: int) -> None:
        chunks = (
            b"POST /p HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + b"400\r\n" + b"x" * 1024 + b"\r\n"
        )
        answer = await talk(port, chunks + b"400\r\n" + b"x" * 1024 + b"\r\n0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 413 ")

    run(scenario, HttpServer(echo, limits=Limits(body_bytes=1500)))


def test_pipelined_answers_keep_the_order_of_their_requests() -> None:
    async def slow(request: Request) -> Response:
        await asyncio.sleep(0.01 if request.body == b"a" else 0)
        return Response(200, request.body)

    def handler(request: Request) -> Response | Awaitable[Response]:
        return Response(200, request.body) if request.body == b"c" else slow(request)

    async def scenario(port: int) -> None:
        answer = await talk(port, post(b"a") + post(b"b") + post(b"c", CLOSE))
        bodies = [part[-1:] for part in answer.split(b"HTTP/1.1 200 OK")[1:]]
        assert bodies == [b"a", b"b", b"c"]

    run(scenario, HttpServer(handler))


def test_a_slow_request_is_cut_and_everybody_else_is_served() -> None:
    server = HttpServer(echo, limits=Limits(read_seconds=0.1))

    async def scenario(port: int) -> None:
        slow = asyncio.create_task(talk(port, post(b"never", length=100)))
        assert (await talk(port, post(b"fast", CLOSE))).endswith(b"fast")
        assert (await slow).startswith(b"HTTP/1.1 408 ")

    run(scenario, server)
    assert server.counters.timeouts == 1


def test_connections_are_bounded_and_counted() -> None:
    server = HttpServer(echo, limits=Limits(connections=1))

    async def scenario(port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        while server.counters.open < 1:
            await asyncio.sleep(0)
        with pytest.raises(ConnectionError):
            if await talk(port, post(b"x", CLOSE)) == b"":
                raise ConnectionError
        writer.close()

    run(scenario, server)
    assert server.counters.refused_connections == 1


def test_a_failing_handler_costs_one_answer() -> None:
    def handler(request: Request) -> Response:
        if request.body == b"bad":
            raise RuntimeError("boom")
        return echo(request)

    server = HttpServer(handler)

    async def scenario(port: int) -> None:
        answer = await talk(port, post(b"bad") + post(b"good", CLOSE))
        assert b"500 Internal Server Error" in answer
        assert b"boom" not in answer
        assert answer.endswith(b"good")

    run(scenario, server)


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.closed = b"", False

    def write(self, data: "bytes | bytearray | memoryview[int]") -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


def told(chunks: list[bytes], server: HttpServer) -> tuple[bytes, bool]:
    """What a connection answers to chunks of octets, and whether it was closed."""
    wire, connection = Wire(), server.connection()
    assert isinstance(connection, asyncio.Protocol)
    connection.connection_made(wire)
    for chunk in chunks:
        connection.data_received(chunk)
    connection.connection_lost(None)
    return wire.written, wire.closed


def whole(request: Request) -> Response:
    facts = b"%b %b?%b %b" % (request.method, request.path, request.query, request.body)
    return Response(200, facts + repr(sorted(request.headers.items())).encode())


requests = st.builds(
    lambda body, lines, wrong: post(body, *lines, length=None if wrong is None else len(body) + wrong),
    st.sampled_from([b"", b"a", b"body", b"x" * 99, b"y" * 100, b"\r\n\r\nz", post(b"inner")]),
    st.sampled_from([(), (), ("a: b",), ("content-type: text/plain",), ("expect: 100-continue",), (CLOSE,)]),
    st.sampled_from([None, None, None, None, None, None, -1, 1]),
)


INNER = post(b"a")
HEAD = len(post(INNER)) - len(INNER)
"""Length of the head of a request whose body is itself a request."""


@given(st.lists(requests, max_size=6), st.lists(st.integers(0, 700), max_size=8))
@example([post(b"x" * 99), post(b"y" * 100)], [])
@example([INNER, post(INNER)], [len(INNER), len(INNER) + HEAD])
@example([post(INNER, "a: b"), post(b"c")], [HEAD + len("a: b\r\n"), HEAD + len("a: b\r\n") + len(INNER)])
def test_answers_do_not_depend_on_where_the_stream_is_cut(sent: list[bytes], places: list[int]) -> None:
    """Requests whose head is known already are read without the parser; nobody may be able to tell."""
    stream = b"".join(sent)
    cuts = sorted({place for place in places if place < len(stream)} | {0, len(stream)})
    pieces = [stream[start:end] for start, end in itertools.pairwise(cuts)]
    octets = [stream[place : place + 1] for place in range(len(stream))]
    limits = Limits(body_bytes=99)
    expected = told(octets, HttpServer(whole, limits=limits))
    assert told(sent, HttpServer(whole, limits=limits)) == expected
    assert told(pieces, HttpServer(whole, limits=limits)) == expected


def test_every_request_passes_the_guard() -> None:
    seen: list[bytes] = []

    def guard(request: Request) -> Response | None:
        seen.append(request.headers[b"content-length"])
        return Response(401, b"no more") if len(seen) == 3 else None

    server = HttpServer(echo, guard=guard)
    answers, closed = told([post(b"1"), post(b"22"), post(b"333"), post(b"4")], server)
    assert seen == [b"1", b"2", b"3"]
    assert answers.count(b" 200 OK") == 2
    assert b" 401 " in answers
    assert closed
    assert server.counters.requests == 2
