"""Lines about processes that launch far less than they did, and about what processes hold of a GPU."""

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero_agent.trace.gpu_stats import GpuSample
from ingero_agent.trace.host import rank_and_world_size
from ingero_agent.trace.straggle import (
    IDLE_POLLS,
    MAX_PREEMPTING,
    MAX_PROCESSES,
    MIN_POLLS,
    MIN_SWITCHES,
    GpuAllocations,
    LaunchRate,
    LaunchRates,
    ThroughputDrop,
    advance,
    straggle_line,
)
from ingero_contract.events import StraggleEvent, parse_line
from ingero_testing.gpu_job import RUNTIME, attached, compile_c, go, job, tracing
from ingero_testing.processes import wait_until
from ingero_testing.trace_database import query

MANY = {7: MIN_SWITCHES}


def steady(paces: LaunchRates, polls: int = MIN_POLLS) -> LaunchRates:
    for _ in range(polls):
        assert paces.update({7: 100.0}, MANY) == []
    return paces


def test_a_drop_with_switches_is_reported_and_goes_on_being_reported_against_the_old_average() -> None:
    paces = steady(LaunchRates())

    first, second = (paces.update({7: 60.0}, MANY) for _ in range(2))

    (drop,), (later,) = first, second
    assert (drop.share, later.share) == (pytest.approx(0.4), pytest.approx(0.4))
    assert drop == ThroughputDrop(pid=7, share=drop.share, switches=MIN_SWITCHES, sustained=False)
    assert later == ThroughputDrop(pid=7, share=later.share, switches=MIN_SWITCHES, sustained=True)
    assert paces.update({7: 100.0}, MANY) == []
    assert not paces.update({7: 60.0}, MANY)[0].sustained


@pytest.mark.parametrize(
    ("polls", "rate", "switches"),
    [
        pytest.param(MIN_POLLS - 1, 10.0, MIN_SWITCHES, id="too young"),
        pytest.param(MIN_POLLS, 71.0, MIN_SWITCHES, id="too little"),
        pytest.param(MIN_POLLS, 10.0, MIN_SWITCHES - 1, id="nobody ran instead"),
    ],
)
def test_what_is_no_straggle(polls: int, rate: float, switches: int) -> None:
    assert steady(LaunchRates(), polls).update({7: rate}, {7: switches}) == []


def test_a_process_that_launches_nothing_is_forgotten() -> None:
    paces = steady(LaunchRates())
    straggles = [bool(paces.update({}, MANY)) for _ in range(IDLE_POLLS + 1)]

    assert straggles == [True] * (IDLE_POLLS - 1) + [False] * 2
    assert paces.update({7: 1.0}, MANY) == []


def test_processes_are_bounded() -> None:
    paces = LaunchRates()
    paces.update(dict.fromkeys(range(MAX_PROCESSES), 1.0), {})

    assert paces.update({MAX_PROCESSES: 1.0}, {}) == []
    assert len(paces._rates) == MAX_PROCESSES


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 100)), max_size=50))
def test_an_average_lies_within_what_was_seen_and_never_moves_while_it_straggles(
    polls: list[tuple[float, int]],
) -> None:
    pace = LaunchRate()
    for rate, switches in polls:
        before, pace = pace, advance(pace, rate, switches)
        if pace.straggling:
            assert pace.average == before.average
    if polls:
        assert 0 <= pace.average <= max(rate for rate, _ in polls) * 1.0000001


def test_a_line_names_the_rank_zero_and_at_most_so_many_others() -> None:
    drop = ThroughputDrop(pid=7, share=0.456, switches=9, sustained=True)
    line = straggle_line(drop, range(100, 200), 5, "train", "id", (0, 4))

    assert parse_line(line.to_json()) == ("straggle", line)
    assert (line.rank, line.world_size, line.throughput_drop_pct) == (0, 4, 45.6)
    assert line.preempting_pids == list(range(100, 100 + MAX_PREEMPTING))
    assert "rank" not in json.loads(straggle_line(drop, (), 5, "", "id", None).to_json())


@pytest.mark.parametrize("text", ['{"type": "memory", "pid": 1}', '{"type": "straggle", "pid": "x"}'])
def test_a_line_that_lacks_a_field_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"required|missing"):
        parse_line(text)


def test_a_process_number_that_is_none_is_refused() -> None:
    line = straggle_line(ThroughputDrop(pid=7, share=0.4, switches=9, sustained=False), (), 5, "", "id", None)

    with pytest.raises(ValueError, match="pid is not a number"):
        parse_line(line.to_json().replace('"pid":7', '"pid":"7"'))


def gpu(index: int = 0, **processes: int) -> GpuSample:
    held = {int(name[1:]): size for name, size in processes.items()}
    return GpuSample(index=index, uuid=f"GPU-{index}", used=0, free=0, total=1000, processes=held)


def test_what_a_process_holds_is_reported_when_it_changes_and_once_when_it_is_gone() -> None:
    holdings = GpuAllocations()
    holdings.allocated(7, 64)

    def poll(*gpus: GpuSample) -> list[tuple[int, int, int, int]]:
        found = holdings.update(gpus, 1, lambda pid: "train")
        return [(line.pid, line.gpu_id, line.allocated_bytes, line.last_alloc_size) for line in found]

    assert poll(gpu(p7=250)) == [(7, 0, 250, 64)]
    assert poll(gpu(p7=250)) == []
    assert poll(gpu(p7=300), gpu(1, p8=5)) == [(7, 0, 300, 64), (8, 1, 5, 0)]
    assert poll(gpu(), gpu(1, p8=5)) == [(7, 0, 0, 64)]
    assert poll(gpu(), gpu(1, p8=5)) == []


def test_a_gpu_that_does_not_answer_frees_nothing() -> None:
    holdings = GpuAllocations()
    holdings.update([gpu(p7=250)], 1, lambda pid: "")

    assert holdings.update([], 1, lambda pid: "") == []
    assert holdings.update([gpu(p7=250)], 1, lambda pid: "") == []
    (line,) = holdings.update([gpu(p7=500)], 1, lambda pid: "")
    assert parse_line(line.to_json()) == ("memory", line)
    assert (line.utilization_pct, line.comm) == (50.0, None)


def test_a_rank_needs_a_world() -> None:
    with subprocess.Popen(["sleep", "60"], env={"RANK": "0", "WORLD_SIZE": "4"}) as ranked:
        with subprocess.Popen(["sleep", "60"], env={"RANK": "0"}) as alone:
            wait_until(lambda: rank_and_world_size(ranked.pid) == (0, 4), "the environment")
            assert rank_and_world_size(alone.pid) is None
            alone.kill()
        ranked.kill()


def test_without_a_rank_and_a_world_those_of_srun_count() -> None:
    with subprocess.Popen(["sleep", "60"], env={"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}) as task:
        wait_until(lambda: rank_and_world_size(task.pid) == (3, 4), "the environment")
        task.kill()


PACED = r"""
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>
typedef struct { unsigned x, y, z; } dim3;
int cudaLaunchKernel(void *, dim3, dim3, void **, size_t, void *);
static void spin(void) { for (volatile long i = 0; i < 300000; i++) {} }
static void *hog(void) { if (!fork()) { prctl(PR_SET_PDEATHSIG, SIGKILL); for (;;) {} } return 0; }
/* Launches as fast as one processor lets it; after another line, neighbours want the same processor. */
int main(void)
{
  dim3 one = {1, 1, 1};
  cpu_set_t mine;
  CPU_ZERO(&mine);
  CPU_SET(sched_getcpu(), &mine);
  sched_setaffinity(0, sizeof mine, &mine);
  cudaLaunchKernel(0, one, one, 0, 0, 0);
  getchar();
  if (!fork()) { getchar(); for (int i = 0; i < 12; i++) hog(); for (;;) pause(); }
  for (;;) { spin(); cudaLaunchKernel(0, one, one, 0, 0, 0); }
}
"""


def launched(database: Path, pid: int) -> int:
    """Buckets of five seconds in which a process launched."""
    text = "SELECT COUNT(*) FROM event_aggregates_5s WHERE pid = ? AND source = 1 AND op = 3"
    return int(query(database, text, pid)[0][0])


@pytest.mark.ebpf
def test_a_process_that_others_push_off_is_reported_with_who_they_are(tmp_path: Path) -> None:
    library = compile_c(tmp_path, "libcudart.so.12", RUNTIME, "-shared", "-fPIC", "-pthread")
    program, path = compile_c(tmp_path, "paced", PACED, str(library)), tmp_path / "trace.sock"
    flags = ("--remediate", "--remediate-socket", str(path), "--gpu-interval", "0s")
    with tracing(tmp_path, *flags) as agent, job(program) as running, socket.socket(socket.AF_UNIX) as channel:
        channel.connect(str(path))
        channel.settimeout(60)
        wait_until(lambda: attached(agent, library), "the library")
        go(running)
        wait_until(lambda: launched(tmp_path / "trace.db", running.pid) > 1, "two buckets of five seconds")
        go(running)
        found = next(
            event
            for line in channel.makefile("rb")
            if isinstance(event := parse_line(line)[1], StraggleEvent)
            and event.pid == running.pid
            and event.preempting_pids
        )
        os.killpg(running.pid, 9)

    assert (found.comm, found.sched_switch_count >= MIN_SWITCHES, found.throughput_drop_pct >= 30) == (
        "paced", True, True
    )  # fmt: skip
    assert running.pid not in found.preempting_pids
    assert found.event_id
