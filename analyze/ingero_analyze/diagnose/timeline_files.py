"""Reads operation timelines from CSV or Parquet files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingero_analyze.diagnose.step_structure import counted_steps, occurrence, stages_of
from ingero_analyze.tables import TableBatch, TableError, read_batches
from ingero_detect.diagnosis import diagnose
from ingero_detect.grouped import Ints
from ingero_detect.timeline import Timeline

REQUIRED: Final = ("rank", "op", "kind", "start", "duration")
OPTIONAL: Final = ("step", "group", "seq", "stage", "data_parallel")
KINDS: Final = {"compute": False, "collective": True}


@dataclass(frozen=True)
class RecordedTimeline:
    """A timeline and the names of its ranks and stages as the file has them."""

    line: Timeline
    ranks: list[int | str]
    stages: list[int | str]
    rows: int


def read_timeline(files: Sequence[str], progress: Callable[[int], None] = lambda _: None) -> RecordedTimeline:
    """Read files as one timeline. `TableError` names the place of what cannot be used."""
    vocabulary: dict[str, dict[str, int]] = {name: {} for name in (*REQUIRED, *OPTIONAL)}
    parts: dict[str, list[Any]] = {name: [] for name in (*REQUIRED, *OPTIONAL)}
    rows = 0
    for file in files:
        consumed = 0
        for batch in read_batches(file, REQUIRED, OPTIONAL):
            if batch.rows:
                for name, column in _columns(batch, vocabulary).items():
                    parts[name].append(column)
                rows += batch.rows
            progress(batch.consumed - consumed)
            consumed = batch.consumed
    if not rows:
        raise TableError(", ".join(files), "there are no rows")
    columns = {name: np.concatenate(values) for name, values in parts.items()}
    return assemble(vocabulary, columns, rows)


def assemble(
    vocabulary: dict[str, dict[str, int]], columns: dict[str, npt.NDArray[Any]], rows: int
) -> RecordedTimeline:
    """A timeline from columns of codes into `vocabulary` (-1: not known); `start` and `duration` are seconds."""
    ranks, rank = _ordered(vocabulary["rank"], columns["rank"])
    collective = columns["kind"] == 1
    stages, stage = _ordered(vocabulary["stage"], columns["stage"])
    if not stages:
        stage = stages_of(rank, columns["op"], list(vocabulary["op"]), columns["group"], collective)
        stages = [f"that of rank {name}" for name in ranks]
    _, replica = _ordered(vocabulary["data_parallel"], columns["data_parallel"])
    if (columns["step"] >= 0).all():
        names, step = _ordered(vocabulary["step"], columns["step"])
        steps = len(names)
    else:
        step = counted_steps(rank, columns["op"], columns["group"], columns["start"], collective)
        steps = int(step.max()) + 1
    line = Timeline(
        ranks=len(ranks), steps=steps, rank=rank, step=step, op=columns["op"], collective=collective,
        start=columns["start"], duration=columns["duration"],
        instance=_instances(rank, step, columns, collective), stage=stage, data_parallel=replica,
    )  # fmt: skip
    return RecordedTimeline(line, ranks, stages, rows)


def verdict(recorded: RecordedTimeline) -> dict[str, Any]:
    """The verdict on a timeline as the command prints it, with the names of the file."""
    found = diagnose(recorded.line)
    evidence: dict[str, Any] = dict(found.evidence)
    for name in ("excess_share_of_step", "lag_seconds"):
        if name in evidence:
            evidence[name] = {str(recorded.ranks[int(rank)]): value for rank, value in evidence[name].items()}
    if "stage" in evidence:
        evidence["stage"] = recorded.stages[evidence["stage"]]
    return {
        "kind": str(found.cause),
        "ranks": [recorded.ranks[rank] for rank in found.ranks],
        "slowdown": round(found.slowdown, 6),
        "seconds_lost_per_step": round(found.seconds_lost_per_step, 9),
        "evidence": evidence,
    }


def _columns(batch: TableBatch, vocabulary: dict[str, dict[str, int]]) -> dict[str, npt.NDArray[Any]]:
    found: dict[str, npt.NDArray[Any]] = {}
    for name in ("rank", "op"):
        found[name] = _codes(batch, name, vocabulary[name])
        empty = vocabulary[name].get("")
        if empty is not None and (found[name] == empty).any():
            raise batch.error(int(np.flatnonzero(found[name] == empty)[0]), name, "nothing is given")
    kinds: dict[str, int] = {}
    numbers = batch.codes("kind", kinds)
    codes = [KINDS.get(kind.strip().lower()) for kind in kinds]
    for number, (kind, code) in enumerate(zip(kinds, codes, strict=True)):
        if code is None:
            index = int(np.flatnonzero(numbers == number)[0])
            raise batch.error(index, "kind", f"{kind[:40]!r} is neither compute nor collective")
    found["kind"] = np.array(codes, np.int64)[numbers]
    for name in ("start", "duration"):
        values = batch.numbers(name)
        bad = np.flatnonzero(~np.isfinite(values) | ((values < 0) if name == "duration" else False))
        if len(bad):
            raise batch.error(
                int(bad[0]), name, "a finite number of seconds was expected, not negative if a duration"
            )
        found[name] = values
    for name in OPTIONAL:
        given = name in batch.columns
        found[name] = _codes(batch, name, vocabulary[name]) if given else np.full(batch.rows, -1, np.int64)
    return found


def _codes(batch: TableBatch, name: str, known: dict[str, int]) -> Ints:
    """Numbers of texts; the empty text is -1 in optional columns."""
    codes = batch.codes(name, known)
    if name in OPTIONAL and "" in known:
        codes = np.where(codes == known[""], -1, codes)
    return codes


def _ordered(vocabulary: dict[str, int], codes: Ints) -> tuple[list[int | str], Ints]:
    """Names in their natural order, and the codes renumbered by it; -1 stays."""
    names = [name for name in vocabulary if name != ""]
    order = sorted(names, key=_natural)
    number_of = np.full(len(vocabulary) + 1, -1, np.int64)
    for place, name in enumerate(order):
        number_of[vocabulary[name]] = place
    return [_plain(name) for name in order], number_of[codes]


def _plain(name: str) -> int | str:
    try:
        value = float(name)
    except ValueError:
        return name
    return int(value) if value.is_integer() and abs(value) < 1e15 else name


def _natural(name: str) -> tuple[int, float, str]:
    try:
        return 0, float(name), ""
    except ValueError:
        return 1, 0.0, name


def _instances(rank: Ints, step: Ints, columns: dict[str, Any], collective: npt.NDArray[np.bool_]) -> Ints:
    """One number for the rows of one collective: same group and sequence number, or same place in the same step."""
    given = bool((columns["seq"][collective] >= 0).all()) if collective.any() else False
    keys = [columns["group"], columns["op"]]
    if given:
        keys.append(columns["seq"])
    else:
        keys += [step, occurrence(rank, columns["op"], columns["group"], step, start=columns["start"])]
    if given and (columns["group"][collective] < 0).any() and (columns["step"] >= 0).all():
        keys.append(step)
    combined = np.zeros(len(rank), np.int64)
    for key in keys:
        _, numbered = np.unique(key, return_inverse=True)
        combined = combined * (int(numbered.max()) + 1) + numbered
    _, instance = np.unique(combined, return_inverse=True)
    return np.where(collective, instance, -1)
