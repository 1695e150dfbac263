"""The HTTP client against servers of ours, and against servers that send what they should not."""

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
import trustme
import uvloop

from ingero_http.http1 import client as http
from ingero_http.http1.messages import Request, Response
from ingero_http.http1.server import Http1Server
from ingero_kit.tls import ServerTls

HEAD = b"HTTP/1.1 200 OK\r\n"


class Canned:
    """A server that sends given bytes for each request, then closes unless it `stays`; `seen` has the requests."""

    def __init__(self, *answers: bytes, stays: bool = False) -> None:
        self.answers, self.stays = list(answers), stays
        self.seen: list[bytes] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                lengths = [int(line[16:]) for line in head.splitlines() if line.startswith(b"content-length: ")]
                self.seen.append(head + await reader.readexactly(sum(lengths)))
                writer.write(self.answers.pop(0))
                await writer.drain()
                if not self.stays:
                    return
            await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def served(canned: Canned, timeout: float = 30.0) -> AsyncIterator[tuple[http.HttpClient, str]]:
    server = await asyncio.start_server(canned.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/path"
    client = http.HttpClient(url, timeout)
    try:
        yield client, url
    finally:
        await client.close()
        server.close()


def ask(*answers: bytes, stays: bool = False, runs: Callable[..., http.HttpAnswer] = asyncio.run) -> http.HttpAnswer:
    async def run() -> http.HttpAnswer:
        async with served(Canned(*answers, stays=stays)) as (client, url):
            return await client.request("GET", url)

    return runs(run())


def test_it_runs_on_the_loop_of_the_agent_and_on_that_of_fleet() -> None:
    empty = HEAD + b"content-length: 0\r\n\r\n"

    assert ask(empty) == ask(empty, runs=uvloop.run)
    with pytest.raises(http.NoAnswerError, match="closed the connection"):
        ask(b"", runs=uvloop.run)


def test_another_address_of_a_name_is_tried_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> http.HttpAnswer:
        async with served(Canned(HEAD + b"content-length: 0\r\n\r\n")) as (client, url):
            port = int(url.split(":")[2].split("/")[0])
            addresses = [
                (family, socket.SOCK_STREAM, 0, "", address)
                for family, address in ((socket.AF_INET, ("127.0.0.2", port)), (socket.AF_INET, ("127.0.0.1", port)))
            ]

            async def two(*_: object, **__: object) -> list[object]:
                return list(addresses)

            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", two)
            return await client.request("GET", url)

    assert asyncio.run(run()).status == 200


@pytest.mark.parametrize(
    ("sent", "body"),
    [
        (HEAD + b"content-length: 3\r\n\r\nabc", b"abc"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n", b"abc"),
        (HEAD + b"connection: close\r\n\r\nabc", b"abc"),
        (b"HTTP/1.0 200 OK\r\n\r\nabc", b"abc"),
        (b"HTTP/1.1 100 Continue\r\nx: y\r\n\r\n" + HEAD + b"content-length: 1\r\n\r\na", b"a"),
        (HEAD + b"content-length: 1\r\n\r\na" + b"HTTP/1.1 500 No\r\ncontent-length: 1\r\n\r\nb", b"a"),
    ],
    ids=["length", "chunks", "until the end", "HTTP/1.0", "after an informational answer", "one too many"],
)
def test_an_answer_is_read_whatever_its_frame(sent: bytes, body: bytes) -> None:
    answer = ask(sent)

    assert (answer.status, answer.body) == (200, body)
    assert "x" not in answer.headers


def test_an_answer_without_a_body_needs_no_length() -> None:
    assert ask(b"HTTP/1.1 204 No Content\r\nETag: 7\r\n\r\n", stays=True) == http.HttpAnswer(204, {"etag": "7"}, b"")


def test_headers_have_small_letters_and_repeated_ones_are_joined() -> None:
    answer = ask(HEAD + b"Retry-After: 3\r\nVia: a\r\nvia: b\r\ncontent-length: 0\r\n\r\n")

    assert answer.headers == {"retry-after": "3", "via": "a, b", "content-length": "0"}


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"", "closed the connection"),
        (HEAD, "closed the connection"),
        (HEAD + b"content-length: 3\r\n\r\nab", "closed the connection"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "HttpParser"),
        (HEAD + b"content-length: -1\r\n\r\n", "HttpParser"),
        (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", "HttpParserUpgrade"),
        (HEAD + b"x: " + b"y" * http.MAX_ANSWER, "more than"),
    ],
    ids=["nothing", "half a head", "half a body", "another protocol", "a negative length", "an upgrade", "too long"],
)
def test_what_is_no_answer_is_an_error_with_its_reason(sent: bytes, reason: str) -> None:
    with pytest.raises(http.NoAnswerError, match=reason):
        ask(sent)


def test_a_server_that_does_not_answer_in_time() -> None:
    async def run() -> None:
        async with served(Canned(HEAD, stays=True), timeout=0.05) as (client, url):
            with pytest.raises(http.AnswerTimeoutError, match=r"0\.05 s"):
                await client.request("GET", url)

    asyncio.run(run())


def test_nobody_listens() -> None:
    async def run() -> None:
        server = await asyncio.start_server(Canned().serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        server.close()
        await server.wait_closed()
        with pytest.raises(http.NoAnswerError, match="ConnectionRefusedError"):
            await http.HttpClient(url, 30).request("GET", url)

    asyncio.run(run())


def test_a_connection_is_used_again_until_the_server_closes_it() -> None:
    empty = HEAD + b"content-length: 0\r\n\r\n"
    closing = HEAD + b"content-length: 0\r\nconnection: close\r\n\r\n"

    async def run() -> list[int]:
        canned, found = Canned(empty, empty, closing, empty, stays=True), []
        async with served(canned) as (client, url):
            for _ in range(4):
                await client.request("POST", url, body=b"x")
                found.append(canned.connections)
        return found

    assert asyncio.run(run()) == [1, 1, 1, 2]


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_server_that_went_while_the_loop_stood_still_is_connected_to_again(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    answered, gone = threading.Event(), threading.Event()

    def serve(listener: socket.socket) -> None:
        for _ in range(2):
            accepted, _ = listener.accept()
            with accepted:
                accepted.recv(65536)
                accepted.sendall(HEAD + b"content-length: 0\r\n\r\n")
                answered.wait(30)
            gone.set()

    with socket.create_server(("127.0.0.1", 0)) as listener, closing(make_loop()) as loop:
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        client = http.HttpClient(url, 30)
        assert loop.run_until_complete(client.request("GET", url)).status == 200
        answered.set()
        assert gone.wait(30)
        assert loop.run_until_complete(client.request("GET", url)).status == 200
        server.join()
        loop.run_until_complete(client.close())


def test_requests_at_the_same_time_do_not_share_a_connection() -> None:
    answers = [HEAD + b"content-length: 1\r\n\r\n" + b"%d" % number for number in range(3)]

    async def run() -> tuple[set[bytes], int]:
        canned = Canned(*answers, stays=True)
        async with served(canned) as (client, url):
            found = await asyncio.gather(*(client.request("GET", url) for _ in answers))
            return {one.body for one in found}, canned.connections

    assert asyncio.run(run()) == ({b"0", b"1", b"2"}, 3)


def test_the_request_on_the_wire() -> None:
    async def run() -> bytes:
        canned = Canned(HEAD + b"content-length: 0\r\n\r\n")
        async with served(canned) as (client, url):
            await client.request("POST", f"{url}/a b?c=%20d", {"Content-Type": "text/plain"}, b"body")
            return canned.seen[0].replace(url.split("/")[2].encode(), b"HOST")

    assert asyncio.run(run()) == (
        b"POST /path/a%20b?c=%20d HTTP/1.1\r\nhost: HOST\r\naccept: */*\r\naccept-encoding: identity\r\n"
        b"content-type: text/plain\r\ncontent-length: 4\r\n\r\nbody"
    )


def test_credentials_of_a_url_are_sent_unless_the_request_has_others() -> None:
    target = http.parse_url("http://user:pass%40word@host:81/x")

    assert target[:4] == ("host", 81, False, "host:81")
    assert b"\r\nauthorization: Basic dXNlcjpwYXNzQHdvcmQ=\r\n" in http.encode_request("GET", target, {}, None)
    request = http.encode_request("GET", target, {"Authorization": "Bearer t"}, None)
    assert request.count(b"authorization: ") == 1
    assert b"authorization: Bearer t\r\n" in request


@pytest.mark.parametrize("url", ["ftp://h", "http://", "http://h:port", "http://h:70000", "http://\u00fc.de"])
def test_urls_that_cannot_be_used(url: str) -> None:
    with pytest.raises(ValueError):
        http.parse_url(url)


@pytest.mark.parametrize("header", [{"a b": "c"}, {"a": "b\r\nc: d"}, {"a": "b\n"}, {"a": " b"}, {"a": "\u20ac"}])
def test_no_header_can_carry_another_one(header: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="forbids"):
        http.encode_request("GET", http.parse_url("http://h"), header, None)


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def secure(folder: Path, authority: trustme.CA, *names: str) -> ServerTls:
    issued = authority.issue_cert(*names)
    cert, key = folder / "cert.pem", folder / "key.pem"
    issued.private_key_pem.write_to_path(key)
    cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    return ServerTls(cert_file=cert, key_file=key)


def test_tls_is_checked_and_a_changed_context_is_used_from_the_next_request_on(
    tmp_path: Path, authority: trustme.CA
) -> None:
    def handler(request: Request) -> Response:
        return Response(200, request.path)

    def trusting() -> ssl.SSLContext:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        return context

    async def run(names: tuple[str, ...], contexts: Callable[[], ssl.SSLContext]) -> bytes:
        server = Http1Server(handler)
        port = await server.start("127.0.0.1", 0, tls=secure(tmp_path, authority, *names))
        url = f"https://127.0.0.1:{port}/x"
        client = http.HttpClient(url, 30, contexts)
        try:
            await client.request("GET", url)
            return (await client.request("GET", url)).body
        finally:
            await client.close()
            await server.stop(0)

    first, distrusting = trusting(), ssl.create_default_context()
    assert asyncio.run(run(("127.0.0.1",), lambda: first)) == b"/x"
    with pytest.raises(http.NoAnswerError, match="CERTIFICATE_VERIFY_FAILED"):
        asyncio.run(run(("elsewhere.test",), lambda: first))
    turns = iter((first, distrusting))
    with pytest.raises(http.NoAnswerError, match="CERTIFICATE_VERIFY_FAILED"):
        asyncio.run(run(("127.0.0.1",), lambda: next(turns)))
