"""Who came late only because another communicator held it up. Pure.

A node in two communicators that is made to wait in one comes late to the other. Both learn of it within moments of
each other and either may prove it first, so that a victim is not told by what is proven: whoever is merely likely to
be late in one communicator excuses those that waited for it from being late in another.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

MIN_EXCUSED_SHARE: Final = 0.5
"""Part of its lateness that a node must have been held up elsewhere to be excused."""


@dataclass(frozen=True)
class Claim:
    """One accusation: where, who, and the share of time that was lost to it."""

    communicator: int
    node: str
    share: float


@dataclass(frozen=True)
class WaitProfile:
    """What a communicator tells of others' lateness, shares of time by node.

    `suspects`: lost to those who are likely to be late in it; `waiting`: how long the node's ranks waited, at least.
    """

    communicator: int
    suspects: dict[str, float]
    waiting: dict[str, float]

    def excuses(self, claim: Claim) -> bool:
        """Whether the claim's node waited here for somebody else, about as long as it came late there."""
        enough = MIN_EXCUSED_SHARE * claim.share
        return (
            self.communicator != claim.communicator
            and self.waiting.get(claim.node, 0.0) >= enough
            and any(node != claim.node and share >= enough for node, share in self.suspects.items())
        )


def without_victims(claims: Iterable[Claim], profiles: Iterable[WaitProfile]) -> list[Claim]:
    """Claims left when everybody is acquitted whom another communicator of its cluster held up.

    Two that could each be the other's victim are both acquitted.
    """
    known_profiles = list(profiles)
    return [claim for claim in claims if not any(wait_profile.excuses(claim) for wait_profile in known_profiles)]
