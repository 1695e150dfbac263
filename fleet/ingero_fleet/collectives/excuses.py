"""Excuses nodes that came late only because another communicator delayed them. Pure.

A node in two communicators that has to wait in one comes late to the other. Both communicators observe this at
almost the same time, and either may prove it first, so proof does not distinguish a victim from a straggler.
Therefore a rank that is only likely to be late in one communicator already excuses the nodes that waited for it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

MIN_EXCUSED_SHARE: Final = 0.5
"""A node is excused when it waited elsewhere for at least this part of the time by which it is late."""


@dataclass(frozen=True)
class Claim:
    """One accusation: the communicator, the node, and the share of time that was lost waiting for it."""

    communicator: int
    node: str
    share: float


@dataclass(frozen=True)
class WaitProfile:
    """Who waited for whom in one communicator, shares of time by node.

    `suspects`: time lost to each node that is likely to be late in it; `waiting`: how long each node's ranks waited
    at least; `slowed`: the share by which all of its collectives last longer than those of like communicators;
    `longer`: by how much nodes waited longer than the ranks of like communicators.
    """

    communicator: int
    suspects: dict[str, float]
    waiting: dict[str, float]
    slowed: float = 0.0
    longer: Mapping[str, float] = field(default_factory=dict)

    def excuses(self, claim: Claim) -> bool:
        """Whether the claim's node waited here, for a node or the network, about as long as it came late there."""
        enough = MIN_EXCUSED_SHARE * claim.share
        if self.communicator == claim.communicator or claim.node not in self.waiting:
            return False
        if 0 < max(self.slowed, self.longer.get(claim.node, 0.0)) >= enough:
            return True
        return self.waiting[claim.node] >= enough and any(
            node != claim.node and share >= enough for node, share in self.suspects.items()
        )


def without_victims(claims: Iterable[Claim], profiles: Iterable[WaitProfile]) -> list[Claim]:
    """The claims without nodes that another communicator of their cluster delayed.

    Two nodes that could each be the other's victim are both excused.
    """
    known_profiles = list(profiles)
    return [claim for claim in claims if not any(wait_profile.excuses(claim) for wait_profile in known_profiles)]
