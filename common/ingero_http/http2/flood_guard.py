"""How much of nothing a client of an HTTP/2 connection may ask for. Pure."""

from typing import Final

from ingero_http.http2.frames import ErrorCode, Http2ConnectionError

_RESETS: Final = 512
"""Streams that may end in a reset, or in a refusal before their body, between two sweeps (about a second)."""
_EMPTY_FRAMES: Final = 1000
"""Frames that ask for nothing between two sweeps, besides eight for every request."""


class FloodGuard:
    """Bounds what asks for nothing and costs us work, from one sweep to the next."""

    __slots__ = ("_empty_frames", "_resets", "served")

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """A sweep went by."""
        self.served = self._empty_frames = self._resets = 0

    def count_empty_frame(self) -> None:
        """Count a frame that asks for nothing; `Http2ConnectionError` when there were too many."""
        self._empty_frames += 1
        if self._empty_frames > _EMPTY_FRAMES + 8 * self.served:
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that ask for nothing")

    def count_reset(self) -> None:
        """Count a stream that ended in a reset or a refusal; `Http2ConnectionError` when there were too many."""
        self._resets += 1
        if self._resets > _RESETS:
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "too many streams end in a reset or a refusal")
