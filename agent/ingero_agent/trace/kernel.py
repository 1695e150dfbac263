"""The bpf(2) system call by hand: attaching to many functions at once, and reading maps. No compiler, no library."""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator
from typing import Final

SYSCALL: Final = {"x86_64": 321, "aarch64": 280}.get(platform.machine(), 321)
LOOKUP, UPDATE, DELETE, NEXT_KEY, LINK_CREATE = 1, 2, 3, 4, 28
UPROBE_MULTI: Final = 48
RETURN_FLAG: Final = 1
libc: Final = ctypes.CDLL(None, use_errno=True)


def bpf(command: int, attributes: bytes) -> int:
    """Call the kernel. Raises `OSError`."""
    buffer = ctypes.create_string_buffer(attributes, max(len(attributes), 128))
    result: int = libc.syscall(SYSCALL, command, buffer, len(buffer))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def link(program: int, path: str, offsets: list[int], cookies: list[int], *, at_return: bool, pid: int = 0) -> int:
    """Attach a program to functions of one file; returns the link's descriptor, whose closing detaches."""
    name = ctypes.create_string_buffer(path.encode())
    where = (ctypes.c_uint64 * len(offsets))(*offsets)
    what = (ctypes.c_uint64 * len(cookies))(*cookies)
    attributes = struct.pack(
        "=IIIIQQQQIIII",
        program, 0, UPROBE_MULTI, 0,
        ctypes.addressof(name), ctypes.addressof(where), 0, ctypes.addressof(what),
        len(offsets), RETURN_FLAG if at_return else 0, pid, 0,
    )  # fmt: skip
    return bpf(LINK_CREATE, attributes)


class Map:
    """One map by descriptor. `value_size` is one processor's, rounded to 8 bytes when there is one for each."""

    def __init__(self, descriptor: int, key_size: int, value_size: int, cpus: int = 1) -> None:
        self.descriptor = descriptor
        self._key = ctypes.create_string_buffer(key_size)
        self._next = ctypes.create_string_buffer(key_size)
        self._value = ctypes.create_string_buffer(value_size * cpus)

    def _call(self, command: int, key: int, value: int, flags: int = 0) -> bool:
        try:
            bpf(command, struct.pack("=IIQQQ", self.descriptor, 0, key, value, flags))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.E2BIG):
                return False
            raise
        return True

    def get(self, key: bytes) -> bytes | None:
        """The value (all processors', one after the other), or nothing."""
        self._key.raw = key
        found = self._call(LOOKUP, ctypes.addressof(self._key), ctypes.addressof(self._value))
        return self._value.raw if found else None

    def put(self, key: bytes, value: bytes) -> None:
        """Set a value."""
        self._key.raw = key
        self._value.raw = value
        self._call(UPDATE, ctypes.addressof(self._key), ctypes.addressof(self._value))

    def delete(self, key: bytes) -> None:
        """Remove a key; one that is not there is fine."""
        self._key.raw = key
        self._call(DELETE, ctypes.addressof(self._key), 0)

    def items(self, limit: int = 65536) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values; what is added meanwhile may or may not be seen."""
        key, keys = 0, []
        for _ in range(limit):
            if not self._call(NEXT_KEY, key, ctypes.addressof(self._next)):
                break
            keys.append(self._next.raw)
            self._key.raw = self._next.raw
            key = ctypes.addressof(self._key)
        for found in keys:
            value = self.get(found)
            if value is not None:
                yield found, value
