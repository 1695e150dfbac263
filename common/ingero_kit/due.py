"""Work that is due at intervals, for loops that do several things at different times. Pure."""


class Every:
    """Work that is due every `seconds`, first at `first` if given, otherwise at once."""

    def __init__(self, seconds: float, first: float = float("-inf")) -> None:
        self.seconds, self._at = seconds, first

    def due(self, now: float) -> bool:
        """Whether the work is due; if so, it is next due `seconds` from now, also after the clock was set back."""
        if self._at - self.seconds <= now < self._at:
            return False
        self._at = now + self.seconds
        return True
