"""A small client of the JSON API, for the command line and for MCP over standard streams."""

import http.client
import json
import ssl
import time
import urllib.parse
from dataclasses import dataclass
from typing import Any

import anyio.to_thread

from ingero_contract import echo
from ingero_echo.errors import EchoApiError
from ingero_kit.backoff import parse_retry_after
from ingero_kit.settings import SettingsError

PATIENCE_SECONDS = 60.0
"""How long a client retries when the server is busy."""


def connect(address: str, tls: ssl.SSLContext | None) -> http.client.HTTPConnection:
    """A connection to `host:port`, with TLS where a context is given."""
    if tls:
        return http.client.HTTPSConnection(address, timeout=60, context=tls)
    return http.client.HTTPConnection(address, timeout=60)


def _parts(url: str) -> urllib.parse.SplitResult:
    """The parts of a server's address. Raises `SettingsError` for anything else."""
    try:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    except ValueError:
        pass
    raise SettingsError(f"{url!r} is not an address such as https://127.0.0.1:18081")


def _advice(error: Exception, tls: bool) -> str:
    """What a user may do about a failed connection."""
    if tls and getattr(error, "reason", "") in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return "it speaks no TLS: begin the address with http://"
    if not tls and isinstance(
        error, (http.client.RemoteDisconnected, http.client.BadStatusLine, ConnectionResetError)
    ):
        return "if it speaks TLS, begin the address with https://"
    return "does Echo run there? --api names another address"


@dataclass(frozen=True)
class EchoHttpClient:
    """`url` is the address of an Echo, such as `https://echo:18081`."""

    url: str
    token: str = ""
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        """Raise `SettingsError` for anything that is not an address."""
        _parts(self.url)

    def request(self, method: str, path: str, content: Any = None, *, key: str) -> Any:
        """The JSON object of an answer; waits as Retry-After says. Every answer of an Echo to this request has `key`.

        Raises `EchoApiError` for what Echo refuses and `ConnectionError` when it cannot be reached or is no Echo.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            status, headers, body = self._once(method, path, content)
            if status not in (429, 503) or time.monotonic() > deadline:
                break
            wait = parse_retry_after(headers.get("retry-after"), time.time(), longest=5.0)
            time.sleep(1.0 if wait is None else wait)
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict) or ("message" if status >= 400 else key) not in answer:
            raise ConnectionError(f"{self.url}: HTTP {status}, and no answer of an Echo: is this an Echo?")
        if status >= 400:
            raise EchoApiError(
                str(answer.get("code", status)), str(answer["message"]), str(answer.get("hint", "")), status
            )
        return answer

    def _once(self, method: str, path: str, content: Any) -> tuple[int, Any, bytes]:
        parts = _parts(self.url)
        tls = (self.tls or ssl.create_default_context()) if parts.scheme == "https" else None
        connection = connect(parts.netloc, tls)
        headers = {"accept": "application/json"}
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        if content is not None:
            headers["content-type"] = "application/json"
        try:
            connection.request(method, path, None if content is None else json.dumps(content), headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        except ssl.SSLCertVerificationError as error:
            raise ConnectionError(
                f"{self.url}: its certificate is refused: {error.verify_message}; --ca-file names its authorities"
            ) from None
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise ConnectionError(f"{self.url}: cannot be reached: {error}; {_advice(error, bool(tls))}") from None
        finally:
            connection.close()

    def tool(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool by its full name."""
        return self.request("POST", echo.TOOLS + name, arguments, key="rows")


@dataclass(frozen=True)
class RemoteReply:
    """An answer in the form that the MCP server needs."""

    body: dict[str, Any]
    text: str


def _table(body: dict[str, Any]) -> str:
    return f"Rows of {', '.join(body.get('columns', ()))}: {body.get('row_count', 0)}."


@dataclass(frozen=True)
class RemoteQueryService:
    """A query service that forwards questions to a running Echo."""

    client: EchoHttpClient

    async def call(self, identity: Any, tool: str, arguments: dict[str, Any]) -> RemoteReply:
        """Answer one call; the client's token decides what is allowed."""
        body = await anyio.to_thread.run_sync(self.client.tool, tool, arguments)
        return RemoteReply(body, body.get("summary") or _table(body))
