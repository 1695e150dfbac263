"""Holds the links: attaches to new libraries, detaches from unused ones, opens and closes groups of probes."""

import os
import platform
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ingero_agent.trace import elf, kernel
from ingero_agent.trace.discovery import identify
from ingero_agent.trace.governor import GROUPS
from ingero_agent.trace.libraries import NCCL, FileIdentity, MappedLibrary
from ingero_agent.trace.nccl_layout import ACCESSORS, accessor_codes, rank_offset
from ingero_agent.trace.probes.table import PROGRAMS, library_functions
from ingero_agent.trace.targets import PEEK_BYTES, AttachTarget, Places, plan_targets, probe_places, uprobe_offset
from ingero_kit.logs import get

log = get(__name__)

MAX_LIBRARIES: Final = 255
KEEP_SECONDS: Final = 60.0
"""How long a library that no process maps stays attached: the next process is counted from its first call."""


@dataclass
class _Library:
    target: AttachTarget
    slot: int
    descriptor: int = -1
    places: Places = field(default_factory=dict)
    links: dict[str, list[int]] = field(default_factory=dict)
    single_stepped: frozenset[int] = frozenset()
    absent_since: float | None = None


class Attachments:
    """Attaches probes to the libraries in use.

    `multi`: one link for many functions; otherwise one for each, and only the most important functions.
    `set_rank_offset` is called with a library's slot and the offset of the rank in NCCL's communicator, 0 if not
    known. `returns`: whether to attach to returns too. `per_process`: attach for each process separately, so that
    other processes have no cost.
    """

    def __init__(
        self, programs: Mapping[str, int], set_rank_offset: Callable[[int, int], None], *, multi: bool = True,
        returns: bool = True, per_process: bool = False,
    ) -> None:  # fmt: skip
        self.replaced, self.unattached = 0, 0
        self._returns, self._per_process = returns, per_process
        self._programs = programs
        self._set_rank_offset = set_rank_offset
        self._multi = multi
        self._libraries: dict[AttachTarget, _Library] = {}
        self._closed: set[str] = set()
        self._executables: dict[FileIdentity, bool] = {}

    def update(self, found: Mapping[int, Iterable[MappedLibrary]], now: float) -> None:
        """Attach to new libraries. One that cannot be attached to is logged once and skipped. `now` in seconds."""
        targets = plan_targets(found, self._static_runtime, per_process=self._per_process)
        self._let_go_of_replaced()
        for target, library in list(self._libraries.items()):
            if target in targets:
                library.absent_since = None
            elif library.absent_since is None and not target.pid:
                library.absent_since = now
            elif target.pid or now - (library.absent_since or now) > KEEP_SECONDS:
                _release(library)
                del self._libraries[target]
        fresh = {target: path for target, path in targets.items() if target not in self._libraries}
        for target, path in fresh.items():
            if len(self._libraries) < MAX_LIBRARIES:
                self._add(target, path)
        self.unattached = sum(target not in self._libraries for target in fresh)

    def switch(self, group: str, on: bool) -> None:
        """Count a group of functions, or stop counting it, in all libraries."""
        if on == (group not in self._closed):
            return
        (self._closed.discard if on else self._closed.add)(group)
        for library in self._libraries.values():
            if on:
                with suppress(OSError):
                    self._open(library, group)
            else:
                _close(library, group)

    @property
    def count(self) -> int:
        """Libraries that are attached."""
        return sum(bool(library.places) for library in self._libraries.values())

    @property
    def single_stepped(self) -> frozenset[int]:
        """Numbers of functions that begin, in some library, with an instruction that makes a probe expensive."""
        return frozenset().union(*(library.single_stepped for library in self._libraries.values()))

    def close(self) -> None:
        """Detach everything."""
        for library in self._libraries.values():
            _release(library)
        self._libraries.clear()

    def _let_go_of_replaced(self) -> None:
        """Detach from files that were overwritten: a probe at an offset with other code would damage new processes.

        The entry stays, without links, until no process maps the old file. The new file is another target.
        """
        for target, library in self._libraries.items():
            if library.descriptor >= 0 and identify(Path(f"/proc/self/fd/{library.descriptor}")) != target.identity:
                _release(library)
                self.replaced += 1
                log.warning("library_replaced", library=target.kind, inode=target.identity.inode)

    def _static_runtime(self, pid: int) -> tuple[FileIdentity, Path] | None:
        path = Path(f"/proc/{pid}/exe")
        try:
            identity = identify(path)
            if identity not in self._executables:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    found = elf.read_function_offsets(descriptor, {"cudaLaunchKernel", "cudaMalloc"}, static=True)
                finally:
                    os.close(descriptor)
                self._executables[identity] = bool(found)
        except (OSError, elf.NotElf):
            return None
        return (identity, path) if self._executables[identity] else None

    def _add(self, target: AttachTarget, path: Path) -> None:
        used = {library.slot for library in self._libraries.values()}
        library = _Library(target, next(slot for slot in range(MAX_LIBRARIES + 1) if slot not in used))
        self._libraries[target] = library
        try:
            library.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if identify(Path(f"/proc/self/fd/{library.descriptor}")) != target.identity:
                raise OSError("the file changed while it was read")
            functions = library_functions(target.kind)
            offsets = elf.read_function_offsets(library.descriptor, set(functions), static=target.static)
            if target.kind == NCCL:
                self._learn_structure(library)
            offsets, single_stepped = self._entries(library, offsets)
            library.single_stepped = frozenset(functions[name].number for name in single_stepped)
            library.places = probe_places(functions, offsets, library.slot, few=not self._multi)
            for group in GROUPS:
                if group not in self._closed:
                    self._open(library, group)
            log.info(
                "attached", library=target.kind, functions=len(offsets), pid=target.pid, inode=target.identity.inode
            )
        except (OSError, elf.NotElf) as error:
            _release(library)
            log.warning("cannot_attach", library=target.kind, pid=target.pid, reason=str(error))

    @staticmethod
    def _entries(library: _Library, offsets: Mapping[str, list[int]]) -> tuple[dict[str, list[int]], set[str]]:
        """Where to probe each function, and the names of those that are expensive to probe."""
        found: dict[str, list[int]] = {}
        single_stepped = set()
        for name, starts in offsets.items():
            for start in starts:
                skip, expensive = uprobe_offset(os.pread(library.descriptor, PEEK_BYTES, start), platform.machine())
                found.setdefault(name, []).append(start + skip)
                if expensive:
                    single_stepped.add(name)
        return found, single_stepped

    def _learn_structure(self, library: _Library) -> None:
        offsets = elf.read_function_offsets(library.descriptor, set(ACCESSORS))
        codes = accessor_codes(offsets, lambda size, at: os.pread(library.descriptor, size, at))
        offset = rank_offset(codes, platform.machine())
        if offset is None:
            log.info("structure_unknown", inode=library.target.identity.inode)
        self._set_rank_offset(library.slot, offset or 0)

    def _open(self, library: _Library, group: str) -> None:
        path, pid = f"/proc/self/fd/{library.descriptor}", library.target.pid
        links = library.links.setdefault(group, [])
        for kind, programs in PROGRAMS.items():
            cookies = library.places.get(group, {}).get(kind, {})
            for name, at_return in zip(programs, (False, True), strict=True):
                if not cookies or not name or (at_return and not self._returns):
                    continue
                links += kernel.attach(
                    self._programs[name], path, cookies, at_return=at_return, pid=pid, multi=self._multi
                )


def _close(library: _Library, group: str) -> None:
    kernel.close_all(library.links.pop(group, []))


def _release(library: _Library) -> None:
    for group in list(library.links):
        _close(library, group)
    if library.descriptor >= 0:
        os.close(library.descriptor)
    library.descriptor, library.places = -1, {}
