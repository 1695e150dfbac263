"""Writers of an EchoStore: their names, and which of them takes the events of a cluster. Pure."""

import hashlib
from typing import Final

WRITER: Final = "echo"


def writer(index: int) -> str:
    """Component of a writer. The first one is named as in a store without shards."""
    return WRITER if index == 0 else f"{WRITER}-{index}"


def stream(first: str, index: int) -> str:
    """Name of the stream that a writer reads."""
    return first if index == 0 else f"{first}-{index}"


def shard_of(cluster_id: str, shards: int) -> int:
    """The writer that takes a cluster's events: rendezvous hashing.

    One more shard takes over some clusters, and no cluster moves between the others.
    """
    return max(range(shards), key=lambda index: hashlib.sha256(f"{index}/{cluster_id}".encode()).digest())
