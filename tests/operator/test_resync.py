"""Comparing the cache with the API server: what was missed is stored, and when watches count as dead."""

import asyncio
from collections.abc import Callable
from typing import Any

import kopf
from aiohttp import web

from ingero_operator.api_client import ApiClient
from ingero_operator.informer import Informer
from ingero_operator.resync import DEAD_AFTER, Resync


def node(name: str, version: int) -> dict[str, Any]:
    metadata = {"name": name, "uid": f"u-{name}", "resourceVersion": str(version), "labels": {}}
    return {"kind": "Node", "metadata": metadata, "spec": {}, "status": {}}


def compared(
    rounds: list[tuple[float, list[dict[str, Any]]]], watch: Callable[[Informer, int], None], patience: float = 0.0,
    after: Callable[[Informer], None] = lambda _: None,
) -> list[bool]:  # fmt: skip
    """The answers of comparisons at these seconds with these nodes; `watch` delivers events before each of them,
    `after` when the nodes have been listed."""
    nodes: list[dict[str, Any]] = []
    informer = Informer(lambda key: None)

    async def serve(request: web.Request) -> web.Response:
        if request.path == "/api/v1/nodes":
            asyncio.get_running_loop().call_later(0.05, after, informer)
            return web.json_response({"metadata": {"resourceVersion": "10"}, "items": nodes})
        named = [one for one in nodes if request.path == f"/api/v1/nodes/{one['metadata']['name']}"]
        if request.path.startswith("/api/v1/nodes/"):
            return web.json_response(named[0] if named else {"reason": "NotFound"}, status=200 if named else 404)
        return web.json_response({"metadata": {}, "items": []})

    async def case() -> list[bool]:
        app = web.Application()
        app.add_routes([web.get("/{path:.*}", serve)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        found = []
        async with ApiClient(kopf.ConnectionInfo(server=f"http://127.0.0.1:{runner.addresses[0][1]}")) as api:
            resync = Resync(api, informer, 600.0, patience)
            for number, (now, listed) in enumerate(rounds):
                nodes[:] = listed
                watch(informer, number)
                found.append(await resync.run(now))
                assert {name: view.version for name, view in informer.nodes.items()} == {
                    one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in listed
                }
        await runner.cleanup()
        return found

    return asyncio.run(case())


def silent(informer: Informer, number: int) -> None:
    """A watch that delivers nothing."""


def test_watches_that_deliver_nothing_for_half_a_minute_are_dead() -> None:
    often = [(now, [node("a", 2 + number)]) for number, now in enumerate((0.0, 10.0, 20.0, DEAD_AFTER))]
    seldom = [(0.0, [node("a", 2)]), (600.0, [node("a", 3)])]

    assert compared(often, silent) == [True, True, True, False]
    assert compared(seldom, silent) == [True, False]


def test_a_watch_that_is_late_for_a_moment_is_alive() -> None:
    """However often a busy machine compares meanwhile, and however long ago it was late before."""

    def late_twice(informer: Informer, number: int) -> None:
        if number == 3:
            informer.on_event("Node", "MODIFIED", node("a", 5))

    rounds = [(0.0, [node("a", 2)]), (0.5, [node("a", 3)]), (1.0, [node("a", 4)]), (20.0, [node("a", 5)]),
              (40.0, [node("a", 6)])]  # fmt: skip

    assert all(compared(rounds, late_twice))


def test_an_object_that_changes_all_the_time_and_whose_watch_is_always_a_moment_late_is_not_missed() -> None:
    versions = iter(range(2, 5))

    def bring(informer: Informer) -> None:
        informer.on_event("Node", "MODIFIED", node("a", next(versions)))

    rounds = [(600.0 * number, [node("a", 2 + number)]) for number in range(3)]

    assert compared(rounds, silent, 5.0, bring) == [True, True, True]


def test_different_objects_that_are_missed_do_not_add_up() -> None:
    rounds = [(0.0, [node("a", 2), node("b", 2)]), (600.0, [node("a", 2), node("b", 3)]),
              (1200.0, [node("a", 3), node("b", 3)])]  # fmt: skip

    def watch(informer: Informer, number: int) -> None:
        if number == 0:
            informer.on_event("Node", "ADDED", node("a", 2))
            informer.on_event("Node", "ADDED", node("b", 2))

    assert compared(rounds, watch) == [True, True, True]


def test_a_node_that_is_gone_is_dropped_and_does_not_count() -> None:
    assert compared([(0.0, [node("a", 2)]), (600.0, []), (1200.0, [])], silent) == [True, True, True]
