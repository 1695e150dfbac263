"""Reads what training loops print of each rank's steps, among any other lines: `[rank3]: step 7 fwd 101.2ms bwd ...`.

A line with the times of two operations or more, of which one computes, is a step of the rank that its words or what
launchers put before it name; so is one with the times of loading data and of the whole step. All but the readers is
pure.
"""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

from ingero_analyze.audit.columns import SECONDS, words_of
from ingero_analyze.diagnose.rank_timers import lines_of
from ingero_analyze.json_tables import Fail, LineStream, Row

FEWEST_LINES: Final = 2
"""Lines with times from which a text is such a log."""

FEWEST_TIMES: Final = 2
LONGEST: Final = 4096
"""Times in a line, and characters of it; longer ones are no line of a loop."""

_COMPUTES: Final = (
    r"(?:forward|fwd)(?:[ _-](?:and[ _-])?(?:backward|bwd))?|backward|bwd|"
    r"(?:optimi[sz]er|optim|opt)(?:[ _-]step)?|data(?:[ _-]?(?:load(?:er|ing)?|wait|fetch))?|"
    r"batch[ _-]generator|comp(?:ute|utation)?"
)
_EXCHANGES: Final = (
    r"(?:[dtpec]p[ _-]|(?:grads?|gradient)[ _-])?(?:all[ _-]?(?:reduce|gather)|reduce[ _-]?scatter|"
    r"all[ _-]?to[ _-]?all|broadcast|barrier|comm|sync)(?:[ _-]wait)?|wait|waiting|blocked"
)
_SENDS: Final = (
    r"(?:pp[ _-])?(?:i?send|i?recv|receive|p2p)"
    r"(?:[ _-](?:forward|fwd|backward|bwd|next|prev|act\w{0,20}|grad\w{0,20}))?(?:[ _-](?:comm|wait))?"
)
_LAYERS: Final = (
    r"(?:attention|attn|experts?|mlp|ffn|moe|embed(?:ding)?s?|lm[ _-]?head)(?:[ _-](?:forward|fwd|backward|bwd))?"
)
"""Exchanges between stages and compute of layers. Such numbers may also be counted, so they need a unit."""

_UNIT: Final = "|".join(sorted((*SECONDS, "µs"), key=len, reverse=True))
_NUMBER: Final = (
    rf"(?:[ _]?\(?(?P<named>{_UNIT})\b\)?)?[\"']?\s*[:=]?\s*(?P<value>\d+\.?\d*(?:[eE][-+]?\d+)?)"
    rf"(?:\s?(?P<unit>{_UNIT}))?(?![\w.])"
)
"""A number, perhaps with a unit before or behind it."""

_TIME: Final = re.compile(
    rf"(?<![A-Za-z_])(?:time[ _/])?(?:(?P<computes>{_COMPUTES})|(?P<layers>{_LAYERS})|(?P<sends>{_SENDS})|"
    rf"(?P<exchanges>{_EXCHANGES}))"
    rf"(?:[ _-]pass)?(?:[ _-]?time)?{_NUMBER}",
    re.IGNORECASE,
)
"""The name of an operation and its time."""

_WHOLE: Final = re.compile(rf"(?<![A-Za-z_])(?:step|iter|iteration|batch)[ _-]?time{_NUMBER}", re.IGNORECASE)
_BARE: Final = re.compile(rf"(?<![A-Za-z_] )(?<![A-Za-z_])time{_NUMBER}", re.IGNORECASE)
_PROGRESS: Final = re.compile(r"\[\s*\d+/\s*\d+")
"""The time of a whole step, what it is called besides, and what lines of steps have then: `[ 50/1251]`."""

_LOADS: Final = re.compile(r"data\b.*|batch generator")

_RANK: Final = re.compile(
    r"(?<![A-Za-z_])(?<!local )(?:global[_ ])?rank[\"']?[ _:=#-]{0,3}(\d{1,7})(?!\d)", re.IGNORECASE
)
_STEP: Final = re.compile(
    r"(?<![A-Za-z])(?:step|iteration|iter|it|batch)(?:[_ ](?:id|idx|index|number))?[\"']?[ #:=\[]{0,4}(\d{1,12})"
    r"(?![\w.])",
    re.IGNORECASE,
)
_PLACED: Final = (
    re.compile(r"\(\w+ pid=(?P<local>\d+)(?:, ip=(?P<host>[\w.:-]+))?\)"),
    re.compile(r"\[pod/(?P<host>[^/\]]{1,253})[^\]]*\]"),
    re.compile(r"\[(?:[a-z]+|\d+,)(?P<rank>\d{1,7})\]"),
    re.compile(r"\s*(?P<rank>\d{1,6}): "),
    re.compile(r"\[[\dT:.,+ -]{10,40} (?P<host>[A-Za-z][\w.-]*\d[\w.-]*)\]"),
    re.compile(r"(?P<host>[A-Za-z][\w.-]*\d[\w.-]*)(?: \| |: )"),
)
"""What Ray, kubectl, torchrun, mpirun, srun, loggers and others put before each line of a process or host."""

_JSON: Final = re.compile(r"\s*(?:\{|\[\s*[\[{\"])")
"""How texts begin that are JSON, or what Python prints, from their first line on."""

_TRAINING: Final = re.compile(
    r"[\"']?(?:loss|lm loss|train_runtime|train_step_timing in s|elapsed time per iteration \(ms\)|\w*step_?time\w*|"
    r"Train (?:time|throughput)/\w+|\w*SamplesPerSec|tps|it_per_second)[\"']?\s*[:=]\s*[\"']?\d|"
    r"\d(?:s/it|it/s)[,\]]|\b(?:Loss|Time)[: ]\s*\d",
)
"""What logs of training have, whoever writes them."""


def are_of_loop(begin: str) -> bool:
    """Whether a text that begins so is such a log."""
    if _JSON.match(begin) or _is_delimited(begin):
        return False
    lines = (line for line in begin.splitlines() if times_of(line))
    return len(list(islice(lines, FEWEST_LINES))) == FEWEST_LINES


def _is_delimited(begin: str) -> bool:
    """Whether the first two lines have as many cells, and no times beside names."""
    first, second = islice((*begin[: 2 * LONGEST].splitlines(), "", ""), 2)
    counts = [(first.count(mark), second.count(mark)) for mark in ",;\t"]
    return any(one == other > 1 for one, other in counts) and not times_of(second)


def is_of_training(begin: str) -> bool:
    """Whether a text that begins so is the log of a training, and no table."""
    return not _JSON.match(begin) and any(
        len(line) <= LONGEST and _TRAINING.search(line) for line in re.split(r"[\r\n]+", begin)
    )


def rows_of(first: bytes, stream: LineStream, fail: Fail) -> Iterator[tuple[int, Row]]:
    """A row for each line with times, with its number; `first` was read already. Other lines are left out."""
    for number, line in lines_of(first, stream, bare=False):
        if times := times_of(line):
            step = _STEP.search(line)
            yield number, {**_place_of(line), **({"step": step[1]} if step else {}), **times}


def times_of(line: str) -> Row:
    """The times of operations in a line, whose names say seconds where the unit is told; empty for any other line."""
    if len(line) > LONGEST:
        return {}
    found, computes = Row(), False
    for pair in _TIME.finditer(line):
        op = words_of(pair["computes"] or pair["layers"] or pair["sends"] or pair["exchanges"])
        unit = (pair["unit"] or pair["named"] or "").lower().replace("µ", "u")
        if (pair["layers"] or pair["sends"]) and not unit:
            continue
        if unit:
            found.setdefault(f"{op} (s)", f"{float(pair['value']) * SECONDS[unit]:.12g}")
        else:
            found.setdefault(f"{op} time", pair["value"])
        computes |= bool(pair["computes"] or pair["layers"])
    if computes and len(found) == 1 and all(map(_LOADS.match, found)) and (whole := _whole_step(line)):
        unit = (whole["unit"] or whole["named"] or "").lower().replace("µ", "u")
        length = f"{float(whole['value']) * SECONDS[unit]:.12g}" if unit else whole["value"]
        found["step (s)" if unit else "step time"] = length
    return found if computes and len(found) >= FEWEST_TIMES else {}


def _whole_step(line: str) -> re.Match[str] | None:
    """The time of the whole step in a line."""
    return _WHOLE.search(line) or (_BARE.search(line) if _PROGRESS.search(line) else None)


def _place_of(line: str) -> Row:
    """The rank of a line, else the host and process that wrote it, as far as its words tell them."""
    if said := _RANK.search(line):
        return {"rank": said[1]}
    for pattern in _PLACED:
        if put := pattern.match(line):
            names = {"rank": "rank", "host": "node", "local": "local rank"}
            return {names[role]: value for role, value in put.groupdict().items() if value is not None}
    return {}
