"""A tracer in a PID namespace that is not the machine's first, as on a node that is itself a container."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from ingero_agent.trace.btf import NoTypes, Types, numbers_layout
from ingero_testing.gpu_job import (
    NODE,
    attached,
    build_job,
    compile_c,
    descendants,
    go,
    inside,
    job,
    numbers,
    said,
    tracing,
)  # fmt: skip
from ingero_testing.processes import wait_until
from ingero_testing.trace_database import query
from tests.agent.trace.test_scheduler import SPINNER, types

STEPS = 100


def below(pid: int) -> set[int]:
    """Numbers of the processes of a pod, those three namespaces deep, in its node's namespace, the second of them."""
    found = [numbers(one) for one in descendants(pid)]
    return {one[1] for one in found if len(one) == 3}


def maps(pid: int, library: Path) -> bool:
    """Whether a descendant of a process has mapped the code of a library by now; a loader maps that last."""
    maps = (Path(f"/proc/{one}/maps").read_text() for one in descendants(pid))
    return any(" r-xp " in line and line.endswith(str(library)) for text in maps for line in text.splitlines())


@pytest.mark.ebpf
def test_processes_of_containers_have_the_numbers_that_the_node_knows_and_other_nodes_count_for_nothing(
    tmp_path: Path,
) -> None:
    program, database = build_job(tmp_path), tmp_path / "trace.db"
    runtime = tmp_path / "libcudart.so.12"
    spinner = compile_c(tmp_path, "spinner", SPINNER, str(runtime), "-pthread")
    with tracing(tmp_path, before=NODE) as agent:
        pod = (*inside(agent), *NODE)
        with ExitStack() as jobs:
            pods_spinner = jobs.enter_context(job(spinner, 0.3, before=pod))
            wait_until(lambda: maps(pods_spinner.pid, runtime), "the spinner")
            # Only the jobs use NCCL: the search that finds them finds the spinner too and follows its threads.
            pods_job = jobs.enter_context(job(program, 2, STEPS, 1000, 1, 0, "after-init", before=pod))
            elsewhere = jobs.enter_context(job(program, 2, STEPS, 1000, 1, 0, "after-init"))
            for started in (pods_job, elsewhere):
                assert said(started) == "ready"
            wait_until(lambda: attached(agent, runtime, tmp_path / "libnccl.so.2"), "the libraries")
            ranks, spins = below(pods_job.pid), below(pods_spinner.pid)
            for started in (elsewhere, pods_job):
                go(started)
            assert (said(elsewhere), said(pods_job)) == ("done", "done")
            calls = "SELECT pid, SUM(count) FROM event_aggregates WHERE source = {} AND op = {} GROUP BY pid"
            wait_until(
                lambda: [count for _, count in query(database, calls.format(9, 3))] == [STEPS] * 2, "the collectives"
            )
            go(pods_spinner)
            off = float(said(pods_spinner))
            stalls = "SELECT pid, SUM(sum_dur) / 1e9 FROM event_aggregates WHERE source = 3 AND op = 1 GROUP BY pid"
            wait_until(
                lambda: sum(seconds for pid, seconds in query(database, stalls) if pid in spins) > 0.9 * off,
                lambda: f"{off} s of stalls of {spins}, not {query(database, stalls)}",
            )
        called = {pid for pid, _ in query(database, calls.format(9, 3))}
        names = {pid: name for pid, name in query(database, "SELECT pid, name FROM process_names")}  # noqa: C416
        singly = {pid for (pid,) in query(database, "SELECT DISTINCT pid FROM collectives")}

    assert called < ranks
    assert singly == called
    assert {names.get(pid) for pid in called} == {"job"}
    assert {names.get(pid) for pid in spins} == {"spinner"}


def test_where_the_kernel_does_not_say_where_numbers_lie_the_reason_names_what_is_missing() -> None:
    with pytest.raises(NoTypes, match="lacks thread_pid of task_struct"):
        numbers_layout(Types(types()))
