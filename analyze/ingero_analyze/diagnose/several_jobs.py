"""Which files are of different jobs, or of different runs of one, and what is said of all of them. Pure."""

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Final

FEWEST_RANKS: Final = 2
"""Ranks of a job at least: files of one rank each are parts of one."""

SHARED: Final = 0.5
"""Share of the steps of ranks, or of the time without steps, that must be in two recordings so that they are of two
jobs: parts of one share few."""

_KINDS: Final = ("node", "network", "stage_imbalance", "sequence_imbalance", "unknown", "none")
"""Kinds of verdicts, the most certain first."""


@dataclass(frozen=True)
class FileContent:
    """What a file has: steps of ranks as pairs (the step is anything, -1 where steps are not known), the names of
    operations, from when to when it recorded, and how long operations lasted in all, NaN where that is not known."""

    cells: frozenset[tuple[str, int]]
    ops: frozenset[str] = frozenset()
    span: tuple[float, float] = (0.0, 0.0)
    seconds: float = math.nan

    @property
    def ranks(self) -> frozenset[str]:
        """The ranks in the file."""
        return frozenset(rank for rank, _ in self.cells)

    def joined(self, other: "FileContent") -> "FileContent":
        """What both have together."""
        span = min(self.span[0], other.span[0]), max(self.span[1], other.span[1])
        return FileContent(self.cells | other.cells, self.ops | other.ops, span, self.seconds + other.seconds)

    def is_of_another_job(self, other: "FileContent", shared: float) -> bool:
        """Whether both have this share of the steps of ranks, with operations of the same names."""
        if min(len(self.ranks), len(other.ranks)) < FEWEST_RANKS or (self.ops and not self.ops & other.ops):
            return False
        if self.cells == other.cells and math.isclose(self.seconds, other.seconds):
            return False  # A copy.
        if any(step < 0 for _, step in self.cells):
            both = min(self.span[1], other.span[1]) - max(self.span[0], other.span[0])
            shorter = min(end - begin for begin, end in (self.span, other.span))
            if both < shared * shorter:
                return False
        return len(self.cells & other.cells) >= max(shared * min(len(self.cells), len(other.cells)), 1)


def jobs_of(contents: Mapping[str, FileContent], shared: float = SHARED) -> dict[str, list[str]]:
    """The files of each job by what their paths call it; empty where all may be of one job, none of which share so
    many steps of ranks."""
    called = names_of_jobs({file: next(iter(own)) if len(own := content.ranks) == 1 else None
                            for file, content in contents.items()})  # fmt: skip
    jobs: dict[str, list[str]] = {}
    for file, name in called.items():
        jobs.setdefault(name, []).append(file)
    whole: list[FileContent] = []
    for files in jobs.values():
        content = contents[files[0]]
        for file in files[1:]:
            content = content.joined(contents[file])
        whole.append(content)
    return jobs if any(one.is_of_another_job(other, shared) for one, other in combinations(whole, 2)) else {}


def are_several(contents: Sequence[FileContent]) -> bool:
    """Whether what a column calls jobs, or runs, are several: two have the same steps of ranks, or none of each
    other's ranks. One run that goes on where another one ended is the same job."""
    groups = {ranks for content in contents if len(ranks := content.ranks) >= FEWEST_RANKS}
    if any(one.isdisjoint(other) for one, other in combinations(groups, 2)):
        return True
    if len(frozenset[object]().union(*(one.cells for one in contents))) == sum(len(one.cells) for one in contents):
        return False  # No step of a rank is in two: parts of one run, which may be thousands.
    return any(one.is_of_another_job(other, SHARED) for one, other in combinations(contents, 2))


def names_of_jobs(rank_of_file: Mapping[str, str | None]) -> dict[str, str]:
    """By file, what its path says of its job: where it differs from others first, without the rank of a file that is
    of one rank (`None`: of several)."""
    if len(rank_of_file) < FEWEST_RANKS:
        return dict.fromkeys(rank_of_file, "")
    common = os.path.commonpath([Path(file).absolute().parent for file in rank_of_file])
    first = {file: Path(file).absolute().relative_to(common).parts[0] for file in rank_of_file}
    ranks: dict[str, set[str | None]] = {}
    for file, rank in rank_of_file.items():
        ranks.setdefault(first[file], set()).add(rank)
    return {
        file: _without_rank(name, *ranks[name]) if len(ranks[name]) == 1 else name for file, name in first.items()
    }


def _without_rank(name: str, rank: str | None) -> str:
    """The name of a file or folder without the number of its rank."""
    digits = str(rank or "").rpartition(" ")[2]
    numbers = [found for found in re.finditer(r"\d+", name) if digits.isdecimal() and int(found[0]) == int(digits)]
    return name if not numbers else name[: numbers[-1].start()] + "*" + name[numbers[-1].end() :]


def told_of(jobs: Mapping[str, Sequence[Any]]) -> str:
    """What to say of jobs, with the ranks of each."""
    sizes = ", ".join(f"{job} ({len(ranks)} ranks)" for job, ranks in jobs.items())
    return f"these are recordings of {len(jobs)} jobs, or runs of one; each is judged alone: {sizes}"


def worst_of(answers: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The answer on the job of which most is proven, with those on all in its evidence (`jobs`; `job`: its own)."""

    def weight(job: str) -> tuple[int, float]:
        kind = answers[job]["kind"]
        return -_KINDS.index(kind) if kind in _KINDS else 0, answers[job]["seconds_lost_per_step"] or 0.0

    worst = max(answers, key=weight)
    jobs = {
        job: {name: answer[name] for name in ("kind", "ranks", "seconds_lost_per_step")}
        | {name: answer["evidence"][name] for name in ("possible", "reason") if name in answer["evidence"]}
        for job, answer in answers.items()
    }
    answer = answers[worst]
    return {**answer, "evidence": {**answer["evidence"], "job": worst, "jobs": jobs}}
