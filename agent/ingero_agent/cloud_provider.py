"""Detects the cloud that this node runs in, through the instance metadata services, with short time limits."""

import asyncio
import re
from typing import Final

from ingero_kit.http_library import httpx

TIMEOUT_SECONDS: Final = 0.5
"""Timeout of one request to a metadata service."""

MAX_ANSWER: Final = 64 << 10
"""Longest answer that is read, bytes."""

_INSTANCE: Final = re.compile(r"i-(?:[0-9a-f]{8}|[0-9a-f]{17})")


async def find_provider(base: str = "http://169.254.169.254", google: str = "http://metadata.google.internal") -> str:
    """Return `aws`, `gcp`, `azure`, or empty.

    All services are asked at once, half a second each, without proxies and redirects.
    """
    # The services speak plain HTTP; without `verify=False` the client would load all authorities: 8 MB.
    async with httpx.AsyncClient(
        timeout=TIMEOUT_SECONDS, trust_env=False, follow_redirects=False, verify=False
    ) as client:
        answers = await asyncio.gather(
            _aws(client, base), _gcp(client, google), _azure(client, base), return_exceptions=True
        )
    return next((answer for answer in answers if isinstance(answer, str) and answer), "")


async def _ask(client: httpx.AsyncClient, method: str, url: str, **headers: str) -> httpx.Response:
    """Fetch one answer of bounded size. The time limit covers all of it, even if the server sends slowly."""
    async with asyncio.timeout(TIMEOUT_SECONDS), client.stream(method, url, headers=headers) as answer:
        body = b""
        async for part in answer.aiter_raw():
            body += part
            if len(body) > MAX_ANSWER:
                raise ValueError(f"{url} answers with more than {MAX_ANSWER} bytes")
        return httpx.Response(answer.status_code, headers=answer.headers, content=body)


async def _aws(client: httpx.AsyncClient, base: str) -> str:
    token = await _ask(client, "PUT", f"{base}/latest/api/token", **{"X-aws-ec2-metadata-token-ttl-seconds": "60"})
    if token.status_code != 200:
        return ""
    headers = {"X-aws-ec2-metadata-token": token.text.strip()[:256]}
    answer = await _ask(client, "GET", f"{base}/latest/meta-data/instance-id", **headers)
    return "aws" if answer.status_code == 200 and _INSTANCE.fullmatch(answer.text.strip()) else ""


async def _gcp(client: httpx.AsyncClient, base: str) -> str:
    answer = await _ask(client, "GET", f"{base}/computeMetadata/v1/instance/id", **{"Metadata-Flavor": "Google"})
    google = answer.status_code == 200 and answer.headers.get("metadata-flavor") == "Google"
    return "gcp" if google and answer.text.strip().isdigit() else ""


async def _azure(client: httpx.AsyncClient, base: str) -> str:
    answer = await _ask(client, "GET", f"{base}/metadata/instance?api-version=2021-02-01", Metadata="true")
    tree = answer.json() if answer.status_code == 200 else None
    return "azure" if isinstance(tree, dict) and isinstance(tree.get("compute"), dict) else ""
