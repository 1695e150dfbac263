"""Authentication, rate limits and the audit log in front of the JSON API and MCP. Pure ASGI."""

import json
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any, Final

import orjson

from ingero_contract import echo
from ingero_echo.auth import Callers, Identity, RateLimit, caller_key, fingerprint
from ingero_echo.errors import EchoApiError, internal
from ingero_kit.addresses import is_local_request
from ingero_kit.clock import rfc3339
from ingero_kit.logs import get
from ingero_kit.tokens import token_refusal

log = get("audit")

Scope_ = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Scope_, Receive, Send], Awaitable[None]]

_TOKEN_HINTS: Final = {
    False: "send Authorization: Bearer TOKEN; ingero-echo ask takes --token-file",
    True: "accepted are the tokens of auth.tokens_file, in the form Authorization: Bearer TOKEN",
}
"""What to do about a request without an Authorization header, and about one that has a wrong one."""
OPEN: Final = frozenset({echo.VERSIONS, echo.HEALTH, echo.READY, echo.LIVE})
"""Paths that need no token."""

MAX_BODY: Final = 1 << 20
"""Longest request body, bytes."""

MAX_UNREAD_BYTES: Final = 32 << 20
"""Bytes of answers that one token may leave unread before it gets no further ones."""

CHUNK_BYTES: Final = 256 << 10
"""Bytes of an answer that are sent at once."""

WRONG_TOKENS_PER_SECOND: Final = 1.0
WRONG_TOKENS_AT_ONCE: Final = 30
"""Wrong or missing tokens of one address that are recorded; further ones are refused with 429."""

MCP_PATHS: Final = frozenset({echo.MCP, "/"})

Observe = Callable[[str, str], None]
"""Counts a request: handler and status class."""


class AuditLog:
    """One line for every request that needs a token: hash of the token, address, method, path, status, time."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0) if path else None

    def reopen(self) -> None:
        """Reopen the file after the old one was moved. If that fails, raises `OSError` and keeps the old one."""
        if self._path and self._file:
            fresh = self._path.open("ab", buffering=0)
            self._file.close()
            self._file = fresh

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()

    def write(self, **fields: Any) -> None:
        """Add a line. If the file cannot be written, the line goes to the log, so that every request is recorded."""
        if self._file is not None:
            line = json.dumps({"timestamp": rfc3339(time.time()), **fields}) + "\n"
            try:
                self._file.write(line.encode())
                return
            except OSError as error:
                log.error("audit_file_not_written", reason=str(error))
        log.info("request", **fields)


class UnreadResponses:
    """Bytes of responses that clients have not read yet, by caller."""

    def __init__(self) -> None:
        self._bytes: Counter[str] = Counter()

    def check(self, caller: str) -> None:
        """Raise `EchoApiError` when a caller has too many unread bytes for another response."""
        if self._bytes[caller] > MAX_UNREAD_BYTES:
            raise EchoApiError(
                "unread", "earlier answers wait to be read", "read them, or end their connections", 429, 1
            )

    async def send(self, caller: str, message: Any, send: Send) -> None:
        """Send a body in pieces, so that a client that does not read blocks the sender and fills no buffer."""
        body = message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) <= CHUNK_BYTES:
            await send(message)
            return
        self._bytes[caller] += len(body)
        try:
            for start in range(0, len(body), CHUNK_BYTES):
                await send({**message, "body": body[start : start + CHUNK_BYTES], "more_body": True})
            await send({**message, "body": b"", "more_body": more})
        finally:
            self._bytes[caller] -= len(body)
            if not self._bytes[caller]:
                del self._bytes[caller]


class AuthMiddleware:
    """ASGI middleware: authenticates, limits and audits requests, then routes them to MCP or the API."""

    def __init__(
        self,
        api: Application,
        mcp: Application,
        unready: Callable[[], EchoApiError | None],
        liveness_error: Callable[[], EchoApiError | None],
        tokens: Callers,
        rate: RateLimit,
        audit: AuditLog,
        observe: Observe,
        unread: UnreadResponses,
    ) -> None:
        self._unread = unread
        self._failures = RateLimit(WRONG_TOKENS_PER_SECOND, WRONG_TOKENS_AT_ONCE)
        self.wrong_tokens = 0
        self._unready, self._liveness_error = unready, liveness_error
        self._api, self._mcp = api, mcp
        self._tokens, self._rate, self._audit, self._observe = tokens, rate, audit, observe

    async def __call__(self, scope: Scope_, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._api(scope, receive, send)
            return
        exchange = _ApiExchange(scope, receive, send, self._unread)
        try:
            await self._serve(exchange)
        except EchoApiError as refused:
            await exchange.refuse(refused)
        except Exception:
            log.exception("request_failed", request_id=exchange.request_id, path=exchange.path[:200])
            if exchange.started:
                raise
            await exchange.refuse(internal())
        finally:
            self._observe(_handler(exchange.path), f"{exchange.status // 100}xx")
            self._record(exchange)

    async def _serve(self, exchange: "_ApiExchange") -> None:
        headers, path = dict(exchange.scope["headers"]), exchange.path
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > MAX_BODY:
            raise _too_large()
        if self._tokens.open and not is_local_request(headers):
            raise EchoApiError("forbidden", "without tokens only loopback names are served", "use 127.0.0.1", 403)
        if path not in OPEN:
            self._authenticate(exchange, headers.get(b"authorization"))
        exchange.scope["ingero.identity"] = exchange.identity
        if path in (echo.LIVE, echo.READY):
            self._check(path)
            await _respond(exchange.send, 200, {"status": "ok"})
            return
        application = self._mcp if path in MCP_PATHS else self._api
        await application(exchange.scope, exchange.receive, exchange.send)

    def _authenticate(self, exchange: "_ApiExchange", authorization: bytes | None) -> None:
        """Find the caller, within its limits."""
        identity = exchange.identity = self._tokens.find(authorization)
        if identity is None:
            self._refuse_token(exchange, authorization or b"")
            return
        wait = self._rate.wait(identity.digest)
        if wait > 0:
            who = "callers without tokens together" if self._tokens.open else "this token"
            raise EchoApiError(
                "rate_limited", f"more requests from {who} than api.requests_per_second and api.burst allow",
                "wait as Retry-After says", 429, max(1.0, wait),
            )  # fmt: skip

    def _refuse_token(self, exchange: "_ApiExchange", authorization: bytes) -> None:
        self.wrong_tokens += 1
        wait = self._failures.wait(exchange.source)
        if wait > 0:
            hint = "wait as Retry-After says; a right token is let through"
            raise EchoApiError("rate_limited", "too many wrong tokens from here", hint, 429, max(1.0, wait))
        exchange.refused_token = authorization
        problem = token_refusal(authorization or None)
        raise EchoApiError("unauthenticated", problem, _TOKEN_HINTS[bool(authorization)], 401)

    def _check(self, path: str) -> None:
        """Raise what a probe of liveness or readiness has to report."""
        error = self._liveness_error()
        if error is None and path == echo.READY:
            error = self._unready()
        if error:
            raise error

    def _record(self, exchange: "_ApiExchange") -> None:
        """Write the audit line of a request that had a token, or needed one."""
        identity, refused = exchange.identity, exchange.refused_token
        if refused is None and not (identity is not None and identity.digest):
            return
        self._audit.write(
            token_sha256=identity.digest if identity else fingerprint(refused or b""),
            name=identity.name if identity else None, source=exchange.source,
            method=exchange.scope["method"], path=exchange.path[:200], status=exchange.status,
            milliseconds=round(1000 * (time.perf_counter() - exchange.began), 3), request_id=exchange.request_id,
        )  # fmt: skip


class _ApiExchange:
    """One request and its response."""

    def __init__(self, scope: Scope_, receive: Receive, send: Send, unread: UnreadResponses) -> None:
        self.scope, self._receive, self._send, self._unread = scope, receive, send, unread
        self.began, self.path, self.request_id = time.perf_counter(), str(scope["path"]), uuid.uuid4().hex
        self.source = str((scope.get("client") or ("",))[0])
        self.status, self.started = 500, False
        self.identity: Identity | None = None
        self.refused_token: bytes | None = None
        """The Authorization header that was refused, empty without one."""
        self._taken = 0
        scope["ingero.request_id"] = self.request_id

    async def receive(self) -> Any:
        """The next message of the request. Raises `EchoApiError` beyond the longest body."""
        message = await self._receive()
        self._taken += len(message.get("body", b""))
        if self._taken > MAX_BODY:
            raise _too_large()
        return message

    async def send(self, message: Any) -> None:
        """Send a message of the response."""
        if message["type"] == "http.response.start":
            self.status, self.started = message["status"], True
        await self._unread.send(caller_key(self.identity), message, self._send)

    async def refuse(self, error: EchoApiError) -> None:
        """Respond with an error, unless a response has begun."""
        if not self.started:
            await _respond(self.send, error.status, error.fields(self.request_id), error.headers(self.request_id))


def _too_large() -> EchoApiError:
    return EchoApiError("too_large", f"the body is larger than {MAX_BODY} bytes", status=413)


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


async def _respond(send: Send, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
    """Send a JSON response over ASGI."""
    body = orjson.dumps(content)
    lines = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    encoded = [(name.encode(), value.encode("latin-1", "replace")) for name, value in lines.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})
