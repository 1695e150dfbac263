"""What `diagnose` says of simulated jobs: `make bench-diagnose`, or ARGS="--jobs 100"."""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "support"), str(Path(__file__).parent)]

from fabric_table import OutcomeTable  # noqa: E402
from ingero_analyze.diagnose.flight_recorder_dumps import dump_of  # noqa: E402
from ingero_analyze.diagnose.hangs import Hang, find_hang  # noqa: E402
from ingero_analyze.diagnose.sources import OperationRows, Problems  # noqa: E402
from ingero_contract.identifiers import Rank  # noqa: E402
from ingero_testing.fabric_jobs import fabric_jobs, judged  # noqa: E402
from ingero_testing.hang_jobs import HangJob, hang_jobs, outcome  # noqa: E402

OUTCOMES = ("right", "unknown", "innocent", "missed", "lacking")


def hang_of(job: HangJob) -> Hang:
    """The verdict on a job's dumps."""
    problems, rows = Problems(), OperationRows()
    return find_hang(
        [dump_of(value, Rank(rank), f"rank {rank}", problems, rows) for rank, value in job.dumps.items()]
    )


def hangs(jobs: int, seed: int, ranks: tuple[int, ...] = ()) -> bool:
    """Print who is named in jobs that hang; whether nobody innocent was and no cause was left out."""
    table: dict[str, Counter[str]] = {}
    spent = 0.0
    for job in hang_jobs(jobs, seed, *((ranks,) if ranks else ())):
        begin = time.perf_counter()
        found = hang_of(job)
        spent += time.perf_counter() - begin
        result = outcome(job, found.kind, found.ranks, found.possible + found.cycle)
        if found.kind == "unknown" and not found.reason:
            result = "lacking"
        happened = sorted(fault.kind for fault in job.faults if fault.rank in job.culprits)
        complete = "all dumps at the end" if not job.missing | job.early else "dumps absent or early"
        for row in (" and ".join(happened) or job.kind, complete, "all"):
            table.setdefault(row, Counter())[result] += 1
        if result not in OUTCOMES[:2]:
            print(f"job {job.number}: {result}: {found.kind} {found.ranks} {found.possible}, causes {job.culprits}")
    print(
        f"hangs of {' '.join(map(str, sorted(set(ranks)))) or '16 to 128'} ranks, {1000 * spent / jobs:.0f} ms a job"
    )
    print(f"{'causes':28}{''.join(f'{name:>10}' for name in OUTCOMES)}")
    for row in sorted(table, key=lambda name: (name == "all", name)):
        print(f"{row:28}{''.join(f'{table[row][name]:10}' for name in OUTCOMES)}")
    return not sum(table["all"][name] for name in OUTCOMES[2:])


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
    asked = {"hangs": lambda jobs, seed: hangs(jobs, seed, tuple(chosen.ranks)), "links": links}
    good = [asked[name](chosen.jobs, chosen.seed) for name in ([chosen.only] if chosen.only else asked)]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
