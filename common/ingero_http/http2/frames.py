"""HTTP/2 frames (RFC 9113): types, flags, error codes and settings, and how they are encoded. Pure."""

import struct
from enum import IntEnum
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client sends first (RFC 9113, 3.4)."""

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY_FLAG = 0x1, 0x1, 0x4, 0x8, 0x20

FRAME_HEAD: Final = struct.Struct(">HBBBI")
"""A frame's first nine bytes: length (upper 16 and lower 8 bits), type, flags, stream (RFC 9113, 4.1)."""

FRAME_HEAD_BYTES: Final = FRAME_HEAD.size
MAX_FRAME: Final = 16384
"""SETTINGS_MAX_FRAME_SIZE of both sides: the initial value, payload bytes."""

INITIAL_WINDOW: Final = 65535
"""Flow-control window of connections and streams at the start, bytes (RFC 9113, 6.9.2)."""

MAX_WINDOW: Final = 2**31 - 1
MAX_STREAM: Final = 2**31 - 1

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = (
    range(1, 7)
)


class ErrorCode(IntEnum):
    """Why a stream or a connection ends (RFC 9113, 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class Http2ConnectionError(Exception):
    """A connection error (RFC 9113, 5.4.1): the connection ends."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Http2StreamError(Exception):
    """A stream error (RFC 9113, 5.4.2): the stream is reset."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One whole frame."""
    length = len(payload)
    return FRAME_HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream) + payload


def has_whole_frame(data: bytes) -> bool:
    """Whether data start with a whole frame, or with the head of a frame that is too large."""
    if len(data) < FRAME_HEAD_BYTES:
        return False
    length = int.from_bytes(data[:3], "big")
    return len(data) >= FRAME_HEAD_BYTES + length or length > MAX_FRAME


def uint32(number: int) -> bytes:
    """Four bytes, the wire format of stream numbers, error codes and window increments."""
    return number.to_bytes(4, "big")


def settings(values: dict[int, int]) -> bytes:
    """A SETTINGS frame (RFC 9113, 6.5)."""
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", key, value) for key, value in values.items()))


def read_settings(payload: bytes) -> dict[int, int]:
    """The parameters of a SETTINGS frame; unknown ones are included.

    Raises `Http2ConnectionError` for values that RFC 9113, 6.5.2 forbids.
    """
    if len(payload) % 6:
        raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS are not a multiple of six bytes")
    values: dict[int, int] = dict(struct.iter_unpack(">HI", payload))
    if values.get(ENABLE_PUSH, 0) > 1:
        raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH is neither 0 nor 1")
    if values.get(INITIAL_WINDOW_SIZE, 0) > MAX_WINDOW:
        raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE is above 2^31-1")
    if not MAX_FRAME <= values.get(MAX_FRAME_SIZE, MAX_FRAME) < 1 << 24:
        raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE is out of its range")
    return values


def window_update(stream: int, size: int) -> bytes:
    """Allow the peer so many bytes more (RFC 9113, 6.9)."""
    return frame(WINDOW_UPDATE, 0, stream, uint32(size))


def rst_stream(stream: int, code: ErrorCode) -> bytes:
    """End a stream at once (RFC 9113, 6.4)."""
    return frame(RST_STREAM, 0, stream, uint32(code))


def go_away(last: int, code: ErrorCode, message: str = "") -> bytes:
    """Announce the end of a connection: streams above `last` were not processed (RFC 9113, 6.8)."""
    return frame(GOAWAY, 0, 0, uint32(last) + uint32(code) + message.encode()[:256])


def strip_padding(flags: int, payload: bytes) -> bytes:
    """The payload of DATA or HEADERS without padding and priority (RFC 9113, 6.1 and 6.2).

    Raises `Http2ConnectionError` when they do not fit in.
    """
    start = padding = 0
    if flags & PADDED:
        if not payload:
            raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "a padded frame without its padding's length")
        start, padding = 1, payload[0]
    if flags & PRIORITY_FLAG:
        start += 5
    if start > len(payload):
        raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "a frame is shorter than its flags say")
    if start + padding > len(payload):
        raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "more padding than payload")
    return payload[start : len(payload) - padding]
