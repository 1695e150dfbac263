"""Finds the offset of the rank in NCCL's communicator from the machine code of the library's accessors. Pure.

`ncclCommUserRank`, `ncclCommCount` and `ncclCommCuDevice` each read one number of the structure and store it through
their second argument. The three numbers are adjacent, after the communicator's hash. So the rank is also known for a
communicator that was created before the agent started, or split from another. Code that does not match exactly is
refused.
"""

import re
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Final

ACCESSORS: Final = ("ncclCommUserRank", "ncclCommCount", "ncclCommCuDevice")
CODE_BYTES: Final = 1024
_X86_LOAD: Final = re.compile(
    rb"([\x40-\x47])?\x8b(?:([\x84\x8c\x94\x9c\xa4\xac\xb4\xbc])\x24|([\x80-\xbf]))(....)", re.DOTALL
)
_X86_STORE: Final = re.compile(rb"([\x40-\x47])?\x89(?:([\x00-\x3f])|([\x40-\x7f])\x00)", re.DOTALL)
_STORE_WITHIN: Final = 12
_MAX_OFFSET: Final = 1 << 26


def rank_offset(codes: Mapping[str, bytes], machine: str) -> int | None:
    """Bytes from the structure's start to the rank, or `None`. `codes`: machine code from each accessor's start."""
    read = {"x86_64": _x86, "aarch64": _arm}.get(machine)
    if read is None or any(name not in codes for name in ACCESSORS):
        return None
    ranks, counts, devices = (set(read(codes[name])) for name in ACCESSORS)
    fitting = [rank for rank in ranks if rank + 4 in counts and rank + 8 in devices and 8 <= rank < _MAX_OFFSET]
    return fitting[0] if len(fitting) == 1 else None


def accessor_codes(offsets: Mapping[str, list[int]], read: Callable[[int, int], bytes]) -> dict[str, bytes]:
    """Machine code of each accessor, up to where the next one begins. `read(size, offset)` reads the file."""
    starts = sorted(found[0] for name, found in offsets.items() if name in ACCESSORS)
    codes = {}
    for name, found in offsets.items():
        behind = [start for start in starts if start > found[0]]
        codes[name] = read(min(CODE_BYTES, behind[0] - found[0] if behind else CODE_BYTES), found[0])
    return codes


def _x86(code: bytes) -> Iterable[int]:
    """Displacements of `mov offset(%rN),%eA` with `mov %eA,(%rM)` or `mov %eA,0(%rM)` shortly behind."""
    for load in _X86_LOAD.finditer(code):
        behind = code[load.end() : load.end() + _STORE_WITHIN]
        if any(_x86_register(load) == _x86_register(store) for store in _X86_STORE.finditer(behind)):
            yield struct.unpack("<i", load.group(4))[0]


def _x86_register(found: re.Match[bytes]) -> int:
    """The register that the instruction's ModRM byte and prefix name."""
    prefix, mode = found.group(1), found.group(2) or found.group(3)
    return (mode[0] >> 3 & 7) | (8 if prefix and prefix[0] & 4 else 0)


def _arm(code: bytes) -> Iterable[int]:
    """Offsets of `ldr wA,[xN,#low]` with a `str wA,[xM]` behind it, and an `add` of the high bits before, if any."""
    words = [word for (word,) in struct.iter_unpack("<I", code[: len(code) // 4 * 4])]
    high: dict[int, int] = {}
    for place, word in enumerate(words):
        if word & 0xFFC00000 == 0x91400000:
            high[word & 31] = (word >> 10 & 0xFFF) << 12
        elif word & 0xFFC00000 == 0xB9400000:
            target, base, low = word & 31, word >> 5 & 31, (word >> 10 & 0xFFF) * 4
            if any(later & 0xFFFFFC1F == 0xB9000000 | target for later in words[place + 1 : place + 4]):
                yield high.get(base, 0) + low
