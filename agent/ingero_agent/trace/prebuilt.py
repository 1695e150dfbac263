"""Loads the shipped kernel programs through the system's libbpf; no compiler is needed.

`probes/objects` has an object for each architecture, and one more for agents that are not in the machine's first PID
namespace. What depends on the machine are sizes of maps and the values that `probes/include/ingero/bpf.h` declares.
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from ingero_agent.trace.probes.table import SCHED_MAPS, SCHED_PROGRAMS

LIBRARY: Final = "libbpf.so.1"
OBJECTS: Final = Path(__file__).parent / "probes" / "objects"
_VALUES: Final = (
    "pid_offset", "state_offset", "prev_argument", "next_argument", "state_argument",
    "pid_namespace", "task_thread_pid", "task_leader", "pid_level", "pid_numbers", "upid_size", "upid_nr", "upid_ns",
    "ns_inum",
)  # fmt: skip
_POINTERS: Final = (
    "bpf_object__open_mem", "bpf_object__next_program", "bpf_object__find_map_by_name",
    "bpf_object__find_program_by_name",
)  # fmt: skip


class NotPrebuilt(Exception):
    """The shipped programs cannot be used here; the text says why."""


def object_file(machine: str, *, in_namespace: bool) -> Path:
    """The object for an architecture."""
    return OBJECTS / f"{machine}{'.namespace' if in_namespace else ''}.o"


def open_library() -> ctypes.CDLL:
    """The system's libbpf. Raises `NotPrebuilt`."""
    try:
        library = ctypes.CDLL(LIBRARY, use_errno=True)
    except OSError as error:
        raise NotPrebuilt(str(error)) from None
    for name in _POINTERS:
        getattr(library, name).restype = ctypes.c_void_p
    return library


class _Object:
    """An object of libbpf's. It is freed when this process ends, for its descriptors are sent before."""

    def __init__(self, library: ctypes.CDLL, code: bytes) -> None:
        self._library = library
        self._object = self._call("bpf_object__open_mem", code, ctypes.c_size_t(len(code)), None)

    def _call(self, name: str, *arguments: Any) -> int:
        """Call the library. Its errors are no pointer, or a negative number.

        Raises `PermissionError` where a right is missing, which nothing else can do without, and `NotPrebuilt`.
        """
        function = getattr(self._library, name)
        plain = (ctypes.c_void_p(one) if isinstance(one, int) else one for one in arguments)
        result: int | None = function(*plain)
        if result is None or result < 0:
            number = ctypes.get_errno()
            if number == errno.EPERM:
                raise PermissionError(number, os.strerror(number), name)
            raise NotPrebuilt(f"{name}: {os.strerror(number)}")
        return result

    def _map(self, name: str) -> int:
        return self._call("bpf_object__find_map_by_name", self._object, name.encode())

    def _program(self, name: str) -> int:
        return self._call("bpf_object__find_program_by_name", self._object, name.encode())

    def resize(self, name: str, entries: int) -> None:
        self._call("bpf_map__set_max_entries", self._map(name), ctypes.c_uint32(entries))

    def set_values(self, content: bytes) -> None:
        self._call("bpf_map__set_initial_value", self._map(".rodata"), content, ctypes.c_size_t(len(content)))

    def leave_out(self, programs: Iterable[str], maps: Iterable[str]) -> None:
        for name in programs:
            self._call("bpf_program__set_autoload", self._program(name), ctypes.c_bool(False))
        for name in maps:
            self._call("bpf_map__set_autocreate", self._map(name), ctypes.c_bool(False))

    def attach_as(self, programs: Iterable[str], attach_type: int) -> None:
        for name in programs:
            self._call("bpf_program__set_expected_attach_type", self._program(name), ctypes.c_int(attach_type))

    def load(self) -> None:
        self._call("bpf_object__load", self._object)

    def program_descriptor(self, name: str) -> int:
        return self._call("bpf_program__fd", self._program(name))

    def map_descriptor(self, name: str) -> int:
        return self._call("bpf_map__fd", self._map(name))


def load(
    values: Mapping[str, int],
    sizes: Mapping[str, int],
    programs: Iterable[str],
    maps: Iterable[str],
    attach_type: int,
) -> dict[str, int]:
    """Load these programs of the object for this machine; returns descriptors by name.

    `attach_type`: of programs other than the scheduler's. Raises `NotPrebuilt`, `PermissionError`.
    """
    programs, maps = list(programs), list(maps)
    file = object_file(platform.machine(), in_namespace="pid_namespace" in values)
    try:
        code = file.read_bytes()
    except OSError as error:
        raise NotPrebuilt(str(error)) from None
    opened = _Object(open_library(), code)
    for name, entries in sizes.items():
        opened.resize(name, entries)
    opened.set_values(struct.pack(f"={len(_VALUES)}I", *(values.get(name, 0) for name in _VALUES)))
    opened.leave_out(set(SCHED_PROGRAMS) - set(programs), set(SCHED_MAPS) - set(maps))
    opened.attach_as((name for name in programs if name not in SCHED_PROGRAMS), attach_type)
    opened.load()
    return {
        **{name: opened.program_descriptor(name) for name in programs},
        **{name: opened.map_descriptor(name) for name in maps},
    }
