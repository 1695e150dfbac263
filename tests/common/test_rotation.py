"""Certificates are replaced under real listeners and real clients, which go on without a restart."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from ingero_agent.push import ThresholdApi
from ingero_contract import routes
from ingero_http.asgi import AsgiServer
from ingero_kit.otlp_client import ClientConfig, DeliveryFailure, make_client
from ingero_kit.otlp_receiver import Answer, Authenticator, OtlpGrpcReceiver, OtlpHttpReceiver
from ingero_kit.otlp_signal import Signal
from ingero_kit.tls import ClientTls, ServerTls

PROTOCOLS = ("http", "grpc")
LISTENERS = (*PROTOCOLS, "asgi")


class Files:
    """The files of a server and of a client that trust each other; `issue` replaces all files of a side."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server_authority, self.client_authority = trustme.CA(), trustme.CA()
        self.issue("server", self.server_authority, self.client_authority)
        self.issue("client", self.client_authority, self.server_authority)

    def issue(self, side: str, own: trustme.CA, trusted: trustme.CA) -> None:
        certificate = own.issue_cert("127.0.0.1")
        certificate.private_key_pem.write_to_path(self.folder / f"{side}.key")
        certificate.cert_chain_pems[0].write_to_path(self.folder / f"{side}.crt")
        trusted.cert_pem.write_to_path(self.folder / f"{side}.ca")

    @property
    def server(self) -> ServerTls:
        cert, key, authority = self._paths("server")
        return ServerTls(cert_file=cert, key_file=key, client_ca_file=authority)

    @property
    def client(self) -> ClientTls:
        cert, key, authority = self._paths("client")
        return ClientTls(cert_file=cert, key_file=key, ca_file=authority)

    def _paths(self, side: str) -> list[Path]:
        return [self.folder / f"{side}.{ending}" for ending in ("crt", "key", "ca")]


@asynccontextmanager
async def listener(kind: str, tls: ServerTls) -> AsyncIterator[int]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = b'{"threshold": 0.5, "quorum_met": true}'
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    server: AsgiServer | OtlpHttpReceiver | OtlpGrpcReceiver
    if kind == "asgi":
        server = AsgiServer(app)
    else:
        receiver = OtlpHttpReceiver if kind == "http" else OtlpGrpcReceiver
        server = receiver(lambda push: Answer(), Authenticator())
    try:
        yield await server.start("127.0.0.1", 0, tls=tls)
    finally:
        await server.stop(1)


@pytest.mark.parametrize("kind", LISTENERS)
def test_a_listener_serves_new_connections_with_the_current_certificate(tmp_path: Path, kind: str) -> None:
    files, new = Files(tmp_path), trustme.CA()

    async def trusted_by(port: int, authority: trustme.CA) -> bool:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        files.client_authority.issue_cert("agent").configure_cert(context)
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        except ssl.SSLError:
            return False
        writer.close()
        return True

    async def main() -> list[list[bool]]:
        seen = []
        async with listener(kind, files.server) as port:
            for step in ("old", "new", "unusable"):
                if step == "new":
                    files.issue("server", new, files.client_authority)
                elif step == "unusable":
                    (tmp_path / "server.crt").write_text("rubbish")
                seen.append([await trusted_by(port, authority) for authority in (files.server_authority, new)])
        return seen

    assert asyncio.run(main()) == [[True, False], [False, True], [False, True]]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_otlp_client_goes_on_when_all_certificates_of_both_sides_are_replaced(
    tmp_path: Path, protocol: Any
) -> None:
    files = Files(tmp_path)

    async def main() -> list[DeliveryFailure | None]:
        seen = []
        async with listener(protocol, files.server) as port:
            client = make_client(
                ClientConfig(endpoint=f"127.0.0.1:{port}", tls=files.client, protocol=protocol, timeout=60)
            )
            seen.append((await client.send(Signal.LOGS, b"")).failure)
            server, peer = trustme.CA(), trustme.CA()
            files.issue("server", server, peer)
            files.issue("client", peer, server)
            seen.append((await client.send(Signal.LOGS, b"")).failure)
            (tmp_path / "client.crt").write_text("rubbish")
            seen.append((await client.send(Signal.LOGS, b"")).failure)
            await client.close()
        return seen

    assert asyncio.run(main()) == [None, None, None]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_otlp_client_that_is_refused_for_its_certificate_goes_on_with_a_new_one(
    tmp_path: Path, protocol: Any
) -> None:
    files = Files(tmp_path)

    async def main() -> list[DeliveryFailure | None]:
        seen = []
        async with listener(protocol, files.server) as port:
            config = ClientConfig(endpoint=f"127.0.0.1:{port}", tls=files.client, protocol=protocol, timeout=60)
            files.issue("client", trustme.CA(), files.server_authority)
            client = make_client(config)
            seen.append((await client.send(Signal.LOGS, b"")).failure)
            files.issue("client", files.client_authority, files.server_authority)
            seen.append((await client.send(Signal.LOGS, b"")).failure)
            await client.close()
        return seen

    assert asyncio.run(main()) == [DeliveryFailure.UNREACHABLE, None]


def test_the_client_of_the_threshold_api_follows_its_certificates(tmp_path: Path) -> None:
    files = Files(tmp_path)

    async def main() -> list[float | None]:
        seen = []
        async with listener("asgi", files.server) as port:
            address = f"127.0.0.1:{port}"
            api = ThresholdApi(ClientConfig(endpoint=address, tls=files.client), f"{address}{routes.FLEET_THRESHOLD}")
            seen.append((await api.ask()).threshold)
            server, peer = trustme.CA(), trustme.CA()
            files.issue("server", server, peer)
            files.issue("client", peer, server)
            seen.append((await api.ask()).threshold)
            await api.close()
        return seen

    assert asyncio.run(main()) == [0.5, 0.5]
