"""The suite itself: a test that takes its process down fails alone, and the run ends."""

import subprocess
import sys
from pathlib import Path

SUPPORT = Path(__file__).parents[1] / "support"
CONFTEST = """
from ingero_testing.scheduling import Surviving
def pytest_xdist_make_scheduler(config, log):
    return Surviving(config, log)
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


def test_what_a_dead_process_had_before_it_is_run_by_others(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider", tmp_path],
        env={"PYTHONPATH": str(SUPPORT), "PATH": ""}, cwd=tmp_path, capture_output=True, text=True, timeout=240,
    )  # fmt: skip

    assert "2 failed, 41 passed" in run.stdout, run.stdout + run.stderr
    assert run.returncode == 1
