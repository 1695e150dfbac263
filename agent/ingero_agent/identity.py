"""Who this node is: cgroup hash, and the cloud it runs in by instance metadata, with short time limits."""

import asyncio
import hashlib
import re
from pathlib import Path

import httpx

TIMEOUT_SECONDS = 0.5
_INSTANCE = re.compile(r"i-[0-9a-f]{8,17}")


def cgroup_path(text: str) -> str:
    """The cgroup path in /proc/PID/cgroup: version 2's line, otherwise the longest of version 1."""
    paths = [line.split(":", 2)[2] for line in text.splitlines() if line.count(":") >= 2]
    unified = [line.split(":", 2)[2] for line in text.splitlines() if line.startswith("0::")]
    return unified[0] if unified else max(paths, key=len, default="")


def cgroup_hash(file: Path = Path("/proc/self/cgroup")) -> str:
    """First 16 hexadecimal digits of the SHA-256 of the cgroup path; empty when it cannot be read."""
    try:
        path = cgroup_path(file.read_text())
    except OSError:
        return ""
    return hashlib.sha256(path.encode()).hexdigest()[:16] if path else ""


async def find_provider(base: str = "http://169.254.169.254", google: str = "http://metadata.google.internal") -> str:
    """`aws`, `gcp`, `azure`, or empty. No proxies and no redirects, half a second for each, all at once."""
    async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS, trust_env=False, follow_redirects=False) as client:
        answers = await asyncio.gather(
            _aws(client, base), _gcp(client, google), _azure(client, base), return_exceptions=True
        )
    return next((answer for answer in answers if isinstance(answer, str) and answer), "")


async def _aws(client: httpx.AsyncClient, base: str) -> str:
    token = await client.put(f"{base}/latest/api/token", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"})
    if token.status_code != 200:
        return ""
    answer = await client.get(
        f"{base}/latest/meta-data/instance-id", headers={"X-aws-ec2-metadata-token": token.text[:256]}
    )
    return "aws" if answer.status_code == 200 and _INSTANCE.fullmatch(answer.text.strip()) else ""


async def _gcp(client: httpx.AsyncClient, base: str) -> str:
    answer = await client.get(f"{base}/computeMetadata/v1/instance/id", headers={"Metadata-Flavor": "Google"})
    return "gcp" if answer.status_code == 200 and answer.headers.get("metadata-flavor") == "Google" else ""


async def _azure(client: httpx.AsyncClient, base: str) -> str:
    answer = await client.get(f"{base}/metadata/instance?api-version=2021-02-01", headers={"Metadata": "true"})
    return "azure" if answer.status_code == 200 and "compute" in answer.text[:65536] else ""
