"""How far a stream was read. Pure."""

from typing import NamedTuple


class SourcePosition(NamedTuple):
    """A message of a stream. A stream that was made anew has another identity."""

    stream: str
    sequence: int


def parse_position(text: str) -> SourcePosition | None:
    """The position of a property of a table, as `format_position` writes it."""
    stream, _, sequence = text.rpartition(" ")
    return SourcePosition(stream, int(sequence)) if stream and sequence.isdigit() else None


def format_position(position: SourcePosition) -> str:
    """A position as text."""
    return f"{position.stream} {position.sequence}"


def start_after(stored: SourcePosition | None, stream: str, last: int) -> int:
    """The message to continue after: nothing of another stream was read, and one that lost messages ends earlier."""
    return min(stored.sequence, last) if stored and stored.stream == stream else 0
