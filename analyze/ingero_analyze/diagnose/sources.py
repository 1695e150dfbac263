"""Common parts of readers of other tools' files: finding files, size limits, problems, and what files can show."""

import math
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from ingero_analyze.diagnose.timeline_files import OPTIONAL, REQUIRED, RecordedTimeline, assemble
from ingero_analyze.folders import natural
from ingero_analyze.packed import ENDINGS, PackedError, unpacked
from ingero_contract.identifiers import Rank

MAX_FILE_BYTES: Final = 512 << 20
"""Largest file, unpacked."""

MAX_FILES: Final = 100_000
MAX_ROWS: Final = 20_000_000
SHOWN: Final = 20
"""Problems that are described; all are counted."""

_RANK: Final = re.compile(r"rank[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE)
_NUMBERS: Final = re.compile(r"\d+")
_ENDINGS: Final = re.compile(r"(\.(json|jsonl|pickle|pkl|pt|trace|txt|log))*" + ENDINGS, re.IGNORECASE)

_PACKING: Final = re.compile(ENDINGS)


class SourceError(ValueError):
    """A file cannot be used; the text names the place in it."""


@dataclass
class Problems:
    """What could not be used: all counted, the first ones described."""

    count: int = 0
    shown: list[str] = field(default_factory=list)

    def add(self, file: str, text: str, count: int = 1) -> None:
        """Add one problem, `count` times. Of the same ones in a row, one is described."""
        self.count += count
        line = f"{file}: {text}" if file else text
        if len(self.shown) < SHOWN and line not in self.shown[-1:]:
            self.shown.append(line)

    def answer(self) -> dict[str, Any]:
        """As the commands print it."""
        return {"count": self.count, "first": list(self.shown)}


@dataclass(frozen=True)
class Claims:
    """What a kind of file can show, and what it cannot."""

    can: tuple[str, ...]
    cannot: tuple[str, ...]


class OperationRows:
    """Operations of several ranks, gathered one by one; `step` and `seq` are -1 where they are not known."""

    def __init__(self) -> None:
        self.ranks: dict[str, int] = {}
        self._words: dict[str, dict[str, int]] = {"rank": self.ranks, "op": {}, "group": {}}
        self._columns: dict[str, array[Any]] = {name: array(code) for name, code in _TYPES.items()}

    def __len__(self) -> int:
        return len(self._columns["rank"])

    def add(
        self, rank: str, op: str, start: float, duration: float, *, group: str = "", seq: int = -1, step: int = -1,
        collective: bool = True, size: float = math.nan,
    ) -> None:  # fmt: skip
        """Add one operation, seconds; `size`: what it moves. Raises `SourceError` when there are too many."""
        if len(self) >= MAX_ROWS:
            raise SourceError(f"more than {MAX_ROWS} operations")
        columns, words = self._columns, self._words
        columns["rank"].append(self.ranks.setdefault(rank, len(self.ranks)))
        columns["op"].append(words["op"].setdefault(op, len(words["op"])))
        columns["group"].append(words["group"].setdefault(group, len(words["group"])) if group else -1)
        columns["kind"].append(int(collective))
        columns["start"].append(start)
        columns["duration"].append(duration)
        columns["step"].append(step)
        columns["seq"].append(seq)
        columns["size"].append(size)

    def recorded(self) -> RecordedTimeline | None:
        """The rows as a timeline like the CSV reader's; `None` without rows."""
        if not len(self):
            return None
        columns: dict[str, Any] = {
            name: np.array(column, np.float64 if column.typecode == "d" else np.int64)
            for name, column in self._columns.items()
        }
        words = {name: self._words.get(name, {}) for name in (*REQUIRED, *OPTIONAL)}
        for name in ("step", "seq"):
            known = np.unique(columns[name][columns[name] >= 0])
            words[name] = {str(value): code for code, value in enumerate(known.tolist())}
            columns[name] = np.where(columns[name] >= 0, np.searchsorted(known, columns[name]), -1)
        for name in ("stage", "data_parallel"):
            columns[name] = np.full(len(self), -1, np.int64)
        return assemble(words, columns, len(self))


@dataclass
class SourceData:
    """The operations in files of one tool, the host of every rank, and counts of what was left out on purpose.

    `cells`: by file of a rank, its steps, as pairs with the rank (-1 without steps); `repeated`: files of a rank and
    steps that were read already; `kernels`: by the name of a rank, how many operations of compute its files have.
    `read`: ranks of files that were read; as far as the files say so, `world`: how many ranks the job has, and
    `sizes` and `members` of groups by name.
    """

    rows: OperationRows = field(default_factory=OperationRows)
    hosts: dict[str, str] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    cells: dict[str, frozenset[tuple[str, int]]] = field(default_factory=dict)
    repeated: int = 0
    kernels: Counter[str] = field(default_factory=Counter)
    read: set[int] = field(default_factory=set)
    world: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)


_TYPES: Final = {
    "rank": "i", "op": "i", "kind": "b", "group": "i", "start": "d", "duration": "d", "step": "q", "seq": "q",
    "size": "d",
}  # fmt: skip


def files_of(paths: Iterable[str], suffixes: tuple[str, ...], problems: Problems) -> Iterator[Path]:
    """Files as named, and those in folders whose name ends so (any, without suffixes), packed or not, in order."""
    count = 0
    for path in map(Path, paths):
        if not path.exists():
            problems.add(str(path), "there is no such file or folder")
            continue
        inside = sorted(path.rglob("*"), key=natural) if path.is_dir() else [path]
        for file in inside:
            other = suffixes and not _PACKING.sub("", file.name).endswith(suffixes)
            if path.is_dir() and (other or not file.is_file()):
                continue
            count += 1
            if count > MAX_FILES:
                problems.add(str(path), f"more than {MAX_FILES} files; the rest is left out")
                return
            yield file


def contents_of(paths: Iterable[str], suffixes: tuple[str, ...], problems: Problems) -> Iterator[tuple[Path, bytes]]:
    """Files as `files_of` finds them, each with its content; those that cannot be read are listed in `problems`."""
    for file in files_of(paths, suffixes, problems):
        try:
            data = read_content(file)
        except SourceError as error:
            problems.add(str(file), str(error))
            continue
        yield file, data


def read_json(data: bytes) -> Any:
    """A JSON document. Raises `SourceError` when it is none."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise SourceError(f"not JSON: {error}") from None


def read_content(file: Path) -> bytes:
    """All of a file, unpacked. Raises `SourceError` when it is too large, damaged or unreadable."""
    data = read_begin(file, MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise SourceError(f"larger than {MAX_FILE_BYTES} bytes")
    return data


def read_begin(file: Path, most: int) -> bytes:
    """The first bytes of a file, unpacked. Raises `SourceError` when it is damaged or unreadable."""
    try:
        with unpacked(file) as (stream, _):
            return stream.read(most)
    except PackedError as error:
        raise SourceError(str(error)) from None
    except OSError as error:
        raise SourceError(error.strerror or str(error)) from None


def says_rank(file: Path) -> bool:
    """Whether a file's name has a number after the word `rank`."""
    return bool(_RANK.search(file.name))


def rank_of(file: Path) -> Rank | None:
    """The rank in a file's name: the number after `rank`, else the last number before the endings; or else the number
    after `rank` in the name of its folder."""
    named = _RANK.findall(file.name)
    numbers = named or _NUMBERS.findall(_ENDINGS.sub("", file.name)) or _RANK.findall(file.parent.name)
    return Rank(int(numbers[-1])) if numbers and len(numbers[-1]) <= 7 else None
