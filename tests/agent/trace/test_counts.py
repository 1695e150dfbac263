"""Differences between polls, and windows whose rates stay where they were."""

import re
import struct
import urllib.request
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero_agent.trace.counts import CALL_KEY, COLLECTIVE_KEY, CallCount, CounterDeltas, Scaler, longest, unpack
from ingero_agent.trace.probes.table import FUNCTIONS
from ingero_agent.trace.stats import TraceStats, histogram_buckets, quantile
from ingero_testing.gpu_job import RUNTIME, attached, compile_c, go, job, listening_port, said, tracing
from ingero_testing.processes import wait_until

BY_NAME = {function.name: function for function in FUNCTIONS}
LAUNCH, COPY, REDUCE = BY_NAME["cudaLaunchKernel"], BY_NAME["cudaMemcpyAsync"], BY_NAME["ncclAllReduce"]


def value(count: int, nanoseconds: int = 0, most: int = 0, size: int = 0, octave: int | None = None) -> bytes:
    histogram = [count if index == octave else 0 for index in range(32)]
    return struct.pack("=7Q32I", count, nanoseconds, most, size, 0, 0, count, *histogram)


def test_processors_are_added_up_and_the_longest_of_them_stands() -> None:
    assert unpack(value(2, 10, 7, 100) + value(3, 20, 9, 1), 2)[:4] == (5, 30, 9, 101)


@given(st.lists(st.integers(0, 1000), max_size=20))
def test_differences_add_up_to_the_last_value(steps: list[int]) -> None:
    differences, key, total, found = CounterDeltas(), CALL_KEY.pack(7, LAUNCH.number, 0), 0, 0
    for step in steps:
        total += step
        new = differences.call(key, unpack(value(total), 1))
        found += new.count if new else 0

    assert found == total


@pytest.mark.parametrize(("dtype", "size"), [(7, 4000), (6, 2000), (10, 1000), (99, 0)])
def test_elements_become_bytes_and_never_by_a_guess(dtype: int, size: int) -> None:
    key = COLLECTIVE_KEY.pack(7, REDUCE.number, dtype, 0, 1)
    new = CounterDeltas().collective(key, unpack(value(1, size=1000), 1))

    assert new is not None
    assert new.size == size


def test_a_function_that_is_not_in_the_table_is_passed_over() -> None:
    assert CounterDeltas().call(CALL_KEY.pack(7, 250, 0), unpack(value(1), 1)) is None


def test_the_longest_call_is_of_this_poll_and_not_of_an_older_one() -> None:
    record, after = (5, 0, 9000, 0, 0), (6, 0, 9000, 0, 0)
    histogram = tuple(int(index == 10) for index in range(32))

    assert longest(None, after, histogram) == 9000
    assert longest(record, (6, 0, 9500, 0, 0), histogram) == 9500
    assert longest(record, after, histogram) == 2047


@given(st.integers(1, 100_000), st.sampled_from([4, 10, 30]), st.integers(2, 12))
def test_windows_and_estimates_together_report_the_true_number_of_a_steady_load(
    rate: int, every: int, windows: int
) -> None:
    scaler, reported = Scaler(), 0
    for _ in range(windows):
        for second in range(every):
            counted = [CallCount(LAUNCH, 7, rate)] if second == 0 else []
            reported += sum(one.count for one in scaler.step(counted, float(second == 0), float(second > 0), {7}))

    assert abs(reported - rate * every * windows) <= windows


def test_a_process_that_is_gone_is_estimated_no_more() -> None:
    scaler = Scaler()
    list(scaler.step([CallCount(LAUNCH, 7, 100)], 1.0, 0.0, {7}))

    assert [one.count for one in scaler.step([], 0.0, 0.5, {7})] == [50]
    assert list(scaler.step([], 0.0, 0.5, set())) == []


@pytest.mark.parametrize(("waits", "launches"), [(100, 2000), (50, 1000), (0, 0), (200, 4000)])
def test_between_windows_estimates_follow_calls_that_are_always_counted(waits: int, launches: int) -> None:
    scaler = Scaler()
    list(scaler.step([CallCount(LAUNCH, 7, 2000)], 1.0, 0.0, {7}, {7: 100}))

    assert sum(one.count for one in scaler.step([], 0.0, 1.0, {7}, {7: waits})) == launches


def test_a_window_with_hardly_any_such_call_says_no_ratio() -> None:
    scaler = Scaler()
    list(scaler.step([CallCount(LAUNCH, 7, 2000)], 1.0, 0.0, {7}, {7: 2}))

    assert [one.count for one in scaler.step([], 0.0, 1.0, {7}, {7: 0})] == [2000]


@given(st.integers(1, 50), st.integers(8, 200), st.sampled_from([4, 10, 30]), st.integers(0, 9))
def test_windows_that_begin_inside_of_a_poll_leave_the_sum_as_it_is(
    each: int, waits: int, every: int, tenths: int
) -> None:
    scaler, reported, on = Scaler(), 0, 1.0 - tenths / 10
    for _ in range(3):
        for second in range(every):
            counted = [CallCount(LAUNCH, 7, round(each * waits * on))] if second == 0 else []
            time_on = on if second == 0 else 0.0
            reported += sum(one.count for one in scaler.step(counted, time_on, 1.0 - time_on, {7}, {7: waits}))

    whole = each * waits * every * 3
    assert abs(reported - whole) <= 0.02 * whole + 3 * every + 3 * every / on


def test_estimates_scale_time_and_bytes_and_say_that_they_are_estimates() -> None:
    scaler = Scaler()
    list(scaler.step([CallCount(COPY, 7, 10, 1000, size=500, kind=1)], 1.0, 0.0, {7}))
    (one,) = scaler.step([], 0.0, 3.0, {7})

    assert (one.count, one.nanoseconds, one.size, one.kind, one.estimated) == (30, 3000, 1500, 1, True)


@pytest.mark.parametrize(("share", "low", "high"), [(0.5, 1024, 2048), (0.99, 2**20, 2**21), (0.0, 0, 1024)])
def test_quantiles_lie_in_the_octave_that_holds_them(share: float, low: float, high: float) -> None:
    histogram = [0] * 32
    histogram[10], histogram[20] = 90, 10

    assert low <= quantile(histogram, share) <= high
    assert quantile([0] * 32, share) == 0


def test_copies_are_kept_by_direction_and_fall_into_their_buckets() -> None:
    ledger = TraceStats()
    histogram = tuple(3 * int(index == 20) for index in range(32))
    ledger.add([CallCount(COPY, 7, 3, 3 * 10**6, size=300, kind=1, histogram=histogram), CallCount(LAUNCH, 7, 5)])

    assert {name: totals.size for name, totals in ledger.copies.items()} == {"h2d": 300}
    assert sum(histogram_buckets(ledger.copies["h2d"])) == 3
    assert histogram_buckets(ledger.copies["h2d"])[4] == 3


STORM = r"""
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
typedef struct { unsigned x, y, z; } dim3;
int cudaLaunchKernel(void *, dim3, dim3, void **, size_t, void *);
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
int main(int argc, char **argv) {
  dim3 one = {1, 1, 1};
  double rate = atof(argv[1]), seconds = atof(argv[2]);
  long calls = 0;
  getchar();
  /* Who was kept from its processor does not catch up: a window over that would stand for the time around it. */
  for (double end = now() + seconds, due = now(), at; (at = now()) < end;) {
    if (at < due) { usleep(200); continue; }
    if (at > due + 0.01) due = at;
    due += 1 / rate;
    cudaLaunchKernel(0, one, one, 0, 0, 0);
    calls++;
  }
  printf("%ld\n", calls);
  fflush(stdout);
  getchar();
}
"""


def metric(page: str, name: str) -> float:
    return float(next(line.rpartition(" ")[2] for line in page.splitlines() if line.startswith(name + " ")))


def launches(page: str) -> float:
    name = 'gpu_cuda_operation_count{operation="cudaLaunchKernel",source="cuda"}'
    return metric(page, name) if name in page else 0.0


@pytest.mark.serial
@pytest.mark.ebpf
def test_too_many_launches_are_counted_in_windows_and_their_rate_stays_where_it_was(tmp_path: Path) -> None:
    library = compile_c(tmp_path, "libcudart.so.12", RUNTIME, "-shared", "-fPIC", "-pthread")
    program = compile_c(tmp_path, "storm", STORM, str(library))
    flags = ("--budget", "0.004", "--only-command", re.escape(str(program)))
    with (
        tracing(tmp_path, "--prometheus", "127.0.0.1:0", *flags, period="0.5") as agent,
        job(program, 15_000, 24) as running,
    ):
        wait_until(lambda: attached(agent, library), "the library")
        url = f"http://127.0.0.1:{listening_port(agent)}/metrics"
        pages: list[str] = []

        def page() -> str:
            with urllib.request.urlopen(url, timeout=60) as answer:
                pages.append(answer.read().decode())
            return pages[-1]

        def within() -> bool:
            storm = page()
            return metric(storm, "ingero_trace_step") > 0 and metric(storm, "ingero_trace_overhead_ratio") <= 0.004

        go(running)
        wait_until(within, "the governor to come inside its budget while the storm lasts", 23)
        calls = int(said(running))
        wait_until(lambda: launches(page()) > 0.75 * calls, "the counts", 15)
    counts = [launches(each) for each in pages]

    assert counts[-1] < 1.3 * calls
    assert all(after >= before for before, after in pairwise(counts))
    assert metric(pages[-1], 'ingero_trace_duty_ratio{group="launch"}') <= 0.25
    assert metric(pages[-1], 'ingero_trace_duty_ratio{group="core"}') == 1.0
