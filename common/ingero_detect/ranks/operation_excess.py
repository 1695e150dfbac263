"""In which compute operations a rank needs longer than ranks with the same work. Pure.

A slow chip is slow in about all kernels. A rank that is as fast as its peers in a good part of its compute, and
slower in several other operations, has more to do there: a hot expert, or a longer part of a sequence, forward and
backward. A fault of some kinds of kernels would look the same. A host that stands still lengthens what it interrupts
in some steps only, whatever that is; one that is slow (its data loader, another process) lengthens one operation.
What peers never do, such as sampling on the first rank, is more to do however it is spread. Where tokens are routed
to experts, and nothing says how many, only what is no work of experts shows whether a chip is slow.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints
from ingero_detect.ranks.last_arrival import FAR_SIGMAS, residuals_by_step
from ingero_detect.ranks.rank_outliers import trimmed_mean
from ingero_detect.ranks.timeline import FEWEST_STEPS, Timeline, sum_by_rank_and_step
from ingero_detect.threshold import MAD_TO_SIGMA

USUAL: Final = 1 / 3
"""Share of a rank's relative excess below which one of its operations is as fast as that of its peers."""

SURE_ERRORS: Final = 3.0
"""Standard errors by which it must be below that."""

USUAL_SHARE: Final = 0.15
"""Share of compute in operations as fast as those of peers from which a rank is not slow in all that it computes."""

PROVING_SHARE: Final = 0.05
"""Share of compute that is no work of experts, and in which a rank is slow, from which its chip is."""

CALM_SHARE: Final = 0.25
"""Share of steps without excess from which an excess is that of single steps."""

FEWEST_CHANGES: Final = 4
"""How often steps with and without excess must follow one another to be single steps."""

EXPLAINED: Final = 0.5
"""Share of a rank's lateness from which its compute explains it."""

SEVERAL: Final = 2
LARGE_SHARE: Final = 0.2
"""Operations, each with so much of a rank's excess at least, in which a rank with more to do needs longer."""

MOST_OPERATIONS: Final = 256

SHOWN: Final = 8
"""Operations that are listed of a rank, those with the largest excess."""

SMALLEST_SHARE: Final = 0.05
"""Share of a rank's excess below which an operation is not listed."""


@dataclass(frozen=True)
class OperationExcess:
    """Seconds a step that each rank needs longer in each operation, by (rank, operation); `ops` are their numbers.

    `usual`: operations in which a rank is as fast as its peers; `partial`: ranks whose excess is lasting and lies in
    the other ones only; `routed`: those whose excess is lasting and lies in work that tokens may be routed to.
    """

    ops: Ints
    seconds: Floats
    usual: Bools
    partial: Bools
    routed: Bools

    def explains(self, late: Floats | float) -> Bools:
        """Ranks that are late by so many seconds a step because they have more to do in some operations."""
        return np.asarray(self.partial & (self.seconds.sum(axis=1) >= EXPLAINED * late))

    def routes(self, late: Floats | float) -> Bools:
        """Ranks that are late by so many seconds a step because of compute that may be that of more tokens."""
        return np.asarray(self.routed & (self.seconds.sum(axis=1) >= EXPLAINED * late))

    def longer(self, rank: int) -> dict[int, float]:
        """The operations in which the rank's excess lies, and its seconds a step; the largest first."""
        own = self.seconds[rank]
        least = SMALLEST_SHARE * float(own[own > 0].sum())
        order = np.argsort(-own, kind="stable")[:SHOWN].tolist()
        return {int(self.ops[place]): round(float(own[place]), 9) for place in order if own[place] > least > 0}

    def alike(self, rank: int) -> list[int]:
        """The operations in which the rank is as fast as its peers."""
        return [int(op) for op in self.ops[self.usual[rank]][:SHOWN]]


def operation_excess(line: Timeline, alike: Ints) -> OperationExcess:
    """The excess of every rank by operation; `alike` numbers the ranks that do the same work."""
    computes = ~line.collective
    ops = np.unique(line.op[computes])
    nothing = np.zeros((line.ranks, len(ops)))
    total = sum_by_rank_and_step(line, computes, line.duration)
    steps = np.isfinite(total).mean(axis=0) >= 0.8
    if not 0 < len(ops) <= MOST_OPERATIONS or steps.sum() < 2:
        nobody = np.zeros(line.ranks, np.bool_)
        return OperationExcess(ops[:0], nothing[:, :0], nothing[:, :0] > 0, nobody, nobody)
    tables = []
    for op in ops.tolist():
        table = sum_by_rank_and_step(line, computes & (line.op == op), line.duration)[:, steps]
        tables.append(np.where(np.isfinite(total[:, steps]), np.nan_to_num(table), np.nan))
    apart = [residuals_by_step(table, alike) for table in tables]
    means, errors = (np.array(found).T for found in zip(*map(trimmed_mean, apart), strict=True))
    base = np.array([np.nanmean(table - own, axis=1) for table, own in zip(tables, apart, strict=True)]).T
    alone = np.bincount(alike)[alike] < 2
    means[alone], whole = 0.0, np.maximum(base.sum(axis=1, keepdims=True), 1e-12)
    excess = means.sum(axis=1, keepdims=True) / whole
    usual: Bools = means + SURE_ERRORS * errors < USUAL * excess * base
    told = np.array([_work_is_known(line, computes & (line.op == op)) for op in ops.tolist()])
    partial: Bools = (np.where(usual, base, 0.0) / whole).sum(axis=1) >= USUAL_SHARE
    partial &= (excess[:, 0] > 0) & ~alone & (~usual & ~told & (means > 0)).any(axis=1)
    # Other operations instead of those of peers, such as other kernels, are nothing more to do.
    lacking = np.where(means <= (USUAL - 1) * base, base, 0.0).sum(axis=1)
    for rank in np.flatnonzero(partial).tolist():
        chosen = np.flatnonzero(~usual[rank]).tolist()
        longer = float(means[rank, chosen].sum())
        large = means[rank, chosen] >= LARGE_SHARE * longer
        if (base[rank, chosen][large] <= 0).all() and lacking[rank] < LARGE_SHARE * longer:
            continue
        partial[rank] = np.count_nonzero(large) >= (SEVERAL if line.routed is None else 1) and not _in_single_steps(
            np.sum([apart[place] for place in chosen], axis=0), rank
        )
    own = np.array([line.routed is None or not line.routed[line.op == op].any() for op in ops.tolist()])
    slow = means - SURE_ERRORS * errors > USUAL * excess * base
    elsewhere = (np.where(slow & own, base, 0.0) / whole).sum(axis=1) >= PROVING_SHARE
    routed = ~own.all() & ~elsewhere & ~alone & (excess[:, 0] > 0)
    for rank in np.flatnonzero(routed).tolist():
        routed[rank] = not _in_single_steps(np.sum([apart[place] for place in np.flatnonzero(~own)], axis=0), rank)
    return OperationExcess(ops, means, usual, partial, routed)


def _work_is_known(line: Timeline, rows: Bools) -> bool:
    """Whether the rows' work is known, so that it explains nothing of what remains."""
    return line.work is not None and bool(np.isfinite(line.work[rows]).all())


def _in_single_steps(apart: Floats, rank: int) -> bool:
    """Whether a rank is far behind in some steps, again and again, and in the others hardly is."""
    own = apart[rank][np.isfinite(apart[rank])]
    others = np.delete(apart, rank, axis=0)
    noise = MAD_TO_SIGMA * float(np.nanmedian(np.abs(others)))
    far = own > FAR_SIGMAS * noise
    if len(own) < FEWEST_STEPS or not far.any() or (~far).mean() < CALM_SHARE:
        return False
    usual = own[~far].mean()
    return bool(usual < min(own[far].mean() / 3, noise) and np.count_nonzero(np.diff(far)) >= FEWEST_CHANGES)
