"""The communicators that are known at present, and which node and pod is which of their ranks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ingero_fleet.collectives.excuses import WaitProfile
from ingero_fleet.collectives.points import PointReader, PointSource
from ingero_fleet.collectives.window import CommunicatorWindow

UNKNOWN_SOURCE = PointSource("", "", "")


@dataclass
class Communicators:
    """Communicators by the number that the reader gave them, which stays valid until `PointReader.forget`."""

    reader: PointReader
    windows: dict[int, CommunicatorWindow] = field(default_factory=dict)

    def source(self, window: CommunicatorWindow, rank: int) -> PointSource:
        """The latest sender of a rank's points; empty names when there is none."""
        place = int(window.members[rank])
        return self.reader.sources[place] if place >= 0 else UNKNOWN_SOURCE

    def member(self, window: CommunicatorWindow, rank: int) -> tuple[int | None, str | None]:
        """How a member is named: by its rank, or by its GPU where the rank is not known."""
        gpu = self.source(window, rank).gpu
        return (None, gpu) if gpu else (rank, None)

    def wait_profile(
        self, number: int, slowed: float = 0.0, longer: Mapping[str, float] = MappingProxyType({})
    ) -> WaitProfile:
        """Which nodes a communicator waited for, and which nodes waited in it; `slowed`: by a slow network, `longer`:
        than others do in like communicators."""
        window = self.windows[number]
        suspects: dict[str, float] = {}
        for rank, share in window.suspects.items():
            node = self.source(window, rank).node
            suspects[node] = max(share, suspects.get(node, 0.0))
        return WaitProfile(number, suspects, self._waiting(window), slowed, longer)

    def _waiting(self, window: CommunicatorWindow) -> dict[str, float]:
        """Share of time that each node's ranks waited at least, in the tick in which they waited longest."""
        period = window.elapsed_ms / max(1, len(window.time))
        waiting: dict[str, float] = {}
        for rank, wait in enumerate(window.waited.tolist()):
            node = self.source(window, rank).node
            if node and wait == wait and period > 0:
                waiting[node] = min(waiting.get(node, 1.0), wait / period)
        return waiting


def verdict_text(window: CommunicatorWindow, now: float) -> str:
    """`culprit`, `none: ...` or `unknown: ...`; the text says why no rank is named."""
    if now < window.disputed_until:
        return "unknown: a rank is claimed, or a number is used, twice, so that two communicators may share this hash"
    if not window.blocked_seen:
        return "unknown: the agents do not report how long ranks waited, and clocks of different hosts do not"
    if window.finding is None:
        return "unknown: no collective was seen from enough of its ranks lately"
    if window.finding.accused and window.excused:
        return (
            "none: who comes late was held up in another communicator, or what it waited for there is not known yet"
        )
    if window.finding.accused:
        return "culprit"
    if window.finding.unknown:
        return f"unknown: {window.finding.why_not}"
    return window.gpu or f"none: {window.finding.why_not}"
