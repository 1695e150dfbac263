"""Time off the processor, by the thread's real state: wanting a processor is a stall, sleep is not."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero_agent.trace.btf import NoTypes, Types, switch_layout
from ingero_agent.trace.findings import Severity, TimeWindow, find_causes
from ingero_agent.trace.scheduler import FLOOR_NS, SHARE_OF_BUDGET, cost_ns, parse_switches, should_watch
from ingero_agent.trace.tracer import EbpfTracer
from ingero_testing.gpu_job import RUNTIME, attached, compile_c, go, job, said, tracing
from ingero_testing.processes import wait_until
from ingero_testing.trace_database import query

SPINNER = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
int cudaStreamSynchronize(void *);
static double at(clockid_t clock) { struct timespec t; clock_gettime(clock, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static double waited;
/* What the kernel itself counts: time that passes while the thread runs and its processor does not, as when a
   hypervisor takes it, is no wait. */
static double run_delay(void)
{
  unsigned long long ran = 0, delay = 0;
  FILE *file = fopen("/proc/thread-self/schedstat", "r");
  if (!file || fscanf(file, "%llu %llu", &ran, &delay) != 2) abort();
  fclose(file);
  return delay / 1e9;
}
static void *spin(void *want)
{
  double before = run_delay(), cpu = at(CLOCK_THREAD_CPUTIME_ID);
  while (at(CLOCK_THREAD_CPUTIME_ID) - cpu < *(double *)want) {}
  waited = run_delay() - before;
  return 0;
}
/* A second thread uses the processor for so many seconds, which a hog wants too; meanwhile the first sleeps. Says for
   how long both wanted a processor and had none. */
int main(int argc, char **argv)
{
  double want = atof(argv[1]);
  pthread_t thread;
  cudaStreamSynchronize(0);
  double before = run_delay();
  getchar();
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  sched_setaffinity(0, sizeof one, &one);
  pid_t hog = want ? fork() : 0;
  if (want && !hog) { alarm(20); for (;;) {} }
  if (want) { pthread_create(&thread, 0, spin, &want); pthread_join(thread, 0); kill(hog, SIGKILL); }
  else sleep(1);
  printf("%f\n", waited + run_delay() - before);
  fflush(stdout);
  getchar();
}
"""


def waited(database: Path, pid: int) -> float:
    """Seconds for which a process's threads wanted a processor and had none."""
    ((nanoseconds,),) = query(
        database, "SELECT SUM(sum_dur) FROM event_aggregates WHERE source = 3 AND op = 1 AND pid = ?", pid
    )
    return (nanoseconds or 0) / 1e9


@pytest.mark.ebpf
def test_a_thread_pushed_off_its_processor_stalls_and_a_sleeping_one_does_not(tmp_path: Path) -> None:
    library = compile_c(tmp_path, "libcudart.so.12", RUNTIME, "-shared", "-fPIC", "-pthread")
    program, database = compile_c(tmp_path, "spinner", SPINNER, str(library), "-pthread"), tmp_path / "trace.db"
    with tracing(tmp_path) as agent, job(program, 0.5) as spinner, job(program, 0) as sleeper:
        wait_until(lambda: attached(agent, library), "the library")
        for started in (spinner, sleeper):
            go(started)
        off, off_asleep = float(said(spinner)), float(said(sleeper))
        wait_until(lambda: waited(database, spinner.pid) > 0.9 * off, "the stall")
        stalled, slept = waited(database, spinner.pid), waited(database, sleeper.pid)

    assert off > 0.1
    assert stalled < 1.2 * off + 0.05
    assert slept < 1.2 * off_asleep + 0.05, "a second of sleep is no wait"


@given(st.floats(0, 1), st.floats(0.0001, 1))
def test_watching_never_takes_more_than_its_share_of_the_budget_and_begins_again_well_below(
    share: float, budget: float
) -> None:
    limit = SHARE_OF_BUDGET * budget

    assert should_watch(True, share, budget) == (share <= limit)
    assert should_watch(False, share, budget) == (share <= limit / 2)


@pytest.mark.parametrize(
    ("switch", "wakeup", "nanoseconds"),
    [((0, 0), (0, 0), FLOOR_NS), ((1000, 100), (0, 0), FLOOR_NS), ((80_000, 100), (40_000, 200), 1350.0)],
)
def test_what_a_switch_costs_is_what_both_programs_take(
    switch: tuple[int, int], wakeup: tuple[int, int], nanoseconds: float
) -> None:
    assert cost_ns(switch, wakeup) == nanoseconds


@pytest.mark.ebpf
def test_what_watching_costs_is_measured_by_the_kernel_and_above_the_limit_it_is_left_off() -> None:
    tracer = EbpfTracer()
    try:
        scheduler = tracer.scheduler
        scheduler.switch_ns, scheduler.budget = 0.0, 1.0
        scheduler.adjust(1e6)
        scheduler.adjust(1e6 + 1)
        before = switches()
        wait_until(lambda: scheduler._runs("on_switch")[1] > 0 and switches() > before, "a switch")
        scheduler.adjust(1e6 + 2)
        assert scheduler.on
        assert scheduler.switch_ns >= FLOOR_NS
        assert scheduler.share > 0

        scheduler.budget, before = 1e-12, switches()
        wait_until(lambda: switches() > before, "a switch")
        scheduler.adjust(1e6 + 3)
        assert (scheduler.on, scheduler.share) == (False, 0.0)
    finally:
        tracer.close()


def switches() -> int:
    """Switches of this machine since its start."""
    return parse_switches(Path("/proc/stat").read_text())


def test_switches_are_read_from_the_kernels_statistics() -> None:
    assert parse_switches("cpu 1 2\nctxt 1234\nbtime 1\n") == 1234
    with pytest.raises(ValueError, match="ctxt"):
        parse_switches("cpu 1 2\n")


def types(*, state_first: bool = False, state: bool = True) -> bytes:
    """Type information with a task of 4-byte fields and a tracepoint of the given arguments."""
    names = b"\0task_struct\0pid\0__state\0btf_trace_sched_switch\0bool\0"

    def name(text: bytes) -> int:
        return names.index(b"\0" + text + b"\0") + 1

    def record(text: bytes, kind: int, count: int, other: int, *words: int) -> bytes:
        return struct.pack(f"={3 + len(words)}I", name(text) if text else 0, kind << 24 | count, other, *words)

    arguments = [6, 3, 3, *([1] if state else [])] if not state_first else [6, 1, 3, 3]
    body = b"".join(
        (
            record(b"", 1, 0, 4, 32),  # 1: unsigned int
            record(b"task_struct", 4, 2, 64, name(b"__state"), 1, 24 * 8, name(b"pid"), 1, 40 * 8),  # 2
            record(b"", 2, 0, 2),  # 3: pointer to it
            record(b"", 13, 1 + len(arguments), 0, 0, 0, *(word for kind in arguments for word in (0, kind))),  # 4
            record(b"", 2, 0, 4),  # 5: pointer to the prototype
            record(b"bool", 1, 0, 1, 8),  # 6
            record(b"btf_trace_sched_switch", 8, 0, 5),  # 7
        )
    )
    return struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(body), len(body), len(names)) + body + names


@pytest.mark.parametrize(
    ("data", "arguments"),
    [
        pytest.param(types(), (1, 2, 3), id="state last"),
        pytest.param(types(state_first=True), (2, 3, 1), id="state second"),
        pytest.param(types(state=False), (1, 2, None), id="no state"),
    ],
)
def test_the_arguments_of_a_switch_are_found_wherever_the_kernel_has_them(
    data: bytes, arguments: tuple[int | None, ...]
) -> None:
    found = switch_layout(Types(data))

    assert (found.prev_argument, found.next_argument, found.state_argument) == arguments
    assert (found.pid_offset, found.state_offset) == (40, 24)


@given(st.binary(max_size=200), st.integers(0, 200))
def test_broken_type_information_is_refused_in_words(rubbish: bytes, at: int) -> None:
    data = types()
    for broken in (rubbish, data[:at], data[:24] + rubbish + data[24 + len(rubbish) :]):
        try:
            switch_layout(Types(broken))
        except NoTypes as error:
            assert "type information" in str(error) or "tracepoint" in str(error)


def test_a_nameless_part_of_a_structure_is_part_of_it() -> None:
    found = Types(types()).offsets(Types(types()).find(4, "task_struct"), "pid", "nothing")

    assert found == {"pid": 40}


def test_a_process_that_wants_processors_is_reported() -> None:
    (finding,) = find_causes(TimeWindow(stalls={7: 0.8, 8: 0.05}, names={7: "train"}))

    assert (finding.kind, finding.severity) == ("cpu-starved", Severity.HIGH)
    assert finding.summary == "threads of train (7) wanted a processor and had none for 0.80 s a second"
