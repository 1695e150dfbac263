"""The small HTTP server against raw sockets: order, limits, slow and broken clients."""

import asyncio
import gc
import gzip
import itertools
import random
import sys
import zlib
from collections.abc import Awaitable, Callable

import pytest
import uvloop
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from ingero_http.http1.messages import Request, Response
from ingero_http.http1.server import Http1Server
from ingero_http.limits import Limits
from ingero_testing.web import stop_reading


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


def run(scenario: Callable[[int], Awaitable[None]], server: Http1Server) -> None:
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
        ("zstd", lambda data: squash(data)),
        pytest.param("gzip", lambda data: gzip.compress(data[:2]) + gzip.compress(data[2:]), id="two members"),
        pytest.param("zstd", lambda data: squash(data[:2]) + squash(data[2:]), id="two frames"),
        ("GZIP", gzip.compress),
        ("identity", lambda data: data),
    ],
)
def test_compressed_bodies_are_decompressed(encoding: str, squeeze: Callable[[bytes], bytes]) -> None:
    async def scenario(port: int) -> None:
        answer = await talk(port, post(squeeze(b"hello"), f"content-encoding: {encoding}", CLOSE))
        assert answer.endswith(b"POST /p hello")

    run(scenario, Http1Server(echo))


def squash(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def cut_at_a_block() -> bytes:
    """The first blocks of a zstd frame whose last one is missing."""
    compressor = zstandard.ZstdCompressor().compressobj()
    return compressor.compress(random.Random(1).randbytes(300_000)) + compressor.flush(
        zstandard.COMPRESSOBJ_FLUSH_BLOCK
    )


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
        pytest.param(post(gzip.compress(b"a") + b"tail", "content-encoding: gzip"), 400, id="octets behind gzip"),
        pytest.param(post(gzip.compress(b"")[:-8], "content-encoding: gzip"), 400, id="gzip without its sum"),
        pytest.param(post(gzip.compress(b"") * 300, "content-encoding: gzip"), 400, id="many gzip members"),
        pytest.param(post(squash(b"a") + b"tail", "content-encoding: zstd"), 400, id="octets behind zstd"),
        pytest.param(post(cut_at_a_block(), "content-encoding: zstd"), 400, id="zstd cut at a block"),
        pytest.param(post(squash(bytes(5 << 20)), "content-encoding: zstd"), 413, id="zstd bomb"),
        pytest.param(post(b"", "content-encoding: zstd"), 400, id="nothing as zstd"),
        pytest.param(b"POST /p HTTP/1.1\r\ncontent-length: 0\r\n\r\n", 400, id="no Host"),
        pytest.param(post(b"", "host: y"), 400, id="two Hosts"),
        pytest.param(post(b"").replace(b"host: x", b"host: a b"), 400, id="a Host that is none"),
        pytest.param(post(b"").replace(b"HTTP/1.1", b"HTTP/2.0"), 400, id="another version"),
        pytest.param(b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n", 405, id="a proxy is wanted"),
        pytest.param(
            b"POST /p HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1;" + b"x" * 200_000 + b"\r\na\r\n",
            400,
            id="a chunk extension of 200 kB",
        ),
    ],
)
def test_what_cannot_be_served_is_answered_and_closed(data: bytes, status: int) -> None:
    server = Http1Server(echo, limits=Limits(body_bytes=1 << 20, decoded_bytes=4 << 20))

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

    run(scenario, Http1Server(echo, limits=Limits(body_bytes=1500)))


def test_pipelined_responses_keep_the_order_of_their_requests() -> None:
    async def slow(request: Request) -> Response:
        await asyncio.sleep(0.01 if request.body == b"a" else 0)
        return Response(200, request.body)

    def handler(request: Request) -> Response | Awaitable[Response]:
        return Response(200, request.body) if request.body == b"c" else slow(request)

    async def scenario(port: int) -> None:
        answer = await talk(port, post(b"a") + post(b"b") + post(b"c", CLOSE))
        bodies = [part[-1:] for part in answer.split(b"HTTP/1.1 200 OK")[1:]]
        assert bodies == [b"a", b"b", b"c"]

    run(scenario, Http1Server(handler))


def test_a_slow_request_is_cut_off_and_others_are_served() -> None:
    server = Http1Server(echo, limits=Limits(read_seconds=0.1))

    async def scenario(port: int) -> None:
        slow = asyncio.create_task(talk(port, post(b"never", length=100)))
        assert (await talk(port, post(b"fast", CLOSE))).endswith(b"fast")
        assert (await slow).startswith(b"HTTP/1.1 408 ")

    run(scenario, server)
    assert server.counters.timeouts == 1


def test_a_full_server_closes_the_connection_that_is_idle_longest() -> None:
    server = Http1Server(echo, limits=Limits(connections=3))

    async def scenario(port: int) -> None:
        silent = []
        for count in range(1, 4):
            silent.append(await asyncio.open_connection("127.0.0.1", port))
            while server.counters.open < count:
                await asyncio.sleep(0)
        assert (await talk(port, post(b"x", CLOSE))).endswith(b"x")
        assert await silent[0][0].read() == b""
        silent[1][1].write(post(b"still here", CLOSE))
        assert (await silent[1][0].read()).endswith(b"still here")
        for _, writer in silent:
            writer.close()

    run(scenario, server)
    assert (server.counters.gave_way, server.counters.refused_connections) == (1, 0)


def test_connections_that_wait_for_a_response_are_not_closed_for_new_ones() -> None:
    gate = asyncio.Event()

    async def slow(request: Request) -> Response:
        await gate.wait()
        return echo(request)

    server = Http1Server(slow, limits=Limits(connections=1))

    async def scenario(port: int) -> None:
        first = asyncio.create_task(talk(port, post(b"first", CLOSE)))
        while not server.counters.requests:
            await asyncio.sleep(0)
        with pytest.raises(ConnectionError):
            if await talk(port, post(b"x", CLOSE)) == b"":
                raise ConnectionError
        gate.set()
        assert (await first).endswith(b"first")

    run(scenario, server)
    assert (server.counters.gave_way, server.counters.refused_connections) == (0, 1)


def test_a_connection_of_some_age_is_closed_after_a_response() -> None:
    server = Http1Server(echo, limits=Limits(read_seconds=0.1, age_seconds=0.01))

    async def scenario(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        last = b""
        while b"connection: close" not in last:
            writer.write(post(b"!"))
            last = await reader.readuntil(b"!")
            assert last.startswith(b"HTTP/1.1 200")
        assert await reader.read() == b""
        writer.close()

    run(scenario, server)
    assert server.counters.aged == 1


def test_a_failing_handler_costs_one_response() -> None:
    def handler(request: Request) -> Response:
        if request.body == b"bad":
            raise RuntimeError("boom")
        return echo(request)

    server = Http1Server(handler)

    async def scenario(port: int) -> None:
        answer = await talk(port, post(b"bad") + post(b"good", CLOSE))
        assert b"500 Internal Server Error" in answer
        assert b"boom" not in answer
        assert answer.endswith(b"good")

    run(scenario, server)


def test_an_upgrade_is_ignored_and_the_request_is_served() -> None:
    """Java's client asks for h2c in every request."""
    wish = ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAEAAEAAAAIAAAAB")
    chunked = (
        b"POST /p HTTP/1.1\r\nhost: x\r\nupgrade: h2c\r\nconnection: upgrade\r\ntransfer-encoding: chunked\r\n\r\n"
    )

    async def scenario(port: int) -> None:
        asked = post(b"one", *wish) + chunked + b"3\r\ntwo\r\n0\r\n\r\n" + post(b"", *wish) + post(b"last", CLOSE)
        answer = await talk(port, asked)
        assert [part.rpartition(b"/p ")[2] for part in answer.split(b"HTTP/1.1 200 OK")[1:]] == [
            b"one",
            b"two",
            b"",
            b"last",
        ]
        closed = await talk(port, post(b"end", "connection: close, Upgrade", "upgrade: h2c"))
        assert closed.endswith(b"/p end")

    run(scenario, Http1Server(echo))


def test_trailers_do_not_change_the_head() -> None:
    server = Http1Server(lambda request: Response(200, request.headers.get(b"cluster", b"none")))
    head = b"POST /p HTTP/1.1\r\nhost: x\r\ncluster: mine\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"

    async def scenario(port: int) -> None:
        answer = await talk(port, head + b"1\r\na\r\n0\r\ncluster: yours\r\nhost: y\r\n\r\n")
        assert answer.endswith(b"mine")

    run(scenario, server)


def test_the_target_may_name_the_host() -> None:
    async def scenario(port: int) -> None:
        for target in (b"http://x:1/p?a=b", b"HTTPS://[::1]/p"):
            answer = await talk(port, post(b"body", CLOSE).replace(b"/p", target))
            assert answer.endswith(b"POST /p body")

    run(scenario, Http1Server(echo))


def test_head_is_answered_without_a_body() -> None:
    server = Http1Server(
        echo, check_head=lambda request: Response(404, b"nothing") if request.path == b"/no" else None
    )

    async def scenario(port: int) -> None:
        for path, status in ((b"/p", b"200"), (b"/no", b"404")):
            answer = await talk(port, b"HEAD %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" % path)
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 " + status)
            assert b"content-length: %d" % (8 if path == b"/p" else 7) in head
            assert body == b""

    run(scenario, server)


def test_100_continue_is_sent_to_http_1_1_clients_only() -> None:
    async def scenario(port: int) -> None:
        asked = post(b"x", "expect: 100-continue", CLOSE)
        assert (await talk(port, asked)).startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 ")
        assert (await talk(port, asked.replace(b"HTTP/1.1", b"HTTP/1.0"))).startswith(b"HTTP/1.1 200 ")

    run(scenario, Http1Server(echo))


def test_the_answer_to_a_refused_upload_arrives() -> None:
    async def scenario(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(bytes(1 << 20), length=1 << 21))
        assert (await reader.read()).startswith(b"HTTP/1.1 413 ")
        writer.close()

    run(scenario, Http1Server(echo, limits=Limits(body_bytes=1000)))


def test_a_malformed_request_is_answered_after_the_responses_under_way() -> None:
    async def slow(request: Request) -> Response:
        await asyncio.sleep(0)
        return echo(request)

    async def scenario(port: int) -> None:
        answer = await talk(port, post(b"good") + b"rubbish\r\n\r\n")
        assert answer.index(b"POST /p good") < answer.index(b" 400 ")

    run(scenario, Http1Server(slow))


def test_incomplete_bodies_are_bounded_over_all_connections_and_released_with_them() -> None:
    server = Http1Server(echo, limits=Limits(unfinished_bytes=500_000))

    async def scenario(port: int) -> None:
        halves = []
        for _ in range(8):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(post(bytes(100_000), length=200_000))
            halves.append((reader, writer))
        while server.counters.overloaded < 3:
            await asyncio.sleep(0.001)
        assert server.unfinished <= 500_000
        assert (await talk(port, post(b"small ones pass", CLOSE))).endswith(b"pass")
        for _, writer in halves:
            writer.close()
        while server.counters.open:
            await asyncio.sleep(0.001)
        assert server.unfinished == 0

    run(scenario, server)


def test_an_upload_that_is_aborted_leaves_nothing_behind() -> None:
    """Connection and parser know each other; without the collector the body must go all the same."""
    server = Http1Server(echo)
    gc.collect()
    gc.disable()
    try:
        wire, connection = Wire(), server.connection()
        assert isinstance(connection, asyncio.Protocol)
        connection.connection_made(wire)
        connection.data_received(post(bytes(1000), length=10_000))
        connection.connection_lost(None)
        left = sys.getrefcount(connection)
        del connection
        assert left == 2
    finally:
        gc.enable()


def test_pipelined_requests_wait_while_their_responses_are_not_read() -> None:
    server = Http1Server(
        lambda request: Response(200, bytes(10_000)), limits=Limits(read_seconds=0.4, send_seconds=0.3)
    )

    async def scenario(port: int) -> None:
        _reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 10)
        stop_reading(writer)
        writer.write(post(b"x") * 20_000)
        while not server.counters.unread:
            await asyncio.sleep(0.01)
        assert server.counters.requests < 5_000
        assert server.unread == 0
        writer.close()
        assert (await talk(port, post(b"x", CLOSE))).endswith(bytes(100))

    run(scenario, server)


def test_unread_responses_are_bounded_over_all_connections() -> None:
    server = Http1Server(lambda request: Response(200, bytes(10_000)), limits=Limits(unread_bytes=200_000))

    async def scenario(port: int) -> None:
        writers = []
        for _ in range(12):
            _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 10)
            stop_reading(writer)
            writer.write(post(b"x") * 3_000)
            writers.append(writer)
        while not server.counters.unread:
            await asyncio.sleep(0.01)
        assert server.unread <= 200_000
        for writer in writers:
            writer.transport.abort()

    run(scenario, server)


def test_a_connection_that_sends_much_gives_others_their_turn() -> None:
    server = Http1Server(echo)

    async def scenario(port: int) -> None:
        wire, greedy = Wire(), server.connection()
        assert isinstance(greedy, asyncio.Protocol)
        greedy.connection_made(wire)
        greedy.data_received(post(b"much") * 2000)
        assert 0 < server.counters.requests < 1000
        assert (await talk(port, post(b"mine", CLOSE))).endswith(b"mine")
        while server.counters.requests < 2001:
            await asyncio.sleep(0)
        assert wire.written.count(b"POST /p much") == 2000
        greedy.connection_lost(None)

    run(scenario, server)
    assert server.counters.turns_ended > 3


def test_a_connection_that_sends_nothing_is_closed() -> None:
    server = Http1Server(echo, limits=Limits(read_seconds=0.1))

    async def scenario(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()

    run(scenario, server)


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.closed = b"", False

    def write(self, data: "bytes | bytearray | memoryview[int]") -> None:
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True


def exchange(chunks: list[bytes], server: Http1Server) -> tuple[bytes, bool]:
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
def test_responses_do_not_depend_on_how_the_input_is_cut(sent: list[bytes], places: list[int]) -> None:
    """Requests whose head is known already are read without the parser; the responses are the same."""
    stream = b"".join(sent)
    cuts = sorted({place for place in places if place < len(stream)} | {0, len(stream)})
    pieces = [stream[start:end] for start, end in itertools.pairwise(cuts)]
    octets = [stream[place : place + 1] for place in range(len(stream))]
    limits = Limits(body_bytes=99)
    expected = exchange(octets, Http1Server(whole, limits=limits))
    assert exchange(sent, Http1Server(whole, limits=limits)) == expected
    assert exchange(pieces, Http1Server(whole, limits=limits)) == expected


def test_every_request_is_checked() -> None:
    seen: list[bytes] = []

    def guard(request: Request) -> Response | None:
        seen.append(request.headers[b"content-length"])
        return Response(401, b"no more") if len(seen) == 3 else None

    server = Http1Server(echo, check_head=guard)
    answers, closed = exchange([post(b"1"), post(b"22"), post(b"333"), post(b"4")], server)
    assert seen == [b"1", b"2", b"3"]
    assert answers.count(b" 200 OK") == 2
    assert b" 401 " in answers
    assert closed
    assert server.counters.requests == 2
