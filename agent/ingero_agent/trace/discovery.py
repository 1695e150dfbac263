"""Which GPU libraries are mapped by any process: one entry a file, however many processes and containers map it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LIBRARY: Final = re.compile(r"lib(cudart|nccl)\.so[.\d]*$")
_LINE: Final = re.compile(r"([0-9a-f]+-[0-9a-f]+) ..x. \S+ \S+ \d+ +(/.*)")


@dataclass(frozen=True)
class FileIdentity:
    """Same bytes, same inode, also when two overlay mounts give it different device numbers."""

    inode: int
    size: int
    modified_ns: int
    changed_ns: int


def parse_maps(text: str) -> Iterator[tuple[str, str]]:
    """(kind of library, address range) of executable mappings of GPU libraries in /proc/PID/maps, any version."""
    for line in text.splitlines():
        if ".so" not in line:
            continue
        found = _LINE.match(line)
        library = _LIBRARY.search(found.group(2).removesuffix(" (deleted)")) if found else None
        if found and library:
            yield library.group(1), found.group(1)


def find_libraries(proc: Path = Path("/proc")) -> Iterator[tuple[str, FileIdentity, Path]]:
    """(kind, identity, path to open) for every mapping; what vanishes or may not be read is passed over."""
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            found = list(parse_maps((folder / "maps").read_text(errors="replace")))
        except OSError:
            continue
        for kind, area in found:
            path = folder / "map_files" / area
            try:
                status = path.stat()
            except OSError:
                continue
            yield kind, FileIdentity(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns), path
