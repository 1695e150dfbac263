"""OTLP/gRPC against the field's own clients: grpcio, synchronous and asynchronous, with and without TLS."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
import uvloop
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

from ingero_contract import headers
from ingero_http.grpc_unary import escape, frame_message
from ingero_http.http2 import frames as h2
from ingero_http.limits import Counters, Limits
from ingero_kit.otlp_receiver import ACCEPTED, Answer, Authenticator, OtlpGrpcReceiver, Push, Status
from ingero_kit.otlp_signal import Signal
from ingero_kit.tls import ServerTls
from ingero_kit.tokens import CHECK_SECONDS, TokenStore, read_digests
from ingero_testing.http2 import Client
from ingero_testing.processes import wait_until
from ingero_testing.rpc import stream_unary, unary, unary_later

METHOD = Signal.METRICS.grpc_method
ANSWERS = {
    b"invalid": Answer(status=Status.INVALID, message="not so: 100 % wrong, é"),
    b"busy": Answer(status=Status.BUSY, message="later", retry_seconds=2.5),
    b"away": Answer(status=Status.UNAVAILABLE, message="away", retry_seconds=1),
    b"partial": Answer(rejected=3, message="three were no good"),
    b"threshold": Answer(metadata=((headers.GRPC_THRESHOLD, "0.850000"),)),
}


class Receiver:
    """A receiver on its own thread."""

    def __init__(
        self, limits: Limits | None = None, authenticator: Authenticator | None = None, tls: ServerTls | None = None
    ):
        self.pushes: list[Push] = []
        self.gate = threading.Event()
        self._receiver = OtlpGrpcReceiver(self.handle, authenticator or Authenticator(), limits)
        self._tls = tls
        self._ended = threading.Event()
        self._ready = threading.Event()
        self.port = 0
        self.loop: asyncio.AbstractEventLoop | None = None

    def handle(self, push: Push) -> Answer | Awaitable[Answer]:
        self.pushes.append(push)
        if push.body == b"boom":
            raise RuntimeError("boom")
        if push.body == b"slow":
            return self.slow()
        return ANSWERS.get(push.body, ACCEPTED)

    async def slow(self) -> Answer:
        while not self.gate.is_set():
            await asyncio.sleep(0.005)
        return ACCEPTED

    async def serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.port = await self._receiver.start("127.0.0.1", 0, tls=self._tls)
        self._ready.set()
        while not self._ended.is_set():
            await asyncio.sleep(0.01)
        await self._receiver.stop(5)

    @property
    def counters(self) -> Counters:
        return self._receiver.counters

    def stop(self) -> None:
        self._ended.set()

    @contextmanager
    def running(self) -> Iterator["Receiver"]:
        thread = threading.Thread(target=lambda: uvloop.run(self.serve()))
        thread.start()
        try:
            assert self._ready.wait(10)
            yield self
        finally:
            self.gate.set()
            self.stop()
            thread.join(20)
            assert not thread.is_alive()

    def channel(self, *options: tuple[str, Any], **more: Any) -> grpc.Channel:
        return grpc.insecure_channel(f"127.0.0.1:{self.port}", options=options, **more)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver(Limits(body_bytes=100_000, decoded_bytes=200_000)).running() as running:
        yield running


def fails(channel: grpc.Channel, body: bytes, method: str = METHOD, **more: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as failed:
        unary(channel, method)(body, timeout=60, **more)
    return failed.value


def test_every_signal_is_taken_with_its_metadata(receiver: Receiver) -> None:
    with receiver.channel() as channel:
        for signal in Signal:
            metadata = ((headers.CLUSTER, "c1"), ("authorization", "Bearer x"))
            assert unary(channel, signal.grpc_method)(b"body", timeout=60, metadata=metadata) == b""

    assert [push.signal for push in receiver.pushes] == list(Signal)
    assert {(push.encoding, push.body, push.cluster) for push in receiver.pushes} == {("protobuf", b"body", "c1")}
    assert receiver.pushes[0].authorization == b"Bearer x"


def test_answer_metadata_is_sent_as_initial_metadata(receiver: Receiver) -> None:
    with receiver.channel() as channel:
        for _ in range(2):
            raw, call = unary(channel, METHOD).with_call(b"threshold", timeout=60)
            assert (raw, call.code()) == (b"", grpc.StatusCode.OK)
            assert dict(call.initial_metadata())[headers.GRPC_THRESHOLD] == "0.850000"


def test_partial_success_is_a_message_of_each_signal(receiver: Receiver) -> None:
    with receiver.channel() as channel:
        raw = unary(channel, METHOD)(b"partial", timeout=60)
        logs = unary(channel, Signal.LOGS.grpc_method)(b"partial", timeout=60)

    assert ExportMetricsServiceResponse.FromString(raw).partial_success.rejected_data_points == 3
    assert ExportLogsServiceResponse.FromString(logs).partial_success.error_message == "three were no good"


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"invalid", grpc.StatusCode.INVALID_ARGUMENT, "not so: 100 % wrong, é"),
        (b"boom", grpc.StatusCode.INTERNAL, "internal error"),
        (bytes(100_001), grpc.StatusCode.RESOURCE_EXHAUSTED, "the message is larger than 100000 bytes"),
        (bytes(5_000_000), grpc.StatusCode.RESOURCE_EXHAUSTED, "the message is larger than 100000 bytes"),
    ],
)
def test_failures_have_their_code_and_the_channel_goes_on(
    receiver: Receiver, body: bytes, code: grpc.StatusCode, words: str
) -> None:
    with receiver.channel() as channel:
        error = fails(channel, body)
        assert (error.code(), error.details()) == (code, words)
        unary(channel, METHOD)(b"next", timeout=60)


@pytest.mark.parametrize(
    ("body", "code", "seconds", "nanos"),
    [
        (b"busy", grpc.StatusCode.RESOURCE_EXHAUSTED, 2, 500_000_000),
        (b"away", grpc.StatusCode.UNAVAILABLE, 1, 0),
    ],
)
def test_retryable_failures_carry_a_delay(
    receiver: Receiver, body: bytes, code: grpc.StatusCode, seconds: int, nanos: int
) -> None:
    from google.rpc.error_details_pb2 import RetryInfo
    from google.rpc.status_pb2 import Status as RpcStatus

    with receiver.channel() as channel:
        error = fails(channel, body)

    trailing: Any = error.trailing_metadata()
    details = RpcStatus.FromString(dict(trailing)["grpc-status-details-bin"])
    retry = RetryInfo.FromString(details.details[0].value)
    assert (error.code(), details.code, details.message) == (
        code,
        code.value[0],
        body.decode().replace("busy", "later"),
    )
    assert (retry.retry_delay.seconds, retry.retry_delay.nanos) == (seconds, nanos)


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_messages_are_opened_within_bounds(receiver: Receiver, compression: grpc.Compression) -> None:
    with receiver.channel(compression=compression) as channel:
        unary(channel, METHOD)(b"a" * 150_000, timeout=60)
        assert receiver.pushes[0].body == b"a" * 150_000
        error = fails(channel, bytes(300_000))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "200000" in (error.details() or "")


def test_other_methods_and_stream_calls_are_refused(receiver: Receiver) -> None:
    with receiver.channel() as channel:
        assert fails(channel, b"x", "/other.Service/Export").code() is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.RpcError) as failed:
            stream_unary(channel, METHOD)(iter([b"one", b"two"]), timeout=60)
        assert failed.value.code() is grpc.StatusCode.INTERNAL
        with pytest.raises(grpc.RpcError) as failed:
            stream_unary(channel, METHOD)(iter([]), timeout=60)
        assert failed.value.code() is grpc.StatusCode.INTERNAL
        unary(channel, METHOD)(b"next", timeout=60)


def test_large_metadata_is_refused_and_the_channel_goes_on(receiver: Receiver) -> None:
    with receiver.channel(("grpc.max_metadata_size", 1 << 20)) as channel:
        error = fails(channel, b"x", metadata=(("m", "v" * 17_000),))
        assert error.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
        unary(channel, METHOD)(b"next", timeout=60, wait_for_ready=True)


def test_a_thousand_calls_at_once_on_one_channel(receiver: Receiver) -> None:
    async def main() -> list[bytes]:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{receiver.port}") as channel:
            call = unary_later(channel, METHOD)
            calls = [call(b"slow" if number % 3 else b"x", timeout=60) for number in range(1000)]
            threading.Timer(0.3, receiver.gate.set).start()
            return list(await asyncio.gather(*calls))

    assert asyncio.run(main()) == [b""] * 1000
    assert len(receiver.pushes) == 1000


def test_many_channels_at_once(receiver: Receiver) -> None:
    def push(number: int) -> int:
        with receiver.channel(("grpc.use_local_subchannel_pool", 1)) as channel:
            return sum(unary(channel, METHOD)(b"x" * number, timeout=60) == b"" for _ in range(20))

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(push, range(32))) == 640


def test_keepalive_pings_are_answered(receiver: Receiver) -> None:
    options = (
        ("grpc.keepalive_time_ms", 100),
        ("grpc.keepalive_timeout_ms", 2000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    )
    with receiver.channel(*options) as channel:
        call = unary(channel, METHOD).future(b"slow", timeout=60)
        threading.Timer(0.8, receiver.gate.set).start()
        assert call.result() == b""

    assert receiver.counters.malformed == 0


def test_a_deadline_ends_the_call_and_not_the_channel(receiver: Receiver) -> None:
    with receiver.channel() as channel:
        with pytest.raises(grpc.RpcError) as failed:
            unary(channel, METHOD)(b"slow", timeout=0.2)
        assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        unary(channel, METHOD)(b"next", timeout=60)


def test_every_call_needs_a_token(tmp_path: Path) -> None:
    file, now = tmp_path / "tokens", [0.0]
    file.write_text("secret")
    authenticator = Authenticator(TokenStore(file, read_digests, clock=lambda: now[0]))
    with Receiver(authenticator=authenticator).running() as receiver, receiver.channel() as channel:
        for metadata, words in (
            ((), "a bearer token is required"),
            ((("authorization", "Bearer other"),), "this bearer token is not accepted"),
        ):
            error = fails(channel, b"x" * 50_000, metadata=metadata)
            assert (error.code(), error.details()) == (
                grpc.StatusCode.UNAUTHENTICATED, words,
            )  # fmt: skip
        good = (("authorization", "Bearer secret"),)
        unary(channel, METHOD)(b"x", timeout=60, metadata=good)
        file.write_text("rotated")
        now[0] += CHECK_SECONDS
        assert fails(channel, b"x", metadata=good).code() is grpc.StatusCode.UNAUTHENTICATED

    assert authenticator.refused == 3
    assert len(receiver.pushes) == 1


def test_a_stop_finishes_what_is_under_way() -> None:
    with Receiver().running() as receiver, receiver.channel() as channel:
        slow = unary(channel, METHOD).future(b"slow", timeout=60)
        wait_until(lambda: len(receiver.pushes) == 1, "the slow call")
        receiver.stop()
        time.sleep(0.2)
        assert not slow.done()
        assert fails(channel, b"x").code() is grpc.StatusCode.UNAVAILABLE
        receiver.gate.set()
        assert slow.result() == b""


def write(folder: Path, authority: trustme.CA) -> ServerTls:
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    return ServerTls(cert_file=folder / "cert.pem", key_file=folder / "key.pem")


def test_tls_speaks_h2_and_follows_its_files(tmp_path: Path) -> None:
    old, new = trustme.CA(), trustme.CA()
    with Receiver(tls=write(tmp_path, old)).running() as receiver:

        def works(authority: trustme.CA) -> bool:
            credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
            with grpc.secure_channel(
                f"127.0.0.1:{receiver.port}", credentials, (("grpc.use_local_subchannel_pool", 1),)
            ) as channel:
                try:
                    return unary(channel, METHOD)(b"x" * 40_000, timeout=60) == b""
                except grpc.RpcError as error:
                    assert error.code() is grpc.StatusCode.UNAVAILABLE
                    return False

        assert (works(old), works(new)) == (True, False)
        write(tmp_path, new)
        assert (works(old), works(new)) == (False, True)
        (tmp_path / "key.pem").write_text("rubbish")
        assert works(new)


def test_an_error_names_the_port_that_is_taken() -> None:
    with Receiver().running() as receiver:

        async def second() -> None:
            await OtlpGrpcReceiver(lambda push: ACCEPTED, Authenticator()).start("127.0.0.1", receiver.port)

        with pytest.raises(OSError, match=rf"cannot listen on 127.0.0.1:{receiver.port} for gRPC"):
            asyncio.run(second())


GRPC = ("content-type", "application/grpc")


@pytest.mark.parametrize(
    ("octets", "more", "words"),
    [
        pytest.param(b"", (), "ended before its message", id="no message"),
        pytest.param(b"\0\0\0\0\x05abc", (), "ended before its message", id="half a message"),
        pytest.param(frame_message(b"a") * 2, (), "more than one message", id="two messages"),
        pytest.param(b"\x01\0\0\0\x01x", (), "without grpc-encoding", id="compressed, but how"),
        pytest.param(b"\x07\0\0\0\x01x", (("grpc-encoding", "gzip"),), "without", id="an unknown flag"),
        pytest.param(b"\x01\0\0\0\x02ab", (("grpc-encoding", "gzip"),), "not valid gzip", id="no gzip"),
        pytest.param(b"", (("grpc-encoding", "snappy"),), "is not supported", id="an unknown encoding"),
    ],
)
def test_broken_calls_end_in_a_status(
    receiver: Receiver, octets: bytes, more: tuple[tuple[str, str], ...], words: str
) -> None:
    async def main() -> None:
        async with Client(receiver.port) as client:
            client.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, client.head(GRPC, *more, path=METHOD)))
            client.send(h2.frame(h2.DATA, h2.END_STREAM, 1, octets))
            fields, data = await client.answer(1)
            assert fields[b":status"] == b"200"
            assert fields[b"grpc-status"] in (b"12", b"13")
            assert (words.encode() in fields[b"grpc-message"], data) == (True, b"")

    asyncio.run(main())
    assert not receiver.pushes


@pytest.mark.parametrize(
    ("method", "media", "status"),
    [
        ("POST", "application/grpc", b"200"),
        ("POST", "application/grpc+proto", b"200"),
        ("POST", "application/grpc;x=y", b"200"),
        ("POST", "application/grpcs", b"415"),
        ("POST", "application/json", b"415"),
        ("GET", "application/grpc", b"405"),
    ],
)
def test_what_is_no_grpc_call_is_answered_as_http(receiver: Receiver, method: str, media: str, status: bytes) -> None:
    async def main() -> None:
        async with Client(receiver.port) as client:
            head = client.head(("content-type", media), ("grpc-timeout", "1S"), method=method, path=METHOD)
            client.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, head))
            client.send(h2.frame(h2.DATA, h2.END_STREAM, 1, frame_message(b"x")))
            assert (await client.answer(1))[0][b":status"] == status

    asyncio.run(main())


def test_status_messages_are_escaped_to_printable_ascii() -> None:
    assert escape("100 % é\n") == b"100 %25 %C3%A9%0A"
