"""The last two snapshots of a Fleet's state, in a bucket of NATS's object store."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from nats.errors import Error as NatsError
from nats.js.api import ObjectInfo, ObjectMeta, ObjectMetaOptions, ObjectStoreConfig, StorageType
from nats.js.errors import BucketNotFoundError, NotFoundError
from nats.js.object_store import ObjectStore

from ingero_fleet.replication.log_stats import LogStats
from ingero_fleet.replication.ordered_log import LogAway, LogSnapshot
from ingero_kit.connection_stats import describe
from ingero_kit.logs import get
from ingero_kit.nats_connection import NatsConnection, with_copies

log = get(__name__)

SAVE_SECONDS: Final = 50.0
"""How long a snapshot may take to be stored."""

LOAD_SECONDS: Final = 30.0
"""How long a snapshot may take to arrive, and the list of them."""

CHUNK_BYTES: Final = 512 << 10
SLOTS: Final = ("a", "b")
"""Names of the objects: a new snapshot replaces the older one, so that two are kept and no names pile up."""


class SnapshotBucket:
    """Saves and loads snapshots. The name of a snapshot is its object's description."""

    def __init__(self, bucket: str, connection: NatsConnection, stats: LogStats) -> None:
        self._bucket, self._connection, self._stats = bucket, connection, stats
        self._unnamed: set[str] = set()
        """Chunks that no object named when the last snapshot was saved."""

    async def save(self, name: str, data: bytes) -> None:
        """Store a snapshot in the place of the older one; raises `LogAway`."""
        try:
            async with asyncio.timeout(SAVE_SECONDS):
                store = await self._opened()
                slots = [one.name for one in await _kept(store)]
                free = next((one for one in SLOTS if one not in slots), slots[0] if slots else SLOTS[0])
                options = ObjectMetaOptions(max_chunk_size=min(CHUNK_BYTES, self._connection.client.max_payload))
                await store.put(free, data, ObjectMeta(description=name, options=options))
                await self._purge(store)
        except (NatsError, OSError, TimeoutError) as error:
            self._stats.events["snapshot_failed"] += 1
            raise LogAway(f"a snapshot was not stored: {describe(error)}") from None

    async def load(self) -> AsyncGenerator[LogSnapshot]:
        """Return the snapshots, newest first; raises `LogAway` if they cannot be listed."""
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                store = await self._opened()
                kept = await _kept(store)
        except (NatsError, OSError, TimeoutError) as error:
            raise LogAway(f"the snapshots were not listed: {describe(error)}") from None
        for one in reversed(kept):
            try:
                async with asyncio.timeout(LOAD_SECONDS):
                    data = (await store.get(one.name)).data or b""
            except (NatsError, OSError, TimeoutError) as error:
                self._stats.events["snapshot_failed"] += 1
                log.warning("log_snapshot_not_read", name=one.description, reason=describe(error))
                continue
            yield LogSnapshot(one.description or "", data)

    async def _opened(self) -> ObjectStore:
        jetstream = await self._connection.ready()
        try:
            return await jetstream.object_store(self._bucket)
        except BucketNotFoundError:
            return await with_copies(self._create)

    async def _create(self, copies: int) -> ObjectStore:
        config = ObjectStoreConfig(storage=StorageType.FILE, replicas=copies)
        return await (await self._connection.ready()).create_object_store(self._bucket, config)

    async def _purge(self, store: ObjectStore) -> None:
        """Remove chunks of saves that were cut off: those that no object named now or at the save before."""
        jetstream = await self._connection.ready()
        chunks = f"$O.{self._bucket}.C."
        info = await jetstream.stream_info(f"OBJ_{self._bucket}", subjects_filter=f"{chunks}>")
        named = {chunks + one.nuid for one in await _kept(store)}
        unnamed = set(info.state.subjects or ()) - named
        for subject in unnamed & self._unnamed:
            await jetstream.purge_stream(f"OBJ_{self._bucket}", subject=subject)
            self._stats.events["orphan_purged"] += 1
        self._unnamed = unnamed


async def _kept(store: ObjectStore) -> list[ObjectInfo]:
    """What is stored, oldest first."""
    try:
        return await store.list(ignore_deletes=True)
    except NotFoundError:
        return []
