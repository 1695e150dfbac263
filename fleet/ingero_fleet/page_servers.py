"""The HTTP listeners of a Fleet for APIs and pages."""

import asyncio
from typing import Any

from ingero_http.asgi import AsgiServer, head_as_get
from ingero_kit.addresses import is_local_request, is_loopback, parse_endpoint
from ingero_kit.otlp_receiver import Authenticator
from ingero_kit.tls import ServerTls

_REFUSAL = b"without tokens only loopback names are served\n"


class PageServers:
    """Opened one by one, closed together."""

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        """Where they listen, by purpose."""
        self._servers: list[AsgiServer] = []

    async def open(
        self, name: str, app: Any, endpoint: str, tls: ServerTls | None = None, guard: Authenticator | None = None
    ) -> None:
        """Serve an ASGI application, whose requests `guard` admits; raises `SettingsError` or `OSError`.

        On a loopback address without tokens, only requests to this machine's own name are served.
        """
        if is_loopback(endpoint) and (guard is None or guard.tokens is None):
            app = local_only(app)
        server = AsgiServer(head_as_get(app))
        self.ports[name] = await server.start(*parse_endpoint(endpoint), tls=tls, purpose=name)
        self._servers.append(server)

    async def stop(self, grace_seconds: float) -> None:
        """Answer pending requests, then close."""
        await asyncio.gather(*(server.stop(grace_seconds) for server in self._servers))


def local_only(app: Any) -> Any:
    """An ASGI application that refuses requests to another name, or from a page of another host."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if is_local_request(dict(scope["headers"])):
            await app(scope, receive, send)
            return
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(_REFUSAL))]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": _REFUSAL})

    return serve
