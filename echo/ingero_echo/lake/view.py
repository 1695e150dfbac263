"""What a question reads: data files of the tables at one version, and rows above the boundaries. Pure."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final

from ingero_echo.lake.layout import DAY, restored
from ingero_echo.lake.plan import NOTHING, Boundary
from ingero_echo.window import Window, literal

LATEST: Final = 2**63 - 1
"""The time of a file that does not say its latest."""


@dataclass(frozen=True)
class LakeFile:
    """One data file of a table; its earliest and latest time in microseconds, and bounds of its clusters' names."""

    location: str
    size: int
    rows: int
    first: int = 0
    last: int = LATEST
    lowest: str = ""
    highest: str | None = None
    """Not below the last name; `None` where it is not known."""

    def may_have(self, clusters: Iterable[str]) -> bool:
        """Whether rows of one of the clusters may be in it."""
        return any(self.lowest <= name and (self.highest is None or name <= self.highest) for name in clusters)

    @property
    def name(self) -> str:
        """Its name in a cache."""
        return hashlib.sha256(self.location.encode()).hexdigest()[:32] + ".parquet"


@dataclass(frozen=True)
class PinnedTable:
    """A table at one version: its files, and what each shard has sealed in it."""

    files: tuple[LakeFile, ...]
    boundaries: Mapping[str, Boundary]
    version: int = 0

    def sealed(self, shard: str, store: str = "") -> int:
        """The boundary of a shard, or a higher one of its database under another name."""
        same = (boundary.sealed for boundary in self.boundaries.values() if store and boundary.store == store)
        return max(self.boundaries.get(shard, Boundary()).sealed, *same, NOTHING)


@dataclass(frozen=True)
class Unsealed:
    """Where the newest rows of a writer are; some of them may be sealed."""

    schema: str
    shard: str
    store: str


Pin = Mapping[str, PinnedTable]
"""All tables. Events were pinned first, because they are sealed last."""


def needed(table: str, pinned: PinnedTable, window: Window) -> list[LakeFile]:
    """The files of a table that may have rows of a window. Verdicts before it may still count in it."""
    since = None if table == "verdicts" else window.since
    return [
        file
        for file in pinned.files
        if (since is None or file.last >= since // 1000)
        and (window.until is None or file.first <= window.until // 1000)
        and (window.clusters is None or file.may_have(window.clusters))
    ]


def added(pin: Pin, before: Pin, most_bytes: int) -> list[tuple[str, LakeFile]]:
    """Files, each with its table, that are in the first and not in the second; the latest, up to so many bytes."""
    new = [
        (table, file)
        for table, pinned in pin.items()
        for file in set(pinned.files).difference(before[table].files if table in before else ())
    ]
    new.sort(key=lambda item: (-item[1].last, item[1].location))
    sizes = accumulate(file.size for _, file in new)
    return [item for item, total in zip(new, sizes, strict=True) if total <= most_bytes]


def source(table: str, pinned: PinnedTable, paths: Sequence[Path], hot: Iterable[Unsealed], window: Window) -> str:
    """An expression for FROM, over files and over the rows of writers that are not in them.

    The condition on the stored microseconds lets the engine skip row groups.
    """
    parts = [f"SELECT * FROM main.{table}"]
    if paths:
        names = ", ".join(literal(str(path)) for path in paths)
        within = (
            [] if table == "verdicts" or window.since is None else [f'"{DAY}" >= {_micros(window.since // 1000)}']
        )
        within += [] if window.until is None else [f'"{DAY}" <= {_micros(window.until // 1000)}']
        where = f" WHERE {' AND '.join(within)}" if within else ""
        parts.append(f"SELECT {restored(table)} FROM read_parquet([{names}]){where}")
    parts += [
        f"SELECT * FROM {writer.schema}.{table} WHERE seq > {pinned.sealed(writer.shard, writer.store)}"
        for writer in hot
    ]
    return f"({' UNION ALL '.join(parts)})"


def _micros(moment: int) -> str:
    return f"make_timestamp({moment}::BIGINT)"


def trimmed(pins: Iterable[tuple[float, Pin]], shard: str, table: str, before: float) -> int:
    """The boundary through which rows of a shard may be dropped: the one that was pinned before a moment."""
    return max((pin[table].sealed(shard) for moment, pin in pins if moment <= before), default=NOTHING)
