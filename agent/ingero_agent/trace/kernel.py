"""Calls bpf(2) directly, to attach to many functions at once and to read maps, without a compiler or library."""

import ctypes
import errno
import mmap
import os
import platform
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

SYSCALL: Final = {"x86_64": 321, "aarch64": 280}.get(platform.machine(), 321)
LOOKUP, UPDATE, DELETE, NEXT_KEY, RAW_TRACEPOINT_OPEN, LINK_CREATE = 1, 2, 3, 4, 17, 28
PERF_EVENT_OPEN: Final = {"x86_64": 298, "aarch64": 241}.get(platform.machine(), 298)
UPROBE_MULTI: Final = 48
PERF_EVENT: Final = 41
_PERF_ATTR_SIZE: Final = 120
_CLOSE_ON_EXEC: Final = 8
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
    """Attach a program to functions of one file; returns the link's descriptor. Closing it detaches."""
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


def link_tracepoint(program: int, tracepoint: str) -> int:
    """Attach a program to a tracepoint of the kernel; returns a descriptor. Closing it detaches."""
    name = ctypes.create_string_buffer(tracepoint.encode())
    return bpf(RAW_TRACEPOINT_OPEN, struct.pack("=QI", ctypes.addressof(name), program))


def link_one(program: int, path: str, offset: int, cookie: int, *, at_return: bool, pid: int = 0) -> list[int]:
    """Attach to one function through a perf event, as kernels before 6.6 can; returns descriptors to close.

    Raises `OSError`. Detaching takes the kernel about a tenth of a second for each.
    """
    devices = Path("/sys/bus/event_source/devices/uprobe")
    kind = int((devices / "type").read_text())
    bit = int((devices / "format/retprobe").read_text().strip().removeprefix("config:"))
    name = ctypes.create_string_buffer(path.encode())
    attributes = ctypes.create_string_buffer(
        struct.pack("=IIQ", kind, _PERF_ATTR_SIZE, (1 << bit) if at_return else 0), _PERF_ATTR_SIZE
    )
    struct.pack_into("=QQ", attributes, 56, ctypes.addressof(name), offset)
    event = libc.syscall(PERF_EVENT_OPEN, attributes, pid or -1, -1 if pid else 0, -1, _CLOSE_ON_EXEC)
    if event < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    try:
        return [bpf(LINK_CREATE, struct.pack("=IIIIQ", program, event, PERF_EVENT, 0, cookie)), event]
    except OSError:
        os.close(event)
        raise


def attach(
    program: int, path: str, cookies: Mapping[int, int], *, at_return: bool, pid: int = 0, multi: bool = True
) -> list[int]:
    """Attach a program to functions of one file, given as file offset → cookie; returns descriptors to close.

    `multi`: one link for all functions, otherwise one for each. Raises `OSError`.
    """
    if multi:
        return [link(program, path, list(cookies), list(cookies.values()), at_return=at_return, pid=pid)]
    links: list[int] = []
    try:
        for offset, cookie in cookies.items():
            links += link_one(program, path, offset, cookie, at_return=at_return, pid=pid)
    except OSError:
        close_all(links)
        raise
    return links


@contextmanager
def attached(
    programs: Sequence[int], path: str, cookies: Mapping[int, int], *, pid: int, multi: bool = True
) -> Iterator[None]:
    """Attach the first program at entry and the second, if any, at return, for one process, and detach at the end."""
    links: list[int] = []
    try:
        for program, at_return in zip(programs, (False, True), strict=False):
            links += attach(program, path, cookies, at_return=at_return, pid=pid, multi=multi)
        yield
    finally:
        close_all(links)


def close_all(descriptors: Iterable[int]) -> None:
    """Close descriptors of links, programs and maps."""
    for descriptor in descriptors:
        os.close(descriptor)


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
        """The value (of all processors, one after the other), or `None`."""
        self._key.raw = key
        found = self._call(LOOKUP, ctypes.addressof(self._key), ctypes.addressof(self._value))
        return self._value.raw if found else None

    def put(self, key: bytes, value: bytes) -> None:
        """Set a value."""
        self._key.raw = key
        self._value.raw = value
        self._call(UPDATE, ctypes.addressof(self._key), ctypes.addressof(self._value))

    def delete(self, key: bytes) -> None:
        """Remove a key; a missing key is no error."""
        self._key.raw = key
        self._call(DELETE, ctypes.addressof(self._key), 0)

    def every_key(self, limit: int = 65536) -> list[bytes]:
        """The keys. A key that is added meanwhile may or may not be included."""
        key, keys = 0, list[bytes]()
        for _ in range(limit):
            if not self._call(NEXT_KEY, key, ctypes.addressof(self._next)):
                break
            keys.append(self._next.raw)
            self._key.raw = self._next.raw
            key = ctypes.addressof(self._key)
        return keys

    def items(self, limit: int = 65536) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values. A key that is added meanwhile may or may not be included."""
        for found in self.every_key(limit):
            value = self.get(found)
            if value is not None:
                yield found, value


class Ring:
    """Reads records that the kernel wrote into a ring buffer. The kernel does not wake the reader."""

    _BUSY: Final = 1 << 31
    _DISCARDED: Final = 1 << 30

    def __init__(self, descriptor: int, size: int) -> None:
        page = mmap.PAGESIZE
        self._size, self._page = size, page
        self._mine = mmap.mmap(descriptor, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=0)
        self._theirs = mmap.mmap(descriptor, page + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)

    def read(self, limit: int = 100_000) -> list[bytes]:
        """The records since the last read, oldest first."""
        (position,) = struct.unpack_from("=Q", self._mine)
        (end,) = struct.unpack_from("=Q", self._theirs)
        records: list[bytes] = []
        while position < end and len(records) < limit:
            at = self._page + position % self._size
            (length,) = struct.unpack_from("=I", self._theirs, at)
            if length & self._BUSY:
                break
            size = length & ~self._DISCARDED
            if not length & self._DISCARDED:
                records.append(self._theirs[at + 8 : at + 8 + size])
            position += (size + 15) // 8 * 8
        struct.pack_into("=Q", self._mine, 0, position)
        return records

    def close(self) -> None:
        """Unmap."""
        self._mine.close()
        self._theirs.close()
