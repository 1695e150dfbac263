"""Limits on frames and streams of an HTTP/2 connection that cost work without a request. Pure."""

from typing import Final

from ingero_http.http2.frames import ErrorCode, Http2ConnectionError

_RESETS: Final = 512
"""Streams that may end in a reset or an early refusal between two sweeps (about a second)."""
_EMPTY_FRAMES: Final = 1000
"""Frames without a request between two sweeps, in addition to eight for every request."""


class FloodGuard:
    """Counts such frames and streams from one sweep to the next."""

    __slots__ = ("_empty_frames", "_resets", "served")

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Start a new interval."""
        self.served = self._empty_frames = self._resets = 0

    def count_empty_frame(self) -> None:
        """Count a frame without a request; raises `Http2ConnectionError` for too many."""
        self._empty_frames += 1
        if self._empty_frames > _EMPTY_FRAMES + 8 * self.served:
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "too many frames without a request")

    def count_reset(self) -> None:
        """Count a stream that ended in a reset or an early refusal; raises `Http2ConnectionError` for too many."""
        self._resets += 1
        if self._resets > _RESETS:
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "too many streams end in a reset or a refusal")
