"""Why a rank is the cause of a hang, or may be one. Pure."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ingero_contract.identifiers import Rank


class Why(StrEnum):
    """Why a rank is a cause, or may be one."""

    HOST = "its host calls nothing more, and it waits for nothing"
    GPU = "its GPU does not end an operation that all its members have entered"
    GPU_BEFORE = "its GPU has not begun an operation before which it waits for no other rank"
    NO_DUMP = "it left no dump"
    EARLIER_RUN = "its only dump is of an earlier run"
    UNREADABLE = "its dump cannot be read"
    NOT_CALLED = (
        "others called what it had not called when its dump was written, and no dump tells whether that ended or "
        "failed there"
    )
    ENDED_OR_FAILED = "its last call ended, or failed because a member did not come: no dump tells which"
    UNRECORDED = "its host calls nothing more that is recorded, but the recorder leaves out sends and receives"
    EARLY_DUMP = "its dump was written before those of others"
    FORGOTTEN = "its ring buffer no longer holds what it waits for"
    DIFFERS = "it called another operation, or another size, than most, or than groups like it, under one number"
    GPU_INSTEAD = "it waits only for a rank of which no dump shows that it has not ended the operation"
    UNCOUNTED = "it is one side of a send or receive that cannot be matched, and may have stopped there"
    STUCK = "all members have entered an operation that does not end"
    STUCK_INSTEAD = "it waits in an operation that all members may have entered, and that then does not end"
    BEHIND = "its host called less than a peer could call while the same operations were pending"
    CYCLE = "ranks wait for each other"
    ALONE = (
        "it alone called an operation while all others of it wait, through whichever ranks, for this one elsewhere"
    )
    OUT_OF_ORDER = (
        "it alone called two operations in another order than all others that wait for it, and than it did before"
    )
    ONE_MORE = "it alone called an operation, while all others wait for nothing after one and the same call"
    UNLIKE = (
        "it alone, of a group whose members called the same before, came to its next collective after other calls"
    )
    CHANGED = "it alone, of ranks that wait for each other, called more or less than in each round before"


PROGRAM: Final = frozenset({Why.DIFFERS, Why.ALONE, Why.OUT_OF_ORDER, Why.CHANGED, Why.UNLIKE})
"""Why a rank is a cause although its host and its GPU work: its program calls something else."""


TRACELESS: Final = frozenset({Why.NO_DUMP, Why.EARLIER_RUN, Why.UNREADABLE})
"""Why a rank may be a cause although nothing of what it did is known."""


@dataclass
class Causes:
    """The causes of a hang. `cycle`: ranks that wait for each other and for no other rank.

    `explained`: all ranks that wait do so, directly or through others, for a certain cause.
    """

    certain: dict[Rank, Why] = field(default_factory=dict)
    possible: dict[Rank, Why] = field(default_factory=dict)
    cycle: tuple[Rank, ...] = ()
    explained: bool = False
