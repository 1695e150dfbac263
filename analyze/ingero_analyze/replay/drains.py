"""Tells nodes whose load was taken away before they were from slow ones: what followed says which they were. Pure."""

from typing import Final

from ingero_analyze.replay.silences import Silence, Silences
from ingero_detect.nodes.cohort_assignment import RESUME_TICKS
from ingero_detect.nodes.episodes import Episode

LONGEST: Final = 900.0
LONGEST_TICKS: Final = 30
"""Seconds, or ticks if these are longer, in which a node is drained."""

LEFT: Final = 0.3
"""Share of what was expected of a node that is left at the end, at most."""


def drained(episode: Episode, silences: Silences, tick_seconds: float) -> Silence | None:
    """The silence that follows an episode in which a node's rate fell to nearly nothing in some minutes.

    A node that hangs and dies looks the same: nobody worked there afterwards, and nobody waited for it for long. One
    that does as little when it reports again, and is not well soon, has stopped.
    """
    first = episode.first
    if first.since is None or first.expected is None:
        return None
    longest = max(LONGEST, LONGEST_TICKS * tick_seconds)
    silence = silences.after(episode.node, first.since, first.since + longest)
    least = LEFT * first.expected
    if silence is None or not silence.value <= least:
        return None
    if silence.until is not None and silence.returned <= least:
        well_by = silence.until + RESUME_TICKS * tick_seconds
        if episode.end is None or episode.end > well_by:
            return None
    return silence
