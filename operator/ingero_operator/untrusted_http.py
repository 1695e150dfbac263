"""HTTP requests to servers that the operator does not trust: tenants choose their images.

A response is read up to a size limit. Nothing is decompressed, no redirect is followed, no cookie is kept.
"""

import functools
import os
import socket
import ssl
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import aiohttp
import orjson

CONTEXTS: Final = 1024
"""Size of the cache of TLS contexts."""


TOKEN_REFUSED: Final = "it refuses the operator's token"


class NoResponse(Exception):
    """There is no usable response. The message says why and stays the same from one attempt to the next."""


def open_session(seconds: float, connections: int) -> aiohttp.ClientSession:
    """A client session with this timeout, in seconds, for each request."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=seconds),
        connector=aiohttp.TCPConnector(limit=connections),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Accept-Encoding": "identity"},
        auto_decompress=False,
    )


@functools.lru_cache(CONTEXTS)
def _context(authority: str) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority)


def ssl_context_for(authority: str | None) -> ssl.SSLContext | bool:
    """The TLS context that checks a server's certificate. Raises `NoResponse` for text that is no certificate."""
    if not authority:
        return True
    try:
        return _context(authority)
    except (OSError, ValueError, TypeError):  # TypeError: text beyond ASCII
        raise NoResponse("ca.crt of spec.tlsSecret holds no certificate") from None


async def get_json(
    session: aiohttp.ClientSession,
    url: str,
    *,
    limit: int,
    parameters: Sequence[tuple[str, str]] = (),
    headers: Mapping[str, str] | None = None,
    authority: str | None = None,
    server_name: str | None = None,
    statuses: Collection[int] = (200,),
) -> dict[str, Any]:
    """One JSON object of `limit` bytes at most. Raises `NoResponse`.

    `server_name`: DNS name in the server's certificate, where the URL has an address instead; `statuses`: those whose
    answers are read.
    """
    context = ssl_context_for(authority)
    try:
        async with session.get(
            url, params=parameters, headers=headers, ssl=context, allow_redirects=False, server_hostname=server_name
        ) as response:
            if response.status in (401, 403):
                raise NoResponse(TOKEN_REFUSED)
            if response.status not in statuses:
                raise NoResponse(f"it answers {response.status}")
            if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
                raise NoResponse("its answer is compressed, which was not requested")
            raw = bytearray()
            async for piece in response.content.iter_any():
                raw += piece
                if len(raw) > limit:
                    raise NoResponse(f"its answer is larger than {limit} bytes")
    except (aiohttp.ClientError, OSError, ValueError) as error:  # TimeoutError is an OSError
        raise NoResponse(explain(error)) from None
    try:
        tree = orjson.loads(raw)
    except ValueError:
        raise NoResponse("its answer is no JSON") from None
    if not isinstance(tree, dict):
        raise NoResponse("its answer is no JSON object")
    return tree


def explain(error: BaseException) -> str:
    """Why there is no response, without object addresses and other details that change with every attempt."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            cause = error.certificate_error
            return f"its certificate is not accepted: {getattr(cause, 'verify_message', '') or type(cause).__name__}"
        case aiohttp.ClientConnectorError():
            if isinstance(error.os_error, socket.gaierror):
                return "its name is not known"
            number = error.os_error.errno
            return f"no connection: {os.strerror(number) if number else type(error.os_error).__name__}"
        case TimeoutError():
            return "no answer in time"
        case aiohttp.ServerDisconnectedError():
            return "it closed the connection"
        case aiohttp.ClientError() | OSError():
            return f"its answer is no HTTP that can be read ({type(error).__name__})"
        case _:
            return f"the request cannot be sent ({type(error).__name__}): check token and address"
