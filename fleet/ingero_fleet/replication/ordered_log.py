"""The log that several Fleets share: one order of messages, the same for every reader.

A Fleet publishes what it receives, and applies what the log returns, in the log's order. The log is a window for
replay, not a store: it may lose messages, and then says so with a `LogGap`. Nothing here is durable beyond that.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Literal, NamedTuple, Protocol

MessageKind = Literal["batch", "push"]
"""What a Fleet may publish at any time: reports in columns, or one push as it came."""


class LogMessage(NamedTuple):
    """One message, at its place in the order."""

    sequence: int
    """Place in the log, from 1. Sequences grow, and may leave numbers out."""
    time: float
    """When the log took it: seconds since the epoch by the log's clock, the same for every reader, and never earlier
    than that of the message before. When that clock is set back, messages have equal times until it has caught up."""
    kind: Literal["batch", "push", "marker"]
    """`marker` comes from `cut`, the others from `publish`."""
    key: str
    """What the publisher called it. A message may come twice if its publisher was cut off for minutes."""
    body: bytes
    """As it was published."""


class LogGap(NamedTuple):
    """Messages are missing: the log has discarded them, or was deleted, or was restored from an older copy."""

    expected: int
    """The sequence that should have followed."""
    first: int
    """The reader goes on with this sequence or a later one. It is below `expected` if the log was deleted or rewound:
    then the reader gets all that the log has, from its first message."""


class LogSnapshot(NamedTuple):
    """A copy of a Fleet's state that is stored with the log."""

    name: str
    """As it was saved."""
    data: bytes
    """As it was saved."""


class LogAway(Exception):
    """The log did not confirm in time. It may have taken the message nevertheless, or may take it later."""


class LogHealth(NamedTuple):
    """How the log is doing, as seen from here."""

    away_since: float | None = None
    """Since when nothing was confirmed or read, seconds since the epoch; `None` while the log answers."""
    lag: int = 0
    """Messages in the log that `follow` has not returned yet, as of the last message that it returned."""


class OrderedLog(Protocol):
    """One order of messages. All methods belong to one event loop."""

    async def publish(self, kind: MessageKind, key: str, body: bytes) -> None:
        """Add a message; returns when the log has confirmed it.

        Unconfirmed messages are sent again with the same key, which the log recognises. Calls may overlap; further
        ones wait while 16 messages or 8 MB are unconfirmed. `key` must be unique among all publishers,
        `<epoch>-<number>`; a caller that tries again later uses the same key and the same body.

        Raises `LogAway` if the log did not confirm within 10 seconds.
        """
        ...

    async def cut(self, key: str, body: bytes, after: int) -> bool:
        """Add a marker if the last marker in the log is still the one with the sequence `after` (0: there is none).

        Of several callers with the same `after`, exactly one succeeds. `False`: the log has another marker by now,
        which `follow` returns; that may be the own one, if an earlier call with `LogAway` came through.

        Raises `LogAway` if the log did not answer within a second, and `ValueError` for a body that does not fit into
        one message (512 kB always do).
        """
        ...

    def follow(self, after: int, not_before: float = 0.0) -> AsyncGenerator[LogMessage | LogGap]:
        """Return every message after the sequence `after` (0: from the first one), then wait for further ones.

        `not_before`: time of the message `after`, seconds since the epoch, so that times are those that other readers
        got. After a `LogGap` the messages go on with `LogGap.first`. While the log is away this waits.
        """
        ...

    async def save_snapshot(self, name: str, data: bytes) -> None:
        """Store a copy of the state; the last two are kept. Raises `LogAway` if the log did not confirm."""
        ...

    def load_snapshots(self) -> AsyncIterator[LogSnapshot]:
        """Return the kept snapshots, newest first; damaged ones are left out. Raises `LogAway` without an answer."""
        ...

    async def publish_verdicts(self, key: str, body: bytes) -> None:
        """Send the answers after a tick to all that follow them at present. They are not stored, and may be lost.

        `key` is another one for each call. Raises `LogAway` without a connection.
        """
        ...

    def follow_verdicts(self) -> AsyncGenerator[bytes]:
        """Return what `publish_verdicts` sends from now on, each whole."""
        ...

    def health(self) -> LogHealth:
        """How the log is doing."""
        ...
