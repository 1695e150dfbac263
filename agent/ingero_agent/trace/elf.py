"""Reads function symbols of an ELF file and their file offsets (System V ABI, 64-bit little endian)."""

import mmap
import os
import struct
from typing import Final

_FUNCTION: Final = 2
"""STT_FUNC; an indirect function (10) is a resolver and is not probed."""

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
    size = os.fstat(descriptor).st_size
    if not size:
        raise NotElf("the file is empty")
    with mmap.mmap(descriptor, size, mmap.MAP_PRIVATE, mmap.PROT_READ) as data, memoryview(data) as view:
        return function_offsets(view, wanted, static=static)


def _offsets(data: memoryview, wanted: set[bytes], kinds: tuple[int, ...]) -> dict[str, list[int]]:
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
    found: dict[str, set[int]] = {}
    for table in tables:
        if table[1] not in kinds or not table[9]:
            continue
        strings = tables[table[6]]
        names = bytes(data[strings[4] : strings[4] + strings[5]])
        symbols = bytes(data[table[4] : table[4] + min(table[5], MAX_SYMBOLS * 24) // 24 * 24])
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
