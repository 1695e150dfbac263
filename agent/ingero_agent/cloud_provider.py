"""Detects the cloud that this node runs in, through the instance metadata services, with short time limits."""

import asyncio
import re
from typing import Final

import orjson

from ingero_http.http1.client import HttpAnswer, HttpClient

TIMEOUT_SECONDS: Final = 0.5
"""Timeout of one request to a metadata service."""

MAX_ANSWER: Final = 64 << 10
"""Longest answer that is read, bytes."""

_INSTANCE: Final = re.compile(r"i-(?:[0-9a-f]{8}|[0-9a-f]{17})")


async def find_provider(base: str = "http://169.254.169.254", google: str = "http://metadata.google.internal") -> str:
    """Return `aws`, `gcp`, `azure`, or empty.

    All services are asked at once, half a second for each answer, without proxies and redirects.
    """
    answers = await asyncio.gather(_aws(base), _gcp(google), _azure(base), return_exceptions=True)
    return next((answer for answer in answers if isinstance(answer, str) and answer), "")


async def _ask(method: str, url: str, **headers: str) -> HttpAnswer:
    """Fetch one answer of bounded size."""
    client = HttpClient(url, TIMEOUT_SECONDS)
    try:
        answer = await client.request(method, url, headers)
    finally:
        await client.close()
    if len(answer.body) > MAX_ANSWER:
        raise ValueError(f"{url} answers with more than {MAX_ANSWER} bytes")
    return answer


async def _aws(base: str) -> str:
    token = await _ask("PUT", f"{base}/latest/api/token", **{"X-aws-ec2-metadata-token-ttl-seconds": "60"})
    if token.status != 200:
        return ""
    headers = {"X-aws-ec2-metadata-token": token.text.strip()[:256]}
    answer = await _ask("GET", f"{base}/latest/meta-data/instance-id", **headers)
    return "aws" if answer.status == 200 and _INSTANCE.fullmatch(answer.text.strip()) else ""


async def _gcp(base: str) -> str:
    answer = await _ask("GET", f"{base}/computeMetadata/v1/instance/id", **{"Metadata-Flavor": "Google"})
    google = answer.status == 200 and answer.headers.get("metadata-flavor") == "Google"
    return "gcp" if google and answer.text.strip().isdigit() else ""


async def _azure(base: str) -> str:
    answer = await _ask("GET", f"{base}/metadata/instance?api-version=2021-02-01", Metadata="true")
    tree = orjson.loads(answer.body) if answer.status == 200 else None
    return "azure" if isinstance(tree, dict) and isinstance(tree.get("compute"), dict) else ""
