"""Asks pods of Echo why they are not ready, which the kubelet sees as a number only."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import aiohttp
from yarl import URL

from ingero_contract import echo
from ingero_operator.kinds import Manifest
from ingero_operator.pod_problems import running
from ingero_operator.render.common import API
from ingero_operator.untrusted_http import NoResponse, get_json, open_session

SECONDS: Final = 2.0
"""How long a pod may take to answer. A reconcile waits for it, so it is short."""
CONNECTIONS: Final = 8
MAX_ANSWER: Final = 64 << 10
"""Most bytes of one answer."""
READY_ANSWER: Final = (
    "it is, so the kubelet does not reach it: see whether a NetworkPolicy or a firewall keeps nodes from their pods"
)


@dataclass(frozen=True)
class Server:
    """How the pods of a component are asked, over TLS."""

    name: str
    """DNS name in the certificate."""
    authority: str | None
    """PEM of the CA that signed it."""
    port: int = API


async def ask_ready(pods: Iterable[Manifest], server: Server) -> dict[str, str]:
    """By name of the pod: in words, what it answers to the question whether it is ready. Asks only pods that run."""
    addresses = {pod["metadata"]["name"]: str(pod["status"]["podIP"]) for pod in pods if running(pod)}
    if not addresses:
        return {}
    async with open_session(SECONDS, CONNECTIONS) as session:
        answers = await asyncio.gather(*(_ask(session, address, server) for address in addresses.values()))
    return dict(zip(addresses, answers, strict=True))


async def _ask(session: aiohttp.ClientSession, address: str, server: Server) -> str:
    try:
        url = URL.build(scheme="https", host=address, port=server.port, path=echo.READY)
        answer = await get_json(
            session, str(url), limit=MAX_ANSWER, authority=server.authority, server_name=server.name,
            statuses=(200, 503),
        )  # fmt: skip
    except (NoResponse, ValueError) as error:
        return f"nothing that can be used ({error})"
    if answer.get("status") == "ok":
        return READY_ANSWER
    said = [text for key in ("message", "hint") if isinstance(text := answer.get(key), str) and text]
    return "; ".join(said) or "nothing that can be used"
