"""What the compiler of the kernel's programs leaves behind."""

import subprocess
from pathlib import Path

import pytest

from ingero_agent.trace.helper import LARGE_BYTES, large_files
from ingero_agent.trace.loader import forget


def cached(file: Path) -> int:
    done = subprocess.run(
        ["fincore", "--bytes", "--noheadings", "--output", "RES", file], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_the_page_cache_of_files_that_nobody_maps_is_given_back(tmp_path: Path) -> None:
    file = tmp_path / "libLLVM.so"
    with file.open("wb") as stream:
        stream.write(bytes(LARGE_BYTES))
        stream.flush()
        subprocess.run(["sync", file], check=True, timeout=60)
    before = cached(file)
    forget([str(file), str(tmp_path / "gone")])
    if (
        before
        and cached(file) == before
        and subprocess.run(
            ["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "tmpfs"
    ):
        pytest.skip("needs a temporary folder on a disk: TMPDIR=/var/tmp make test")

    assert (before, cached(file)) == (LARGE_BYTES, 0)


def test_large_files_are_those_that_are_mapped() -> None:
    assert all(Path(name).stat().st_size >= LARGE_BYTES for name in large_files())
    assert any("lib" in name for name in large_files())
