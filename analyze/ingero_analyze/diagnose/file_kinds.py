"""Which tool wrote a file, by how it begins, so that it may be given without a flag."""

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from ingero_analyze.diagnose.analyzer_reports import is_of_analyzer
from ingero_analyze.diagnose.sources import SourceError, read_begin
from ingero_analyze.folders import files_in

BEGIN: Final = 1 << 16
"""Bytes of a file that show its kind."""

LOOKED_AT: Final = 8
"""Files of a folder that are looked at."""

_PICKLE: Final = b"\x80"
_PROTOCOLS: Final = range(2, 6)
_TRACES: Final = ((b'"traceEvents"',), (b'"ph"', b'"ts"', b'"dur"'))
_PROFILED: Final = re.compile(
    rb'"(?:distributedInfo|deviceProperties|schemaVersion)"|ProfilerStep#'
    rb'|"cat"\s*:\s*"(?:cpu_op|python_function|cuda_\w+|gpu_mem\w+|user_annotation)"',
    re.IGNORECASE,
)
"""Shows that a trace is that of PyTorch's profiler, which is of one rank; others have a table of operations."""

_KERNELS: Final = re.compile(rb'"cat"\s*:\s*"(?:kernel|gpu_\w+)"', re.IGNORECASE)
_RANK: Final = re.compile(rb'"(?:name"\s*:\s*")?(?:(?:global|world)[ _])?rank[ _:=#"(\[-]*(\d{1,7})', re.IGNORECASE)
"""Events of a GPU are those of the profiler too, unless events or names of processes tell several ranks."""

_MARKS: Final = (
    ("--kineto", (b'"deviceProperties"', b'"distributedInfo"')),
    ("--nccl-inspector", (b'"coll_perf"',)),
    ("--nccl-inspector", (b'"resourceMetrics"', b'"nccl_')),
    ("--ras", (b'"communicators"', b'"nccl_version"')),
    ("--ras", (b'"communicators"', b'"timestamp"')),
    ("--flight-recorder", (b'"pg_config"',)),
    ("--flight-recorder", (b'"entries"', b'"record_id"')),
)
"""Names that the begin of a JSON file has, all of them, if it is one that the flag takes."""


def flag_of_begin(begin: bytes) -> str | None:
    """The flag that takes a file which begins so, unpacked; `None` for a table or anything else."""
    if begin[:1] == _PICKLE and len(begin) > 1 and begin[1] in _PROTOCOLS:
        return "--flight-recorder"
    if begin.lstrip()[:1] in (b"{", b"["):
        if any(all(mark in begin for mark in marks) for marks in _TRACES):
            kernels = _KERNELS.search(begin) and len(set(_RANK.findall(begin))) < 2
            return "--kineto" if kernels or _PROFILED.search(begin) else None
        return next((flag for flag, marks in _MARKS if all(mark in begin for mark in marks)), None)
    if is_of_analyzer(begin):
        return "--flight-recorder"
    return "--dcgm" if b"DCGM_FI_" in begin and begin.lstrip()[:1] in (b"#", b"D") else None


def flag_of_files(paths: Sequence[str]) -> str | None:
    """The flag that takes all of these files and folders; `None` if they are tables or cannot be read.

    Raises `SourceError` where they are of several kinds.
    """
    found = {flag: file for path in paths for file in _some_of(path) if (flag := flag_of_begin(_begin(file)))}
    if len(found) > 1:
        (one, file), (other, second) = list(found.items())[:2]
        raise SourceError(f"{file} is of {one} and {second} of {other}: ask once for each")
    return next(iter(found), None)


def _some_of(path: str) -> Iterable[Path]:
    if Path(path).is_dir():
        return islice(files_in(Path(path)), LOOKED_AT)
    return (Path(path),) if Path(path).is_file() else ()


def _begin(file: Path) -> bytes:
    """The first bytes of a file, unpacked; none if it cannot be read."""
    try:
        return read_begin(file, BEGIN)
    except SourceError:
        return b""
