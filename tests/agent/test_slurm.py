"""The Slurm job of a node's workload: recorded cgroup lines, environments, real processes, a loop's identity."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingero_agent.devices import GpuReading
from ingero_agent.loop import PushLoop
from ingero_agent.push import FleetClient
from ingero_agent.settings import AgentSettings
from ingero_agent.slurm import (
    SlurmJob,
    find_slurm_job,
    main_job,
    parse_parent_of_ended,
    parse_slurm_cgroup,
    parse_slurm_job,
    slurm_job_of,
    with_slurm_job,
)
from ingero_agent.sources.procfs import ProcfsSource, WatchTarget
from ingero_agent.sources.scripted import ScriptedSource
from ingero_agent.sources.trace_db import DatabaseSource
from ingero_agent.trace.places import Place, ProcessPlaces
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_client import ClientConfig
from ingero_kit.tls import ClientTls
from ingero_testing.processes import wait_until

VERSION_2 = "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_3\n"
NAMED_SLURMD = "0::/system.slice/node01_slurmstepd.scope/job_12/step_batch/user/task_special\n"
VERSION_1 = """\
11:devices:/slurm/uid_1000/job_815/step_extern/task_0
10:memory:/slurm/uid_1000/job_815/step_extern
4:freezer:/slurm/uid_1000/job_815/step_extern
1:name=systemd:/system.slice/slurmd.service
0::/system.slice/slurmd.service
"""
VERSION_1_NAMED_SLURMD = "4:freezer:/slurm_node01/uid_0/job_9/step_0\n1:name=systemd:/\n"
JOB_ITSELF = "4:freezer:/slurm/uid_0/job_9\n0::/\n"
INSIDE_A_CONTAINER = "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0/enroot/abc\n"


@pytest.mark.parametrize(
    ("text", "job"),
    [
        (VERSION_2, "4711"), (NAMED_SLURMD, "12"), (VERSION_1, "815"), (VERSION_1_NAMED_SLURMD, "9"),
        (JOB_ITSELF, "9"), (INSIDE_A_CONTAINER, "4711"),
        ("0::/user.slice/user-1000.slice/session-2.scope\n", ""), ("0::/system.slice/slurmstepd.scope/system\n", ""),
        ("0::/system.slice/slurmstepd.scope/job_12x/step_0\n", ""), ("0::/home/job_12/step_0\n", ""), ("", ""),
    ],
)  # fmt: skip
def test_the_job_in_a_cgroup(text: str, job: str) -> None:
    assert parse_slurm_cgroup(text) == job


def test_nodes_and_rank_come_from_an_environment_that_names_the_same_job() -> None:
    environment = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NUM_NODES": "16", "SLURM_NODEID": "3"}

    assert parse_slurm_job(VERSION_2, environment) == SlurmJob("4711", 16, 3)
    assert parse_slurm_job("0::/\n", environment) == SlurmJob("4711", 16, 3)
    assert parse_slurm_job(NAMED_SLURMD, environment) == SlurmJob("12")
    assert parse_slurm_job(VERSION_2, {}) == SlurmJob("4711")


@pytest.mark.parametrize("job", ["", "0", "x", "-1", "4711_2", "9" * 40, "４７"])
def test_rubbish_in_an_environment_is_no_job(job: str) -> None:
    assert parse_slurm_job("0::/\n", {"SLURM_JOB_ID": job}) is None


def test_a_rank_beyond_the_job_is_not_known() -> None:
    environment = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2", "SLURM_NODEID": "2"}

    assert parse_slurm_job("", environment) == SlurmJob("1", 2, None)


def test_the_job_with_most_processes_counts_and_of_two_the_older_one() -> None:
    assert main_job([SlurmJob("10"), SlurmJob("9", 4, 1), SlurmJob("9")]) == SlurmJob("9", 4, 1)
    assert main_job([SlurmJob("10"), SlurmJob("9")]) == SlurmJob("9")
    assert main_job([]) is None


def test_what_a_user_has_set_wins_over_slurm() -> None:
    node, job = HealthReport(node_id="n", cluster_id="c"), SlurmJob("7", 16, 3)

    taken, kept = with_slurm_job(node, job, 0, None), with_slurm_job(node, job, 4, 1)

    assert (taken.job_id, taken.world_size, taken.rank) == ("7", 16, 3)
    assert (kept.job_id, kept.world_size, kept.rank) == ("7", 4, 1)


@pytest.fixture
def tasks() -> Iterator[list[int]]:
    """Processes of the jobs 41 and 42, two nodes each."""
    environments = [{"SLURM_JOB_ID": job, "SLURM_JOB_NUM_NODES": "2", "SLURM_NODEID": "1"} for job in ("41", "42")]
    running = [subprocess.Popen(["sleep", "60"], env=one) for one in environments]
    # A program that begins has no environment for a moment after `Popen` has returned.
    wait_until(lambda: all(slurm_job_of(process.pid) for process in running), "the programs")
    yield [process.pid for process in running]
    for process in running:
        process.kill()
        process.wait()


def test_the_job_of_real_processes_and_none_of_those_that_are_gone(tasks: list[int]) -> None:
    assert find_slurm_job([tasks[1], 2**22 - 1]) == SlurmJob("42", 2, 1)
    assert find_slurm_job([2**22 - 1]) is None


def test_the_source_names_the_processes_that_it_measured(tasks: list[int], tmp_path: Path) -> None:
    watching = ProcfsSource(WatchTarget(pids=(tasks[0], 2**22 - 1)))
    watching.read(1.0)
    (tmp_path / "cgroup.procs").write_text("5\n7\n")

    assert watching.pids() == [tasks[0]]
    assert ProcfsSource(WatchTarget(cgroup=tmp_path)).pids() == [5, 7]
    assert ProcfsSource(WatchTarget(cgroup=tmp_path / "gone")).pids() == []
    assert DatabaseSource(tmp_path / "gone.db", 60, 1).pids() == []


class OneJobAfterTheOther(ScriptedSource):
    """Constant signals of processes that a test replaces."""

    measured: tuple[int, ...] = ()

    def pids(self) -> tuple[int, ...]:
        return self.measured


def test_the_pushed_identity_follows_the_jobs_and_each_job_is_learnt_anew(tasks: list[int], tmp_path: Path) -> None:
    source = OneJobAfterTheOther.constant()
    assert isinstance(source, OneJobAfterTheOther)
    seen: list[tuple[str, int, int | None, int]] = []

    async def work() -> None:
        config = AgentSettings(
            fleet_endpoint="127.0.0.1:9", fleet_cluster_id="c", fleet_node_id="n", stub=True,
            fleet_persist_path=tmp_path / "baseline.json", warmup_samples=2,
        )  # fmt: skip
        client = FleetClient(ClientConfig(endpoint="127.0.0.1:9", cluster="c", tls=ClientTls(insecure=True)))
        loop = PushLoop(config, source, lambda: GpuReading(), client, None, lambda: 1_700_000_000.0)
        for pids in ((), tasks[:1], (), tasks[1:]):
            source.measured = tuple(pids)
            await loop.tick()
            await loop.tick()
            node = loop.identity
            seen.append((node.job_id, node.world_size, node.rank, loop.baseline.samples))
        await client.close()

    asyncio.run(work())

    assert seen == [("", 0, None, 2), ("41", 2, 1, 4), ("41", 2, 1, 6), ("42", 2, 1, 2)]


def test_the_tracer_knows_the_job_of_each_process_and_keeps_that_of_the_node_when_it_has_ended(
    tasks: list[int],
) -> None:
    places, gone = ProcessPlaces(detect_slurm=True), 2**22 - 1

    assert [places.place_of(pid).job for pid in (*tasks, gone)] == ["41", "42", ""]
    assert places.refresh([tasks[1], gone])[1] == {tasks[1]: "42", gone: ""}
    assert places.job == "42"
    assert places.refresh([gone])[1] == {gone: ""}
    assert places.job == "42"


@pytest.mark.parametrize(
    ("state", "size", "parent"),
    [
        pytest.param("Z", 0, 17, id="ended"),
        pytest.param("R", 0, 17, id="ending"),
        pytest.param("R", 4096, 0, id="running"),
    ],
)
def test_a_process_without_an_address_space_has_ended_or_is_ending(state: str, size: int, parent: int) -> None:
    assert parse_parent_of_ended(f"9 (a) b) {state} 17 {'1 ' * 18}{size} 0") == parent


@pytest.mark.parametrize("text", ["", "9 (a) R", "9 (a) Z x", "rubbish"])
def test_rubbish_is_no_process_that_has_ended(text: str) -> None:
    assert parse_parent_of_ended(text) == 0


def test_a_process_that_ended_before_it_was_first_read_belongs_to_the_job_of_its_parent() -> None:
    program = "import os, sys; print(os.fork() or os._exit(0), flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program], env={"SLURM_JOB_ID": "4711"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as parent:  # fmt: skip
        assert parent.stdout
        ended = int(parent.stdout.readline())
        stat = Path(f"/proc/{ended}/stat")
        wait_until(lambda: parse_parent_of_ended(stat.read_text()) == parent.pid, "the end of the program")

        assert slurm_job_of(ended) == SlurmJob("4711")
        parent.terminate()


def test_a_process_that_ends_before_its_calls_are_read_keeps_its_job() -> None:
    places = ProcessPlaces(detect_slurm=True)
    environment = {**os.environ, "SLURM_JOB_ID": "43"}
    with subprocess.Popen(["sleep", "60"], env=environment) as process:
        wait_until(lambda: slurm_job_of(process.pid) is not None, "the program")
        places.note([process.pid])
        process.kill()

        wait_until(lambda: "\nState:\tZ" in Path(f"/proc/{process.pid}/status").read_text(), "its end")
        assert places.refresh([process.pid])[1] == {process.pid: "43"}

    assert places.place_of(process.pid).job == "43"
    assert places.refresh([process.pid])[1] == {process.pid: "43"}
    assert places.refresh([])[1] == {}
    assert places.place_of(process.pid).job == "43"
    assert places.refresh([])[1] == {}
    assert places.place_of(process.pid).job == ""


def test_the_tracer_leaves_slurm_alone_where_a_user_says_so(tasks: list[int]) -> None:
    places = ProcessPlaces(detect_slurm=False)

    assert places.place_of(tasks[0]) == Place()
    assert set(places.refresh(tasks)[1].values()) == {""}
    assert places.job == ""
