"""Reads the timers that Megatron-LM logs for every rank (`--timing-log-option all`) as a row for each step of a rank.

A block of the log has a line for each timer and below it one for each rank, in milliseconds, a mean over the steps
since the last block. A timer around others counts without them.
"""

import io
import re
from collections.abc import Iterator
from typing import Final

from ingero_analyze.json_tables import MOST_BYTES, Fail, LineStream, Row
from ingero_analyze.worded_lines import without_launcher

MARK: Final = "times across ranks (ms):"
"""What the log has before every block."""

_STEP: Final = re.compile(r"\biteration\s+(\d{1,12})\b")
_TIMER: Final = re.compile(r"\s*([A-Za-z][\w /().-]{0,80}):\s*")
_RANK: Final = re.compile(r"\s*rank\s+(\d{1,7}):\s+(\d+(?:\.\d+)?)\s*")

_SETUP: Final = "-setup"
"""How timers of the time before the first step end."""

_WITHIN: Final = (
    ("forward-backward", re.compile(r"(?:forward|backward)-(?!backward$).*|.*grads.*(?:sync|reduce).*")),
    ("optimizer", re.compile(r"optimizer-.*")),
    ("forward-compute", re.compile(r"batch-generator")),
)
"""Timers, and those that they contain."""


def rows_of(first: bytes, stream: LineStream, fail: Fail) -> Iterator[tuple[int, Row]]:
    """A row for each rank of every block, with the number of the block's first line; `first` was read already.

    The step is the last iteration that the log tells, else the number of the block.
    """
    blocks, step, begin, timer = 0, "", 0, ""
    found: dict[str, dict[str, float]] = {}
    for number, line in lines_of(first, stream):
        rank = _RANK.fullmatch(line) if begin else None
        named = _TIMER.fullmatch(line) if begin else None
        if rank and timer:
            found.setdefault(rank[1], {})[timer] = float(rank[2])
        elif MARK in line:
            yield from _rows(begin, step or str(blocks), found)
            blocks, begin, timer, found = blocks + 1, number, "", {}
        elif named:
            timer = named[1]
        else:
            yield from _rows(begin, step or str(blocks), found)
            begin, timer, found = 0, "", {}
        if told := _STEP.search(line):
            step = told[1]
    yield from _rows(begin, step or str(blocks), found)


def lines_of(first: bytes, stream: LineStream, *, bare: bool = True) -> Iterator[tuple[int, str]]:
    """Lines and their numbers, `bare` without what a launcher puts before them; `first` was read already."""
    begin, number = io.BytesIO(first), 1
    while line := begin.readline() or stream.readline(MOST_BYTES):
        line += b"" if line.endswith(b"\n") else stream.readline(MOST_BYTES)
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        yield number, without_launcher(text)[0] if bare else text
        number += 1


def _rows(number: int, step: str, found: dict[str, dict[str, float]]) -> Iterator[tuple[int, Row]]:
    for rank, timers in found.items():
        own = _without_contained(timers)
        if own:
            yield number, {"step": step, "rank": rank, **{f"{name} (ms)": str(own[name]) for name in own}}


def _without_contained(timers: dict[str, float]) -> dict[str, float]:
    """Timers of steps, those around others without these."""
    own = {name: time for name, time in timers.items() if not name.endswith(_SETUP)}
    for outer, inner in _WITHIN:
        if outer in own:
            within = sum(time for name, time in own.items() if name != outer and inner.fullmatch(name))
            own[outer] = round(max(own[outer] - within, 0.0), 6)
    return own
