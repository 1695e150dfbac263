"""What stands before both front ends: who asks, how often, and a line in the audit log. Pure ASGI."""

import json
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any, Final

from ingero_contract import echo
from ingero_echo.auth import Keyring, RateLimit
from ingero_echo.errors import Refused, respond
from ingero_kit.clock import rfc3339
from ingero_kit.logs import get

log = get("audit")

Scope_ = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Scope_, Receive, Send], Awaitable[None]]

OPEN: Final = frozenset({echo.VERSIONS, echo.HEALTH, echo.READY, echo.LIVE})
"""Paths that need no token."""

MAX_BODY: Final = 1 << 20
"""Longest request body, bytes."""

LOOPBACK_NAMES: Final = frozenset({"127.0.0.1", "localhost", "::1"})
"""Hosts that a request may name while no token is asked for, so that no web page can reach through a browser."""

MCP_PATHS: Final = frozenset({echo.MCP, "/"})

Observe = Callable[[str, str], None]
"""Counts a request: handler and status class."""


class Audit:
    """One line for every authenticated request: hash of the token, address, method, path, status, time."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0) if path else None

    def reopen(self) -> None:
        """Go on in a new file when the old one was moved away; raises `OSError` and keeps the old one otherwise."""
        if self._path and self._file:
            fresh = self._path.open("ab", buffering=0)
            self._file.close()
            self._file = fresh

    def close(self) -> None:
        """Give the file back."""
        if self._file:
            self._file.close()

    def write(self, **fields: Any) -> None:
        """Add a line; to the log where the file takes none, so that no request goes unrecorded."""
        if self._file is not None:
            line = json.dumps({"timestamp": rfc3339(time.time()), **fields}) + "\n"
            try:
                self._file.write(line.encode())
                return
            except OSError as error:
                log.error("audit_file_not_written", reason=str(error))
        log.info("request", **fields)


class Guard:
    """ASGI: lets through who may ask, and sends MCP and the API their own ways."""

    def __init__(
        self,
        api: Application,
        mcp: Application,
        ready: Callable[[], bool],
        ailment: Callable[[], Refused | None],
        keyring: Keyring,
        rate: RateLimit,
        audit: Audit,
        observe: Observe,
    ) -> None:
        self._ready, self._ailment = ready, ailment
        self._api, self._mcp = api, mcp
        self._keyring, self._rate, self._audit, self._observe = keyring, rate, audit, observe

    async def __call__(self, scope: Scope_, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._api(scope, receive, send)
            return
        began, path, request_id = time.perf_counter(), scope["path"], uuid.uuid4().hex
        status = 500

        async def watch(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        taken = 0

        async def bounded() -> Any:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > MAX_BODY:
                raise Refused("too_large", f"the body is larger than {MAX_BODY} bytes", status=413)
            return message

        scope["ingero.request_id"] = request_id
        identity = None
        try:
            headers = dict(scope["headers"])
            length = headers.get(b"content-length", b"0")
            if length.isdigit() and int(length[:20]) > MAX_BODY:
                raise Refused("too_large", f"the body is larger than {MAX_BODY} bytes", status=413)
            if self._keyring.open and _host(headers.get(b"host", b"")) not in LOOPBACK_NAMES:
                raise Refused("forbidden", "without tokens only loopback names are served", "use 127.0.0.1", 403)
            if path not in OPEN:
                identity = self._keyring.find(headers.get(b"authorization"))
                if identity is None:
                    raise Refused("unauthenticated", "a bearer token is required", "Authorization: Bearer …", 401)
                wait = self._rate.wait(identity.digest)
                if wait > 0:
                    raise Refused(
                        "rate_limited", "this token asks too often", "wait as Retry-After says", 429, max(1.0, wait)
                    )
            scope["ingero.identity"] = identity
            if path in (echo.LIVE, echo.READY):
                ailment = self._ailment()
                if ailment:
                    raise ailment
                if path == echo.READY and not self._ready():
                    raise Refused("not_ready", "the database is still being opened", "ask again", 503, 1)
                await respond(watch, 200, {"status": "ok"})
                return
            await (self._mcp if path in MCP_PATHS else self._api)(scope, bounded, watch)
        except Refused as refused:
            await respond(watch, refused.status, refused.fields(request_id), refused.headers(request_id))
        finally:
            self._observe(_handler(path), f"{status // 100}xx")
            if identity is not None and identity.digest:
                self._audit.write(
                    token_sha256=identity.digest, name=identity.name, source=(scope.get("client") or ("",))[0],
                    method=scope["method"], path=path[:200], status=status,
                    milliseconds=round(1000 * (time.perf_counter() - began), 3), request_id=request_id,
                )  # fmt: skip


_HANDLERS: Final = frozenset(
    {echo.VERSIONS, echo.HEALTH, echo.READY, echo.WHOAMI, echo.TOOLS_LIST, echo.SQL, echo.OPENAPI, echo.BACKUPS,
     echo.METRICS_PAGE}
)  # fmt: skip


def _host(header: bytes) -> str:
    text = header.decode("latin-1").lower()
    return text[1 : text.find("]")] if text.startswith("[") else text.partition(":")[0]


def _handler(path: str) -> str:
    """A bounded label for any path."""
    if path in MCP_PATHS:
        return "mcp"
    if path in _HANDLERS:
        return path
    return "tools" if path.startswith(echo.TOOLS) else "other"
