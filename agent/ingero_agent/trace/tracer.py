"""Joins helper, links, maps and store: attach to every GPU library in use, read the counts, keep them."""

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ingero_agent.trace import elf, kernel
from ingero_agent.trace.discovery import FileIdentity, find_libraries
from ingero_agent.trace.helper import VALUE_BYTES, possible_cpus
from ingero_agent.trace.loader import load_programs
from ingero_agent.trace.probes.table import BY_NUMBER, PROGRAMS, element_size, library_functions
from ingero_agent.trace.store import Counted, Store
from ingero_kit.logs import get

log = get(__name__)

MAX_LIBRARIES: Final = 255
_KEY: Final = struct.Struct("=IHH")
_COLLECTIVE: Final = struct.Struct("=IHBBQ")
_VALUE: Final = struct.Struct("=5Q")


class Tracer:
    """Attached to libraries for as long as it lives; closing its descriptors, or dying, detaches everything."""

    def __init__(self, store: Store) -> None:
        self._descriptors = load_programs().descriptors
        self._cpus = possible_cpus()
        self._calls = kernel.Map(self._descriptors["agg"], _KEY.size, VALUE_BYTES, self._cpus)
        self._collectives = kernel.Map(self._descriptors["coll"], _COLLECTIVE.size, VALUE_BYTES, self._cpus)
        self._lost = kernel.Map(self._descriptors["lost"], 4, 8, self._cpus)
        # Single collectives go to the ring only for a reader of it: numbers are never zero in all of these bits.
        kernel.Map(self._descriptors["config"], 4, 8).put(struct.pack("=I", 0), b"\xff" * 8)
        self._before: dict[bytes, tuple[int, ...]] = {}
        self._attached: dict[FileIdentity, list[int]] = {}
        self._store = store

    def attach_new(self) -> None:
        """Attach to libraries that were not seen before; one that cannot be is named once and left alone."""
        for kind, identity, path in find_libraries():
            if identity in self._attached or len(self._attached) >= MAX_LIBRARIES:
                continue
            self._attached[identity] = []
            try:
                self._attached[identity] = self._attach(kind, path, len(self._attached))
                log.info("attached", library=kind, links=len(self._attached[identity]), inode=identity.inode)
            except (OSError, elf.NotElf) as error:
                log.warning("cannot_attach", library=kind, reason=str(error))

    def _attach(self, kind: str, path: Path, slot: int) -> list[int]:
        functions = library_functions(kind)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        links = []
        try:
            opened = f"/proc/self/fd/{descriptor}"
            offsets = elf.function_offsets(Path(opened).read_bytes(), set(functions))
            for group, programs in PROGRAMS.items():
                places = {
                    offset: functions[name].cookie(slot)
                    for name, found in offsets.items()
                    if functions[name].kind == group
                    for offset in found
                }
                for program, at_return in zip(programs, (False, True), strict=True):
                    if places and program:
                        links.append(
                            kernel.link(
                                self._descriptors[program], opened, list(places), list(places.values()),
                                at_return=at_return,
                            )
                        )  # fmt: skip
        finally:
            os.close(descriptor)
        return links

    def read(self, now: float) -> None:
        """Add what was called since the look before to the store; forget processes that are gone."""
        rows, names = [], {}
        for table, layout in ((self._calls, _KEY), (self._collectives, _COLLECTIVE)):
            for key, value in table.items():
                sums = [_VALUE.unpack_from(value, VALUE_BYTES * cpu) for cpu in range(self._cpus)]
                count, spent, size = (sum(part[index] for part in sums) for index in (0, 1, 3))
                last = self._before.get(key, (0, 0, 0))
                pid, number, element = layout.unpack(key)[:3]
                scale = 1 if layout is _KEY else element_size(element)
                if count > last[0]:
                    function, longest = BY_NUMBER[number], max(part[2] for part in sums)
                    rows.append(
                        Counted(
                            function.source, function.operation, pid,
                            count - last[0], spent - last[1], longest, (size - last[2]) * scale,
                        )
                    )  # fmt: skip
                    self._before[key] = (count, spent, size)
                try:
                    names[pid] = Path(f"/proc/{pid}/comm").read_text().strip()
                except OSError:
                    if count == last[0]:
                        table.delete(key)
                        self._before.pop(key, None)
        self._store.add(rows, now, names)

    def lost(self) -> dict[int, int]:
        """Calls that could not be counted, by the kernel program's reason number."""
        found = {}
        for reason in range(16):
            value = self._lost.get(struct.pack("=I", reason)) or b""
            found[reason] = sum(number for (number,) in struct.iter_unpack("=Q", value))
        return {reason: count for reason, count in found.items() if count}

    def close(self) -> None:
        """Detach."""
        for descriptor in [
            *(link for links in self._attached.values() for link in links),
            *self._descriptors.values(),
        ]:
            os.close(descriptor)


def run(file: Path, period: float, ended: Callable[[float], bool]) -> None:
    """Trace until `ended` (which waits the seconds that it is given) says so. Raises `CannotTrace`."""
    store = Store(file)
    try:
        tracer = Tracer(store)
        try:
            log.info("started", database=str(file))
            while True:
                tracer.attach_new()
                over = ended(period)
                tracer.read(time.time())
                if over:
                    break
            if tracer.lost():
                log.warning("lost", reasons=tracer.lost())
        finally:
            tracer.close()
    finally:
        store.close()
