"""Plots an audit: the loss of every chip, sorted, with what is healthy and who is named."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from ingero_analyze.audit.inputs import AuditInput
from ingero_analyze.figures import PlotError, pyplot, save
from ingero_detect.audit.audit_results import AuditResult

MOST_POPULATIONS: Final = 8
MOST_LABELS: Final = 12


def draw(result: AuditResult, inputs: Sequence[AuditInput], file: Path) -> None:
    """Write the plot. Raises `PlotError`."""
    plt = pyplot()
    shown = [number for number, found in enumerate(result.populations) if not found.refused][:MOST_POPULATIONS]
    if not shown:
        raise PlotError("there is nothing to draw")
    figure, axes = plt.subplots(
        len(shown), 1, figsize=(11, 3.2 * len(shown) + 0.6), squeeze=False, layout="constrained"
    )
    for axis, number in zip(axes[:, 0], shown, strict=True):
        found, given = result.populations[number], inputs[number]
        loss = 100 * (1 - np.exp(found.centre - found.fit.effect))
        order = np.argsort(loss)
        order = order[np.isfinite(loss[order])]
        mine = [one for one in result.findings if one.population == number]
        named = np.zeros(len(loss), np.bool_)
        for one in mine:
            named[list(one.members)] = True
        place = np.empty(len(loss))
        place[order] = np.arange(len(order))
        usual = 200 * found.spread
        label = f"healthy chips: ±{usual:.1f} % (two standard deviations)"
        axis.axhspan(-usual, usual, color="tab:green", alpha=0.12, label=label)
        axis.scatter(place[order], loss[order], s=6, color=np.where(named[order], "tab:red", "0.5"))
        for one in mine[:MOST_LABELS]:
            names = {"chip": given.chips, "node": given.nodes, "group": given.groups}[one.level]
            worst = max(one.members, key=lambda unit: loss[unit])
            axis.annotate(f"{names[one.number]} ({one.level})", (place[worst], loss[worst]), fontsize=6, ha="right")
        axis.set_title(f"{given.population.name or 'all'}: {found.units} chips, {len(mine)} findings", fontsize=9)
        axis.set_ylabel("% slower than its like")
        axis.invert_yaxis()
        axis.legend(fontsize=7, loc="lower left")
    axes[-1, 0].set_xlabel("chips, sorted; red: named, or on a node that is")
    save(plt, figure, file)
