"""Content-Encoding and Content-Type of a body: decompression of all of its bytes, within limits. Pure.

A body may hold several gzip members or zstd frames, as RFC 1952 and RFC 8878 allow. An incomplete one is an error, so
that a truncated body is never taken for a complete one.
"""

import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import zstandard

_PIECE: Final = 64 << 10
"""Bytes that are decompressed at a time."""
_ZSTD_PIECE: Final = 1024
"""The same for zstd, where four bytes may expand to 128 kB and the output of a piece cannot be limited."""
_PARTS: Final = 256
"""Most members or frames of one body."""
_ZSTD_WINDOW: Final = 8 << 20
"""Largest window of a frame, bytes (RFC 9659, 3)."""


class DecodeError(Exception):
    """A body that cannot be decompressed; `status` is the HTTP status to answer with."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Part(Protocol):
    """Decompresses one member or frame."""

    @property
    def eof(self) -> bool:
        """Whether its end has been reached."""

    @property
    def unused_data(self) -> bytes:
        """The bytes after its end."""


def decompress(encoding: bytes, body: bytes, limit: int) -> bytes:
    """Undo a Content-Encoding, never producing more than `limit` bytes.

    Raises `DecodeError` for an unknown encoding (415), damaged or incomplete data (400) or too much of it (413).
    """
    if encoding in (b"", b"identity"):
        return body
    name = encoding.decode("latin-1")
    try:
        if encoding in (b"gzip", b"x-gzip", b"deflate"):
            return _decompress(name, body, limit, _PIECE, _open_member)
    except zlib.error as error:
        raise DecodeError(400, f"the body is not valid {name}: {error}") from None
    if encoding == b"zstd":
        return _decompress_zstd(name, body, limit)
    raise DecodeError(415, f"content-encoding {name!r} is not supported: use gzip or zstd")


def _decompress_zstd(name: str, body: bytes, limit: int) -> bytes:
    import zstandard  # only where somebody sends it

    frames = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    try:
        return _decompress(name, body, limit, _ZSTD_PIECE, lambda: _open_frame(frames))
    except zstandard.ZstdError as error:
        raise DecodeError(400, f"the body is not valid {name}: {error}") from None


def _open_member() -> tuple[_Part, Callable[[bytes, int], bytes]]:
    part = zlib.decompressobj(zlib.MAX_WBITS | 32)
    return part, part.decompress


def _open_frame(frames: "zstandard.ZstdDecompressor") -> tuple[_Part, Callable[[bytes, int], bytes]]:
    part = frames.decompressobj()
    return part, lambda data, _: part.decompress(data)


def _decompress(
    name: str, body: bytes, limit: int, piece: int, begin: Callable[[], tuple[_Part, Callable[[bytes, int], bytes]]]
) -> bytes:
    out: list[bytes] = []
    at = made = parts = 0
    while at < len(body) or not parts:
        parts += 1
        if parts > _PARTS:
            raise DecodeError(400, f"the body has more than {_PARTS} parts of {name}")
        part, decompress_piece = begin()
        while not part.eof:
            if at >= len(body):
                raise DecodeError(400, f"the body is truncated {name}")
            data = decompress_piece(body[at : at + piece], limit + 1 - made)
            at = min(at + piece, len(body))
            made += len(data)
            if made > limit:
                raise DecodeError(413, f"the body is larger than {limit} bytes when decompressed")
            out.append(data)
        at -= len(part.unused_data)
    return out[0] if len(out) == 1 else b"".join(out)


def media_type(content_type: bytes) -> bytes:
    """The media type of a Content-Type, without parameters and in lower case (RFC 9110, 8.3.1)."""
    return content_type.partition(b";")[0].strip().lower()
