"""What may explain that ranks are slow, other than the ranks themselves: their data or an uneven partition. Pure."""

from dataclasses import dataclass, replace
from typing import Any, Final

from ingero_detect.grouped import Bools, Floats
from ingero_detect.ranks.imbalance import Cause, Diagnosis
from ingero_detect.ranks.operation_excess import OperationExcess
from ingero_detect.ranks.shared_data import DataGroups

REPLICA: Final = "replica"
"""What shows ranks that are slow together with all ranks that share their data."""

OPERATIONS: Final = "operations"
"""What shows ranks that need longer in some of their operations, and in the others are as fast as their peers."""

ROUTED: Final = "routed"
"""What shows ranks that need longer where tokens may be routed to them, of which no amount is known."""


@dataclass(frozen=True)
class Doubts:
    """The groups that share data, and in which operations ranks need longer. `period`: seconds of a step."""

    shared: DataGroups
    operations: OperationExcess
    period: float

    def apart(
        self, flagged: Bools, longer: Floats, by: str, late: Floats | float = 0.0
    ) -> list[tuple[Bools, str]]:  # fmt: skip
        """Ranks that are slow by themselves, those that are with their replica, those in some operations only, and
        those that may have more tokens.

        `longer`: by rank, over ranks with the same work; `late`: share of all steps by which each is late.
        """
        together = self.shared.slow_together(flagged, longer)
        partly = flagged & ~together & self.operations.explains(late * self.period)
        routed = flagged & ~together & ~partly & self.operations.routes(late * self.period)
        kinds = (
            (flagged & ~together & ~partly & ~routed, by), (together, REPLICA), (partly, OPERATIONS), (routed, ROUTED)
        )  # fmt: skip
        return [(flags, kind) for flags, kind in kinds if flags.any()]

    def with_operations(self, item: Diagnosis) -> Diagnosis:
        """The finding with the operations in which its ranks need longer, and in which doubtful ones do not."""
        possible = item.evidence.get("possible", ())
        longer = {str(rank): self.operations.longer(rank) for rank in (*item.ranks, *possible)}
        shown: dict[str, Any] = {"longer_in": {rank: found for rank, found in longer.items() if found}}
        if item.evidence.get("by") == OPERATIONS:
            shown["as_fast_as_peers_in"] = {str(rank): self.operations.alike(rank) for rank in possible}
        return replace(item, evidence={**item.evidence, **{name: value for name, value in shown.items() if value}})


def doubted(slow: Diagnosis) -> Diagnosis:
    """Nobody is named for what longer sequences, or more work in some operations or of experts, explain as well."""
    if slow.evidence["by"] not in (REPLICA, OPERATIONS, ROUTED):
        return slow
    evidence = {**slow.evidence, "possible": sorted(slow.ranks)}
    return replace(slow, cause=Cause.UNKNOWN, ranks=(), evidence=evidence)
