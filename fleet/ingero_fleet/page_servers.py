"""The HTTP listeners of a Fleet for APIs and pages."""

import asyncio
from typing import Any

from ingero_http.asgi import AsgiServer, head_as_get
from ingero_kit.addresses import parse_endpoint
from ingero_kit.tls import ServerTls


class PageServers:
    """Opened one by one, closed together."""

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        """Where they listen, by purpose."""
        self._servers: list[AsgiServer] = []

    async def open(self, name: str, app: Any, endpoint: str, tls: ServerTls | None = None) -> None:
        """Serve an ASGI application; raises `SettingsError` or `OSError`."""
        server = AsgiServer(head_as_get(app))
        self.ports[name] = await server.start(*parse_endpoint(endpoint), tls=tls, purpose=name)
        self._servers.append(server)

    async def stop(self, grace_seconds: float) -> None:
        """Answer pending requests, then close."""
        await asyncio.gather(*(server.stop(grace_seconds) for server in self._servers))
