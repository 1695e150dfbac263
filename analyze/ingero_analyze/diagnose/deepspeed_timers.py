"""Reads the timers that DeepSpeed logs (`wall_clock_breakdown`) as a row for each step of a rank.

Every line has the rank that wrote it, and milliseconds: `[Rank 0] time (ms) | fwd: 120.10 | bwd: 240.20`. By default
only rank 0 writes them. Timers of micro-steps are used where there are no others. With ZeRO a step has a second line,
of what the optimizer does within its step.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from ingero_analyze.diagnose.rank_timers import lines_of
from ingero_analyze.json_tables import Fail, LineStream, Row

MARK: Final = re.compile(r"\[Rank \d+\] (?:rank=\d+ )?time \(ms\) \| ")
"""What the log has in every line with timers, after the rank."""

_LINE: Final = re.compile(r"\[Rank (\d{1,7})\] (?:rank=\d+ )?time \(ms\) \| (.+)")
_TIMER: Final = re.compile(r"([A-Za-z]\w{0,80}): (\d+(?:\.\d+)?)")

_MICRO: Final = "_microstep"
_WITHIN: Final = re.compile(r"(bwd|backward|optimizer)_\w+")
_OUTER: Final = {"optimizer": "step"}
"""Timers that contain those whose names begin otherwise."""

_WHOLE: Final = "train_batch"
_NAMES: Final = {"step": "optimizer", "bwd_allreduce": "allreduce", "backward_allreduce": "allreduce"}
"""Timers whose names say something else elsewhere: a step here is that of the optimizer."""


def rows_of(first: bytes, stream: LineStream, fail: Fail) -> Iterator[tuple[int, Row]]:
    """A row for each line with timers, with its number; `first` was read already. The step is counted by rank."""
    whole, micro = list[tuple[int, str, dict[str, float]]](), list[tuple[int, str, dict[str, float]]]()
    for number, line in lines_of(first, stream):
        if found := _LINE.search(line):
            timers = {name: float(time) for name, time in _TIMER.findall(found[2])}
            small = all(name.endswith(_MICRO) for name in timers)
            (micro if small else whole).append((number, found[1], timers))
    steps = Counter[str]()
    for number, rank, timers in _by_step(whole or micro):
        own = _without_contained(timers)
        if own:
            yield number, {"step": str(steps[rank]), "rank": rank, **{f"{name} (ms)": str(own[name]) for name in own}}
            steps[rank] += 1


def _by_step(lines: list[tuple[int, str, dict[str, float]]]) -> Iterator[tuple[int, str, dict[str, float]]]:
    """The lines of a rank that have no timer in common are of one step."""
    begun: dict[str, tuple[int, str, dict[str, float]]] = {}
    for number, rank, timers in lines:
        step = begun.get(rank)
        if step is not None and step[2].keys().isdisjoint(timers):
            step[2].update(timers)
            continue
        if step is not None:
            yield step
        begun[rank] = number, rank, dict(timers)
    yield from begun.values()


def _without_contained(timers: dict[str, float]) -> dict[str, float]:
    """Timers by what they measure, that of the backward pass without those within it."""
    plain = {name.removesuffix(_MICRO): time for name, time in timers.items()}
    plain.pop(_WHOLE, None)
    for name in tuple(plain):
        if within := _WITHIN.fullmatch(name):
            outer = _OUTER.get(within[1], within[1])
            if outer in plain:
                plain[outer] = round(max(plain[outer] - plain[name], 0.0), 6)
    return {_NAMES.get(name, name): time for name, time in plain.items()}
