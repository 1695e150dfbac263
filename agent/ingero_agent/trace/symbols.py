"""Names the functions at addresses of a process, in a short-lived process of its own.

`python -m ingero_agent.trace.symbols PID` reads addresses from its input, JSON, and writes their names. Interpreters
that write `/tmp/perf-PID.map` (CPython 3.12 and newer with `-X perf`) have names of Python functions as well.
"""

import ctypes
import json
import os
import subprocess
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from pathlib import Path, PurePath
from typing import Final

from ingero_agent.trace.elf import NotElf, read_function_names
from ingero_agent.trace.kernel import libc
from ingero_kit.logs import get

log = get(__name__)

NAMING_SECONDS: Final = 10.0
"""Longest time that naming may take."""

MAX_NAME: Final = 200
"""Most characters of a name."""

_MAX_ADDRESSES: Final = 50_000


def name_addresses(pid: int, addresses: Iterable[int]) -> dict[int, str]:
    """A name for each address: the function, or else the file and the place in it. Empty if naming fails."""
    wanted = sorted(set(addresses))[:_MAX_ADDRESSES]
    command = [sys.executable, "-W", "ignore", "-m", "ingero_agent.trace.symbols", str(pid)]
    try:
        done = subprocess.run(
            command, input=json.dumps(wanted).encode(), capture_output=True, timeout=NAMING_SECONDS, check=True
        )
        return dict(zip(wanted, json.loads(done.stdout), strict=True))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        log.warning("addresses_not_named", pid=pid, reason=str(error))
        return {}


@dataclass(frozen=True)
class Region:
    """A mapped part of a file that can be executed."""

    start: int
    end: int
    offset: int
    path: str


def executable_regions(maps: str) -> list[Region]:
    """Of the text of `/proc/PID/maps`."""
    found = []
    for line in maps.splitlines():
        place, rights, offset, _, _, *path = line.split(None, 5)
        if "x" in rights:
            start, end = (int(part, 16) for part in place.split("-"))
            found.append(Region(start, end, int(offset, 16), path[0] if path else ""))
    return found


def perf_map_names(text: str, addresses: Iterable[int]) -> dict[int, str]:
    """Names from a file that an interpreter wrote: start and size in hexadecimal, and a name, in each line."""
    functions = []
    for line in text.splitlines():
        with suppress(ValueError):
            start, size, name = line.split(" ", 2)
            functions.append((int(start, 16), int(size, 16), name))
    functions.sort(key=itemgetter(0))  # of two at one place, the one that was written last
    found = {}
    for address in addresses:
        place = bisect_right(functions, address, key=itemgetter(0)) - 1
        if place >= 0 and address < functions[place][0] + functions[place][1]:
            found[address] = functions[place][2]
    return found


@cache
def _demangler() -> Callable[[bytes], bytes | None]:
    """The C++ library's, or one that changes nothing where there is none."""
    try:
        demangle = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"]
    except (OSError, AttributeError):
        return lambda name: name
    demangle.restype = ctypes.c_void_p

    def plain(name: bytes) -> bytes | None:
        text = demangle(name, None, None, None)
        if not text:
            return None
        try:
            return ctypes.string_at(text)
        finally:
            libc.free(ctypes.c_void_p(text))

    return plain


def demangled(name: str) -> str:
    """The name of a C++ function as it is written in C++; other names as they are."""
    if not name.startswith("_Z"):
        return name
    return (_demangler()(name.encode()) or name.encode()).decode(errors="replace")


def _perf_map(pid: int) -> str:
    """The text of the process's map for perf, in the file system and under the number that the process sees."""
    process = Path(f"/proc/{pid}")
    with suppress(OSError, StopIteration):
        lines = (process / "status").read_text().splitlines()
        seen = next(line.split()[-1] for line in lines if line.startswith("NSpid:"))
        return (process / f"root/tmp/perf-{seen}.map").read_text(errors="replace")
    return ""


def _names_in(pid: int, region: Region, addresses: list[int]) -> dict[int, str]:
    """Names of addresses in a region: the function, or else the file and the place in it."""
    offsets = {address: address - region.start + region.offset for address in addresses}
    names = dict[int, str]()
    with suppress(OSError, NotElf):
        descriptor = os.open(f"/proc/{pid}/map_files/{region.start:x}-{region.end:x}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            names = read_function_names(descriptor, offsets.values())
        finally:
            os.close(descriptor)
    file = PurePath(region.path).name or "anonymous"
    return {
        address: demangled(names[offset])[:MAX_NAME] if offset in names else f"{file}+{offset:#x}"[-MAX_NAME:]
        for address, offset in offsets.items()
    }


def find_names(pid: int, addresses: list[int]) -> list[str]:
    """The names, in the order of the addresses. Raises `OSError` if the process has ended."""
    regions = executable_regions(Path(f"/proc/{pid}/maps").read_text())
    found, by_region = perf_map_names(_perf_map(pid), addresses), defaultdict[Region, list[int]](list)
    for address in addresses:
        place = bisect_right(regions, address, key=lambda one: one.start) - 1
        if address not in found and place >= 0 and address < regions[place].end:
            by_region[regions[place]].append(address)
    for region, inside in by_region.items():
        found.update(_names_in(pid, region, inside))
    return [found.get(address, "unknown")[:MAX_NAME] for address in addresses]


def main() -> None:
    """Name the addresses of the input."""
    json.dump(find_names(int(sys.argv[1]), json.load(sys.stdin)), sys.stdout)


if __name__ == "__main__":
    main()
