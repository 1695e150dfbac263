"""Answers from PyTorch Flight Recorder dumps which rank is missing from which collective."""

from typing import Any, Final

from ingero_analyze.diagnose.hangs import SHOWN, SHOWN_RANKS, Hang, HangKind, find_hang
from ingero_analyze.diagnose.sources import Claims

__all__ = ["CLAIMS", "HANGS", "HangKind", "answer", "find_hang"]

CLAIMS: Final = Claims(
    can=(
        "which ranks are missing from which collective, and who waits for them",
        "that ranks call different collectives, or with different sizes, under one number",
        "who is late, where timing was recorded (TORCH_NCCL_ENABLE_TIMING)",
    ),
    cannot=(
        "why a missing rank is missing: its stack, its host and its log say that",
        "whether a rank that left no dump is dead or only did not write one",
        "whether a collective that is under way would still have ended: a dump is one moment",
    ),
)

HANGS: Final = {
    "hang": "the job waits for rank {ranks}, which came to no collective that others are in",
    "no_dump": "everybody who left a dump waits; rank {ranks} left none",
    "unknown": "the dumps do not tell: too much is missing, unreadable, or gone from the rings",
    "mismatch": "ranks call different collectives under one number; differing from most: {ranks}",
    "order": "ranks wait for each other: they call collectives in different orders, or one is held up elsewhere",
    "stuck": "everybody has come and nobody goes on: the transport or a GPU, not a rank's program",
    "none": "no collective is under way in these dumps",
}
"""The verdicts as sentences."""


def answer(hang: Hang) -> dict[str, Any]:
    """The verdict as the command prints it."""
    return {
        "kind": str(hang.kind),
        "ranks": list(hang.ranks[:SHOWN_RANKS]),
        "slowdown": None,
        "seconds_lost_per_step": None,
        "evidence": {
            "by": "flight_recorder",
            "dumps": hang.dumps,
            "ranks_count": len(hang.ranks),
            "collectives": [front.answer() for front in hang.fronts[:SHOWN]],
            "collectives_count": len(hang.fronts),
            "waiting_pairs": [list(pair) for pair in hang.pairs[:SHOWN]],
        },
    }
