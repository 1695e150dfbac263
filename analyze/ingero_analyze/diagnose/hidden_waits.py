"""Finds the operation in which ranks wait for each other where no collective was recorded. Pure.

Ranks that wait for each other take equally long for a step, whatever their operations take: differences of one
operation come back in another one, with the other sign. That one contains the waits.
"""

import re
from typing import Final

import numpy as np

from ingero_analyze.audit.columns import words_of
from ingero_detect.grouped import Floats, Ints
from ingero_detect.ranks.timeline import FEWEST_STEPS

FEWEST_RANKS: Final = 3
"""Ranks from which totals are seen to agree."""

MOST_CELLS: Final = 8
"""Operations of ranks and steps for each one that was recorded, at most: operations with names of their own in every
step, or many absent ones, show no waits, and would take memory with the square of a file."""

AGREE: Final = 0.5
"""Differences of whole steps between ranks over those of their operations, taken for independent, at most."""

GROWS: Final = 2.0
"""By how many times differences of all steps together may exceed those of one: without waits they add up."""

LARGEST: Final = 0.7
"""Variance of the operation that contains the waits, over that of all others together, at least."""

_BEFORE: Final = re.compile(r"\b(?:data|dataloader|load|loading|batch|input|forward|fwd|h2d|copy|compute|comp)\b")
"""Operations of a rank alone, or before anything that ranks do together."""

HIDDEN_WAITS: Final = (
    "no collective was recorded, and ranks wait for each other within {op}: all take equally long for a step. "
    "No rank is late to it, and which one computes longer within it does not show; record collectives of their own "
    "(allreduce_ms), or traces of PyTorch's profiler (--kineto)"
)


def waiting_operation(rank: Ints, step: Ints, op: Ints, duration: Floats, names: list[str]) -> int | None:
    """The operation that contains the waits of ranks for each other; `None` where none is seen to."""
    ops, code = np.unique(op, return_inverse=True)
    ranks, steps = int(rank.max(initial=-1)) + 1, int(step.max(initial=-1)) + 1
    if len(ops) < 2 or ranks < FEWEST_RANKS:
        return None
    shape, cells = (len(ops), ranks, steps), len(ops) * ranks * steps
    if cells > MOST_CELLS * len(rank):
        return None
    place = (code * ranks + rank) * steps + step
    seconds = np.bincount(place, duration, cells).astype(np.float64).reshape(shape)
    there = np.bincount(place, minlength=cells).reshape(shape) > 0
    complete = (there.all(axis=1) | ~there.any(axis=1)).all(axis=0) & there.any(axis=(0, 1))
    if complete.sum() < FEWEST_STEPS:
        return None
    apart = np.stack([_centred(own[:, complete]) for own in seconds])
    whole = _centred(apart.sum(axis=0))
    variance = np.array([_spread(own) ** 2 for own in apart])
    if _spread(whole) > AGREE * np.sqrt(variance.sum()):
        return None
    if _spread(_centred(whole.sum(axis=1))) > GROWS * max(_spread(whole), 1e-3 * np.sqrt(variance.sum())):
        return None
    last = int(variance.argmax())
    alone = _BEFORE.search(words_of(names[int(ops[last])]))
    if alone and variance[last] < (1 + LARGEST) * np.sort(variance)[-2]:
        # Of two operations, each has what the other one lacks: the later one contains the waits.
        last = int(np.argsort(variance)[-2])
        alone = _BEFORE.search(words_of(names[int(ops[last])]))
    return None if alone or variance[last] < LARGEST * (variance.sum() - variance[last]) else int(ops[last])


def _spread(values: Floats) -> float:
    """A robust deviation of differences from the median."""
    return float(np.quantile(np.abs(values), 0.683))


def _centred(values: Floats) -> Floats:
    """Values by rank and anything else, minus the median of ranks."""
    return values - np.median(values, axis=0)
