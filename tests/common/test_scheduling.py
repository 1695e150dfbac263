"""The suite itself: a test that takes its process down fails alone, and the run ends."""

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from ingero_testing.scheduling import SuiteScheduling

SUPPORT = Path(__file__).parents[1] / "support"
CONFTEST = """
from ingero_testing.scheduling import SuiteScheduling
def pytest_xdist_make_scheduler(config, log):
    return SuiteScheduling(config, log)
"""
TESTS = """
import os, pytest
@pytest.mark.parametrize("number", range(20))
def test_before(number): pass
def test_that_dies(): os._exit(3)
@pytest.mark.parametrize("number", range(20))
def test_after(number): pass
@pytest.mark.xdist_group("one")
def test_of_a_group_that_dies(): os._exit(3)
@pytest.mark.xdist_group("one")
def test_of_the_same_group(): pass
"""
HANG = """
import time
def test_before(): pass
def test_that_swallows_its_alarm():
    while True:
        try:
            time.sleep(3600)
        except BaseException:
            pass
def test_after(): pass
"""


SERIAL = """
import os, pathlib, time, pytest
RUNNING = pathlib.Path(__file__).parent / "running"
RUNNING.mkdir(exist_ok=True)
def pytest_generate_tests(metafunc):
    if "number" in metafunc.fixturenames:
        metafunc.parametrize("number", range(6))
@pytest.fixture(autouse=True)
def mark_of_running(request):
    own = RUNNING / f"{os.getpid()}-{request.node.name}"
    own.touch()
    yield
    own.unlink()
@pytest.mark.xdist_group("serial")
def test_alone(number):
    time.sleep(0.1)
    assert len(list(RUNNING.iterdir())) == 1
def test_side_by_side(number):
    if number == 3:
        time.sleep(1)
"""


def run(folder: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_some.py").write_text(tests)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider",
         "-p", "xdist", "-p", "pytest_timeout",
         *options, folder],
        env={"PYTHONPATH": str(SUPPORT), "PATH": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, cwd=folder,
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip


def test_what_a_dead_process_had_before_it_is_run_by_others(tmp_path: Path) -> None:
    ended = run(tmp_path, TESTS)

    assert "2 failed, 41 passed" in ended.stdout, ended.stdout + ended.stderr
    assert ended.returncode == 1


def test_a_test_that_no_exception_ends_takes_its_process_down_and_the_run_goes_on(tmp_path: Path) -> None:
    limits = ("timeout=1", "timeout_method=signal", "faulthandler_timeout=3", "faulthandler_exit_on_timeout=true")
    ended = run(tmp_path, HANG, *(word for limit in limits for word in ("-o", limit)))

    assert "1 failed, 2 passed" in ended.stdout, ended.stdout + ended.stderr
    assert "test_that_swallows_its_alarm" in ended.stderr, "the stacks say where it hung"
    assert ended.returncode == 1


def test_serial_tests_begin_when_every_other_test_has_ended_even_if_one_kills_its_process(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(TESTS)
    (tmp_path / "test_more.py").write_text(SERIAL)
    ended = run(tmp_path, SERIAL)

    assert "2 failed, 65 passed" in ended.stdout, ended.stdout + ended.stderr


def test_of_serial_tests_alone_one_that_dies_fails_and_the_others_are_run(tmp_path: Path) -> None:
    dying = "    if number == 2:\n        [file.unlink() for file in RUNNING.iterdir()]\n        os._exit(3)\n"
    ended = run(tmp_path, SERIAL.replace("    assert", f"{dying}    assert"), "-k", "alone")

    assert "1 failed, 5 passed" in ended.stdout, ended.stdout + ended.stderr
    assert ended.returncode == 1


FOUND = [
    *(f"test_some.py::test_{number}" for number in range(5)),
    "test_other.py::test_dies",
    "test_other.py::test_0",
]
MORE = [*FOUND, *(f"test_other.py::test_{number}" for number in (1, 2)), "test_more.py::test_0"]


@dataclass(eq=False)
class Process:
    """A process as the scheduler sees it: what it was told to run."""

    tests: list[str] = field(default_factory=lambda: FOUND)
    asked: list[str] = field(default_factory=list)
    shutting_down: bool = False
    gone: bool = False
    gateway: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(id="process"))

    def send_runtest_some(self, indices: list[int]) -> None:
        if self.gone:
            raise OSError("cannot send (already closed?)")
        self.asked += [self.tests[index] for index in indices]

    def shutdown(self) -> None:
        self.shutting_down = True


def scheduler_of(*processes: Process) -> SuiteScheduling:
    """A scheduler that has told every process what to run first."""
    option = SimpleNamespace(loadscopereorder=False)
    found = SuiteScheduling(SimpleNamespace(getvalue=lambda name: [f"{len(processes)}*popen"], option=option))
    for process in processes:
        found.add_node(process)
    for process in processes:
        found.add_node_collection(process, process.tests)
    found.schedule()
    return found


@pytest.mark.parametrize("found_its_tests", [False, True])
def test_a_process_that_has_just_begun_gets_what_another_left_but_not_what_it_died_of(found_its_tests: bool) -> None:
    first, dies, new = Process(), Process(), Process()
    scheduler = scheduler_of(first, dies)
    scheduler.add_node(new)
    if found_its_tests:
        scheduler.add_node_collection(new, FOUND)

    assert dies.asked == ["test_other.py::test_dies", "test_other.py::test_0"]
    assert scheduler.remove_node(dies) == "test_other.py::test_dies"
    if not found_its_tests:
        assert not new.asked
        scheduler.add_node_collection(new, FOUND)
        scheduler.schedule()

    assert new.asked == ["test_other.py::test_0"]


def test_what_is_given_to_a_process_that_has_died_unnoticed_is_run_by_others() -> None:
    dies, stays = Process(MORE), Process(MORE)
    scheduler = scheduler_of(dies, stays)
    assert list(scheduler.workqueue) == ["test_more.py"]
    dies.gone = True

    for index in range(4):
        scheduler.mark_test_complete(dies, index)

    assert not scheduler.workqueue
    assert scheduler.remove_node(dies) == "test_some.py::test_4"
    for index in range(5, 8):
        scheduler.mark_test_complete(stays, index)
    assert stays.asked[-1] == "test_more.py::test_0"
