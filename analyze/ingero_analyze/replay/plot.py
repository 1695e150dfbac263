"""Plots a replay: the fleet over time as a heat map, and the worst episodes as curves."""

import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from ingero_analyze.figures import PlotError, pyplot, save
from ingero_analyze.replay.result import Replay
from ingero_contract.identifiers import NodeKey
from ingero_detect.nodes.episodes import Episode

MOST_NODES: Final = 60
"""Rows of the heat map: accused nodes first, then others evenly."""

CURVES: Final = 3


def draw(done: Replay, file: Path) -> None:
    """Write the plot. Raises `PlotError`."""
    plt = pyplot()
    watch = done.watch
    if watch is None or not watch.times:
        raise PlotError("there is nothing to draw")
    names = done.judge.names()
    grid = np.full((len(names), len(watch.times)), np.nan, np.float32)
    for column, speed in enumerate(watch.speeds):
        rows = min(len(speed), len(names))
        grid[:rows, column] = speed[:rows]
    times = np.array(watch.times)
    accused = list(dict.fromkeys(item.node for item in done.episodes))
    number = {name: place for place, name in enumerate(names)}
    shown = [number[name] for name in accused if name in number][:MOST_NODES]
    others = [place for place in range(len(names)) if place not in set(shown)]
    if others and len(shown) < MOST_NODES:
        chosen = np.linspace(0, len(others) - 1, min(len(others), MOST_NODES - len(shown))).astype(int)
        shown += [others[place] for place in np.unique(chosen).tolist()]
    worst = sorted(done.episodes, key=lambda item: -item.last.severity)
    curves = list({item.node: item for item in reversed(worst)}.items())[::-1][:CURVES]
    heights = [max(2.0, 0.16 * len(shown))] + [1.8] * len(curves)
    figure, axes = plt.subplots(
        len(heights), 1, figsize=(11, sum(heights) + 1), height_ratios=heights, sharex=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    ground = 0.0 if not done.history.reading.calendar else float(times[0])
    hours = (times - ground) / 3600 if done.history.reading.calendar else times
    top = axes[0, 0]
    heatmap = top.imshow(
        np.clip(grid[shown], 0, 1.25), aspect="auto", interpolation="nearest", cmap="RdYlGn", vmin=0.4, vmax=1.1,
        extent=(hours[0], hours[-1], len(shown), 0),
    )  # fmt: skip
    top.set_yticks(np.arange(len(shown)) + 0.5, [_shown(names[place]) for place in shown], fontsize=6)
    some = "" if len(shown) == len(names) else f" ({len(shown)} of {len(names):,})"
    top.set_title(f"speed of nodes{some} relative to what was expected of them; black bars: accused")
    figure.colorbar(heatmap, ax=top, pad=0.01)
    scale = 3600.0 if done.history.reading.calendar else 1.0
    for episode in done.episodes:
        name = episode.node
        row = shown.index(number[name]) if name in number and number[name] in shown else None
        if row is not None:
            start = ((episode.first.detected or 0.0) - ground) / scale
            end = ((episode.end or done.last) - ground) / scale
            top.plot((start, end), (row + 0.5, row + 0.5), color="black", linewidth=1.2)
    for axis, (name, _) in zip(axes[1:, 0], curves, strict=True):
        mine = [item for item in done.episodes if item.node == name]
        _curve(axis, hours, grid, number, mine, ground, scale, done.last)
    label = "steps" if done.history.reading.steps else "seconds"
    if done.history.reading.calendar:
        label = f"hours since {datetime.fromtimestamp(ground, UTC):%Y-%m-%d %H:%M} UTC"
    axes[-1, 0].set_xlabel(label)
    save(plt, figure, file)


def _shown(node: NodeKey) -> str:
    return "/".join(filter(None, node))


def _curve(
    axis: Any,
    hours: Any,
    grid: Any,
    number: dict[Any, int],
    episodes: list[Episode],
    ground: float,
    scale: float,
    last: float,
) -> None:
    name = episodes[0].node
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        axis.plot(hours, np.nanmedian(grid, axis=0), color="0.6", linewidth=0.8, label="median of all")
    if name in number:
        axis.plot(hours, grid[number[name]], color="tab:red", linewidth=0.8, label=_shown(name))
    for episode in episodes:
        start, end = ((episode.first.since or 0.0) - ground) / scale, ((episode.end or last) - ground) / scale
        axis.axvspan(start, end, color="tab:red", alpha=0.12)
        axis.axvline(((episode.first.detected or 0.0) - ground) / scale, color="black", linewidth=0.8, linestyle="--")
    axis.set_ylim(0, 1.3)
    axis.ticklabel_format(axis="x", useOffset=False, style="plain")
    most = max(episode.last.severity for episode in episodes)
    axis.set_title(
        f"{_shown(name)}: {episodes[-1].last.kind}, up to {100 * most:.0f} % lost; dashed: named", fontsize=9
    )
    axis.legend(fontsize=7, loc="lower left")
