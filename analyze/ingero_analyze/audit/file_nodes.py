"""The nodes that files are of, where nothing in them tells. Pure."""

import re
from collections.abc import Callable, Sequence
from pathlib import PurePath

from ingero_analyze.table_errors import TableError


def nodes_of_files(files: Sequence[str], pattern: re.Pattern[str] | None = None) -> dict[str, str]:
    """By file its node: what the first group of the pattern, or all of it, finds in its path.

    Without a pattern, the name without its endings; that of its folder if files of several folders have one name.
    `TableError` names a file in whose path the pattern is not found.
    """
    if pattern is not None:
        return {file: _found(pattern, file) for file in files}
    by_name, by_folder = _named(files, lambda path: path), _named(files, lambda path: path.parent)
    same = len(set(by_name.values())) < len(set(by_folder.values()))
    return by_folder if same else by_name


def _named(files: Sequence[str], part: Callable[[PurePath], PurePath]) -> dict[str, str]:
    return {file: re.sub(r"(\.[A-Za-z]\w*)+$", "", part(PurePath(file)).name) or file for file in files}


def _found(pattern: re.Pattern[str], file: str) -> str:
    found = pattern.search(file)
    text = found[1 if pattern.groups else 0] if found else None
    if not text:
        raise TableError(file, f"--node-from-file {pattern.pattern!r} is not found in this path")
    return text
