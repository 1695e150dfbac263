"""The HTTP/2 server against raw frames: windows, tables, limits, and clients that break every rule."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from ingero_http.http2 import frames as h2
from ingero_http.http2.frames import ErrorCode
from ingero_http.http2.messages import Reply, RequestFailure, RequestHead
from ingero_http.http2.server import Http2Server
from ingero_http.http2.streams import CONNECTION_WINDOW, STREAM_WINDOW
from ingero_http.limits import Limits
from ingero_testing.http2 import Client
from ingero_testing.web import stop_reading

OK = [(b":status", b"200")]
ONE_FRAME = h2.END_HEADERS | h2.END_STREAM


class Echo:
    """Answers with the body; `/slow` does so when `gate` opens, `/bad` fails, `/never` is refused at its head."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.heads: list[RequestHead] = []
        self.cancelled = 0

    def route(self, head: RequestHead) -> "Exchange":
        self.heads.append(head)
        return Exchange(self, head)

    def fail(self, failure: RequestFailure) -> Reply:
        return Reply.of([(b":status", b"500"), (b"failure", failure.name.encode())])


class Exchange:
    def __init__(self, service: Echo, head: RequestHead) -> None:
        self.service, self.head = service, head

    def begin(self) -> Reply | None:
        return Reply.of([(b":status", b"403")]) if self.head.path == b"/never" else None

    def complete(self, body: bytes) -> Reply | Awaitable[Reply]:
        if self.head.path == b"/bad":
            raise RuntimeError("boom")
        if self.head.path == b"/slow":
            return self.later(body)
        return Reply.of([*OK, (b"x-tag", self.head.fields.get(b"tag", b""))], body, [(b"x-end", b"1")])

    async def later(self, body: bytes) -> Reply:
        try:
            await self.service.gate.wait()
        except asyncio.CancelledError:
            self.service.cancelled += 1
            raise
        return Reply.of(OK, body)


class Listening(Http2Server):
    """A server of `Echo` that knows its port."""

    port: int
    service: Echo


Scenario = Callable[[Listening], Awaitable[None]]


def run(scenario: Scenario, limits: Limits | None = None) -> Listening:
    async def main() -> Listening:
        server = Listening(Echo(), limits=limits)
        server.port = await server.start("127.0.0.1", 0)
        try:
            await asyncio.wait_for(scenario(server), 60)
        finally:
            await server.stop(1)
        assert server.unfinished == 0
        return server

    return uvloop.run(main())


async def served(server: Listening) -> None:
    """Somebody else's request is answered."""
    async with Client(server.port) as client:
        client.request(1, b"hello")
        assert (await client.answer(1))[1] == b"hello"


def test_fields_and_tables_are_kept_right_across_requests() -> None:
    async def scenario(server: Listening) -> None:
        async with Client(server.port) as client:
            chooser = random.Random(1)
            for number in range(1, 601, 2):
                tag = str(chooser.randrange(5) if chooser.random() < 0.7 else chooser.random() * 1e9)
                client.request(number, b"body", ("tag", tag), ("agent", "a" * chooser.randrange(200)))
                fields, data = await client.answer(number)
                assert (fields[b"x-tag"], fields[b"x-end"], data) == (tag.encode(), b"1", b"body")

    run(scenario)


def test_equal_blocks_are_decoded_once_until_the_table_changes() -> None:
    async def scenario(server: Listening) -> None:
        async with Client(server.port) as client:
            for number, tag in zip(range(1, 15, 2), ["a", "a", "a", "b", "a", "b", "a"], strict=True):
                client.request(number, b"", ("tag", tag))
                assert (await client.answer(number))[0][b"x-tag"] == tag.encode()
        assert 3 <= len(server.service.heads) < 7

    run(scenario)


def test_the_first_block_empties_the_table_of_the_client() -> None:
    async def scenario(server: Listening) -> None:
        async with Client(server.port, header_table_size=0) as client:
            for number in (1, 3):
                client.request(number, b"x")
                assert (await client.answer(number))[1] == b"x"

    run(scenario)


def test_continued_padded_and_prioritised_blocks_are_read() -> None:
    async def scenario(server: Listening) -> None:
        async with Client(server.port) as client:
            block = client.head(("tag", "long"))
            padded = b"\x03" + b"\0\0\0\0\x10" + block[:4] + b"\0\0\0"
            client.send(h2.frame(h2.HEADERS, h2.PADDED | h2.PRIORITY_FLAG, 1, padded))
            client.send(h2.frame(h2.CONTINUATION, 0, 1, block[4:9]))
            client.send(h2.frame(h2.CONTINUATION, h2.END_HEADERS, 1, block[9:]))
            client.send(h2.frame(h2.DATA, h2.PADDED, 1, b"\x02ab\0\0"))
            client.send(h2.frame(h2.DATA, 0, 1, b"cd"))
            client.send(h2.frame(h2.HEADERS, ONE_FRAME, 1, client.encoder.encode([("checksum", "1")])))
            fields, data = await client.answer(1)
            assert (fields[b"x-tag"], data) == (b"long", b"abcd")

    run(scenario)


def test_replies_wait_for_the_windows_of_the_client() -> None:
    async def scenario(server: Listening) -> None:
        body = bytes(100_000)
        async with Client(server.port, initial_window_size=10) as client:
            client.request(1, b"0123456789abcdef")
            client.request(3, b"short")
            assert (await client.until(h2.DATA, 1)).payload == b"0123456789"
            assert (await client.until(h2.DATA, 3)).payload == b"short"
            client.send(h2.window_update(1, 2))
            assert (await client.until(h2.DATA, 1)).payload == b"ab"
            client.send(h2.settings({h2.INITIAL_WINDOW_SIZE: 1 << 20}))
            assert (await client.until(h2.DATA, 1)).payload == b"cdef"
            for start in range(0, len(body), 10_000):
                if not start:
                    client.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 5, client.head()))
                last = h2.END_STREAM if start + 10_000 == len(body) else 0
                client.send(h2.frame(h2.DATA, last, 5, body[start : start + 10_000]))
            got = 0
            while got < h2.INITIAL_WINDOW - 21:
                got += len((await client.until(h2.DATA, 5)).payload)
            assert got == h2.INITIAL_WINDOW - 21
            client.send(h2.window_update(0, 1 << 20))
            while got < len(body):
                got += len((await client.until(h2.DATA, 5)).payload)
            assert (await client.until(h2.HEADERS, 5)).flags & h2.END_STREAM

    run(scenario)


def test_a_large_body_gets_its_windows() -> None:
    async def scenario(server: Listening) -> None:
        async with Client(server.port) as client:
            client.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, client.head(path="/slow")))
            allowed = {0: CONNECTION_WINDOW, 1: STREAM_WINDOW}
            rest = 6 << 20
            while rest:
                size = min(rest, h2.MAX_FRAME)
                while min(allowed.values()) < size:
                    frame = await client.next()
                    assert frame
                    if frame.kind == h2.WINDOW_UPDATE and client.frames.index(frame) > 1:
                        allowed[frame.number] += int.from_bytes(frame.payload, "big")
                rest -= size
                for number in allowed:
                    allowed[number] -= size
                client.send(h2.frame(h2.DATA, 0 if rest else h2.END_STREAM, 1, bytes(size)))
            server.service.gate.set()
            await client.until(h2.DATA, 1)

    run(scenario, Limits(body_bytes=8 << 20))


@pytest.mark.parametrize(
    ("path", "body", "length", "failure"),
    [
        pytest.param("/echo", bytes(3000), None, b"BODY_TOO_LARGE", id="too much data"),
        pytest.param("/echo", b"", "3000", b"BODY_TOO_LARGE", id="too much announced"),
        pytest.param("/bad", b"x", None, b"HANDLER_FAILED", id="a failing handler"),
    ],
)
def test_what_cannot_be_served_is_answered_and_the_connection_goes_on(
    path: str, body: bytes, length: str | None, failure: bytes
) -> None:
    async def scenario(server: Listening) -> None:
        async with Client(server.port) as client:
            more = [("content-length", length)] if length else []
            client.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, client.head(*more, path=path)))
            client.send(h2.frame(h2.DATA, 0, 1, body))
            client.send(h2.frame(h2.DATA, h2.END_STREAM, 1))
            fields, _ = await client.answer(1)
            assert fields[b"failure"] == failure
            client.request(3, b"next")
            assert (await client.answer(3))[1] == b"next"

    run(scenario, Limits(body_bytes=2000))


def test_bodies_of_all_clients_together_are_bounded() -> None:
    async def scenario(server: Listening) -> None:
        async with Client(server.port) as first, Client(server.port) as second:
            for client in (first, second):
                client.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, client.head()))
                client.send(h2.frame(h2.DATA, 0, 1, bytes(700)))
                if client is first:
                    while server.unfinished < 700:
                        await asyncio.sleep(0)
            assert (await second.answer(1))[0][b"failure"] == b"OVERLOADED"
            assert (await second.until(h2.RST_STREAM, 1)).code == ErrorCode.NO_ERROR
            first.send(h2.frame(h2.DATA, h2.END_STREAM, 1, b"end"))
            assert len((await first.answer(1))[1]) == 703

    run(scenario, Limits(unfinished_bytes=1000))


def test_data_after_an_early_refusal_is_ignored() -> None:
    async def scenario(server: Listening) -> None:
        async with Client(server.port) as client:
            client.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, client.head(path="/never")))
            assert (await client.answer(1))[0][b":status"] == b"403"
            assert (await client.until(h2.RST_STREAM, 1)).code == ErrorCode.NO_ERROR
            client.send(h2.frame(h2.DATA, 0, 1, b"late"))
            client.send(h2.frame(h2.HEADERS, ONE_FRAME, 1, client.encoder.encode([("late", "trailer")])))
            client.request(3, b"next", ("late", "trailer"))
            assert (await client.answer(3))[1] == b"next"

    run(scenario)


def request_line(*fields: tuple[bytes, bytes]) -> bytes:
    literal = b"".join(b"\0%c%b%c%b" % (len(name), name, len(value), value) for name, value in fields)
    return h2.frame(h2.HEADERS, ONE_FRAME, 1, literal)


GOOD = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/"))


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(GOOD[:2], id="no path"),
        pytest.param((*GOOD, (b":path", b"/")), id="two paths"),
        pytest.param((*GOOD, (b":status", b"200")), id="a response's field"),
        pytest.param(((b"x", b"y"), *GOOD), id="pseudo fields behind others"),
        pytest.param((*GOOD, (b"X-Upper", b"y")), id="upper case"),
        pytest.param((*GOOD, (b"", b"y")), id="no name"),
        pytest.param((*GOOD, (b"x", b"a\r\nb")), id="line ends"),
        pytest.param((*GOOD, (b"connection", b"close")), id="connection"),
        pytest.param((*GOOD, (b"te", b"gzip")), id="te"),
        pytest.param((*GOOD, (b"content-length", b"-1")), id="no length"),
        pytest.param((*GOOD, (b"content-length", b"7")), id="another length"),
    ],
)
def test_malformed_requests_reset_their_stream(fields: tuple[tuple[bytes, bytes], ...]) -> None:
    async def scenario(server: Listening) -> None:
        async with Client(server.port) as client:
            client.send(request_line(*fields))
            assert (await client.until(h2.RST_STREAM, 1)).code == ErrorCode.PROTOCOL_ERROR
            client.request(3, b"next")
            assert (await client.answer(3))[1] == b"next"

    assert run(scenario).counters.malformed == 1


def open_stream(flags: int = h2.END_HEADERS) -> bytes:
    return h2.frame(h2.HEADERS, flags, 1, b"\x83\x86\x84")


REFUSED = h2.frame(h2.HEADERS, h2.END_HEADERS, 1, b"\x83\x86\x04\x06/never")
"""A request that is answered before its body."""


@pytest.mark.parametrize(
    ("octets", "code"),
    [
        pytest.param(h2.frame(h2.DATA, 0, 1, b"x"), ErrorCode.PROTOCOL_ERROR, id="data of no stream"),
        pytest.param(h2.frame(h2.DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR, id="data of the connection"),
        pytest.param(
            open_stream() + h2.frame(h2.DATA, 8, 1, b"\x09x"), ErrorCode.PROTOCOL_ERROR, id="too much padding"
        ),
        pytest.param(open_stream() + h2.frame(h2.DATA, 8, 1), ErrorCode.FRAME_SIZE_ERROR, id="no padding length"),
        pytest.param(h2.frame(h2.HEADERS, 4, 2, b"\x83"), ErrorCode.PROTOCOL_ERROR, id="an even stream"),
        pytest.param(h2.frame(h2.HEADERS, 4, 1, b"\x80"), ErrorCode.COMPRESSION_ERROR, id="no header block"),
        pytest.param(h2.frame(h2.HEADERS, 0, 1) + h2.frame(h2.PING, 0, 0, bytes(8)), 1, id="an interrupted block"),
        pytest.param(h2.frame(h2.CONTINUATION, 4, 1), ErrorCode.PROTOCOL_ERROR, id="a lone continuation"),
        pytest.param(h2.frame(h2.PRIORITY, 0, 0, bytes(5)), ErrorCode.PROTOCOL_ERROR, id="priority of nothing"),
        pytest.param(h2.frame(h2.RST_STREAM, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR, id="reset of no stream"),
        pytest.param(open_stream() + h2.frame(h2.RST_STREAM, 0, 1), ErrorCode.FRAME_SIZE_ERROR, id="a short reset"),
        pytest.param(h2.frame(h2.SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR, id="settings of a stream"),
        pytest.param(h2.frame(h2.SETTINGS, 0, 0, b"x"), ErrorCode.FRAME_SIZE_ERROR, id="short settings"),
        pytest.param(h2.frame(h2.SETTINGS, 1, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR, id="a full acknowledgement"),
        pytest.param(h2.settings({h2.ENABLE_PUSH: 2}), ErrorCode.PROTOCOL_ERROR, id="push 2"),
        pytest.param(
            h2.settings({h2.INITIAL_WINDOW_SIZE: 1 << 31}), ErrorCode.FLOW_CONTROL_ERROR, id="a huge window"
        ),
        pytest.param(h2.settings({h2.MAX_FRAME_SIZE: 1}), ErrorCode.PROTOCOL_ERROR, id="a tiny frame size"),
        pytest.param(h2.frame(h2.PUSH_PROMISE, 4, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR, id="a push"),
        pytest.param(h2.frame(h2.PING, 0, 0, b"x"), ErrorCode.FRAME_SIZE_ERROR, id="a short ping"),
        pytest.param(h2.frame(h2.GOAWAY, 0, 0, b"x"), ErrorCode.FRAME_SIZE_ERROR, id="a short goodbye"),
        pytest.param(h2.frame(h2.WINDOW_UPDATE, 0, 0, b"x"), ErrorCode.FRAME_SIZE_ERROR, id="a short window"),
        pytest.param(h2.window_update(0, 0), ErrorCode.PROTOCOL_ERROR, id="a window of nothing"),
        pytest.param(h2.window_update(0, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR, id="too large a window"),
        pytest.param(h2.window_update(1, 1), ErrorCode.PROTOCOL_ERROR, id="a window of no stream"),
        pytest.param(b"\xff\xff\xff" + bytes(6), ErrorCode.FRAME_SIZE_ERROR, id="a huge frame"),
        pytest.param(open_stream(5) + h2.frame(h2.DATA, 0, 1), ErrorCode.STREAM_CLOSED, id="data behind the end"),
        pytest.param(open_stream(5) + open_stream(5), ErrorCode.STREAM_CLOSED, id="a stream twice"),
        pytest.param(
            REFUSED + h2.rst_stream(1, ErrorCode.CANCEL) + h2.frame(h2.DATA, 0, 1),
            ErrorCode.STREAM_CLOSED,
            id="data behind a reset",
        ),
        pytest.param(
            REFUSED + h2.rst_stream(1, ErrorCode.CANCEL) + open_stream(5),
            ErrorCode.STREAM_CLOSED,
            id="a head behind a reset",
        ),
        pytest.param(
            REFUSED + h2.frame(h2.DATA, 8, 1, b"\x09x"),
            ErrorCode.PROTOCOL_ERROR,
            id="too much padding behind a refusal",
        ),
        pytest.param(
            h2.frame(h2.HEADERS, 0, 1) + h2.frame(h2.CONTINUATION, 0, 1, bytes(9000)) * 2,
            ErrorCode.ENHANCE_YOUR_CALM,
            id="an endless block",
        ),
        pytest.param(
            h2.frame(h2.HEADERS, 0, 1) + h2.frame(h2.CONTINUATION, 0, 1) * 1100,
            ErrorCode.ENHANCE_YOUR_CALM,
            id="empty continuations",
        ),
        pytest.param(h2.frame(h2.PING, 0, 0, bytes(8)) * 1100, ErrorCode.ENHANCE_YOUR_CALM, id="many pings"),
        pytest.param(h2.settings({}) * 1100, ErrorCode.ENHANCE_YOUR_CALM, id="many settings"),
        pytest.param(open_stream() + h2.frame(h2.DATA, 0, 1) * 1100, ErrorCode.ENHANCE_YOUR_CALM, id="empty data"),
        pytest.param(
            h2.frame(h2.HEADERS, 5, 1, b"\x83\x86\x84\x40\x01x\x7f\xa1\x1e" + b"v" * 4000)
            + h2.frame(h2.HEADERS, 5, 3, b"\x83\x86\x84" + b"\xbe" * 16_000),
            ErrorCode.ENHANCE_YOUR_CALM,
            id="a header bomb",
        ),
    ],
)
def test_connection_errors_end_the_connection_with_a_reason(octets: bytes, code: int) -> None:
    async def scenario(server: Listening) -> None:
        async with Client(server.port) as client:
            client.send(octets)
            goodbye = await client.ended()
            assert goodbye
            assert (goodbye.code, len(goodbye.payload) > 8) == (code, True)
        await served(server)

    assert run(scenario).counters.malformed == 1


def test_headers_that_are_too_large_are_answered() -> None:
    async def scenario(server: Listening) -> None:
        async with Client(server.port) as client:
            client.request(1, b"", ("tag", "x" * 1500), ("other", "y"))
            assert (await client.answer(1))[0][b"failure"] == b"HEADERS_TOO_LARGE"
            client.request(3, b"next", ("other", "y"))
            assert (await client.answer(3))[1] == b"next"

    assert run(scenario, Limits(header_bytes=1000)).counters.too_large == 1


def test_rapid_resets_end_their_connection_and_no_other() -> None:
    async def scenario(server: Listening) -> None:
        async with Client(server.port) as client:
            block = b"\x83\x86\x04\x05/slow"
            for number in range(1, 3000, 2):
                client.send(h2.frame(h2.HEADERS, ONE_FRAME, number, block) + h2.rst_stream(number, ErrorCode.CANCEL))
            goodbye = await client.ended()
            assert goodbye is None or goodbye.code == ErrorCode.ENHANCE_YOUR_CALM
        assert server.counters.requests < 600
        await served(server)

    run(scenario)


def test_a_reset_cancels_what_is_under_way() -> None:
    async def scenario(server: Listening) -> None:
        async with Client(server.port) as client:
            client.send(h2.frame(h2.HEADERS, ONE_FRAME, 1, client.head(path="/slow")))
            client.request(3, b"x")
            await client.answer(3)
            client.send(h2.rst_stream(1, ErrorCode.CANCEL))
            client.request(5, b"y")
            await client.answer(5)
        assert server.service.cancelled == 1

    run(scenario)


def test_streams_are_bounded_and_refused_ones_may_be_tried_again() -> None:
    async def scenario(server: Listening) -> None:
        async with Client(server.port) as client:
            for number in (1, 3, 5):
                client.send(h2.frame(h2.HEADERS, ONE_FRAME, number, client.head(("tag", str(number)), path="/slow")))
            assert (await client.until(h2.RST_STREAM, 5)).code == ErrorCode.REFUSED_STREAM
            server.service.gate.set()
            assert (await client.answer(3))[0][b":status"] == b"200"
            client.request(7, b"again", ("tag", "5"))
            assert (await client.answer(7))[0][b"x-tag"] == b"5"

    run(scenario, Limits(streams=2))


def test_slow_clients_are_cut_off_and_others_are_served() -> None:
    async def scenario(server: Listening) -> None:
        async with Client(server.port) as body, Client(server.port) as frame, Client(server.port) as block:
            body.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, body.head()))
            frame.send(h2.frame(h2.DATA, 0, 1, bytes(100))[:20])
            block.send(h2.frame(h2.HEADERS, 0, 1, b"\x83"))
            _, silent = await asyncio.open_connection("127.0.0.1", server.port)
            await served(server)
            assert (await body.answer(1))[0][b"failure"] == b"TOO_SLOW"
            for client in (frame, block):
                goodbye = await client.ended()
                assert goodbye
                assert b"too long" in goodbye.payload
            silent.close()

    assert run(scenario, Limits(read_seconds=0.1)).counters.timeouts >= 2


def test_idle_connections_are_closed_with_goaway() -> None:
    async def scenario(server: Listening) -> None:
        async with Client(server.port) as client:
            client.request(1, b"x")
            await client.answer(1)
            goodbye = await client.ended()
            assert goodbye
            assert (goodbye.code, goodbye.payload[:4]) == (ErrorCode.NO_ERROR, h2.uint32(1))

    run(scenario, Limits(read_seconds=0.2, idle_seconds=0.2))


def test_a_connection_of_some_age_is_closed_with_goaway_and_its_requests_are_served() -> None:
    async def scenario(server: Listening) -> None:
        async with Client(server.port) as client:
            client.request(1, b"x")
            await client.answer(1)
            goodbye = await client.until(h2.GOAWAY, 0)
            assert goodbye.payload[:4] == h2.uint32(h2.MAX_STREAM)
            ping = await client.until(h2.PING, 0)
            client.request(3, b"y")
            await client.answer(3)
            client.send(h2.frame(h2.PING, h2.ACK, 0, ping.payload))
            assert await client.ended()

    assert run(scenario, Limits(read_seconds=0.2, age_seconds=0.01)).counters.aged == 1


def test_a_reply_without_a_window_is_dropped_in_time() -> None:
    async def scenario(server: Listening) -> None:
        async with Client(server.port, initial_window_size=0) as client:
            client.request(1, b"x")
            assert (await client.until(h2.RST_STREAM, 1)).code == ErrorCode.CANCEL

    run(scenario, Limits(read_seconds=0.2, idle_seconds=0.3))


def test_connections_that_wait_for_a_response_are_not_closed_for_new_ones() -> None:
    async def scenario(server: Listening) -> None:
        async with Client(server.port) as client:
            client.send(h2.frame(h2.HEADERS, ONE_FRAME, 1, client.head(path="/slow")))
            while not server.counters.requests:
                await asyncio.sleep(0)
            async with Client(server.port) as other:
                assert await other.next() is None
            server.service.gate.set()
            await client.answer(1)

    counters = run(scenario, Limits(connections=1)).counters
    assert (counters.refused_connections, counters.gave_way) == (1, 0)


def test_a_full_server_closes_the_connection_that_is_idle_longest() -> None:
    async def scenario(server: Listening) -> None:
        async with Client(server.port) as client:
            client.request(1)
            await client.answer(1)
            await served(server)
            assert await client.next() is None

    counters = run(scenario, Limits(connections=1)).counters
    assert (counters.refused_connections, counters.gave_way) == (0, 1)


def test_too_many_table_size_updates_end_the_connection() -> None:
    async def scenario(server: Listening) -> None:
        async with Client(server.port) as client:
            client.send(h2.frame(h2.HEADERS, ONE_FRAME, 1, b"\x20" * 16_000))
            goodbye = await client.ended()
            assert goodbye
            assert goodbye.code == ErrorCode.COMPRESSION_ERROR

    run(scenario)


def test_requests_that_are_all_refused_end_the_connection() -> None:
    async def scenario(server: Listening) -> None:
        async with Client(server.port) as client:
            for number in range(1, 2001, 2):
                client.send(h2.frame(h2.HEADERS, ONE_FRAME, number, client.head(path="/never")))
            goodbye = await client.ended()
            assert goodbye
            assert goodbye.code == ErrorCode.ENHANCE_YOUR_CALM

    run(scenario)


def test_a_connection_that_sends_much_gives_others_their_turn() -> None:
    """A thousand requests that came in one piece are answered; another's single one waits for few of them."""

    async def scenario(server: Listening) -> None:
        async with Client(server.port) as client, Client(server.port) as other:
            head = client.head(path="/echo")
            many = [
                h2.frame(h2.HEADERS, h2.END_HEADERS, number, head)
                + h2.frame(h2.DATA, h2.END_STREAM, number, b"x" * 9)
                for number in range(1, 4001, 2)
            ]
            greedy = server.connection()
            assert isinstance(greedy, asyncio.Protocol)
            wire = Remembering()
            greedy.connection_made(wire)
            greedy.data_received(h2.PREFACE + h2.settings({}) + b"".join(many))
            first = server.counters.requests
            assert 0 < first < 1000
            other.request(1, b"mine")
            assert (await other.answer(1))[1] == b"mine"
            while server.counters.requests < 2001:
                await asyncio.sleep(0)
            assert wire.written.count(b"x" * 9) == 2000
            greedy.connection_lost(None)

    assert run(scenario).counters.turns_ended > 3


def test_a_connection_whose_replies_are_not_read_is_not_served() -> None:
    async def scenario(server: Listening) -> None:
        _reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 10)
        stop_reading(writer)
        ping = h2.frame(h2.PING, 0, 0, bytes(8))
        async with Client(server.port) as asks:
            head = asks.head()
        writer.write(h2.PREFACE + h2.settings({h2.INITIAL_WINDOW_SIZE: h2.MAX_WINDOW}))
        writer.write(h2.window_update(0, h2.MAX_WINDOW - h2.INITIAL_WINDOW))
        body = b"".join(h2.frame(h2.DATA, 0, 1, bytes(16_000)) for _ in range(60))
        writer.write(b"".join(
            h2.frame(h2.HEADERS, h2.END_HEADERS, number, head)
            + body.replace(b"\0\0\0\1", h2.uint32(number)) + h2.frame(h2.DATA, h2.END_STREAM, number) + ping
            for number in range(1, 101, 2)
        ))  # fmt: skip
        while not server.counters.unread:
            await asyncio.sleep(0.01)
        assert server.counters.requests < 50
        writer.close()
        await served(server)

    run(scenario, Limits(read_seconds=0.4, send_seconds=0.2))


def test_a_stop_serves_what_is_under_way_and_names_the_last_stream() -> None:
    async def scenario(server: Listening) -> None:
        async with Client(server.port) as client:
            client.send(h2.frame(h2.HEADERS, ONE_FRAME, 1, client.head(path="/slow")))
            await client.until(h2.SETTINGS)
            stopping = asyncio.create_task(server.stop(5))
            goodbye = await client.until(h2.GOAWAY)
            assert goodbye.payload[:4] == h2.uint32(h2.MAX_STREAM)
            ping = await client.until(h2.PING)
            client.request(3, b"was on its way")
            assert (await client.answer(3))[1] == b"was on its way"
            client.send(h2.frame(h2.PING, h2.ACK, 0, ping.payload))
            assert (await client.until(h2.GOAWAY)).payload[:4] == h2.uint32(3)
            client.request(5, b"too late")
            server.service.gate.set()
            assert (await client.answer(1))[0][b":status"] == b"200"
            await client.ended()
            assert not any(frame.number == 5 for frame in client.frames)
            await stopping

    run(scenario)


@pytest.mark.parametrize("octets", [b"GET / HTTP/1.1\r\n\r\n", b"POST /v1/metrics HTTP/1.1\r\n", b"\x16\x03\x01\x02"])
def test_what_is_not_http2_is_closed(octets: bytes) -> None:
    async def scenario(server: Listening) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(octets)
        answer = await asyncio.wait_for(reader.read(), 10)
        http1 = answer.startswith(b"HTTP/1.1 505 ") and b"this port takes gRPC" in answer
        assert http1 if octets[0] > 0x20 else answer == b""
        writer.close()
        await served(server)

    run(scenario)


def test_frames_arrive_in_any_pieces() -> None:
    async def scenario(server: Listening) -> None:
        async with Client(server.port) as client:
            whole = b"".join(
                h2.frame(h2.HEADERS, h2.END_HEADERS, number, client.head(("tag", str(number))))
                + h2.frame(h2.DATA, h2.END_STREAM, number, b"%d" % number)
                for number in range(1, 40, 2)
            )
            for at in range(0, len(whole), 7):
                client.send(whole[at : at + 7])
                await client.writer.drain()
                await asyncio.sleep(0)
            for number in range(1, 40, 2):
                fields, data = await client.answer(number)
                assert (fields[b"x-tag"], data) == (str(number).encode(), str(number).encode())

    run(scenario)


FRAMES = st.builds(
    h2.frame,
    st.integers(0, 12),
    st.integers(0, 255),
    st.sampled_from([0, 1, 1, 1, 2, 3, 5, 2**31 - 1]),
    st.binary(max_size=40) | st.just(b"\x83\x86\x84") | st.just(bytes(4)) | st.just(bytes(8)),
)


@given(st.lists(FRAMES | st.binary(max_size=60) | st.just(open_stream()), min_size=1, max_size=12))
@settings(max_examples=150)
def test_random_frames_harm_neither_the_server_nor_others(parts: list[bytes]) -> None:
    transport = Remembering()
    server = Listening(Echo(), limits=Limits(body_bytes=50))
    connection = server.connection()

    async def scenario() -> None:
        assert isinstance(connection, asyncio.Protocol)
        connection.connection_made(transport)
        connection.data_received(h2.PREFACE + h2.settings({}))
        for part in parts:
            connection.data_received(part)
        await asyncio.sleep(0)
        connection.connection_lost(None)

    asyncio.run(scenario())

    assert server.unfinished == 0
    assert server.counters.open == 0
    assert server.counters.handler_errors == 0
    assert transport.written.startswith(server.greeting)


class Remembering(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.written += data

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass
