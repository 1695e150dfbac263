"""The nodes and GPUs that files are of, where nothing in them tells. Pure."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from ingero_analyze.table_errors import TableError

MOST_GPUS: Final = 16
"""GPUs of a node, counted from 0; higher numbers, or none that is 0, are those of nodes called `gpu-17`."""

_GPU: Final = re.compile(r"(?<![a-z0-9])(?:gpu|cuda|device|gcd)[-_ ]?(\d{1,2})(?![a-z0-9])", re.IGNORECASE)

_RUN: Final = re.compile(r"[-_. ](?:run|trial|rep|repeat|iter|iteration|attempt)[-_ ]?\d+$", re.IGNORECASE)
"""What files of several runs of a node end in."""


@dataclass(frozen=True)
class FilePlace:
    """The node of a file, and its GPU if the file is of one."""

    node: str
    gpu: str = ""


def places_of_files(files: Sequence[str], pattern: re.Pattern[str] | None = None) -> dict[str, FilePlace]:
    """By file what it is of: what the first group of the pattern, or all of it, and its second one find in its path.

    Without a pattern, the GPU of `n7/gpu3/gemm.csv` or `n7_gpu3.csv` where files are of several GPUs of several
    nodes. Else the node is the name without its endings and, of files of several nodes, without the number of a run
    (`n7_run2.log`); that of its folder if files of several folders have one name.
    `TableError` names a file in whose path the pattern is not found.
    """
    if pattern is not None:
        return {file: _found(pattern, file) for file in files}
    if gpus := _of_gpus(files):
        return gpus
    by_name, by_folder = _without_runs(_named(files, lambda path: path)), _named(files, lambda path: path.parent)
    same = len(set(by_name.values())) < len(set(by_folder.values()))
    return {file: FilePlace(node) for file, node in (by_folder if same else by_name).items()}


def _of_gpus(files: Sequence[str]) -> dict[str, FilePlace]:
    """The places of files each of which is of one GPU; empty if there is any other.

    The node is the nearest part of the path before the GPU that is not the same for all.
    """
    before, numbers = list[list[str]](), list[int]()
    for file in files:
        parts = PurePath(file).parts
        named = [(place, found) for place, part in enumerate(parts) for found in _GPU.finditer(part)]
        if not named:
            return {}
        place, gpu = named[-1]
        numbers.append(int(gpu[1]))
        before.append([parts[place][: gpu.start()].rstrip("-_. "), *reversed(parts[:place])])
    if min(numbers, default=1) > 0 or len(set(numbers)) < 2 or max(numbers) >= MOST_GPUS:
        return {}
    for nodes in zip(*before, strict=False):
        if len(set(nodes)) > 1:
            several = len(set(zip(nodes, numbers, strict=True))) > max(len(set(nodes)), len(set(numbers)))
            named_all = several and all(nodes)
            return {
                file: FilePlace(node, str(gpu)) for file, node, gpu in zip(files, nodes, numbers, strict=True)
            } if named_all else {}  # fmt: skip
    return {}


def _without_runs(nodes: dict[str, str]) -> dict[str, str]:
    """The names without the numbers of runs, if all have one, and several are left and fewer than there were."""
    found = {file: _RUN.sub("", name) for file, name in nodes.items()}
    runs = all(found[file] != name for file, name in nodes.items())
    return found if runs and 1 < len(set(found.values())) < len(set(nodes.values())) else nodes


def _named(files: Sequence[str], part: Callable[[PurePath], PurePath]) -> dict[str, str]:
    return {file: re.sub(r"(\.[A-Za-z]\w*)+$", "", part(PurePath(file)).name) or file for file in files}


def _found(pattern: re.Pattern[str], file: str) -> FilePlace:
    found = pattern.search(file)
    node = found[1 if pattern.groups else 0] if found else None
    if found is None or not node:
        raise TableError(file, f"--node-from-file {pattern.pattern!r} is not found in this path")
    return FilePlace(node, (found[2] or "") if pattern.groups > 1 else "")
