"""What tracing costs and whether it counts right: `make bench-trace` as root; `ARGS=--quick` for two minutes.

The workload has the names and signatures of CUDA and NCCL and needs no GPU. For the slow-down, two equal programs
take turns on one core: one over libraries that are probed, one over the same code under names that are not. A turn is
the same fixed work at the wanted rate, timed by the thread's own processor time, and lasts a round of the governor's
windows, so that every turn has its share of counting; the agent runs on another core throughout. The slow-down is the
mean over pairs of turns with its 95 % interval; the target is reached if the whole interval lies below it.
"""

import argparse
import json
import os
import re
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]

from ingero_testing.gpu_job import (  # noqa: E402
    COLLECTIVES,
    RUNTIME,
    attached,
    compile_c,
    go,
    job,
    link_lives,
    links_of,
    said,
    tracing,
)
from ingero_testing.processes import Running, wait_until  # noqa: E402

PROBED = ("libcudart.so.12", "libnccl.so.2")
LAUNCHES, COLLECTIVES_A_SECOND, STORM = 20_000, 100, 100_000
SHORTEST_TURN = 4.0
SETTLE_SECONDS = 8.0
"""Work before the first turn: the governor takes three seconds to shed."""

WORKER = r"""
#define _GNU_SOURCE
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
typedef struct { unsigned x, y, z; } dim3;
typedef struct { char bytes[128]; } ncclUniqueId;
int cudaLaunchKernel(void *, dim3, dim3, void **, size_t, void *);
int cudaStreamSynchronize(void *);
int ncclCommInitRank(void **, int, ncclUniqueId, int);
int ncclAllReduce(const void *, void *, size_t, int, int, void *, void *);
static double at(clockid_t clock) { struct timespec t; clock_gettime(clock, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static volatile unsigned sink;
static void spin(long n) { for (long i = 0; i < n; i++) sink += i; }
static void work(long launches, long every, long spins, void *comm)
{
  dim3 one = {1, 1, 1};
  for (long i = 1; i <= launches; i++) {
    spin(spins);
    cudaLaunchKernel(0, one, one, 0, 0, 0);
    if (i % every == 0) { ncclAllReduce(0, 0, 1000, 7, 0, comm, 0); cudaStreamSynchronize(0); }
  }
}
/* One line in: launches, launches per collective, spins per launch (0: say how many make a millisecond). */
int main(void)
{
  ncclUniqueId id;
  void *comm;
  long launches, every, spins;
  memset(&id, 7, sizeof id);
  ncclCommInitRank(&comm, 1, id, 0);
  while (scanf("%ld %ld %ld", &launches, &every, &spins) == 3) {
    if (!spins) {
      double begun = at(CLOCK_THREAD_CPUTIME_ID);
      spin(100000000);
      printf("%f\n", 1e8 / (at(CLOCK_THREAD_CPUTIME_ID) - begun) / 1000);
    } else {
      double cpu = at(CLOCK_THREAD_CPUTIME_ID), wall = at(CLOCK_MONOTONIC);
      work(launches, every, spins, comm);
      printf("%f %f\n", at(CLOCK_THREAD_CPUTIME_ID) - cpu, at(CLOCK_MONOTONIC) - wall);
    }
    fflush(stdout);
  }
}
"""
STORMER = r"""
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
typedef struct { unsigned x, y, z; } dim3;
int cudaLaunchKernel(void *, dim3, dim3, void **, size_t, void *);
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
int main(int argc, char **argv)
{
  dim3 one = {1, 1, 1};
  double rate = atof(argv[1]), seconds = atof(argv[2]);
  long calls = 0;
  getchar();
  for (double begun = now(), at; (at = now() - begun) < seconds;)
    while (calls < at * rate) { cudaLaunchKernel(0, one, one, 0, 0, 0); calls++; }
  printf("%ld\n", calls);
  fflush(stdout);
  getchar();
}
"""


class Worker:
    """A program that does fixed work on command, pinned to one core."""

    def __init__(self, program: Path, core: int) -> None:
        self.process = subprocess.Popen(
            [str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )  # fmt: skip

    def ask(self, launches: int, every: int, spins: int) -> list[float]:
        """Processor and wall seconds of the work; or, without spins, how many spins make a millisecond."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{launches} {every} {spins}\n")
        self.process.stdin.flush()
        return [float(word) for word in self.process.stdout.readline().split()]

    def end(self) -> None:
        """Its input ends, and so does it."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(10)


def build(folder: Path, suffix: str) -> Path:
    """The worker over libraries of that name; the code is the same whatever the name."""
    shared = ("-shared", "-fPIC")
    runtime = compile_c(folder, f"lib{suffix}rt.so.12", RUNTIME, *shared, "-pthread")
    nccl = compile_c(folder, f"lib{suffix}nccl.so.2", COLLECTIVES, *shared, "-DHASH_AT=64")
    return compile_c(folder, f"worker-{suffix or 'plain'}", WORKER, str(runtime), str(nccl), "-pthread")


def build_probed(folder: Path) -> Path:
    """The worker over libraries that the agent attaches to."""
    shared = ("-shared", "-fPIC")
    runtime = compile_c(folder, "libcudart.so.12", RUNTIME, *shared, "-pthread")
    nccl = compile_c(folder, "libnccl.so.2", COLLECTIVES, *shared, "-DHASH_AT=64")
    return compile_c(folder, "worker-probed", WORKER, str(runtime), str(nccl), "-pthread")


def processor_seconds(pid: int) -> float:
    """What a process has used so far."""
    values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int, field: str) -> float:
    """VmRSS or VmHWM."""
    found = re.search(rf"^{field}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found.group(1)) / 1024 if found else 0.0


def logged(agent: Running, event: str) -> dict[str, object]:
    """The first line of the agent's log about an event."""
    for line in agent.words().splitlines():
        if f'"event": "{event}"' in line:
            found: dict[str, object] = json.loads(line)
            return found
    return {}


def query(database: Path, text: str, *values: object) -> int:
    """One number from the trace's database; 0 for none."""
    with closing(sqlite3.connect(database)) as connection:
        (found,) = connection.execute(text, values).fetchone()
    return int(found or 0)


Row = tuple[str, str, str, bool | None]


def interval(values: list[float]) -> tuple[float, float]:
    """Mean, and half the width of its 95 % interval (Student's factor, to 2 % from five values upward)."""
    factor = 1.96 + 2.7 / (len(values) - 1)
    return statistics.mean(values), factor * statistics.stdev(values) / len(values) ** 0.5


def windows(agent: Running) -> tuple[float, float]:
    """Share of the time that launches are counted now, and how long a round of windows takes."""
    steps = [json.loads(line) for line in agent.words().splitlines() if '"event": "budget"' in line]
    duty = float(steps[-1]["launch"]) if steps else 1.0
    return duty, max(SHORTEST_TURN, 1 / duty)


def cost(folder: Path, budget_seconds: float) -> list[Row]:
    """Slow-down by turns, and what the agent itself uses meanwhile."""
    plain, probed = build(folder, "plain"), build_probed(folder)
    cores = sorted(os.sched_getaffinity(0))
    with tracing(folder, "--budget", "0.005", period="1") as agent:
        os.sched_setaffinity(agent.process.pid, set(cores[:-1] or cores))
        workers = [Worker(plain, cores[-1]), Worker(probed, cores[-1])]
        try:
            wait_until(lambda: attached(agent, *(folder / name for name in PROBED)), "the libraries")
            (spins_a_ms,) = workers[0].ask(1, 1, 0)
            spins, every = int(spins_a_ms / (LAUNCHES / 1000)), LAUNCHES // COLLECTIVES_A_SECOND
            workers[1].ask(int(LAUNCHES * SETTLE_SECONDS), every, spins)
            seconds = windows(agent)[1]
            turns = max(5, round(budget_seconds / seconds / 2))
            launches = int(LAUNCHES * seconds)
            begun, used = time.monotonic(), processor_seconds(agent.process.pid)
            times: list[tuple[float, float]] = []
            rates = []
            for turn in range(turns):
                pair = {}
                for which in (0, 1) if turn % 2 else (1, 0):
                    pair[which], wall = workers[which].ask(launches, every, spins)
                    rates.append(launches / wall)
                times.append((pair[0], pair[1]))
            share = (processor_seconds(agent.process.pid) - used) / (time.monotonic() - begun)
            resident = memory_mb(agent.process.pid, "VmRSS")
            peak = memory_mb(agent.process.pid, "VmHWM")
            helper = float(str(logged(agent, "programs_loaded").get("helper_peak_bytes", 0))) / 2**20
        finally:
            for worker in workers:
                worker.end()
        started = logged(agent, "started")
        duty, _ = windows(agent)
    ratios = [with_agent / without - 1 for without, with_agent in times]
    slower, spread = interval(ratios)
    extra, uncertain = interval([1e9 * (with_agent - without) / launches for without, with_agent in times])
    rate = statistics.median(rates)
    return [
        (
            f"slow-down at {rate:,.0f} launches/s, {rate / every:,.0f} collectives/s",
            f"{slower:.2%} ± {spread:.2%} of {turns} pairs of turns (median {statistics.median(ratios):.2%})",
            "< 0.5 %", slower + spread < 0.005,
        ),
        ("processor time added a launch, collectives included", f"{extra:.0f} ± {uncertain:.0f} ns", "", None),
        ("launches counted for", f"{duty:.0%} of the time", "", None),
        (
            "cost of a counted / timed call", f"{started.get('entry_ns')} / {started.get('pair_ns')} ns", "", None,
        ),
        ("agent's processor", f"{share:.2%} of a core", "< 1 %", share < 0.01),
        ("agent's resident memory (peak)", f"{resident:.0f} MB ({peak:.0f} MB)", "< 100 MB", peak < 100),
        ("helper's peak, for seconds at start", f"{helper:.0f} MB", "reported apart", None),
    ]  # fmt: skip


def counting(folder: Path, seconds: float) -> list[Row]:
    """Exact counts under a storm of calls, with everything always on."""
    library = compile_c(folder, "libcudart.so.12", RUNTIME, "-shared", "-fPIC", "-pthread")
    program = compile_c(folder, "stormer", STORMER, str(library))
    database = folder / "trace.db"
    with tracing(folder, "--budget", "1", period="1") as agent, job(program, STORM, seconds) as running:
        wait_until(lambda: attached(agent, library), "the library")
        go(running)
        calls = int(said(running))
        text = "SELECT SUM(count) FROM event_aggregates WHERE pid = ? AND source = 1 AND op = 3"
        deadline = time.monotonic() + 10
        while query(database, text, running.pid) < calls and time.monotonic() < deadline:
            time.sleep(0.1)
        counted = query(database, text, running.pid)
        lost = logged(agent, "lost")
    label = f"calls counted, {calls / seconds:,.0f}/s for {seconds:.0f} s"
    return [
        (label, f"{counted:,} of {calls:,}", "all, exactly", counted == calls),
        ("aggregates lost", str(lost.get("reasons", 0)), "0", not lost),
    ]  # fmt: skip


def coming_and_going(folder: Path, repeats: int) -> list[Row]:
    """How soon a new process is attached to, and how soon a killed agent's probes are gone."""
    attach, leave, unharmed = [], [], True
    for turn in range(repeats):
        inside = folder / str(turn)
        inside.mkdir()
        library = compile_c(inside, "libcudart.so.12", RUNTIME, "-shared", "-fPIC", "-pthread")
        program = compile_c(inside, "stormer", STORMER, str(library))
        with tracing(inside, period="1") as agent, job(program, 1000, 1) as running:

            def mapped(pid: int = running.pid, name: str = library.name) -> bool:
                return name in Path(f"/proc/{pid}/maps").read_text()

            def seen(agent: Running = agent, library: Path = library) -> bool:
                return attached(agent, library)

            attach.append(_seconds_until(mapped, seen))
            links = links_of(agent.process.pid)
            agent.process.send_signal(signal.SIGKILL)
            leave.append(_seconds_until(lambda: True, lambda links=links: not any(map(link_lives, links))))
            go(running)
            unharmed = unharmed and int(said(running)) > 0
    return [
        ("attached to a new process after", f"{max(attach):.2f} s at worst of {repeats}", "< 2 s", max(attach) < 2),
        ("kill -9: no probe left after", f"{max(leave):.2f} s at worst", "< 5 s", max(leave) < 5),
        ("the workload meanwhile", "unharmed" if unharmed else "harmed", "unharmed", unharmed),
    ]


def _seconds_until(first: Callable[[], bool], second: Callable[[], bool]) -> float:
    wait_until(first, "the library to be mapped")
    begun = time.monotonic()
    wait_until(second, "the probe")
    return time.monotonic() - begun


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter turns")
    options = parser.parse_args()
    if os.getuid() or not shutil.which("cc"):
        raise SystemExit("bench-trace: needs root and a C compiler; `ingero-agent check` says what else")
    paired, storm, repeats = (60.0, 10.0, 2) if options.quick else (300.0, 60.0, 3)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        for part, measure in (
            ("cost", lambda folder: cost(folder, paired)),
            ("counting", lambda folder: counting(folder, storm)),
            ("coming", lambda folder: coming_and_going(folder, repeats)),
        ):
            folder = Path(name) / part
            folder.mkdir()
            rows += measure(folder)
    print("| figure | ours | target | |\n| --- | --- | --- | --- |")
    for figure, ours, target, reached in rows:
        word = "" if reached is None else "reached" if reached else "not reached"
        print(f"| {figure} | {ours} | {target} | {word} |")


if __name__ == "__main__":
    main()
