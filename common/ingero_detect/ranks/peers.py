"""Which ranks do the same work, and how what they do compares. Pure."""

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints


def like_work(stage: Ints) -> Ints:
    """Which ranks do the same work: those of a stage, or all if stages are not known."""
    return stage if (stage >= 0).all() else np.zeros_like(stage)


def alone_in_stage(stage: Ints) -> Bools:
    """Ranks alone in their pipeline stage: how long they wait depends on their place in the schedule."""
    alike = like_work(stage)
    return np.asarray((np.bincount(alike)[alike] == 1) & (len(np.unique(alike)) > 1))


def is_made_of(flagged: Bools, parts: Ints) -> bool:
    """Whether the slow ranks are exactly those of one or more pipeline stages of several ranks."""
    if (parts < 0).any() or not 2 <= len(np.unique(parts)) < len(parts):
        return False
    touched = np.isin(parts, np.unique(parts[flagged]))
    return bool((touched == flagged).all())


def relative_compute(compute: Floats, period: float) -> Floats:
    """Seconds of computing relative to the step's median, as a share of a step of usual length."""
    usual = np.nanmedian(compute, axis=0)
    weight = float(np.nanmedian(usual)) / period
    return np.asarray(compute / np.maximum(usual, 1e-12) * min(weight, 1.0))


def share_of_step(relative: Floats) -> float:
    """The share of a step that ranks compute."""
    return min(1.0, float(np.nanmedian(relative)))


def worst_first(flagged: Bools, excess: Floats) -> tuple[tuple[int, ...], dict[str, float]]:
    """The flagged ranks, the largest excess first, and their excess as evidence."""
    ranks = tuple(int(rank) for rank in np.flatnonzero(flagged)[np.argsort(-excess[flagged], kind="stable")])
    return ranks, {str(rank): round(float(excess[rank]), 6) for rank in ranks}
