"""Benches are run by hand; here they only have to start."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.parametrize(
    "name",
    ["audit", "collectives", "detection", "echo", "fleet", "memory", "network", "operator_bench", "page", "trace"],
)
def test_a_bench_starts_and_says_what_it_takes(name: str) -> None:
    done = subprocess.run([sys.executable, BENCH / f"{name}.py", "--help"], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout
