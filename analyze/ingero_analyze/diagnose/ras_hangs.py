"""The verdict on statuses of NCCL RAS, as `diagnose` prints it. Pure."""

from typing import Any, Final

from ingero_analyze.diagnose.hangs import SHOWN, SHOWN_RANKS
from ingero_analyze.diagnose.sources import Claims
from ingero_contract.values import HangVerdict
from ingero_detect.hangs.ras_hangs import APART, RasFront, judge_statuses
from ingero_detect.hangs.ras_status import RasStatus

CLAIMS: Final = Claims(
    can=(
        "which ranks have started fewer collectives than others of their communicators",
        "which processes NCCL considers dead, and which did not answer",
        f"that nothing moves, from two statuses that are {APART:.0f} seconds or more apart",
    ),
    cannot=(
        "whether a collective has ended: only what was started is counted",
        "whether a rank that is behind waits on its own GPU for a collective that all have started",
        "sends and receives",
    ),
)

RAS_HANGS: Final = {
    "hang": "the job waits for rank {ranks}, which has started fewer collectives and waits for no other",
    "no_dump": "the process of rank {ranks} is dead; ranks of its communicators wait for it",
    "unknown": "the statuses do not show the cause; ranks that are possible are listed",
    "none": "no rank is known to let others wait",
}
"""The verdicts as sentences."""


def find_ras_hang(statuses: list[RasStatus], *, damaged: bool = False) -> dict[str, Any]:
    """The verdict on the last status, as the command prints it; the statuses are in the order of their times."""
    found = judge_statuses(statuses, damaged=damaged)
    named = found.ranks[:SHOWN_RANKS]
    return {
        "kind": "no_dump" if found.kind is HangVerdict.DEAD else str(found.kind),
        "ranks": [rank.name for rank in named],
        "slowdown": None,
        "seconds_lost_per_step": None,
        "evidence": {
            "by": "ras",
            "statuses": len(statuses),
            "reason": found.reason,
            "ranks_count": len(found.ranks),
            "nodes": {str(rank.name): rank.process[0] for rank in named},
            "possible": [rank.name for rank in found.possible[:SHOWN_RANKS]],
            "possible_count": len(found.possible),
            "unresponsive": [rank.name for rank in found.unresponsive[:SHOWN_RANKS]],
            "collectives": [_front(front) for front in found.fronts[:SHOWN]],
            "collectives_count": len(found.fronts),
        },
    }


def _front(front: RasFront) -> dict[str, Any]:
    return {
        "group": front.comm, "description": "", "seq": front.seq, "op": front.op,
        "entered_count": front.entered, "missing_count": len(front.missing),
        "missing": [rank.name for rank in front.missing[:SHOWN_RANKS]],
    }  # fmt: skip
