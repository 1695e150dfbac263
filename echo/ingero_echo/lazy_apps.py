"""The JSON API and MCP, loaded late: their libraries take longer to load, and more memory, than the rest of Echo.

The API is loaded after Echo accepts events, MCP with the first request for it. Requests wait until they are there.
"""

import asyncio
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from ingero_echo.lake.sealer import SealCounters
from ingero_echo.schema_versions import schema_text
from ingero_echo.settings import EchoConfig
from ingero_echo.store import Store
from ingero_kit.exposition import Collector
from ingero_kit.logs import get

log = get(__name__)


class LazyApps:
    """Two ASGI applications whose code is loaded later. `run` is a task for the life of the process."""

    def __init__(
        self,
        config: EchoConfig,
        store: Callable[[], Store | None],
        collectors: Sequence[Collector],
        backup: Callable[[], dict[str, Any]],
        max_body: int,
        unread: Callable[[str], None],
        sealing: Callable[[], SealCounters | None],
        write_failure: Callable[[], str | None],
    ) -> None:
        self._unread, self._sealing, self._write_failure = unread, sealing, write_failure
        self._config, self._store, self._collectors, self._backup = config, store, collectors, backup
        self._max_body = max_body
        self._service: Any = None
        self._api: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._mcp: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._mcp_wanted = asyncio.Event()

    async def run(self) -> None:
        """Load one after the other, then serve until cancelled."""
        query_service = await asyncio.to_thread(importlib.import_module, "ingero_echo.query_service")
        json_api = await asyncio.to_thread(importlib.import_module, "ingero_echo.json_api")
        self._service = service = query_service.QueryService(self._config, self._store, self._unread)
        self._api.set_result(
            json_api.make_api(
                service,
                lambda: self._store() is not None,
                self._collectors,
                self._backup,
                self._sealing,
                self._write_failure,
            )
        )
        log.info("front_ends_ready")
        try:
            await self._mcp_wanted.wait()
            tools = await asyncio.to_thread(importlib.import_module, "ingero_echo.mcp_tools")
            server, api = tools.make_server(service, schema_text, tools.caller_identity), self._config.api
            manager = tools.make_manager(server, api.mcp_sessions, api.allowed_hosts, self._max_body)
            async with manager.run():
                self._mcp.set_result(tools.SessionQuota(manager.handle_request, api.mcp_sessions))
                log.info("mcp_ready")
                await asyncio.Event().wait()
        finally:
            service.close()

    def stuck(self, now: float) -> bool:
        """Whether a query runs that cannot be cancelled; `now` on the monotonic clock."""
        return self._service is not None and bool(self._service.stuck(now))

    def questions(self) -> dict[str, tuple[int, int]]:
        """Questions that run and that wait, by kind."""
        if self._service is None:
            return {}
        kinds = {"tool": self._service.limiter, "sql": self._service.sql_limiter}
        return {kind: (limiter.running, limiter.waiting) for kind, limiter in kinds.items()}

    def ended(self) -> int:
        """Processes of users' SQL that had to be replaced."""
        return 0 if self._service is None else int(self._service.sql_pool.ended)

    async def api(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request of the JSON API."""
        await (await asyncio.shield(self._api))(scope, receive, send)

    async def mcp(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request of MCP."""
        self._mcp_wanted.set()
        await (await asyncio.shield(self._mcp))(scope, receive, send)
