"""Measures the cost of tracing and the accuracy of its counts: `make bench-trace` as root; `ARGS=--quick` for less.

The workload has the names and signatures of CUDA and NCCL and needs no GPU. In alternating turns of half a
millisecond, one program calls probed functions and the same code under names that are not probed; the same work
follows each call. The clock paces it to 20,000 probed launches and 100 probed collectives a second; where it falls
short, the table shows the actual rates. Both kinds of turn share processor, caches and neighbours within a
millisecond, so that only tracing differs: the slow-down is the added processor time relative to that of the untraced
work. A round lasts as long as the governor's windows and gives one value. The figure is the median of the rounds with
its 95 % bootstrap interval; the target is reached if the whole interval lies below it. The cost of watching the
scheduler affects both kinds of turn, so it is reported separately.
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
import urllib.request
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

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
    listening_port,
    said,
    tracing,
)
from ingero_testing.processes import Running, next_line, wait_until  # noqa: E402

PROBED = ("libcudart.so.12", "libnccl.so.2")
LAUNCHES, COLLECTIVES_A_SECOND, STORM = 20_000, 100, 100_000
COSTS = ("entry", "collective", "wait")
SHORTEST_ROUND = 4.0
SETTLE_SECONDS = 12.0
"""Work before the first round: the governor takes three seconds to shed."""

BUSY = 0.9
"""Share of the time in which the workload works; the rest is what it can lose without missing its rate."""

PLAIN = {
    "cudaLaunchKernel": "plainLaunchKernel", "cudaStreamSynchronize": "plainStreamSynchronize",
    "ncclCommInitRank": "plainInitRank", "ncclAllReduce": "plainAllReduce",
}  # fmt: skip
"""The same code under names without probes."""

WORKER = (ROOT / "bench/trace_worker.c").read_text()
STORMER = (ROOT / "bench/trace_stormer.c").read_text()


@dataclass(frozen=True)
class Round:
    """Processor and wall seconds of plain and probed turns; calls of the probed turns; total duration."""

    plain_cpu: float
    plain_wall: float
    probed_cpu: float
    probed_wall: float
    launches: int
    collectives: int
    seconds: float

    @property
    def slower(self) -> float:
        """Added processor time relative to that of the same untraced work, at the rate of the probed turns."""
        return (self.probed_cpu - self.plain_cpu) / (2 * self.plain_cpu)

    @property
    def slower_wall(self) -> float:
        """The same in wall time while it worked."""
        return (self.probed_wall - self.plain_wall) / (2 * self.plain_wall)


class Worker:
    """The program that works on command, pinned to one core."""

    TURN = LAUNCHES // 1000
    PAIR_MICROSECONDS = 1000
    EVERY = 1000 // COLLECTIVES_A_SECOND

    def __init__(self, program: Path, core: int) -> None:
        self.process = subprocess.Popen(
            [str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )  # fmt: skip
        self.spins, self.launches = 100, 0

    def calibrate(self) -> None:
        """Find the work per launch that fills `BUSY` of the time, in the same loop that is measured later."""
        for _ in range(4):
            found = self._ask(300, 0)
            self.spins = max(1, round(self.spins * BUSY * 300 * self.PAIR_MICROSECONDS / 1e6 / 2 / found.plain_cpu))

    def work(self, seconds: float) -> Round:
        """Run one round at the wanted rates."""
        return self._ask(round(seconds * 1e6 / self.PAIR_MICROSECONDS), self.PAIR_MICROSECONDS)

    def end(self) -> None:
        """Close the worker's input, which ends it."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(10)

    def _ask(self, pairs: int, pace: int) -> Round:
        assert self.process.stdin
        self.process.stdin.write(f"{pairs} {self.TURN} {self.spins} {self.EVERY} {pace}\n")
        self.process.stdin.flush()
        *times, launches, collectives, seconds = next_line(self.process, 600).split()
        plain_cpu, plain_wall, probed_cpu, probed_wall = map(float, times)
        self.launches += int(launches)
        return Round(
            plain_cpu, plain_wall, probed_cpu, probed_wall, int(launches), int(collectives), float(seconds)
        )  # fmt: skip


def build(folder: Path) -> Path:
    """The worker over libraries that the agent attaches to, and over the same code under other names."""
    shared = ("-shared", "-fPIC")
    renamed = [f"-D{name}={plain}" for name, plain in PLAIN.items()]
    libraries = [
        compile_c(folder, "libcudart.so.12", RUNTIME, *shared, "-pthread"),
        compile_c(folder, "libnccl.so.2", COLLECTIVES, *shared, "-DHASH_AT=64"),
        compile_c(folder, "libplainrt.so", RUNTIME, *shared, *renamed, "-pthread"),
        compile_c(folder, "libplainc.so", COLLECTIVES, *shared, *renamed, "-DHASH_AT=64"),
    ]
    return compile_c(folder, "worker", WORKER, *map(str, libraries), "-pthread")


def processor_seconds(pid: int) -> float:
    """Processor time that a process has used so far."""
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


TimelineRow = tuple[str, str, str, bool | None]


def interval(values: list[float], samples: int = 2000) -> tuple[float, float, float]:
    """Median, and its 95 % bootstrap interval."""
    random = Random(1)
    medians = sorted(statistics.median(random.choices(values, k=len(values))) for _ in range(samples))
    return statistics.median(values), medians[samples // 40], medians[-samples // 40 - 1]


def percent(found: tuple[float, float, float]) -> str:
    """A median and its interval as text."""
    middle, low, high = found
    return f"{middle:.2%} [{low:.2%} to {high:.2%}]"


def windows(agent: Running) -> tuple[float, float]:
    """Share of the time in which launches are counted now, and how long a round of windows takes."""
    steps = [json.loads(line) for line in agent.words().splitlines() if '"event": "budget"' in line]
    duty = float(steps[-1]["launch"]) if steps else 1.0
    return duty, max(SHORTEST_ROUND, 1 / duty)


def settle(agent: Running, worker: Worker) -> float:
    """Work until the governor sheds no further; how long a round of its windows takes, seconds."""
    now = windows(agent)
    for _ in range(5):
        worker.work(SETTLE_SECONDS)
        before, now = now, windows(agent)
        if now == before:
            break
    return now[1]


def figure(page: str, name: str) -> float:
    """One metric of the agent's page."""
    return float(next((line.split()[-1] for line in page.splitlines() if line.startswith(name + " ")), "nan"))


def cost(folder: Path, budget_seconds: float) -> list[TimelineRow]:
    """Slow-down by rounds, the agent's own usage meanwhile, and the error of the scaled counts."""
    program = build(folder)
    cores = sorted(os.sched_getaffinity(0))
    with tracing(folder, "--budget", "0.005", "--prometheus", "127.0.0.1:0", period="1") as agent:
        os.sched_setaffinity(agent.process.pid, set(cores[:-1] or cores))
        worker = Worker(program, cores[-1])
        try:
            wait_until(lambda: attached(agent, *(folder / name for name in PROBED)), "the libraries")
            worker.calibrate()
            seconds = settle(agent, worker)
            begun, used = time.monotonic(), processor_seconds(agent.process.pid)
            counted_before, made_before = launches(folder, worker), worker.launches
            rounds = [worker.work(seconds) for _ in range(max(5, round(budget_seconds / seconds)))]
            share = (processor_seconds(agent.process.pid) - used) / (time.monotonic() - begun)
            counted, made = launches(folder, worker) - counted_before, worker.launches - made_before
            with urllib.request.urlopen(f"http://127.0.0.1:{listening_port(agent)}/metrics", timeout=10) as answer:
                page = answer.read().decode()
            resident, peak = (memory_mb(agent.process.pid, field) for field in ("VmRSS", "VmHWM"))
        finally:
            worker.end()
        helper = float(str(logged(agent, "programs_loaded").get("helper_peak_bytes", 0))) / 2**20
        started, duty = logged(agent, "started"), windows(agent)[0]
    return [*slow_down(rounds, duty), *agents_own(share, resident, peak, helper), scaled(counted, made, rounds),
            ("cost of a counted call / collective / its wait (after a pause)", prices(started), "", None),
            ("what the agent takes it to cost", f"{figure(page, 'ingero_trace_overhead_ratio'):.2%}", "", None),
            ("watching the scheduler costs every processor", watching(page), "", None)]  # fmt: skip


def slow_down(rounds: list[Round], duty: float) -> list[TimelineRow]:
    """Rows on the cost that tracing adds to the work."""
    cpu, wall = interval([one.slower for one in rounds]), interval([one.slower_wall for one in rounds])
    extra = interval([1e9 * (one.probed_cpu - one.plain_cpu) / one.launches for one in rounds])
    rate, collectives = (
        statistics.median(getattr(one, name) / one.seconds for one in rounds) for name in ("launches", "collectives")
    )
    paced = abs(rate / LAUNCHES - 1) < 0.02
    return [
        ("launches and collectives a second, really made", f"{rate:,.0f} and {collectives:,.0f}",
         f"{LAUNCHES:,} and {COLLECTIVES_A_SECOND}", paced),
        (f"slow-down in processor time, {len(rounds)} rounds", percent(cpu), "< 0.5 %", cpu[2] < 0.005),
        ("slow-down in wall time while working", percent(wall), "", None),
        ("processor time added a launch, collectives included",
         f"{extra[0]:.0f} ns [{extra[1]:.0f} to {extra[2]:.0f}]", "", None),
        ("launches counted for", f"{duty:.0%} of the time", "", None),
    ]  # fmt: skip


def agents_own(share: float, resident: float, peak: float, helper: float) -> list[TimelineRow]:
    """Rows on the agent's own usage."""
    return [
        ("agent's processor", f"{share:.2%} of a core", "< 1 %", share < 0.01),
        ("agent's resident memory (peak)", f"{resident:.0f} MB ({peak:.0f} MB)", "< 100 MB", peak < 100),
        ("helper's peak, for seconds at start", f"{helper:.0f} MB", "reported apart", None),
    ]


def scaled(counted: int, made: int, rounds: list[Round]) -> TimelineRow:
    """Error of counts that were scaled up from windows; a round at the edge may fall on either side."""
    edge, off = 1 / len(rounds), counted / made - 1
    return (f"launches counted over {made:,} made", f"{off:+.2%}", f"within {edge:.0%}: one round", abs(off) <= edge)


def prices(started: dict[str, object]) -> str:
    """What the agent measured at its start."""
    return " / ".join(f"{started.get(kind)} ({started.get(kind + '_cold')})" for kind in COSTS) + " ns"


def watching(page: str) -> str:
    """The agent's own estimate, from the kernel's count of its programs' time."""
    nanoseconds = figure(page, 'ingero_trace_probe_cost_seconds{kind="switch"}') * 1e9
    return f"{figure(page, 'ingero_trace_scheduler_share_ratio'):.3%} ({nanoseconds:.0f} ns a switch)"


def launches(folder: Path, worker: Worker) -> int:
    """Launches of the worker that the database has."""
    text = "SELECT SUM(count) FROM event_aggregates WHERE pid = ? AND source = 1 AND op = 3"
    return query(folder / "trace.db", text, worker.process.pid)


def counting(folder: Path, seconds: float) -> list[TimelineRow]:
    """Exact counts under a storm of calls, with all probes always on."""
    library = compile_c(folder, "libcudart.so.12", RUNTIME, "-shared", "-fPIC", "-pthread")
    program = compile_c(folder, "stormer", STORMER, str(library))
    database = folder / "trace.db"
    with tracing(folder, "--budget", "1", period="1") as agent, job(program, STORM, seconds) as running:
        wait_until(lambda: attached(agent, library), "the library")
        go(running)
        calls = int(next_line(running, 300))
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


def coming_and_going(folder: Path, repeats: int) -> list[TimelineRow]:
    """How soon the agent attaches to a new process, and how soon the probes of a killed agent are gone."""
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
            leave.append(_seconds_until(lambda: True, partial(_gone, links)))
            go(running)
            unharmed = unharmed and int(said(running)) > 0
    return [
        ("attached to a new process after", f"{max(attach):.2f} s at worst of {repeats}", "< 2 s", max(attach) < 2),
        ("kill -9: no probe left after", f"{max(leave):.2f} s at worst", "< 5 s", max(leave) < 5),
        ("the workload meanwhile", "unharmed" if unharmed else "harmed", "unharmed", unharmed),
    ]


def _gone(links: Iterable[int]) -> bool:
    return not any(map(link_lives, links))


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
    rows: list[TimelineRow] = []
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / part for part in ("cost", "counting", "coming")]
        for folder in folders:
            folder.mkdir()
        rows += cost(folders[0], paired)
        rows += counting(folders[1], storm)
        rows += coming_and_going(folders[2], repeats)
    print("| figure | ours | target | |\n| --- | --- | --- | --- |")
    for figure, ours, target, reached in rows:
        word = "" if reached is None else "reached" if reached else "not reached"
        print(f"| {figure} | {ours} | {target} | {word} |")


if __name__ == "__main__":
    main()
