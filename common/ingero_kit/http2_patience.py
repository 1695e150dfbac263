"""How much of nothing a client of an HTTP/2 connection may ask for. Pure."""

from typing import Final

from ingero_kit.http2_frames import Code, ConnectionFault

_RESETS: Final = 512
"""Streams that may end in a reset, or in a refusal before their body, between two sweeps (about a second)."""
_NOISE: Final = 1000
"""Frames that ask for nothing between two sweeps, besides eight for every request."""


class Patience:
    """Bounds what asks for nothing and costs us work, from one sweep to the next."""

    __slots__ = ("_noise", "_resets", "served")

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """A sweep went by."""
        self.served = self._noise = self._resets = 0

    def quiet(self) -> None:
        """Count a frame that asks for nothing; `ConnectionFault` when there were too many."""
        self._noise += 1
        if self._noise > _NOISE + 8 * self.served:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "too many frames that ask for nothing")

    def reset(self) -> None:
        """Count a stream that ended in a reset or a refusal; `ConnectionFault` when there were too many."""
        self._resets += 1
        if self._resets > _RESETS:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "too many streams end in a reset or a refusal")
