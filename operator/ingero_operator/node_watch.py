"""Lists and watches nodes without kopf, because they are many and each sends a heartbeat.

kopf runs a task and makes several copies of the object for every event. Here a line of the watch is decoded and
compared with the few facts that matter (`taints.nodes`).
"""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Final

import orjson

from ingero_kit.backoff import Backoff
from ingero_kit.logs import get
from ingero_operator.api_client import ApiClient, ApiError
from ingero_operator.informer import Informer
from ingero_operator.kinds import NODE

log = get(__name__)

WATCH_SECONDS: Final = 300


@dataclass
class NodeWatch:
    """Keeps `informer.nodes` up to date."""

    api: ApiClient
    informer: Informer
    listed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when every node has been seen once."""
    backoff: Backoff = field(default_factory=lambda: Backoff(first=1.0, longest=30.0, jitter=0.3))

    async def run(self) -> None:
        """List and watch until cancelled."""
        failures = 0
        while True:
            try:
                version: str | None = await self._list()
                failures = 0
                while version is not None:
                    version = await self._watch(version)
            except ApiError as error:
                log.warning("node_watch_failed", reason=error.message)
                await asyncio.sleep(self.backoff.delay(failures, random.random()))
                failures += 1

    async def _list(self) -> str:
        """Store every node and remove deleted ones; returns the version to watch from."""
        names, version = set[str](), ""
        async for page in self.api.pages(NODE):
            version = version or str(page["metadata"]["resourceVersion"])
            for body in page.get("items") or []:
                names.add(body["metadata"]["name"])
                self.informer.on_event(NODE.name, None, body)
        for name in self.informer.nodes.keys() - names:
            self.informer.gone(NODE.name, (NODE.name, "", name))
        self.listed.set()
        return version

    async def _watch(self, version: str) -> str | None:
        """Process events until the API server ends the watch; the version to resume from, `None` if too old."""
        async for line in self.api.watch(NODE, version, WATCH_SECONDS):
            event = orjson.loads(line)
            if event["type"] == "ERROR":
                log.info("node_watch_expired", reason=str(event["object"].get("message", "")))
                return None
            version = event["object"]["metadata"]["resourceVersion"]
            if event["type"] != "BOOKMARK":
                self.informer.on_event(NODE.name, event["type"], event["object"])
        return version
