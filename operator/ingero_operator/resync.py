"""Fills the cache and compares it with the API server, as watches may miss events, mostly deletions."""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Final

from ingero_kit.logs import get
from ingero_operator.api_client import ApiClient
from ingero_operator.cache import ObjectKey, key_of
from ingero_operator.informer import RESOURCES, Informer
from ingero_operator.kinds import CACHED, CHILDREN, NODE, OURS, ResourceKind

log = get(__name__)

DEAD_AFTER: Final = 30.0
"""Seconds. On a busy machine a watch may be late by some of them; a dead one delivers nothing at all."""

LATE_SECONDS: Final = 5.0
"""How long a comparison waits for what the list had and the watch has not brought yet: of an object that changes all
the time, as a DaemonSet during a rollout, the latest version is always on its way."""
_LOOK_SECONDS: Final = 0.1


@dataclass
class Resync:
    """Lists every kind that is cached. Watches that miss an object in all comparisons of 30 seconds count as dead."""

    api: ApiClient
    informer: Informer
    every: float
    patience: float = LATE_SECONDS
    rounds: int = 0
    _missed_since: dict[ObjectKey, float] = field(default_factory=dict)
    """Objects that the last comparison missed, and since when every comparison has; monotonic seconds."""

    async def list_all(self) -> None:
        """Fill the cache before anything is planned; nodes are listed by `NodeWatch`."""
        for kind in CACHED:
            if kind is NODE:
                continue
            async for body in self.api.every(kind, selector=_selector(kind)):
                self.informer.on_event(kind.name, None, body)
        log.info("listed", objects=len(self.informer.cache), nodes=len(self.informer.nodes))

    async def run(self, now: float) -> bool:
        """Drop deleted objects, store missed ones, reconcile every resource; false when the watches are dead."""
        lagging: set[ObjectKey] = set()
        for kind in CACHED:
            lagging |= await self._compare(kind)
        self.rounds += 1
        self._missed_since = {key: self._missed_since.get(key, now) for key in lagging}
        longest = now - min(self._missed_since.values(), default=now)
        if lagging:
            log.warning("cache_behind", objects=len(lagging), seconds=round(longest, 1))
        for name in RESOURCES:
            self.informer.requeue(name)
        return longest < DEAD_AFTER

    async def _compare(self, kind: ResourceKind) -> set[ObjectKey]:
        before = self._known(kind)
        seen, lagging = {}, set()
        async for item in self.api.every(kind, selector=_selector(kind), metadata_only=True):
            item["kind"] = kind.name
            key, metadata = key_of(kind.name, item), item["metadata"]
            seen[key] = (metadata["uid"], int(metadata["resourceVersion"]))
            known = before.get(key)
            if known is None or known[0] != metadata["uid"] or known[1] < int(metadata["resourceVersion"]):
                lagging.add(key)
        missed = set[ObjectKey]()
        for key in await self._without_late(kind, {key: seen[key] for key in lagging}):
            live = await self.api.get(kind, key[1] or None, key[2])
            if live is not None:  # otherwise it was deleted after the list
                self.informer.on_event(kind.name, "MODIFIED", live)
                missed.add(key)
        for key in [key for key in before if key not in seen]:
            # It may have been created after the list began, or have lost the listed label: ask before dropping it.
            live = await self.api.get(kind, key[1] or None, key[2])
            if live is None:
                self.informer.gone(kind.name, key)
            else:
                self.informer.on_event(kind.name, "MODIFIED", live)
        return missed

    async def _without_late(self, kind: ResourceKind, listed: dict[ObjectKey, tuple[str, int]]) -> set[ObjectKey]:
        """The keys of those that the watch does not bring in time, in at least this version."""
        left, waited = {key for key in listed if self._lags(kind, key, listed[key])}, 0.0
        while left and waited < self.patience:
            await asyncio.sleep(_LOOK_SECONDS)
            waited += _LOOK_SECONDS
            left = {key for key in left if self._lags(kind, key, listed[key])}
        return left

    def _known(self, kind: ResourceKind) -> dict[ObjectKey, tuple[str, int]]:
        if kind is NODE:
            return {
                ("Node", "", name): (node.uid, int(node.version or 0)) for name, node in self.informer.nodes.items()
            }
        return self.informer.cache.versions(kind.name)

    def _lags(self, kind: ResourceKind, key: ObjectKey, seen: tuple[str, int]) -> bool:
        now = self._known(kind).get(key)
        return now is None or now[0] != seen[0] or now[1] < seen[1]

    def pause(self) -> float:
        """Seconds until the next comparison, spread by 20 %."""
        return self.every * random.uniform(0.8, 1.2)


def _selector(kind: ResourceKind) -> str | None:
    return OURS if kind in CHILDREN else None
