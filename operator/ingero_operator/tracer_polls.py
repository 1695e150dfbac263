"""Asks tracers that run what they lack, which their pods' status shows only after they have ended."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

import aiohttp
from yarl import URL

from ingero_contract import routes
from ingero_contract.node_problems import MAX_SENTENCE, TraceProblem
from ingero_operator.kinds import Manifest
from ingero_operator.pod_problems import Reported, running
from ingero_operator.render.common import TRACE_PORT
from ingero_operator.untrusted_http import NoResponse, get_json, open_session

SECONDS: Final = 1.0
"""How long a tracer may take to answer. A reconcile waits for it, so it is short."""
CONNECTIONS: Final = 50
MAX_ANSWER: Final = 64 << 10
"""Most bytes of one answer."""


async def ask_tracers(pods: Iterable[Manifest], port: int = TRACE_PORT) -> dict[str, Reported]:
    """By name of the pod: what its tracer lacks now. Tracers without a usable answer are left out."""
    addresses = {pod["metadata"]["name"]: str(pod["status"]["podIP"]) for pod in pods if running(pod)}
    if not addresses:
        return {}
    async with open_session(SECONDS, CONNECTIONS) as session:
        answers = await asyncio.gather(*(_ask(session, address, port) for address in addresses.values()))
    return {name: answer for name, answer in zip(addresses, answers, strict=True) if answer is not None}


async def _ask(session: aiohttp.ClientSession, address: str, port: int) -> Reported | None:
    try:
        url = URL.build(scheme="http", host=address, port=port, path=routes.TRACER_HEALTH)
        return parse_answer(await get_json(session, str(url), limit=MAX_ANSWER))
    except (NoResponse, ValueError):
        return None


def parse_answer(answer: Mapping[str, Any]) -> Reported:
    """The problems in a tracer's answer; what is unknown is left out."""
    problems = answer.get("problems")
    if not isinstance(problems, dict):
        return {}
    return {
        reason: text[:MAX_SENTENCE]
        for reason in TraceProblem
        if isinstance(text := problems.get(reason), str) and text
    }
