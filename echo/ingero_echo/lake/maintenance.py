"""What to delete from the shared tables, and which files to merge. Pure: values in, decisions out.

`now` is the time of the object storage in seconds, which also dates its objects.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Final

from ingero_echo.lake.view import LATEST, LakeFile

DAY_SECONDS: Final = 86_400
UNREFERENCED_SECONDS: Final = 24 * 3600
"""Age at which an object that no snapshot names is deleted; longer than any seal takes from its put to its commit."""

CLOCK_SECONDS: Final = 600.0
"""Largest difference between this machine's clock and the storage's with which anything is deleted."""

_FEW: Final = 8
"""With this many files a group is merged, whatever their sizes are."""

_LARGEST_SHARE: Final = 0.8
"""Fewer files are merged only when none has more of their bytes: one late row does not rewrite a large file."""


@dataclass(frozen=True)
class StoredObject:
    """An object below the location of a table; its path as the file system has it."""

    path: str
    modified: float


@dataclass(frozen=True)
class Lease:
    """Which shard maintains the tables, and until when no other does, seconds."""

    shard: str = ""
    until: float = 0.0


def parse_lease(text: str) -> Lease:
    """The lease of a property; an empty one for what is none."""
    shard, _, until = text.partition(" ")
    try:
        return Lease(shard, float(until))
    except ValueError:
        return Lease()


def next_lease(found: Lease, shard: str, now: float, every: float) -> Lease | None:
    """The lease to write before maintenance, or `None` while another shard has it."""
    if found.shard not in ("", shard) and now < found.until:
        return None
    return Lease(shard, now + 1.5 * every)


def expired_files(files: Iterable[LakeFile], now: float, age: float) -> list[LakeFile]:
    """The files all of whose rows are of days that ended `age` seconds ago."""
    edge = int((now - age) // DAY_SECONDS) * DAY_SECONDS * 1_000_000
    return [file for file in files if file.last < edge]


def compactions(files: Iterable[LakeFile], now: float, target: int) -> list[list[LakeFile]]:
    """Groups of files of one ended day, each to be merged into one of at most `target` bytes."""
    today = int(now // DAY_SECONDS)
    closed = [file for file in files if file.last != LATEST and _day(file) < today and file.size < target]
    found: list[list[LakeFile]] = []
    for _, group in groupby(sorted(closed, key=lambda file: (_day(file), file.size, file.location)), key=_day):
        bins: list[list[LakeFile]] = [[]]
        for file in group:
            if sum(one.size for one in bins[-1]) + file.size > target:
                bins.append([])
            bins[-1].append(file)
        found += [one for one in bins if _worthwhile(one)]
    return found


def _worthwhile(group: list[LakeFile]) -> bool:
    total, largest = sum(file.size for file in group), max((file.size for file in group), default=0)
    return len(group) >= _FEW or (len(group) > 1 and largest <= _LARGEST_SHARE * total)


def unreferenced(objects: Iterable[StoredObject], named: Set[str], now: float) -> list[str]:
    """The paths to delete. Objects were listed before the names were read."""
    return [one.path for one in objects if one.path not in named and one.modified < now - UNREFERENCED_SECONDS]


def _day(file: LakeFile) -> int:
    return file.first // (DAY_SECONDS * 1_000_000)


def day_text(file: LakeFile) -> str:
    """The name of the day of a file."""
    return datetime.fromtimestamp(_day(file) * DAY_SECONDS, UTC).strftime("%Y-%m-%d")
