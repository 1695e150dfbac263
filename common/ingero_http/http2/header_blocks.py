"""Header blocks of one HTTP/2 connection as they arrive (RFC 9113, 4.3): put together, read, and remembered. Pure."""

import time
from typing import Final, NamedTuple

from ingero_http.http2 import frames as h2
from ingero_http.http2.frames import ErrorCode, Http2ConnectionError
from ingero_http.http2.hpack import DynamicTable, Field, HeaderListTooLarge, HpackError, decode_block
from ingero_http.http2.messages import Exchange, Service, read_head

_REMEMBERED: Final = 8
"""HeaderBlockReader whose meaning is remembered."""
_LONGEST: Final = 512
"""The longest block that is, octets."""


class HeaderBlock(NamedTuple):
    """A whole block, of this stream; `ended` when nothing follows it."""

    number: int
    ended: bool
    octets: bytes


class HeaderBlockReader:
    """Reads the blocks of a connection in the order in which they came, which the dynamic table depends on."""

    __slots__ = ("_known", "_part", "_table", "limit", "open", "since")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Octets of a list of fields, as SETTINGS_MAX_HEADER_LIST_SIZE counts them, and of a block."""
        self.since = 0.0
        """When the block that is not whole yet began; 0 without one."""
        self._table = DynamicTable()
        self._known: dict[bytes, tuple[Exchange, int | None]] = {}
        self._part: tuple[int, bool, bytearray] | None = None
        self.open = False
        """Whether nothing but CONTINUATION may follow."""

    @property
    def held(self) -> int:
        """Octets of the block that is not whole."""
        return len(self._part[2]) if self._part else 0

    def begin(self, flags: int, number: int, payload: bytes) -> HeaderBlock | None:
        """Take a HEADERS frame; returns its block when it is whole."""
        if flags & (h2.PADDED | h2.PRIORITISED):
            payload = h2.content(flags, payload)
        if not number & 1:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "HEADERS on a stream that a client cannot open")
        ended = bool(flags & h2.END_STREAM)
        if flags & h2.END_HEADERS:
            return HeaderBlock(number, ended, payload)
        self._part, self.since, self.open = (number, ended, bytearray(payload)), time.monotonic(), True
        return None

    def go_on(self, flags: int, number: int, payload: bytes) -> HeaderBlock | None:
        """Take a CONTINUATION frame; returns the block when it is whole."""
        if self._part is None or number != self._part[0]:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of nothing")
        _, ended, octets = self._part
        octets += payload
        if len(octets) > self.limit:
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too large")
        if not flags & h2.END_HEADERS:
            return None
        self._part, self.since, self.open = None, 0.0, False
        return HeaderBlock(number, ended, bytes(octets))

    def fields(self, octets: bytes) -> list[Field] | None:
        """The fields of a block, `None` when they are too large."""
        try:
            fields, table = decode_block(octets, self._table, self.limit)
        except HpackError as error:
            code = (
                ErrorCode.ENHANCE_YOUR_CALM if isinstance(error, HeaderListTooLarge) else ErrorCode.COMPRESSION_ERROR
            )
            raise Http2ConnectionError(code, str(error)) from None
        if table is not self._table:
            self._table = table
            self._known.clear()
        return fields

    def route(self, octets: bytes, service: Service) -> tuple[Exchange, int | None] | None:
        """What a request asks for and its content-length; `None` when its fields are too large.

        Remembered while the table stays, because the same octets then mean the same again.
        """
        known = self._known.get(octets)
        if known is not None:
            return known
        table = self._table
        fields = self.fields(octets)
        if fields is None:
            return None
        head = read_head(fields)
        found = (service.route(head), head.length)
        if self._table is table and len(octets) <= _LONGEST and len(self._known) < _REMEMBERED:
            self._known[octets] = found
        return found
