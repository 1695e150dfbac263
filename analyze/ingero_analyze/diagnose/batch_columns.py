"""The rows of a batch as codes and numbers, and those of them that cannot be used."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import numpy as np

from ingero_analyze.audit.columns import words_of
from ingero_analyze.diagnose.columns import (
    OPERATION_TYPES,
    TIMES,
    TimelineColumns,
    kind_of,
    kind_of_operation,
    kind_of_type,
    recognised,
)
from ingero_analyze.diagnose.missing_starts import BEGIN
from ingero_analyze.diagnose.rank_columns import columns_of_ranks
from ingero_analyze.diagnose.sources import Problems
from ingero_analyze.diagnose.step_times import STEP
from ingero_analyze.diagnose.timeline_files import OPTIONAL, SIZE, WORK
from ingero_analyze.diagnose.timeline_rows import Columns
from ingero_analyze.member_columns import ColumnsOfMembers
from ingero_analyze.table_batch import TableBatch
from ingero_detect.grouped import Bools, Ints

NO_NUMBERS: Final = ("", "none", "nan", "null")
"""Texts for a value that is missing."""

LABELS: Final = {"data_parallel": "dp", "stage": "pp", "tensor_parallel": "tp"}
"""What stands before a number that names a rank together with others."""


class FileReading:
    """How one file is read. `rank`: that of all its rows if no column has it. `host`: the number in the file's name
    where a column has GPUs, which may be several, and nothing else tells ranks."""

    def __init__(self, chosen: Mapping[str, str], rank: str | None, *, says_rank: bool = True) -> None:
        self.rank = rank
        self.host = ""
        self._says_rank = says_rank
        self.columns = TimelineColumns({}, {}, traced=False)
        self._chosen = chosen
        self._members: ColumnsOfMembers | None = None

    def choose(self, names: Sequence[str]) -> Sequence[str]:
        """The columns to read."""
        self._members = columns_of_ranks(names)
        names = self._members.long_names if self._members else names
        self.columns = recognised(names, self._chosen, by_file=self.rank is not None)
        if "rank" in self.columns.roles:
            self.rank = None
        elif self.rank is not None and not self._says_rank and self.columns.rank_parts() == ("local_rank",):
            self.host = self.rank
            self.rank = None
        used = self.columns.used(by_file=self.rank is not None)
        return self._members.needed(used) if self._members else used

    def long(self, batch: TableBatch) -> TableBatch:
        """The batch with a row for each rank, if ranks have columns of their own."""
        return self._members.long(batch) if self._members else batch

    def tell_seconds(self, names: Sequence[str]) -> None:
        """Columns whose cells have units, and are now seconds."""
        roles = {"start": self.columns.length, **self.columns.roles}
        told = {role: "s" for role in TIMES if roles.get(role) in names}
        if told:
            self.columns = replace(self.columns, units={**self.columns.units, **told})


def columns_of(
    batch: TableBatch, reading: FileReading, vocabulary: dict[str, dict[str, int]], problems: Problems
) -> tuple[Columns, Bools]:
    """The columns of a batch, times as the file has them, and the rows that cannot be used, which are counted."""
    found: Columns = {}
    lost = np.zeros(batch.rows, np.bool_)
    roles = reading.columns.roles
    if reading.columns.operations:
        roles = {"step": STEP, **roles, "op": "op", "start": "start", "duration": "duration"}
    elif "start" not in roles:
        roles = {**roles, "start": BEGIN}

    def lose(bad: Bools, name: str, text: str, value: Callable[[int], Any] = str) -> None:
        new = np.flatnonzero(bad & ~lost)
        for index in new.tolist():
            problems.add("", f"{batch.place(index, name)}: {text.format(value(index))}")
        lost[new] = True

    for role in ("op", *OPTIONAL):
        given = role in roles
        codes = batch.codes(roles[role], vocabulary[role]) if given else np.full(batch.rows, -1, np.int64)
        found[role] = np.where(codes == vocabulary[role].get("", -1), -1, codes)
    found["rank"] = ranks_of(batch, reading, vocabulary)
    lose(found["rank"] < 0, reading.columns.of_rank, "nothing is given")
    lose(found["op"] < 0, roles["op"], "nothing is given")
    kinds: dict[str, int] = {}
    numbers = batch.codes(roles["kind"], kinds) if "kind" in roles else found["op"]
    words = list(kinds if "kind" in roles else vocabulary["op"])
    of_word = kind_of if "kind" in roles else kind_of_operation
    if words_of(roles.get("kind", "")) in OPERATION_TYPES:
        of_word = kind_of_type
    found["kind"] = np.array([*map(of_word, words), -1], np.int64)[numbers]
    lose(found["kind"] < 0, roles.get("kind", roles["op"]), "{!r} is neither compute nor collective",
         lambda row: words[numbers[row]][:40])  # fmt: skip
    for role in (name for name in (*TIMES, WORK) if name in roles):
        values = found[role] = batch.numbers_or_nan(roles[role])
        shown = partial(_shown, batch.columns[roles[role]])
        wrong = np.isnan(values)
        if role in ("start", "end") and wrong.any():
            dated = np.array([_moment(shown(index)) for index in np.flatnonzero(wrong).tolist()])
            if np.isfinite(dated).any():
                values[wrong] = dated
                wrong = np.isnan(values)
                units = {**reading.columns.units, **{name: "s" for name in ("start", "end") if name in roles}}
                reading.columns = replace(reading.columns, units=units)
        wrong[wrong] = [shown(index).lower() not in NO_NUMBERS for index in np.flatnonzero(wrong).tolist()]
        lose(wrong, roles[role], "{!r} is not a number", shown)
        if role == WORK:
            lose(np.isinf(values) | (values < 0), roles[role], "a finite number was expected that is not negative")
        else:
            lose(~np.isfinite(values), roles[role], "a finite time was expected")
    if "duration" not in found:
        found["duration"] = found["end"] * reading.columns.ends_per_start - found["start"]
    found.pop("end", None)
    found.setdefault(WORK, np.full(batch.rows, np.nan))
    sizes = batch.numbers_or_nan(roles[SIZE]) if SIZE in roles else np.full(batch.rows, np.nan)
    found[SIZE] = np.where(sizes >= 0, sizes, np.nan)
    lose(found["duration"] < 0, roles.get("duration") or roles["end"], "a duration is never negative")
    return found, lost


def ranks_of(batch: TableBatch, reading: FileReading, vocabulary: dict[str, dict[str, int]]) -> Ints:
    """The rank of every row; -1 where it is not given."""
    known, roles = vocabulary["rank"], reading.columns.roles
    if reading.rank is not None:
        return np.full(batch.rows, known.setdefault(reading.rank, len(known)), np.int64)
    if "rank" in roles:
        codes = batch.codes(roles["rank"], known)
        return np.where(codes == known.get("", -1), -1, codes)
    parts = reading.columns.rank_parts()
    texts = [batch.text(roles[part]) for part in parts]
    marks = [LABELS.get(part, "") for part in parts]
    if reading.host:
        marks = [f"{reading.host}/"]
    names = [
        "/".join(mark + text for mark, text in zip(marks, row, strict=True)) if all(row) else ""
        for row in zip(*texts, strict=True)
    ]
    return np.array([known.setdefault(name, len(known)) if name else -1 for name in names], np.int64)


def without_lone_gpus(ranks: dict[str, int]) -> dict[str, int]:
    """Names of ranks by the number in a file's name and a GPU, without the GPU if every file has one."""
    hosts = [name.partition("/")[0] for name in ranks]
    return dict(zip(hosts, ranks.values(), strict=True)) if len(set(hosts)) == len(hosts) else ranks


def _moment(text: str) -> float:
    """Seconds since 1970 of a date with a time of day (ISO 8601), in UTC without a zone; NaN for anything else."""
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return float("nan")


def _shown(column: Any, index: int) -> str:
    """A value as text, as far as it is shown."""
    return str(column[index]).strip()[:40]
