"""Finds the GPU libraries that processes map: one entry for each file, whatever number of processes maps it."""

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ingero_agent.trace.libraries import NCCL, FileIdentity, MappedLibrary
from ingero_kit.proc_stat import stat_fields

_LIBRARY: Final = re.compile(r"lib(cudart|cuda|nccl|torch_cuda)\.so[.\d]*$")
_LINE: Final = re.compile(r"([0-9a-f]+-[0-9a-f]+) ..x. \S+ \S+ \d+ +(/.*)")
_MENTIONED: Final = re.compile(r"/lib(?:cuda|nccl|torch_cuda)")
_CARRIES: Final = {"torch_cuda": NCCL}
"""Libraries that may carry another one inside."""

SETTLED_SECONDS: Final = 10.0
"""How often a process that is already traced is scanned again while it grows and shrinks."""

YOUNG_SECONDS: Final = 30.0
"""How long after its start a process is scanned at every change, as it is still loading libraries."""

LOOK_INTO, OPEN_MAPPED = "CAP_SYS_PTRACE", "CAP_CHECKPOINT_RESTORE"
"""Capabilities needed to read what other processes map, and to open it even after it was renamed or deleted."""

OLD_ROUNDS: Final = 4
"""An older process is scanned only once in this many rounds: a node has thousands that never change."""


def identify(path: Path) -> FileIdentity:
    """The identity of a file. Raises `OSError`."""
    status = path.stat()
    return FileIdentity(status.st_ino, status.st_size, status.st_mtime_ns)


def parse_maps(text: str) -> Iterator[tuple[str, str, str]]:
    """(kind of library, address range, path) of executable mappings of GPU libraries in /proc/PID/maps."""
    for line in text.splitlines():
        if ".so" not in line:
            continue
        found = _LINE.match(line)
        if not found:
            continue
        name = found.group(2).removesuffix(" (deleted)")
        library = _LIBRARY.search(name)
        if library:
            kind = library.group(1)
            yield _CARRIES.get(kind, kind), _area(found.group(1)), name


def _area(text: str) -> str:
    """The name in map_files of an address range: without the leading zeros that low addresses have in maps."""
    return "-".join(address.lstrip("0") or "0" for address in text.split("-"))


def parse_size(text: str) -> tuple[int, int]:
    """Start time (clock ticks) and size of the address space (bytes) from /proc/PID/stat."""
    values = stat_fields(text)
    return int(values[19]), int(values[20])


@dataclass(frozen=True)
class ScanResult:
    """Libraries of one process. `refused`: the capability that was missing to read some or all of them, if any."""

    found: tuple[MappedLibrary, ...] = ()
    refused: str = ""


def scan_process(folder: Path) -> ScanResult:
    """Scan one process; the result is empty for one that is gone."""
    try:
        text = (folder / "maps").read_text(errors="replace")
    except PermissionError:
        return ScanResult(refused=LOOK_INTO)
    except OSError:
        return ScanResult()
    mapped = parse_maps(text) if _MENTIONED.search(text) else ()
    found, refused = [], ""
    for kind, area, name in mapped:
        path = folder / "map_files" / area
        try:
            found.append(MappedLibrary(kind, int(folder.name), identify(path), path, name))
        except PermissionError:
            refused = OPEN_MAPPED
        except OSError:
            continue
    return ScanResult(tuple(found), refused)


def mapped_files_error(process: Path = Path("/proc/self")) -> str:
    """Why files that a process maps may not be opened, tried on this process; empty if they may.

    The process's own capabilities do not answer this: the kernel checks them in the machine's first user namespace.
    """
    try:
        lines = (process / "maps").read_text(errors="replace").splitlines()
        for line in lines:
            if found := _LINE.match(line):
                identify(process / "map_files" / _area(found.group(1)))
    except PermissionError as error:
        return str(error)
    except OSError:
        return ""
    return ""


@dataclass
class _Seen:
    start: int
    size: int
    first: float
    scanned_at: float
    result: ScanResult


class LibraryFinder:
    """Scans a process when it is new or its address space changed; mapping a library changes it.

    `refused`: processes that could not be read, by the capability that was missing.
    """

    def __init__(self, proc: Path = Path("/proc"), clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._clock = clock
        self._seen: dict[int, _Seen] = {}
        self._round = 0
        self.refused: Mapping[str, int] = {}

    def find(self) -> dict[int, tuple[MappedLibrary, ...]]:
        """Libraries by process, for processes that have any."""
        now, alive = self._clock(), {}
        self._round += 1
        with os.scandir(self._proc) as folders:
            pids = [int(folder.name) for folder in folders if folder.name.isdigit()]
        for pid in pids:
            before = self._seen.get(pid)
            if before and now - before.first > YOUNG_SECONDS and (pid + self._round) % OLD_ROUNDS:
                alive[pid] = before
                continue
            try:
                start, size = parse_size(_read(f"{self._proc}/{pid}/stat"))
            except (OSError, IndexError, ValueError):
                continue
            if before and before.start == start:
                young = now - before.first < YOUNG_SECONDS
                settled = bool(before.result.found) and not young and now - before.scanned_at < SETTLED_SECONDS
                if before.size == size or settled:
                    alive[pid] = before
                    continue
            first = before.first if before and before.start == start else now
            alive[pid] = _Seen(start, size, first, now, scan_process(self._proc / str(pid)) if size else ScanResult())
        self._seen = alive
        self.refused = Counter(seen.result.refused for seen in alive.values() if seen.result.refused)
        return {pid: seen.result.found for pid, seen in alive.items() if seen.result.found}


def _read(file: str) -> str:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096).decode(errors="replace")
    finally:
        os.close(descriptor)
