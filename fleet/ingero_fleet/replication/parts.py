"""Bodies in messages of bounded size: compressed, and cut into parts that are joined again. Pure.

Every part but the last is a message of its own. The last one names the sequences of the others, so that the log alone
says what belongs together, to every reader alike.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

import zstandard

PART_BYTES: Final = 512 << 10
"""Largest part."""

MAX_BODY_BYTES: Final = 64 << 20
"""Largest body after decompression; a larger one is not read."""

CACHE_BYTES: Final = 64 << 20
"""Parts that a reader keeps until the last one comes."""

COMPRESS_FROM: Final = 1024
"""Smaller bodies go as they are."""

KEY: Final = "Ingero-Key"
ENCODING: Final = "Ingero-Encoding"
PARTS: Final = "Ingero-Parts"


def pack(body: bytes, part_bytes: int) -> tuple[dict[str, str], list[bytes]]:
    """Headers for the last message, and the parts of a body; raises `ValueError` if it is too large to be read."""
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"a body of {len(body)} bytes is larger than {MAX_BODY_BYTES}")
    headers = {}
    if len(body) >= COMPRESS_FROM:
        body = zstandard.ZstdCompressor(level=1).compress(body)
        headers[ENCODING] = "zstd"
    return headers, [body[start : start + part_bytes] for start in range(0, len(body), part_bytes)] or [b""]


def unpack(headers: Mapping[str, str], packed: bytes) -> bytes:
    """The body; raises `ValueError` for one that `pack` did not make."""
    encoding = headers.get(ENCODING)
    if encoding is None:
        return packed
    if encoding != "zstd":
        raise ValueError(f"unknown encoding {encoding!r}")
    try:
        size = zstandard.frame_content_size(packed)
        if not 0 <= size <= MAX_BODY_BYTES:
            raise ValueError(f"a body of {size} bytes cannot be read")
        return zstandard.ZstdDecompressor().decompress(packed)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None


def earlier_parts(headers: Mapping[str, str]) -> list[int]:
    """Sequences of the messages whose bodies come before this one; raises `ValueError` for anything else."""
    text = headers.get(PARTS, "")
    sequences = [int(one) for one in text.split(",")] if text else []
    if len(sequences) > MAX_BODY_BYTES // 1024:
        raise ValueError(f"{len(sequences)} parts are too many")
    return sequences


class PartCache:
    """The latest parts by sequence; the oldest give way."""

    def __init__(self, max_bytes: int = CACHE_BYTES) -> None:
        self._parts: OrderedDict[int, bytes] = OrderedDict()
        self._bytes, self._max = 0, max_bytes

    def add(self, sequence: int, part: bytes) -> None:
        """Keep a part."""
        self.take(sequence)
        self._parts[sequence] = part
        self._bytes += len(part)
        while self._bytes > self._max:
            _, dropped = self._parts.popitem(last=False)
            self._bytes -= len(dropped)

    def take(self, sequence: int) -> bytes | None:
        """Return a part and forget it; `None` if it is not here."""
        part = self._parts.pop(sequence, None)
        self._bytes -= len(part or b"")
        return part

    def clear(self) -> None:
        """Forget all."""
        self._parts.clear()
        self._bytes = 0
