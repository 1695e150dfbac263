"""Asks Fleet's replicas how they follow the log that they share."""

import asyncio
from dataclasses import dataclass, replace
from typing import Final

import aiohttp
from pydantic import ValidationError
from yarl import URL

from ingero_contract import routes
from ingero_operator.fleet_answers import PollRequest, PollResult
from ingero_operator.log_conditions import ReplicaLog, log_conditions, log_figures, taint_problem
from ingero_operator.untrusted_http import NoResponse, get_json

MAX_LOG_ANSWER: Final = 16 << 10
"""Most bytes of one answer."""


@dataclass(frozen=True, kw_only=True)
class LogState:
    """What the replicas that were asked answered."""

    answers: tuple[ReplicaLog, ...]
    wanted: int


async def ask_replicas(session: aiohttp.ClientSession, request: PollRequest) -> LogState | None:
    """Ask every known replica, or any one while none is known by address; `None` without a shared log."""
    if not request.replicas_wanted:
        return None
    service = URL(request.url)
    urls = [service.with_host(address) for address in request.replicas] or [service]
    found = await asyncio.gather(*(_ask(session, request, url, service.host) for url in urls))
    return LogState(answers=tuple(item for item in found if item), wanted=request.replicas_wanted)


async def _ask(
    session: aiohttp.ClientSession, request: PollRequest, url: URL, server_name: str | None
) -> ReplicaLog | None:
    """One replica's answer; `None` where there is none that can be read."""
    headers = {"Authorization": f"Bearer {request.token}"} if request.token else {}
    try:
        answer = await get_json(
            session, str(url.with_path(routes.FLEET_LOG)), limit=MAX_LOG_ANSWER, headers=headers,
            authority=request.authority, server_name=server_name,
        )  # fmt: skip
        return ReplicaLog.model_validate(answer)
    except (NoResponse, ValidationError):
        return None


def with_log(result: PollResult, state: LogState | None) -> PollResult:
    """The result with what the replicas answered about the log. Pure."""
    if state is None:
        return replace(result, log=(), log_figures=None)
    conditions = log_conditions(state.answers)
    evidence = result.evidence and replace(result.evidence, log_problem=taint_problem(conditions))
    return replace(result, log=conditions, log_figures=log_figures(state.answers, state.wanted), evidence=evidence)
