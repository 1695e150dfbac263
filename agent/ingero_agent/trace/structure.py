"""Where in NCCL's communicator its identity lies, found in the machine code of the library's own accessors. Pure.

`ncclCommUserRank`, `ncclCommCount` and `ncclCommCuDevice` each read one number of the structure and store it through
their second argument. The three numbers are neighbours, with the communicator's hash before them: so a communicator
that was made before the agent came, or from another one, has a rank too. What does not fit exactly is refused.
"""

import re
import struct
from collections.abc import Iterable, Mapping
from typing import Final

ACCESSORS: Final = ("ncclCommUserRank", "ncclCommCount", "ncclCommCuDevice")
CODE_BYTES: Final = 512
_X86_LOAD_STORE: Final = re.compile(
    rb"([\x40-\x47])?\x8b([\x80-\xbf])(?:\x24)?(....)([\x40-\x47])?\x89([\x00-\x3f])", re.DOTALL
)
_MAX_OFFSET: Final = 1 << 26


def rank_offset(codes: Mapping[str, bytes], machine: str) -> int | None:
    """Bytes from the structure's start to the rank, or nothing. `codes`: machine code from each accessor's start."""
    read = {"x86_64": _x86, "aarch64": _arm}.get(machine)
    if read is None or any(name not in codes for name in ACCESSORS):
        return None
    ranks, counts, devices = (set(read(codes[name])) for name in ACCESSORS)
    fitting = [rank for rank in ranks if rank + 4 in counts and rank + 8 in devices and 8 <= rank < _MAX_OFFSET]
    return fitting[0] if len(fitting) == 1 else None


def _x86(code: bytes) -> Iterable[int]:
    """Displacements of `mov offset(%rN),%eA` with `mov %eA,(%rM)` right behind."""
    for found in _X86_LOAD_STORE.finditer(code):
        load_prefix, load, displacement, store_prefix, store = found.groups()
        loaded = (load[0] >> 3 & 7) | (8 if load_prefix and load_prefix[0] & 4 else 0)
        stored = (store[0] >> 3 & 7) | (8 if store_prefix and store_prefix[0] & 4 else 0)
        if loaded == stored:
            yield struct.unpack("<i", displacement)[0]


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
