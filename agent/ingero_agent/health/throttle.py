"""Why GPUs are throttled: the driver's bits as four kinds, and how often each kind began."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class Throttle(StrEnum):
    """A kind of throttling; one cause can be of two kinds."""

    POWER = "power"
    THERMAL = "thermal"
    SW = "sw"
    HW = "hw"


IDLE_BIT: Final = 0x001
"""Clocks are low because there is nothing to do: no throttling."""

_KINDS: Final = {
    0x002: (Throttle.SW,),  # clocks set by the user
    0x004: (Throttle.POWER, Throttle.SW),  # software power cap
    0x008: (Throttle.HW,),  # hardware slowdown
    0x010: (Throttle.SW,),  # sync boost
    0x020: (Throttle.THERMAL, Throttle.SW),  # software thermal slowdown
    0x040: (Throttle.THERMAL, Throttle.HW),  # hardware thermal slowdown
    0x080: (Throttle.POWER, Throttle.HW),  # hardware power brake
    0x100: (Throttle.SW,),  # display clocks
}


def throttle_kinds(bits: int) -> frozenset[Throttle]:
    """The kinds behind NVML's clock event reasons; a bit that is not known counts as hardware."""
    found = {kind for bit, names in _KINDS.items() if bits & bit for kind in names}
    if bits & ~(IDLE_BIT | sum(_KINDS)):
        found.add(Throttle.HW)
    return frozenset(found)


@dataclass(frozen=True)
class Throttling:
    """The kinds active on each GPU now, by UUID, and how often each began since the start."""

    now: Mapping[str, frozenset[Throttle]] = field(default_factory=dict)
    began: Mapping[tuple[str, Throttle], int] = field(default_factory=dict)

    @property
    def active(self) -> frozenset[Throttle]:
        """The kinds active on any GPU."""
        return frozenset().union(*self.now.values())

    def advance(self, seen: Mapping[str, frozenset[Throttle]]) -> "Throttling":
        """Add one sample. A GPU that reports nothing any more counts as not throttled."""
        began = dict(self.began)
        free: frozenset[Throttle] = frozenset()
        for gpu, active in seen.items():
            for kind in active - self.now.get(gpu, free):
                began[gpu, kind] = began.get((gpu, kind), 0) + 1
        return Throttling({gpu: seen.get(gpu, free) for gpu in {**self.now, **seen}}, began)
