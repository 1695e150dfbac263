"""Which rank the files of a timeline are of, where each is one rank's. Pure."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from ingero_analyze.diagnose.several_jobs import names_of_jobs
from ingero_analyze.diagnose.sources import rank_of, says_rank


def ranks_of_files(files: Sequence[str]) -> dict[str, str]:
    """The rank of each file, by its name or else that of its folder; empty where these do not tell it."""
    return _by_name(files, Path) or _by_name(files, lambda file: Path(file).parent)


def path_says_rank(file: str) -> bool:
    """Whether the name of a file, or of its folder, has a number after the word `rank`."""
    return says_rank(Path(file)) or says_rank(Path(file).parent)


def _by_name(files: Sequence[str], named: Callable[[str], Path]) -> dict[str, str]:
    """The rank of each file, by its name or that of its folder; none unless there are several, of one rank each in
    every job that their paths tell. Where all say another rank, what else their names have (a process, a GPU) is no
    job."""
    found = {file: str(rank) for file in files if (rank := rank_of(named(file))) is not None}
    ranks = set(found.values())
    if len(ranks) == len(set(files)) > 1 and all(says_rank(named(file)) for file in files):
        return found
    jobs = names_of_jobs(found)
    places = {(jobs[file], rank) for file, rank in found.items()}
    several = len(ranks) > 1 and all(n > 1 for n in Counter(job for job, _ in places).values())
    return found if len(places) == len(set(files)) and several else {}
