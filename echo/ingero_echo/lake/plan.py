"""What to seal, under which name, and whether it may be committed. Pure: values in, decisions out."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ingero_contract import echo
from ingero_echo.errors import UserError
from ingero_echo.source_position import SourcePosition, format_position, parse_position
from ingero_echo.tables import TABLES

NOTHING: Final = -1
"""The boundary of a shard that has sealed nothing; rows from before sealing have the order of arrival 0."""

ORDER: Final = (*(table for table in TABLES if table != "events"), "events")
"""Events are sealed last: when their boundary is committed, the rows that were derived from them are sealed too."""

NICE: Final = 5
"""Priority of sorting that keeps up: a quarter of a processor that a thread of ingest wants too."""


class SealFailure(StrEnum):
    """Why nothing is sealed, without details, for the answer that needs no token."""

    SHARD_TAKEN = echo.SHARD_TAKEN
    CREDENTIALS_REFUSED = "credentials_refused"
    TABLES_UNAVAILABLE = "tables_unavailable"
    LOCAL = "local"
    """The database or its volume."""


_REFUSED: Final = re.compile(
    r"unauthori[sz]ed|forbidden|access.?denied|authentication failed|no password supplied|permission denied"
    r"|oautherror|invalid.?access.?key|signature.?does.?not.?match|expired.?token|invalid.?token|\b40[13]\b",
    re.IGNORECASE,
)
"""What catalogs and object storages say of credentials that they do not accept."""


def seal_failure(error: Exception) -> SealFailure:
    """The kind of an error that ended a seal."""
    if not isinstance(error, UserError):
        return SealFailure.LOCAL
    return SealFailure.CREDENTIALS_REFUSED if _REFUSED.search(str(error)) else SealFailure.TABLES_UNAVAILABLE


class ShardTaken(UserError):
    """Another database seals under the name of this shard; the text says what to do."""


@dataclass(frozen=True)
class Boundary:
    """What a shared table says of a shard: the highest order of arrival in it, and the database that sealed it."""

    sealed: int = NOTHING
    store: str = ""
    as_of: int = 0
    """Time of the newest seal, nanoseconds."""
    source: SourcePosition | None = None
    """The message through which the table has a stream."""
    predecessors: tuple[str, ...] = ()
    """Lost databases whose boundaries this one may replace."""


def boundaries(properties: Mapping[str, str]) -> dict[str, Boundary]:
    """The boundaries of all shards, from the properties of a table."""
    prefix = "ingero.sealed."
    return {
        name.removeprefix(prefix): Boundary(
            int(value),
            properties.get(f"ingero.store.{name.removeprefix(prefix)}", ""),
            int(properties.get(f"ingero.as_of.{name.removeprefix(prefix)}", "0")),
            parse_position(properties.get(f"ingero.source.{name.removeprefix(prefix)}", "")),
        )
        for name, value in properties.items()
        if name.startswith(prefix)
    }


def boundary_properties(shard: str, boundary: Boundary) -> dict[str, str]:
    """The properties that say so."""
    return {
        f"ingero.sealed.{shard}": str(boundary.sealed),
        f"ingero.store.{shard}": boundary.store,
        f"ingero.as_of.{shard}": str(boundary.as_of),
        **({f"ingero.source.{shard}": format_position(boundary.source)} if boundary.source else {}),
    }


def cut(counts: Iterable[tuple[int, int]], max_rows: int) -> int | None:
    """The end of the next range: the last transaction with which it has at most `max_rows`, and at least the first.

    `counts` are orders of arrival with their rows, rising. `None` when there is nothing.
    """
    end, rows = None, 0
    for seq, count in counts:
        rows += count
        if end is not None and rows > max_rows:
            break
        end = seq
    return end


def first_contact(
    shard: str, found: Boundary, store: str, started_at: int, predecessors: tuple[str, ...] = ()
) -> int:
    """The boundary to continue from, for a process that has committed nothing yet.

    `started_at` is the highest order of arrival when the process began: whatever this database sealed before is not
    above it. Raises `ShardTaken`.
    """
    if found.sealed == NOTHING:
        return NOTHING
    if found.store not in (store, *predecessors):
        raise _taken(shard, "another database")
    if found.sealed > started_at:
        raise _taken(shard, "a newer copy of this database")
    return found.sealed


def continues(found: Boundary, store: str, sealed: int, position: SourcePosition | None) -> bool:
    """Whether a database takes the place of the one that sealed `found`: it is new, and the rest is in the stream."""
    return found.source is not None and found.store != store and sealed == NOTHING and position is None


def sealed_elsewhere(known: Iterable[Boundary], origin: str | None, copied: int) -> int:
    """The boundary of rows up to `copied`, which came with a backup of the database `origin`, in a table already."""
    sealed = max((found.sealed for found in known if origin and found.store == origin), default=NOTHING)
    return min(sealed, copied)


def sealed_formerly(shard: str | None, known: Mapping[str, Boundary], store: str, started_at: int) -> int:
    """The boundary of what a database sealed under the name that it had before. Raises `ShardTaken`."""
    found = known.get(shard or "", Boundary())
    return first_contact(str(shard), found, store, started_at) if found.store == store else NOTHING


def landed(shard: str, found: Boundary, expected: int, wanted: Boundary) -> bool:
    """Whether the table has the boundary that is to be committed; otherwise it has the one that it must have before.

    Raises `ShardTaken` when it has neither.
    """
    if found.sealed == wanted.sealed and found.store == wanted.store:
        return True
    if found.sealed == expected and (expected == NOTHING or found.store in (wanted.store, *wanted.predecessors)):
        return False
    raise _taken(shard, "another process")


def _taken(shard: str, who: str) -> ShardTaken:
    return ShardTaken(
        f"the shard {shard} is sealed by {who}",
        "give every database a table.shard of its own, also one that was restored or copied",
    )


def file_name(table: str, day: str, shard: str, attempt: str, after: int, through: int) -> str:
    """Where the rows of a range and day go, below the location of the table.

    No name is used twice, so maintenance may delete an old object that no snapshot names.
    """
    return f"data/day={day}/{table}-{shard}-{attempt}-{max(0, after + 1):012d}-{through:012d}.parquet"


def sealed_by(location: str) -> tuple[str, int] | None:
    """Shard and end of the range of a file with such a name; `None` for one that maintenance made."""
    found = _FILE_NAME.search(location)
    return (found[1], int(found[2])) if found else None


_FILE_NAME: Final = re.compile(r"/[a-z_]+-([a-z0-9-]+)-[0-9a-f]{12}-\d{12,}-(\d{12,})\.parquet$")


def backoff(attempt: int, chance: float) -> float:
    """Seconds before the next try of a commit that met another one; `chance` is between 0 and 1."""
    return chance * min(2.0, 0.1 * 2.0**attempt)


def deletable(seals: Iterable[tuple[int, float]], now: float, keep: float) -> int:
    """The order of arrival through which rows may be deleted: sealed `keep` seconds ago, and before the last seal.

    `seals` are boundaries and when they were committed, rising. Readers may still use the state before the last seal.
    """
    *earlier, _ = [*seals] or [(NOTHING, 0.0)]
    return max((through for through, moment in earlier if now - moment >= keep), default=NOTHING)


def niceness(lag: float, every: float) -> int:
    """The priority of the next sort: below that of ingest, until one and a half intervals are not sealed."""
    return 0 if lag > 1.5 * every else NICE
