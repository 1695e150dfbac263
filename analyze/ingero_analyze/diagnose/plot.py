"""Plots a timeline: how much longer every rank computes than its peers, and how much less it waits, step by step."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ingero_analyze.diagnose.timeline_files import RecordedTimeline
from ingero_analyze.figures import PlotError, pyplot, save
from ingero_detect.grouped import Floats
from ingero_detect.ranks.last_arrival import residuals_by_step
from ingero_detect.ranks.timeline import Timeline, most_common_by_rank, step_period, sum_by_rank_and_step
from ingero_detect.ranks.wait_attribution import with_exposed_waits

MOST_COLUMNS: Final = 400
"""Columns of a picture; of more steps, each has the mean of several."""

MOST_LABELS: Final = 24
LEAST_RANGE: Final = 5.0
"""Percent of a step that the colours span at least: what healthy ranks differ by stays pale."""

TITLES: Final = (
    "computes longer than the usual rank{of_stage}, % of a step",
    "waits less than the usual rank{of_stage}, % of a step: others wait for it",
)


def excesses(line: Timeline, by_stage: bool = True) -> tuple[Floats, Floats]:
    """By (rank, step), in percent of a step: compute above the median of ranks, and waiting below it.

    The ranks are those of a stage, or all of them. NaN where a rank did nothing of the kind.
    """
    period = step_period(line) or 1.0
    exposed = with_exposed_waits(line)
    computed = sum_by_rank_and_step(line, ~line.collective, line.duration)
    blocked = sum_by_rank_and_step(exposed, exposed.collective, exposed.duration)
    stage = most_common_by_rank(line, line.stage) if by_stage else np.zeros(line.ranks, np.int64)
    computed, blocked = (residuals_by_step(table, stage, fewest=1) for table in (computed, blocked))
    return 100 * computed / period, -100 * blocked / period


def in_columns(matrix: Floats, most: int = MOST_COLUMNS) -> Floats:
    """The matrix with at most so many columns, each the mean of neighbouring ones; NaN where all of them are."""
    width = -(-matrix.shape[1] // most)
    missing = -matrix.shape[1] % width
    parts = np.pad(matrix, ((0, 0), (0, missing)), constant_values=np.nan).reshape(len(matrix), -1, width)
    number = np.isfinite(parts).sum(axis=2)
    return np.where(number > 0, np.nansum(parts, axis=2) / np.maximum(number, 1), np.nan)


def draw(recorded: RecordedTimeline, title: str, named: Sequence[Any], by_stage: bool, file: Path) -> None:
    """Write the plot; `named`: the ranks that are marked; `by_stage`: whether ranks are compared within their stages.

    Raises `PlotError`.
    """
    plt = pyplot()
    several = by_stage and len(recorded.stages) > 1
    titles = [words.format(of_stage=" of its stage" if several else "") for words in TITLES]
    matrices = excesses(recorded.line, by_stage)
    parts = [(words, in_columns(part)) for words, part in zip(titles, matrices, strict=True)]
    parts = [(words, part) for words, part in parts if np.isfinite(part).any()]
    if not parts:
        raise PlotError("there is nothing to draw")
    ranks = len(recorded.ranks)
    height = float(np.clip(0.09 * ranks, 2.0, 9.0)) + 0.8
    figure, axes = plt.subplots(
        len(parts), 1, figsize=(11, height * len(parts) + 0.5), squeeze=False, layout="constrained", sharex=True
    )
    figure.suptitle(title, fontsize=10, wrap=True)
    marked = [recorded.ranks.index(rank) for rank in named if rank in recorded.ranks]
    for axis, (words, part) in zip(axes[:, 0], parts, strict=True):
        most = max(LEAST_RANGE, float(np.nanquantile(np.abs(part), 0.99)))
        shown = axis.imshow(
            part, aspect="auto", interpolation="nearest", cmap="RdBu_r", vmin=-most, vmax=most,
            extent=(-0.5, recorded.line.steps - 0.5, ranks - 0.5, -0.5),
        )  # fmt: skip
        axis.set_facecolor("0.85")
        axis.set_title(words, fontsize=9)
        axis.set_ylabel("rank")
        _label(axis, recorded.ranks, marked)
        figure.colorbar(shown, ax=axis, pad=0.01)
    axes[-1, 0].set_xlabel("step")
    save(plt, figure, file)


def _label(axis: Any, ranks: Sequence[Any], marked: Sequence[int]) -> None:
    """Names of some ranks, and those of the marked ones in red."""
    spaced = range(0, len(ranks), -(-len(ranks) // MOST_LABELS))
    near = len(ranks) / (2 * MOST_LABELS)
    places = sorted({*marked[:MOST_LABELS], *(one for one in spaced if all(abs(one - own) > near for own in marked))})
    axis.set_yticks(places, [str(ranks[place]) for place in places], fontsize=7)
    for place, label in zip(places, axis.get_yticklabels(), strict=True):
        if place in marked:
            label.set(color="tab:red", fontweight="bold")
