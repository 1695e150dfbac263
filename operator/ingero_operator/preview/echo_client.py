"""Asks an Echo by SQL, over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import orjson

from ingero_contract import echo
from ingero_operator.untrusted_http import NoResponse, explain, open_session, ssl_context_for

PAGE: Final = 10_000
"""Rows asked for at once."""
MOST_ROWS: Final = 2_000_000
MOST_BYTES: Final = 64 * 2**20
REQUEST_SECONDS: Final = 60.0
MAX_TRIES: Final = 60
"""Times that a busy Echo is asked again."""


class EchoError(Exception):
    """Echo gave no answer, or refused one; the message says why."""


@dataclass(frozen=True, kw_only=True)
class EchoTarget:
    """An Echo: its address, and what it takes to be let in."""

    url: str
    token: str = ""
    authority: str = ""
    """PEM of the CA that signed its certificate; the system's authorities without it."""


class EchoClient:
    """One session with an Echo."""

    def __init__(self, target: EchoTarget) -> None:
        self._target = target
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "EchoClient":
        self._session = open_session(REQUEST_SECONDS, 1)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def rows(self, sql: str) -> AsyncIterator[dict[str, Any]]:
        """The rows of a query that has an order, page by page. Raises `EchoError`."""
        offset = 0
        while offset < MOST_ROWS:
            tree = await self._ask({"sql": f"{sql} LIMIT {PAGE} OFFSET {offset}", "limit": PAGE})
            try:
                columns, rows, truncated = tree["columns"], tree["rows"], tree["truncated"]
                for row in rows:
                    yield dict(zip(columns, row, strict=True))
            except (KeyError, TypeError, ValueError):
                raise EchoError(f"{self._target.url} does not answer as an Echo does") from None
            offset += len(rows)
            if not rows or not (truncated or len(rows) == PAGE):
                return
        raise EchoError(f"more than {MOST_ROWS} rows: ask for fewer --days")

    async def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        for _ in range(MAX_TRIES):
            status, wait, body = await self._post(orjson.dumps(question))
            if status not in (429, 503):
                break
            await asyncio.sleep(wait)
        try:
            tree = orjson.loads(body)
        except ValueError:
            raise EchoError(f"{self._target.url}: HTTP {status}, no JSON: is this an Echo's API?") from None
        if not isinstance(tree, dict):
            raise EchoError(f"{self._target.url} does not answer as an Echo does")
        if status >= 400:
            hint = f" ({tree['hint']})" if tree.get("hint") else ""
            raise EchoError(f"{self._target.url} refuses: {str(tree.get('message') or status)[:400]}{hint}")
        return tree

    async def _post(self, body: bytes) -> tuple[int, float, bytes]:
        """Status, seconds to wait and body of one response."""
        assert self._session is not None
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._target.token:
            headers["Authorization"] = f"Bearer {self._target.token}"
        url = self._target.url.rstrip("/") + echo.SQL
        try:
            context = ssl_context_for(self._target.authority or None)
            async with self._session.post(
                url, data=body, headers=headers, ssl=context, allow_redirects=False
            ) as response:
                raw = bytearray()
                async for piece in response.content.iter_any():
                    raw += piece
                    if len(raw) > MOST_BYTES:
                        raise EchoError(f"{url}: its answer is larger than {MOST_BYTES} bytes")
                return response.status, _seconds(response.headers.get("Retry-After")), bytes(raw)
        except NoResponse as error:
            raise EchoError(f"{self._target.url}: {error}") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise EchoError(f"{self._target.url} cannot be asked: {explain(error)}") from None


def _seconds(text: str | None) -> float:
    try:
        return min(5.0, max(0.1, float(text or 1.0)))
    except ValueError:
        return 1.0
