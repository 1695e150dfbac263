"""Header blocks of one HTTP/2 connection (RFC 9113, 4.3): assembled from frames, decoded and cached."""

import time
from typing import Final, NamedTuple

from ingero_http.http2 import frames as h2
from ingero_http.http2.frames import ErrorCode, Http2ConnectionError
from ingero_http.http2.hpack import DynamicTable, Field, HeaderListTooLarge, HpackError, decode_block
from ingero_http.http2.messages import Exchange, Service, read_head

_MAX_ROUTES: Final = 8
"""Blocks whose route is cached."""
_MAX_BLOCK_BYTES: Final = 512
"""The longest block that is cached, bytes."""


class HeaderBlock(NamedTuple):
    """A complete block of stream `number`; `ended` if the stream has no body."""

    number: int
    ended: bool
    data: bytes


class HeaderBlockReader:
    """Reads the blocks of a connection in their order, on which the dynamic table depends."""

    __slots__ = ("_partial", "_routes", "_table", "in_block", "limit", "since")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Largest header list, as SETTINGS_MAX_HEADER_LIST_SIZE counts it, and largest block, bytes."""
        self.since = 0.0
        """When the incomplete block started; 0 without one."""
        self._table = DynamicTable()
        self._routes: dict[bytes, tuple[Exchange, int | None]] = {}
        self._partial: tuple[int, bool, bytearray] | None = None
        self.in_block = False
        """Whether a block is incomplete, so that only CONTINUATION may follow."""

    @property
    def buffered(self) -> int:
        """Bytes of the incomplete block."""
        return len(self._partial[2]) if self._partial else 0

    def start_block(self, flags: int, number: int, payload: bytes) -> HeaderBlock | None:
        """Take a HEADERS frame; returns its block if it is complete."""
        if flags & (h2.PADDED | h2.PRIORITY_FLAG):
            payload = h2.strip_padding(flags, payload)
        if not number & 1:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "HEADERS on a stream that a client cannot open")
        ended = bool(flags & h2.END_STREAM)
        if flags & h2.END_HEADERS:
            return HeaderBlock(number, ended, payload)
        self._partial, self.since, self.in_block = (number, ended, bytearray(payload)), time.monotonic(), True
        return None

    def continue_block(self, flags: int, number: int, payload: bytes) -> HeaderBlock | None:
        """Take a CONTINUATION frame; returns the block if it is complete."""
        if self._partial is None or number != self._partial[0]:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        _, ended, block = self._partial
        block += payload
        if len(block) > self.limit:
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too large")
        if not flags & h2.END_HEADERS:
            return None
        self._partial, self.since, self.in_block = None, 0.0, False
        return HeaderBlock(number, ended, bytes(block))

    def decode(self, block: bytes) -> list[Field] | None:
        """The fields of a block, `None` if they are too large."""
        try:
            fields, table = decode_block(block, self._table, self.limit)
        except HpackError as error:
            too_large = isinstance(error, HeaderListTooLarge)
            code = ErrorCode.ENHANCE_YOUR_CALM if too_large else ErrorCode.COMPRESSION_ERROR
            raise Http2ConnectionError(code, str(error)) from None
        if table is not self._table:
            self._table = table
            self._routes.clear()
        return fields

    def route(self, block: bytes, service: Service) -> tuple[Exchange, int | None] | None:
        """The exchange of a request and its content-length; `None` if its fields are too large.

        Cached until the dynamic table changes, because equal blocks mean the same until then.
        """
        route = self._routes.get(block)
        if route is not None:
            return route
        table = self._table
        fields = self.decode(block)
        if fields is None:
            return None
        head = read_head(fields)
        found = (service.route(head), head.length)
        if self._table is table and len(block) <= _MAX_BLOCK_BYTES and len(self._routes) < _MAX_ROUTES:
            self._routes[block] = found
        return found
