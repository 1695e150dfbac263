"""Memory allocators that give back what is not in use. glibc, Arrow and DuckDB's jemalloc each keep some of it for
every thread: together a sixth of a reader's memory."""

import os
from typing import Final

from ingero_kit.process_memory import limit_malloc_arenas

ENVIRONMENT: Final = {
    "MALLOC_ARENA_MAX": "2",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "DUCKDB_JE_MALLOC_CONF": "dirty_decay_ms:100,muzzy_decay_ms:0",
}
"""Variables that the allocators read when they are loaded. With no decay at all questions take twice the time."""


def configure() -> None:
    """Set what is not set yet, for this process. Call it before DuckDB and Arrow are imported and threads start."""
    arenas_set = "MALLOC_ARENA_MAX" in os.environ
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if not arenas_set:  # glibc has read its variable already
        limit_malloc_arenas(int(ENVIRONMENT["MALLOC_ARENA_MAX"]))
