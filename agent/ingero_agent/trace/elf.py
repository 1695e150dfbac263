"""Reads function symbols of an ELF file and their file offsets (System V ABI, 64-bit little endian)."""

import mmap
import os
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

_FUNCTION, _RESOLVER = 2, 10
"""STT_FUNC, and STT_GNU_IFUNC: a resolver of an indirect function, which is not probed."""

MAX_SYMBOLS: Final = 2_000_000


class NotElf(ValueError):
    """The bytes are not a readable ELF file; the text says why."""


def function_offsets(data: bytes | memoryview, wanted: set[str], *, static: bool = False) -> dict[str, list[int]]:
    """File offsets of the wanted functions, by exact name; every version of a name has its own.

    Reads `.dynsym`, and `.symtab` as well with `static`. Raises `NotElf`.
    """
    try:
        with memoryview(data) as view:
            return _offsets(view, {name.encode() for name in wanted}, (11, 2) if static else (11,))
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise NotElf(f"not a readable ELF file: {error}") from None


def read_function_offsets(descriptor: int, wanted: set[str], *, static: bool = False) -> dict[str, list[int]]:
    """`function_offsets` of an open file, of which only the needed parts are read. Raises `NotElf`, `OSError`."""
    with _mapped(descriptor) as view:
        return function_offsets(view, wanted, static=static)


def function_names(data: bytes | memoryview, offsets: Iterable[int]) -> dict[int, str]:
    """Names of the functions that file offsets lie in; offsets that lie in none are left out. Raises `NotElf`.

    Of several names the shortest: that is the public one.
    """
    try:
        with memoryview(data) as view:
            return dict(_names(view, sorted(set(offsets))))
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise NotElf(f"not a readable ELF file: {error}") from None


def read_function_names(descriptor: int, offsets: Iterable[int]) -> dict[int, str]:
    """`function_names` of an open file, of which only the needed parts are read. Raises `NotElf`, `OSError`."""
    with _mapped(descriptor) as view:
        return function_names(view, offsets)


@contextmanager
def _mapped(descriptor: int) -> Iterator[memoryview]:
    size = os.fstat(descriptor).st_size
    if not size:
        raise NotElf("the file is empty")
    with mmap.mmap(descriptor, size, mmap.MAP_PRIVATE, mmap.PROT_READ) as data, memoryview(data) as view:
        yield view


Load = tuple[int, int, int]
"""Address, size and file offset of a part that is loaded."""

SymbolTable = tuple[bytes, bytes]
"""Symbols and the strings with their names."""


def _read(data: memoryview, kinds: tuple[int, ...]) -> tuple[list[Load], list[SymbolTable]]:
    if bytes(data[:6]) != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit little-endian header")
    program_at, section_at = struct.unpack_from("<QQ", data, 32)
    program_size, programs, section_size, sections = struct.unpack_from("<HHHH", data, 54)
    loads = []
    for index in range(programs):
        kind, _, offset, address, _, size = struct.unpack_from("<IIQQQQ", data, program_at + index * program_size)
        if kind == 1:
            loads.append((address, size, offset))
    tables = [struct.unpack_from("<IIQQQQIIQQ", data, section_at + index * section_size) for index in range(sections)]
    found = []
    for table in tables:
        if table[1] in kinds and table[9]:
            strings = tables[table[6]]
            symbols = bytes(data[table[4] : table[4] + min(table[5], MAX_SYMBOLS * 24) // 24 * 24])
            found.append((symbols, bytes(data[strings[4] : strings[4] + strings[5]])))
    return loads, found


def _offsets(data: memoryview, wanted: set[bytes], kinds: tuple[int, ...]) -> dict[str, list[int]]:
    loads, tables = _read(data, kinds)
    found: dict[str, set[int]] = {}
    for symbols, names in tables:
        for name_at, info, _, section, value, _ in struct.iter_unpack("<IBBHQQ", symbols):
            if info & 15 != _FUNCTION or not section or not value:
                continue
            name = names[name_at : names.index(b"\0", name_at)]
            if name not in wanted:
                continue
            for address, size, offset in loads:
                if address <= value < address + size:
                    found.setdefault(name.decode(), set()).add(value - address + offset)
    return {name: sorted(offsets) for name, offsets in found.items()}


def _names(data: memoryview, offsets: list[int]) -> Iterator[tuple[int, str]]:
    loads, tables = _read(data, (11, 2))
    addresses = {
        offset - begin + address: offset
        for offset in offsets for address, size, begin in loads if begin <= offset < begin + size
    }  # fmt: skip
    ordered = sorted(addresses)
    found: dict[int, tuple[int, int, bytes]] = {}
    for symbols, names in tables:
        for name_at, info, _, section, value, size in struct.iter_unpack("<IBBHQQ", symbols):
            if info & 15 not in (_FUNCTION, _RESOLVER) or not section:
                continue
            for place in range(bisect_left(ordered, value), bisect_left(ordered, value + max(size, 1))):
                name = names[name_at : names.index(b"\0", name_at)]
                better = (-value, len(name), name)
                if name and (place not in found or better < found[place]):
                    found[place] = better
    for place, (_, _, name) in found.items():
        yield addresses[ordered[place]], name.decode(errors="replace")
