"""Standing by: a replica that could not take over says so."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import kopf
from aiohttp import web

from ingero_operator.api_client import ApiClient
from ingero_operator.leader import LeaderElector

HELD = {
    "metadata": {"name": "ingero-operator", "namespace": "home", "resourceVersion": "1"},
    "spec": {"holderIdentity": "another", "leaseDurationSeconds": 3600},
}
NO_RIGHT = {"message": 'leases "ingero-operator" is forbidden', "reason": "Forbidden"}


@asynccontextmanager
async def standby(answers: list[tuple[int, dict[str, Any]]]) -> AsyncIterator[LeaderElector]:
    """An elector before an API server that gives these answers, the last one again and again."""

    async def answer(_: web.Request) -> web.Response:
        status, body = answers.pop(0) if len(answers) > 1 else answers[0]
        return web.json_response(body, status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with ApiClient(kopf.ConnectionInfo(server=f"http://127.0.0.1:{runner.addresses[0][1]}")) as api:
            elector = LeaderElector(api, "home", "me", 0.3)
            waiting = asyncio.create_task(elector.acquire())
            yield elector
            waiting.cancel()
    finally:
        await runner.cleanup()


async def becomes(elector: LeaderElector, blocked_reason: bool) -> str:
    async with asyncio.timeout(60):
        while bool(elector.blocked_reason()) is not blocked_reason:
            await asyncio.sleep(0.01)
    return elector.blocked_reason()


def test_a_replica_that_may_not_read_the_lease_is_hindered_in_words() -> None:
    async def run() -> str:
        async with standby([(403, NO_RIGHT)]) as elector:
            async with asyncio.timeout(60):
                while "not tried" in elector.blocked_reason():
                    await asyncio.sleep(0.01)
            return elector.blocked_reason()

    assert asyncio.run(run()) == 'Lease home/ingero-operator: leases "ingero-operator" is forbidden'


def test_before_the_first_answer_a_replica_is_hindered() -> None:
    async def run() -> str:
        async with standby([(200, HELD)]) as elector:
            return elector.blocked_reason()

    assert asyncio.run(run()) == "has not tried to take the Lease yet"


def test_a_replica_that_waits_for_its_turn_is_not_hindered_until_the_api_server_stays_away() -> None:
    async def run() -> tuple[str, str]:
        answers: list[tuple[int, dict[str, Any]]] = [(200, HELD)]
        async with standby(answers) as elector:
            calm = await becomes(elector, blocked_reason=False)
            answers.append((503, {"message": "away"}))
            return calm, await becomes(elector, blocked_reason=True)

    assert asyncio.run(run()) == ("", "Lease home/ingero-operator: away")


def test_who_was_faster_by_a_moment_is_no_hindrance() -> None:
    async def run() -> str:
        async with standby([(404, {"message": "none"}), (409, {"message": "exists"})]) as elector:
            return await becomes(elector, blocked_reason=False)

    assert asyncio.run(run()) == ""
