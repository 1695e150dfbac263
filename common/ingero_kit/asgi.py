"""ASGI applications behind uvicorn, several to a process, on sockets whose ports are known before they serve."""

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from ingero_kit.addresses import parse_endpoint
from ingero_kit.tls import ServerTls


class Server(uvicorn.Server):
    """uvicorn without its own signal handling: the process it serves in has that."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def bind(
    app: Any, endpoint: str, tls: ServerTls | None, drain_seconds: float, purpose: str = ""
) -> tuple[Server, socket.socket]:
    """A server and its socket, to be given to `serve`. It listens already: who reads the ports may connect at once.

    `SettingsError` for certificates that cannot be read, `OSError` in words for an address that cannot be had.
    """
    host, port = parse_endpoint(endpoint)
    settings: dict[str, Any] = {}
    if tls:
        tls.context()
        settings = {
            "ssl_certfile": str(tls.cert_file),
            "ssl_keyfile": str(tls.key_file),
            "ssl_ca_certs": str(tls.client_ca_file) if tls.client_ca_file else None,
            "ssl_cert_reqs": 2 if tls.client_ca_file else 0,
        }
    server = Server(
        uvicorn.Config(
            app, host=host, port=port, log_config=None, access_log=False, lifespan="off", limit_concurrency=512,
            timeout_keep_alive=30, timeout_graceful_shutdown=int(drain_seconds), **settings,
        )
    )  # fmt: skip
    try:
        ours = server.config.bind_socket()
    except SystemExit:
        place = f"{endpoint} for {purpose}" if purpose else endpoint
        raise OSError(f"cannot listen on {place}: the address is in use or not ours") from None
    ours.listen(server.config.backlog)
    return server, ours
