"""Signal sources: parsing apart from reading, failures named, nothing counted twice."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from ingero_agent.health.signals import SignalReading
from ingero_agent.sources import ReadFailed, procfs
from ingero_agent.sources.poll_buffer import PollBuffer
from ingero_agent.sources.procfs import ProcfsSource, WatchTarget
from ingero_agent.sources.scripted import FollowedScript, ScriptedSource
from ingero_agent.sources.trace_db import DatabaseSource
from ingero_kit.settings import SettingsError
from ingero_testing.processes import wait_until


def test_a_process_name_may_hold_anything() -> None:
    fields = " ".join(str(number) for number in range(3, 53))
    started, seconds = procfs.parse_stat(f"42 (a ) b (c) ) S {fields}")

    assert started == 21
    assert seconds == pytest.approx((13 + 14) / os.sysconf("SC_CLK_TCK"))


def test_idle_and_waiting_for_disks_are_not_busy() -> None:
    assert procfs.parse_cpu("cpu  10 0 5 80 5 0 0 0 0 0\n") == (15, 100)


@pytest.fixture
def spinner() -> Iterator[int]:
    started = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield started.pid
    started.kill()
    started.wait()


def test_a_busy_process_is_seen_at_work(spinner: int) -> None:
    source = ProcfsSource(WatchTarget(pids=(spinner,)))
    assert source.read(0.0) is None

    def used() -> float:
        observation = source.read(used_at.pop())
        assert observation is not None
        return observation.rate

    used_at = [float(second) for second in range(2000, 0, -1)]
    wait_until(lambda: used() > 0, "CPU time")


class SetClock:
    """A clock that stands still until it is set, seconds."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Job:
    """A job that counts its steps in a file, and the agent's polls of it."""

    def __init__(self, folder: Path) -> None:
        self.file, self.clock = folder / "steps", SetClock()
        self.source = ProcfsSource(WatchTarget(progress_file=self.file), clock=self.clock)

    def polled(self, now: float, steps: str | None, begun: float | None = None) -> SignalReading | None:
        """The poll that reads `steps` at `now`, and that the agent had begun at `begun`."""
        self.clock.now = now
        if steps is not None:
            self.file.write_text(steps)
        return self.source.read(now if begun is None else begun)


def test_steps_in_a_file_stand_for_work(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.polled(0.0, "100")

    observation = job.polled(5.0, "150\n")

    assert observation is not None
    assert (observation.rate, observation.launches) == (10.0, 50)


def test_an_agent_that_waits_for_a_processor_within_a_poll_measures_the_rate_of_the_work(tmp_path: Path) -> None:
    """Waits as on a machine of 2 cores under load, seconds, with the polls of an agent that pushes every 0.2 s."""
    job, waits = Job(tmp_path), (0.0, 0.0014, 0.0691, 0.0, 0.0186, 0.0467, 0.0)
    polls = [job.polled(at + wait, f"{200 * (at + wait)}", begun=at)
             for at, wait in zip(np.arange(1, 8) / 5, waits, strict=True)]  # fmt: skip

    assert [seen.rate for seen in polls[1:] if seen] == pytest.approx([200.0] * 6)


def test_polls_that_read_late_are_joined_by_the_time_that_they_counted(tmp_path: Path) -> None:
    job, joined = Job(tmp_path), PollBuffer()
    for at, read, steps in ((0.0, 0.0, "0"), (1.0, 1.5, "150"), (2.0, 2.0, "160")):
        job.clock.now = read
        job.file.write_text(steps)
        joined.read(job.source, at)

    seen = joined.drain()

    assert seen is not None
    assert (seen.rate, seen.launches) == (pytest.approx(80.0), 160)


@pytest.mark.parametrize("torn", ["", "\n", "x", "nan", "inf"])
def test_a_file_that_is_just_being_written_fails_one_poll_and_the_next_one_counts_for_both(
    tmp_path: Path, torn: str
) -> None:
    """As of a job that truncates the file and then writes it; processor time is another unit, and no substitute."""
    job = Job(tmp_path)
    job.polled(0.0, "1000")
    with pytest.raises(ReadFailed, match="holds no number of steps"):
        job.polled(1.0, torn)

    observation = job.polled(2.0, "1400")

    assert observation is not None
    assert (observation.rate, observation.seconds) == (200.0, 2.0)


def test_a_job_whose_file_is_not_there_is_idle_however_busy_its_process_is(tmp_path: Path, spinner: int) -> None:
    source = ProcfsSource(WatchTarget(pids=(spinner,), progress_file=tmp_path / "steps"))
    source.read(0.0)

    def compute() -> float:
        observation = source.read(1.0)
        assert observation is None or (observation.rate, observation.launches) == (0.0, 0)
        return observation.compute if observation else 0.0

    wait_until(lambda: compute() > 0, "CPU time")


def test_the_first_steps_of_a_job_are_no_rate_yet(tmp_path: Path) -> None:
    job = Job(tmp_path)
    polls = [job.polled(float(now), steps) for now, steps in enumerate((None, None, "90000", "90200"))]

    assert [seen and seen.rate for seen in polls] == [None, 0.0, None, 200.0]


def test_a_process_that_is_gone_is_no_work_and_no_error() -> None:
    source = ProcfsSource(WatchTarget(pids=(2**22 - 1,)))
    source.read(0.0)

    observation = source.read(1.0)

    assert observation is not None
    assert (observation.rate, observation.launches) == (0.0, 0)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({"pids": (2**22 - 1,)}, "no such process: 4194303"),
        ({"pattern": "no such workload [0-9]"}, "no command line matches 'no such workload [0-9]'"),
    ],
)
def test_a_workload_that_is_not_there_is_logged_once_and_again_when_it_comes(
    tmp_path: Path, target: dict[str, Any], words: str
) -> None:
    steps = tmp_path / "steps"
    source = ProcfsSource(WatchTarget(**target, progress_file=steps))
    with capture_logs() as logs:
        for now in (0.0, 1.0, 2.0):
            source.read(now)
        steps.write_text("3")
        source.read(3.0)

    reasons = [line["reason"] for line in logs if line["event"] == "workload_absent"]
    assert [reason.startswith(words) for reason in reasons] == [True, True]
    assert ["steps does not exist (progress_file)" in reason for reason in reasons] == [True, False]


def test_a_command_line_that_starts_an_agent_is_no_workload(tmp_path: Path) -> None:
    """As that of sudo, timeout or a shell, which holds the pattern too."""
    for pid, words in ((7, "sudo ingero-agent fleet-push --watch-command train.py"), (8, "python train.py --lr 1")):
        folder = tmp_path / str(pid)
        (folder / "task").mkdir(parents=True)
        (folder / "cmdline").write_bytes(words.replace(" ", "\0").encode())
        (folder / "stat").write_text(f"{pid} (x) S {' '.join(['1'] * 48)}")
    (tmp_path / "stat").write_text("cpu 1 0 1 1 1 0 0 0 0 0")
    (tmp_path / "meminfo").write_text("MemTotal: 2 kB\nMemAvailable: 1 kB")
    source = ProcfsSource(WatchTarget(pattern=r"train\.py"), tmp_path)

    source.read(0.0)

    assert source.pids() == [8]


def test_a_workload_that_comes_is_logged(tmp_path: Path) -> None:
    steps = tmp_path / "steps"
    source = ProcfsSource(WatchTarget(progress_file=steps))
    with capture_logs() as logs:
        source.read(0.0)
        steps.write_text("3")
        source.read(1.0)

    assert [line["event"] for line in logs] == ["workload_absent", "workload_present"]


def test_a_scenario_plays_its_stages_and_stays_in_the_last(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("stages: [{seconds: 10}, {seconds: 5s, launches_per_second: 20}, {seconds: 1, fail: true}]")
    source = ScriptedSource.from_file(file)

    assert [source.read(now).rate for now in (100.0, 109.0, 110.0, 114.9)] == [100.0, 100.0, 20.0, 20.0]
    with pytest.raises(ReadFailed):
        source.read(1000.0)


@pytest.mark.parametrize(
    "text", ["stages: []", "stages: [{seconds: -1}]", "stages: [{seconds: 1, lunches: 2}]", "{}"]
)
def test_a_scenario_that_makes_no_sense_is_refused_with_its_place(tmp_path: Path, text: str) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(text)

    with pytest.raises(SettingsError, match="stages"):
        ScriptedSource.from_file(file)


def test_a_scenario_that_is_written_and_changed_later_is_played_from_its_start(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    source = FollowedScript(file)

    assert source.read(0.0).rate == 100.0
    file.write_text("stages: [{seconds: 5, launches_per_second: 40}, {seconds: 1, launches_per_second: 7}]")
    assert [source.read(now).rate for now in (50.0, 54.0, 56.0)] == [40.0, 40.0, 7.0]
    file.write_text("stages: [{seconds: -1}]")
    for now in (57.0, 58.0):
        with pytest.raises(ReadFailed, match="stages"):
            source.read(now)
    file.unlink()
    assert source.read(59.0).rate == 100.0


def database(file: Path, rows: list[tuple[int, int, int, int, int]], version: int = 10) -> Path:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute(
            "CREATE TABLE event_aggregates_5s (bucket INT, source INT, op INT, pid INT, count INT, sum_dur INT)"
        )
        connection.executemany("INSERT INTO event_aggregates_5s VALUES (?, ?, ?, 1, ?, ?)", rows)
        connection.commit()
    return file


def observed(source: DatabaseSource) -> SignalReading:
    found = source.read(1003.0)
    assert found is not None
    return found


def test_every_way_to_launch_counts_and_host_events_do_not(tmp_path: Path) -> None:
    file = database(
        tmp_path / "a.db",
        [
            (990, 1, 3, 60, 10**9),
            (990, 4, 1, 30, 0),
            (990, 8, 4, 10, 0),
            (990, 3, 3, 10**6, 10**12),
            (990, 5, 3, 10**6, 10**12),
        ],
    )

    observation = observed(DatabaseSource(file, 10, gpus=1))

    assert observation.launches == 100
    assert observation.rate == 10.0
    assert observation.compute == pytest.approx(0.1)


def test_one_process_of_a_database_can_be_watched(tmp_path: Path) -> None:
    file = database(tmp_path / "a.db", [(990, 1, 3, 60, 0)])
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("INSERT INTO event_aggregates_5s VALUES (990, 1, 3, 2, 7, 0)")
        connection.commit()

    assert observed(DatabaseSource(file, 10, 1)).launches == 67
    assert observed(DatabaseSource(file, 10, 1, pids=(2, 5))).launches == 7


def test_only_whole_buckets_inside_the_window_count(tmp_path: Path) -> None:
    rows = [(bucket, 1, 3, 1, 0) for bucket in range(900, 1010, 5)]

    assert observed(DatabaseSource(database(tmp_path / "a.db", rows), 60, 1)).launches == 12


def test_another_schema_version_and_a_missing_file_fail_the_poll_in_words(tmp_path: Path) -> None:
    with pytest.raises(ReadFailed, match="schema version 11"):
        DatabaseSource(database(tmp_path / "new.db", [], version=11), 60, 1).read(1000.0)
    with pytest.raises(ReadFailed, match=r"missing\.db"):
        DatabaseSource(tmp_path / "missing.db", 60, 1).read(1000.0)


class Steps:
    """A node that does some steps a second and then none; a poll compares with the one before."""

    def __init__(self, rate: float, until: float) -> None:
        self.rate, self.until = rate, until
        self.before: float | None = None

    def done(self, now: float) -> float:
        return self.rate * min(now, self.until)

    def pids(self) -> tuple[int, ...]:
        return ()

    def read(self, now: float) -> SignalReading | None:
        before, self.before = self.before, now
        if before is None:
            return None
        steps = self.done(now) - self.done(before)
        return SignalReading(rate=steps / (now - before), compute=0.5, memory=0.5, cpu=0.5, launches=round(steps))

    def close(self) -> None:
        pass


@given(st.lists(st.floats(0.1, 3.0), min_size=2, max_size=20))
def test_short_polls_add_up_to_the_long_one(gaps: list[float]) -> None:
    moments = np.cumsum([0.0, *gaps]).tolist()
    short, long, pieces = Steps(10.0, 7.0), Steps(10.0, 7.0), PollBuffer()
    for moment in moments:
        pieces.read(short, moment)
    long.read(moments[0])

    joined, whole = pieces.drain(), long.read(moments[-1])

    assert joined is not None and whole is not None
    assert joined.rate == pytest.approx(whole.rate, abs=1e-9)
    assert pieces.drain() is None


def test_polls_count_for_as_long_as_they_counted() -> None:
    """A tracer that writes at its own times: what it counted, over the time in which it did."""
    written = [0.0, 0.31, 0.35, 0.78, 0.99]
    polls = [
        SignalReading(rate=30.0 + 10 * number, compute=0.5, memory=0.5, cpu=0.5, launches=1, seconds=later - sooner)
        for number, (sooner, later) in enumerate(pairwise(written))
    ]
    source, pieces = iter([None, *polls]), PollBuffer()
    for moment in range(5):
        pieces.read(SimpleNamespace(read=lambda now: next(source), pids=tuple), moment / 4)

    joined = pieces.drain()

    assert joined is not None
    assert joined.rate == pytest.approx(sum(poll.rate * (poll.seconds or 0) for poll in polls) / 0.99)
    assert joined.seconds == pytest.approx(0.99)


def test_what_happened_recently_is_not_known_before_polls_cover_it() -> None:
    source, pieces = Steps(10.0, 100.0), PollBuffer()
    known = []
    for moment in range(8):
        pieces.read(source, float(moment))
        known.append(pieces.recent(float(moment), 5.0) is not None)
    source.until = 7.0
    for moment in range(8, 11):
        pieces.read(source, float(moment))
    recent = pieces.recent(10.0, 5.0)

    assert known == [False] * 5 + [True] * 3
    assert recent is not None
    assert recent.rate == pytest.approx(4.0)
