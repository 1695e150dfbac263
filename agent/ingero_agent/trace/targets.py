"""Decides which files to attach to, for which processes, and where: one CUDA layer, or launches count twice. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ingero_agent.trace.governor import GROUPS
from ingero_agent.trace.libraries import CUDA, CUDART, NCCL, FileIdentity, MappedLibrary
from ingero_agent.trace.probes.table import IMPORTANT, PROGRAMS, Function


@dataclass(frozen=True)
class AttachTarget:
    """A library to attach to: for all processes, or (`pid`) for one only. `static`: linked into the program."""

    kind: str
    identity: FileIdentity
    pid: int = 0
    static: bool = False


def plan_targets(
    found: Mapping[int, Iterable[MappedLibrary]], static_runtime: Callable[[int], tuple[FileIdentity, Path] | None],
    *, per_process: bool = False,
) -> dict[AttachTarget, Path]:  # fmt: skip
    """Targets and the paths that open them; `per_process`: one target for each process.

    The runtime uses the driver library, so the latter is attached only for a process without a runtime that can be
    seen; `static_runtime` finds one linked into a process's own program.
    """
    targets: dict[AttachTarget, Path] = {}
    for pid, libraries in found.items():
        libraries = list(libraries)
        kinds = {one.kind for one in libraries}
        only = pid if per_process else 0
        inside = static_runtime(pid) if CUDA in kinds and CUDART not in kinds else None
        if inside:
            targets.setdefault(AttachTarget(CUDART, inside[0], only, static=True), inside[1])
        for one in libraries:
            if one.kind in (CUDART, NCCL):
                targets.setdefault(AttachTarget(one.kind, one.identity, only), one.path)
            elif one.kind == CUDA and CUDART not in kinds and not inside:
                targets.setdefault(AttachTarget(CUDA, one.identity, pid), one.path)
    return targets


Places = dict[str, dict[str, dict[int, int]]]
"""By governor group and kind of program: file offset → cookie. An offset is listed once, whatever its names."""


def probe_places(
    functions: Mapping[str, Function], offsets: Mapping[str, Iterable[int]], slot: int, *, few: bool = False
) -> Places:
    """Where to attach which program. `few`: only the most important functions."""
    chosen: Places = {group: {kind: {} for kind in PROGRAMS} for group in GROUPS}
    for name, found in offsets.items():
        function = functions[name]
        if few and function.name not in IMPORTANT:
            continue
        for offset in found:
            chosen[function.group][function.kind][offset] = function.cookie(slot)
    return chosen


PEEK_BYTES: Final = 16
_LANDING_MARK: Final = bytes.fromhex("f30f1efa")  # endbr64 does nothing, so a probe behind it sees the same call


def uprobe_offset(code: bytes, machine: str) -> tuple[int, bool]:
    """(Bytes to skip, whether the probe is single-stepped) for a function that begins with this code.

    Only x86-64 is inspected. On other machines the usual first instruction is single-stepped, and calibration
    measures it as such.
    """
    if machine != "x86_64":
        return 0, False
    skip = len(_LANDING_MARK) if code.startswith(_LANDING_MARK) else 0
    return skip, not _emulated(code[skip:])


def _emulated(code: bytes) -> bool:
    first, second = (code + b"\0\0")[:2]
    if first == 0x41:  # a push of r8 to r15
        return 0x50 <= second <= 0x57
    if first == 0x0F:  # a conditional jump
        return 0x80 <= second <= 0x8F
    return 0x50 <= first <= 0x57 or 0x70 <= first <= 0x7F or first in (0x90, 0xE8, 0xE9, 0xEB)
