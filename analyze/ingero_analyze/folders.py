"""Folders that are given in place of files."""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from ingero_analyze.packed import ENDINGS as PACKED
from ingero_analyze.packed import PackedError, unpacked
from ingero_analyze.table_errors import TableError

ENDINGS: Final = re.compile(r"\.(csv|tsv|parquet|pq|parq|json|jsonl|ndjson)" + PACKED, re.IGNORECASE)
"""How names of tables end; files with other names in a folder are not read."""

LOGS: Final = re.compile(r"^log\.|\.(log|out|txt)" + PACKED, re.IGNORECASE)
"""How names of logs end, or begin as those of LAMMPS do."""

MOST_FILES: Final = 100_000


def with_tables_of_folders(
    paths: Sequence[str], is_read: Callable[[str], bool] = lambda begin: False, begin: int = 0, instead: str = ""
) -> tuple[str, ...]:
    """The paths, with the tables in it, however deep, for every folder. `TableError` for one without tables.

    `is_read`: whether a log of a folder is read, by so many bytes at its `begin`. `instead`: what the error says of a
    folder without any.
    """

    def is_known_log(file: Path) -> bool:
        return bool(LOGS.search(file.name)) and is_read(_begin_of(file, begin))

    found: list[str] = []
    for path in paths:
        found += _tables_in(Path(path), is_known_log, instead) if Path(path).is_dir() else [path]
    return tuple(found)


def _tables_in(folder: Path, also: Callable[[Path], bool], instead: str) -> list[str]:
    read = (str(file) for file in files_in(folder) if ENDINGS.search(file.name) or also(file))
    tables = list(islice(read, MOST_FILES + 1))
    if not tables:
        raise TableError(
            str(folder),
            f"there is no table in this folder: no file whose name ends in .csv, .parquet, .json{instead}",
        )
    if len(tables) > MOST_FILES:
        raise TableError(str(folder), f"more than {MOST_FILES} tables")
    return tables


def files_in(folder: Path) -> Iterator[Path]:
    """All files in a folder and in those below it, in order of names, but no hidden ones."""
    for path in sorted(folder.rglob("*"), key=natural):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield path


def _begin_of(file: Path, size: int) -> str:
    """The begin of a file as text, unpacked; empty for a packed one that is damaged."""
    try:
        with unpacked(file) as (stream, _):
            return stream.read(size).decode(errors="replace")
    except PackedError:
        return ""


def natural(path: Path) -> list[tuple[int, int, str]]:
    """The key of names with numbers in the order of the numbers."""
    return [(0, int(part[:18]), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", str(path))]
