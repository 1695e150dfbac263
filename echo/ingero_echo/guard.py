"""What stands before both front ends: who asks, how often, and a line in the audit log. Pure ASGI."""

import json
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any, Final

from ingero_contract import echo
from ingero_echo.auth import Keyring, RateLimit, asker, fingerprint
from ingero_echo.errors import Refused, respond
from ingero_kit.addresses import is_local_request
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

MAX_UNREAD: Final = 32 << 20
"""Bytes of answers that one token may leave unread before it gets no further ones."""

PIECE: Final = 256 << 10
"""Bytes of an answer that are handed over at once."""

WRONG_TOKENS_PER_SECOND: Final = 1.0
WRONG_TOKENS_AT_ONCE: Final = 30
"""Wrong or missing tokens of one address that are looked at and recorded; further ones are told to wait."""

MCP_PATHS: Final = frozenset({echo.MCP, "/"})

Observe = Callable[[str, str], None]
"""Counts a request: handler and status class."""


class Audit:
    """One line for every request that needs a token: hash of the token, address, method, path, status, time."""

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


class Unread:
    """Bytes of answers that were made and not yet taken by the client, by asker."""

    def __init__(self) -> None:
        self._bytes: Counter[str] = Counter()

    def check(self, asker: str) -> None:
        """Raise `Refused` when an asker has so many that no further answer should be made."""
        if self._bytes[asker] > MAX_UNREAD:
            raise Refused(
                "unread", "answers to this token wait to be read", "read them, or end their connections", 429, 1
            )

    async def send(self, asker: str, message: Any, send: Send) -> None:
        """Send a body piece by piece, so that a client that does not read holds the sender and not a buffer."""
        body = message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) <= PIECE:
            await send(message)
            return
        self._bytes[asker] += len(body)
        try:
            for start in range(0, len(body), PIECE):
                await send({**message, "body": body[start : start + PIECE], "more_body": True})
            await send({**message, "body": b"", "more_body": more})
        finally:
            self._bytes[asker] -= len(body)
            if not self._bytes[asker]:
                del self._bytes[asker]


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
        unread: Unread,
    ) -> None:
        self._unread = unread
        self._failures = RateLimit(WRONG_TOKENS_PER_SECOND, WRONG_TOKENS_AT_ONCE)
        self.wrong_tokens = 0
        self._ready, self._ailment = ready, ailment
        self._api, self._mcp = api, mcp
        self._keyring, self._rate, self._audit, self._observe = keyring, rate, audit, observe

    async def __call__(self, scope: Scope_, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._api(scope, receive, send)
            return
        began, path, request_id = time.perf_counter(), scope["path"], uuid.uuid4().hex
        status, started, identity = 500, False, None
        source = (scope.get("client") or ("",))[0]

        async def watch(message: Any) -> None:
            nonlocal status, started
            if message["type"] == "http.response.start":
                status, started = message["status"], True
            await self._unread.send(asker(identity), message, send)

        taken = 0

        async def bounded() -> Any:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > MAX_BODY:
                raise Refused("too_large", f"the body is larger than {MAX_BODY} bytes", status=413)
            return message

        scope["ingero.request_id"] = request_id
        refused_token: bytes | None = None
        try:
            headers = dict(scope["headers"])
            length = headers.get(b"content-length", b"0")
            if length.isdigit() and int(length[:20]) > MAX_BODY:
                raise Refused("too_large", f"the body is larger than {MAX_BODY} bytes", status=413)
            if self._keyring.open and not is_local_request(headers):
                raise Refused("forbidden", "without tokens only loopback names are served", "use 127.0.0.1", 403)
            if path not in OPEN:
                identity = self._keyring.find(headers.get(b"authorization"))
                if identity is None:
                    self.wrong_tokens += 1
                    wait = self._failures.wait(source)
                    if wait > 0:
                        hint = "wait as Retry-After says; a right token is let through"
                        raise Refused("rate_limited", "too many wrong tokens from here", hint, 429, max(1.0, wait))
                    refused_token = headers.get(b"authorization", b"")
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
            if not started:
                await respond(watch, refused.status, refused.fields(request_id), refused.headers(request_id))
        except Exception:
            log.exception("request_failed", request_id=request_id, path=path[:200])
            if started:
                raise
            broken = Refused("internal", "the request could not be served", "the log has it by its request_id", 500)
            await respond(watch, 500, broken.fields(request_id), broken.headers(request_id))
        finally:
            self._observe(_handler(path), f"{status // 100}xx")
            if refused_token is not None or (identity is not None and identity.digest):
                self._audit.write(
                    token_sha256=identity.digest if identity else fingerprint(refused_token or b""),
                    name=identity.name if identity else None, source=source,
                    method=scope["method"], path=path[:200], status=status,
                    milliseconds=round(1000 * (time.perf_counter() - began), 3), request_id=request_id,
                )  # fmt: skip


_HANDLERS: Final = frozenset(
    {echo.VERSIONS, echo.HEALTH, echo.READY, echo.WHOAMI, echo.TOOLS_LIST, echo.SQL, echo.OPENAPI, echo.BACKUPS,
     echo.METRICS_PAGE}
)  # fmt: skip


def _handler(path: str) -> str:
    """A bounded label for any path."""
    if path in MCP_PATHS:
        return "mcp"
    if path in _HANDLERS:
        return path
    return "tools" if path.startswith(echo.TOOLS) else "other"
