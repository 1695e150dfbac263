"""Watching nodes: what a heartbeat changes, what a list drops, and how a watch goes on."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import kopf
import pytest
from aiohttp import web

from ingero_operator.api_client import ApiClient
from ingero_operator.cache import OwnerKey
from ingero_operator.informer import Informer
from ingero_operator.node_watch import NodeWatch

FLEET: OwnerKey = ("FleetCluster", "ml", "prod")


def node(name: str, version: int, *, ready: bool = True, beat: int = 0, padding: int = 0) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": str(ready), "lastHeartbeatTime": f"2026-01-01T00:00:{beat:02}Z"}]
    images = [{"names": ["x" * 100], "sizeBytes": 1}] * padding
    metadata = {"name": name, "uid": f"u-{name}", "resourceVersion": str(version), "labels": {}}
    return {"metadata": metadata, "spec": {}, "status": {"conditions": conditions, "images": images}}


class Server:
    """An API server that has these nodes and, for each watch, these events."""

    def __init__(self, nodes: list[dict[str, Any]], *watches: list[dict[str, Any]]) -> None:
        self.nodes, self.watches, self.asked = nodes, list(watches), list[str]()
        self.over = asyncio.Event()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            self.asked.append("list")
            return web.json_response({"metadata": {"resourceVersion": "10"}, "items": self.nodes})
        self.asked.append(request.query["resourceVersion"])
        response = web.StreamResponse()
        await response.prepare(request)
        text = "".join(json.dumps(event) + "\n" for event in (self.watches.pop(0) if self.watches else []))
        for start in range(0, len(text), 1000):  # lines do not end where pieces do
            await response.write(text[start : start + 1000].encode())
        if not self.watches:
            await self.over.wait()
        return response


def watched(server: Server, informer: Informer, enough: Callable[[], bool]) -> None:
    """Run a watch against a server until `enough`."""

    async def case() -> None:
        app = web.Application()
        app.add_routes([web.get("/api/v1/nodes", server.serve)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with ApiClient(kopf.ConnectionInfo(server=url)) as api:
            watch = NodeWatch(api, informer)
            task = asyncio.create_task(watch.run())
            async with asyncio.timeout(60):
                await watch.listed.wait()
                while not enough():
                    await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.wait([task])
        server.over.set()
        await runner.cleanup()

    asyncio.run(case())


def informed() -> tuple[Informer, list[OwnerKey]]:
    due: list[OwnerKey] = []
    informer = Informer(due.append)
    informer.interest[FLEET] = frozenset({"a", "b"})
    return informer, due


def event(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": body}


def test_a_heartbeat_makes_nothing_due_and_a_change_does() -> None:
    informer, due = informed()
    beats = [event("MODIFIED", node("a", 11 + beat, beat=beat, padding=50)) for beat in range(5)]
    server = Server([node("a", 9)], [*beats, event("MODIFIED", node("a", 20, ready=False))])
    watched(server, informer, lambda: informer.nodes["a"].version == "20")

    assert due == [FLEET, FLEET] and not informer.nodes["a"].ready


def test_a_node_that_is_gone_is_dropped_by_an_event_and_by_a_list() -> None:
    informer, due = informed()
    informer.on_event("Node", None, node("b", 5))
    server = Server([node("a", 9), node("c", 9)], [event("DELETED", node("c", 12))])
    watched(server, informer, lambda: "c" not in informer.nodes)

    assert set(informer.nodes) == {"a"} and due.count(FLEET) == 3


def test_a_watch_goes_on_where_the_last_one_ended_and_bookmarks_count() -> None:
    informer, _ = informed()
    bookmark = {"metadata": {"resourceVersion": "40"}}
    server = Server(
        [], [event("ADDED", node("a", 30))], [event("BOOKMARK", bookmark)], [event("ADDED", node("b", 41))]
    )
    watched(server, informer, lambda: "b" in informer.nodes)

    assert server.asked == ["list", "10", "30", "40"]


@pytest.mark.parametrize("code", [410, 500])
def test_after_an_error_of_the_watch_nodes_are_listed_anew(code: int) -> None:
    informer, _ = informed()
    error = {"kind": "Status", "code": code, "message": "too old resource version"}
    server = Server([node("a", 9)], [event("ERROR", error)], [event("ADDED", node("b", 11))])
    watched(server, informer, lambda: "b" in informer.nodes)

    assert server.asked == ["list", "10", "list", "10"]
