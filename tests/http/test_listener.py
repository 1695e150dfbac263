"""Listening: addresses of both families, TLS on its way in, open files, and a stop that waits for nobody."""

import asyncio
import resource
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop
from structlog.testing import capture_logs

from ingero_http.asgi import AsgiServer
from ingero_http.handshake_log import MAX_REASONS, HandshakeLog
from ingero_http.http1.messages import Request, Response
from ingero_http.http1.server import Http1Server
from ingero_http.limits import Limits
from ingero_http.sockets import open_sockets
from ingero_kit.tls import ServerTls
from ingero_testing.web import stop_reading

ASK = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


def large(request: Request) -> Response:
    return Response(200, bytes(8 << 20) if request.path == b"/large" else b"hello")


def tls(folder: Path) -> tuple[ServerTls, ssl.SSLContext]:
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    server.private_key_and_cert_chain_pem.write_to_path(str(folder / "both.pem"))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return ServerTls(cert_file=folder / "both.pem", key_file=folder / "both.pem"), context


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6: sysctl net.ipv6.conf.all.disable_ipv6=0")
@pytest.mark.parametrize("host", ["::", ""])
def test_every_address_means_both_families(host: str) -> None:
    async def main() -> None:
        server = Http1Server(large)
        port = await server.start(host, 0)
        for address in ("127.0.0.1", "::1"):
            reader, writer = await asyncio.open_connection(address, port)
            writer.write(ASK)
            assert (await reader.read()).endswith(b"hello")
            writer.close()
        await server.stop(1)

    uvloop.run(main())


def test_an_error_names_the_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"^cannot listen on 127.0.0.1:{port} for pages: .*in use"):
            open_sockets("127.0.0.1", port, purpose="pages")


def test_handshakes_count_as_connections_and_make_room(tmp_path: Path) -> None:
    settings, context = tls(tmp_path)

    async def main() -> None:
        server = Http1Server(large, limits=Limits(connections=4))
        port = await server.start("127.0.0.1", 0, tls=settings)
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(ASK)
        assert (await reader.read()).endswith(b"hello")
        assert server.counters.gave_way >= 16
        writer.close()
        for _, one in silent:
            one.close()
        await server.stop(1)

    uvloop.run(main())


def test_a_handshake_that_takes_too_long_is_counted(tmp_path: Path) -> None:
    settings, _ = tls(tmp_path)

    async def main() -> None:
        server = Http1Server(large, limits=Limits(read_seconds=0.1))
        port = await server.start("127.0.0.1", 0, tls=settings)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        while not server.counters.failed_handshakes:
            await asyncio.sleep(0.01)
        writer.close()
        await server.stop(1)

    uvloop.run(main())


def test_why_handshakes_fail_is_logged_once_in_a_while_with_what_the_client_must_change(tmp_path: Path) -> None:
    settings, _ = tls(tmp_path)

    async def main() -> None:
        server = Http1Server(large)
        port = await server.start("127.0.0.1", 0, tls=settings)
        for count, sent in enumerate((ASK, ASK, b"\0" * 99, b""), 1):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            writer.write_eof()
            await reader.read()
            writer.close()
            while server.counters.failed_handshakes < count:
                await asyncio.sleep(0.01)
        await server.stop(1)

    with capture_logs() as logged:
        uvloop.run(main())

    lines = [line for line in logged if line["event"] == "tls_handshake_failed"]
    assert [line["client"] for line in lines] == ["127.0.0.1"] * 2
    assert "HTTP_REQUEST" in lines[0]["reason"] and "must use https" in lines[0]["hint"]
    assert "WRONG_VERSION_NUMBER" in lines[1]["reason"] and "did not speak TLS" in lines[1]["hint"]


def test_a_reason_is_logged_again_after_a_while_and_only_so_many_are() -> None:
    now = [0.0]
    handshakes = HandshakeLog(lambda: now[0])

    with capture_logs() as logged:
        for moment in (0.0, 599.0, 600.0):
            now[0] = moment
            for number in range(2 * MAX_REASONS):
                handshakes.failed(ssl.SSLError(1, f"reason {number}"), "192.0.2.1")
            handshakes.failed(ConnectionResetError(), "192.0.2.1")

    assert len(logged) == 2 * MAX_REASONS


def test_a_stop_leaves_no_connection_behind_whatever_its_client_does(tmp_path: Path) -> None:
    settings, context = tls(tmp_path)

    async def main() -> None:
        server = Http1Server(large)
        port = await server.start("127.0.0.1", 0, tls=settings)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(ASK.replace(b"/", b"/large", 1))
        await reader.readexactly(1)
        stop_reading(writer)
        await server.stop(0.2)
        assert server.counters.open == 0
        writer.transport.abort()

    uvloop.run(main())


def test_open_files_are_raised_and_what_the_system_allows_bounds_connections() -> None:
    """In a process of its own, because limits cannot be raised again."""
    program = (
        "import asyncio, resource\n"
        "from ingero_http.http1.messages import Response\n"
        "from ingero_http.http1.server import Http1Server\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 300))\n"
        "server = Http1Server(lambda request: Response())\n"
        "asyncio.run(server.start('127.0.0.1', 0))\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], server._max_connections)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 300
    assert done.stdout.split()[-2:] == ["300", "172"], done.stderr


@pytest.mark.parametrize(("limit", "said"), [(1107, True), (1109, False), (1122, False), (1300, False)])
def test_fewer_connections_are_said_only_where_a_tenth_or_more_is_lost(limit: int, said: bool) -> None:
    program = (
        "import asyncio, resource\n"
        "from ingero_http.http1.messages import Response\n"
        "from ingero_http.http1.server import Http1Server\n"
        "from ingero_http.limits import Limits\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (64, {limit}))\n"
        "server = Http1Server(lambda request: Response(), limits=Limits(connections=1090))\n"
        "asyncio.run(server.start('127.0.0.1', 0))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    assert ("fewer_connections_than_wanted" in done.stdout + done.stderr) is said
    assert ("LimitNOFILE" in done.stdout + done.stderr) is said


@pytest.mark.parametrize("kind", ["pages", "asgi"])
def test_a_client_authority_that_is_removed_is_no_longer_trusted(tmp_path: Path, kind: str) -> None:
    authority, old, new = trustme.CA(), trustme.CA(), trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    server.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    old.cert_pem.write_to_path(tmp_path / "clients.pem")
    settings = ServerTls(
        cert_file=tmp_path / "both.pem", key_file=tmp_path / "both.pem", client_ca_file=tmp_path / "clients.pem"
    )

    async def asked(port: int, client: trustme.CA) -> bool:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        client.issue_cert("agent").configure_cert(context)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.write(ASK)
            answer = await reader.read()
            writer.close()
        except (ssl.SSLError, ConnectionError):
            return False
        return b"hello" in answer

    async def main() -> tuple[list[bool], list[bool]]:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"hello"})

        listener: Http1Server | AsgiServer
        if kind == "pages":
            listener = Http1Server(large)
            port = await listener.start("127.0.0.1", 0, tls=settings)
        else:
            listener = AsgiServer(app)
            port = await listener.start("127.0.0.1", 0, tls=settings)
        before = [await asked(port, client) for client in (old, new)]
        new.cert_pem.write_to_path(tmp_path / "clients.pem")
        after = [await asked(port, client) for client in (old, new)]
        await listener.stop(1)
        return before, after

    assert uvloop.run(main()) == ([True, False], [False, True])
