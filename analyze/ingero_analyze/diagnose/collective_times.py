"""The time of a collective on one process, as tools that record it say it. Pure."""

from dataclasses import dataclass
from typing import Final

MAX_RANKS: Final = 1_000_000
"""Of a communicator; more are no number of ranks."""

Process = tuple[str, int | str]
"""Host, and the process id or, where that is not known, the GPU."""


@dataclass(frozen=True)
class Spent:
    """One collective on one rank; seconds. `start` is when it began, or was recorded where the start is missing.

    `rank`: in the communicator, `None` where only the process is known; `ranks`: of the communicator.
    """

    process: Process
    comm: str
    rank: int | None
    ranks: int
    op: str
    seq: int
    start: float
    duration: float
