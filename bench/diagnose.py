"""What `diagnose` says of simulated jobs: `make bench-diagnose`, or ARGS="--jobs 100"."""

import argparse
import gc
import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing import Pool
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "support"), str(Path(__file__).parent)]

from fabric_table import OutcomeTable  # noqa: E402
from ingero_analyze.diagnose.hangs import Hang, find_hang  # noqa: E402
from ingero_analyze.diagnose.sources import Problems  # noqa: E402
from ingero_testing.fabric_jobs import fabric_jobs, judged  # noqa: E402
from ingero_testing.hang_jobs import SIZES, HangJob, dumps_of, hang_job, outcome, running_job  # noqa: E402

OUTCOMES = ("right", "unknown", "innocent", "missed", "lacking")


@dataclass(frozen=True)
class HangResult:
    """What is said of one job that hangs. `listed`: how many ranks; `exact`: whether they are the causes."""

    rows: tuple[str, ...]
    outcome: str
    listed: int
    exact: bool
    seconds: float
    line: str


def hang_result(number: int, seed: int, sizes: tuple[int, ...]) -> HangResult | None:
    """The verdict on the dumps of one job, and what it is worth; `None` if the job does not hang."""
    gc.collect()
    job = hang_job(seed, number, sizes)
    if job is None:
        return None
    begin = time.perf_counter()
    found = verdict_on(job)
    spent = time.perf_counter() - begin
    result = outcome(job, found.kind, found.ranks, found.possible + found.cycle)
    if found.kind == "unknown" and not found.reason:
        result = "lacking"
    happened = sorted(fault.kind for fault in job.faults if fault.rank in job.culprits)
    complete = "all dumps at the end" if not job.missing | job.early else "dumps absent or early"
    line = f"job {number}: {result}: {found.kind} {found.ranks} {found.possible}, causes {job.culprits}"
    listed = {*found.ranks, *found.possible, *found.cycle}
    kinds = (" and ".join(happened) or job.kind, complete, "all")
    return HangResult(kinds, result, len(listed), listed == job.culprits, spent, line)


def verdict_on(job: HangJob) -> Hang:
    """What is said of the dumps of a job."""
    return find_hang(dumps_of(job, Problems()))


def accused_while_running(number: int, seed: int, sizes: tuple[int, ...]) -> int:
    """How many ranks are named in the dumps of a running job."""
    return len(verdict_on(running_job(seed, number, sizes)).ranks)


def hangs(jobs: int, seed: int, sizes: tuple[int, ...] = SIZES) -> bool:
    """Print who is named in jobs that hang; whether nobody innocent was and no cause was left out."""
    table: dict[str, Counter[str]] = {}
    listed: Counter[str] = Counter()
    exact: Counter[str] = Counter()
    spent = 0.0
    with Pool(initializer=gc.disable) as pool:
        running = pool.map(partial(accused_while_running, seed=seed, sizes=sizes), range(jobs // 3), chunksize=4)
        # Of these, more than are needed wait in the pool until it ends.
        drawn = pool.imap(partial(hang_result, seed=seed, sizes=sizes), range(100 * jobs), chunksize=4)
        for result in islice((one for one in drawn if one is not None), jobs):
            spent += result.seconds
            for row in result.rows:
                table.setdefault(row, Counter())[result.outcome] += 1
                if result.outcome == "unknown":
                    listed[row] += result.listed
                    exact[row] += result.exact
            if result.outcome not in OUTCOMES[:2]:
                print(result.line)
    print(f"hangs of {' '.join(map(str, sorted(set(sizes))))} ranks, {1000 * spent / jobs:.0f} ms a job")
    print(f"{'causes':28}{''.join(f'{name:>10}' for name in OUTCOMES)}{'list':>10}{'exact':>10}")
    for row in sorted(table, key=lambda name: (name == "all", name)):
        mean = listed[row] / max(table[row]["unknown"], 1)
        print(f"{row:28}{''.join(f'{table[row][name]:10}' for name in OUTCOMES)}{mean:10.1f}{exact[row]:10}")
    print("list: mean number of ranks that an unknown lists; exact: how many unknown list the causes and nobody else")
    print(f"dumps of {len(running)} running jobs: {sum(running)} ranks named")
    return not sum(running) and not sum(table["all"][name] for name in OUTCOMES[2:])


def links(jobs: int, seed: int) -> bool:
    """Print what is named in jobs with a slow part of the network, a slow node or nothing."""
    found = OutcomeTable()
    for job in fabric_jobs(jobs, seed):
        result, answer = judged(job)
        network = answer["network"]
        found.add(job, result, (answer["kind"], answer["ranks"], network["elements"], network["possible"]))
    print("networks of 64 ranks")
    return found.show("slow")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=["hangs", "links"])
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=[], help="sizes of the jobs that hang, drawn from these"
    )
    chosen = parser.parse_args()
    asked = {"hangs": lambda jobs, seed: hangs(jobs, seed, tuple(chosen.ranks) or SIZES), "links": links}
    good = [asked[name](chosen.jobs, chosen.seed) for name in ([chosen.only] if chosen.only else asked)]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
