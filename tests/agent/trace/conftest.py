"""Tests that load programs into the kernel: as root with BTF, libbpf and a C compiler."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingero_testing.needs import EBPF, can_load_programs


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("ebpf") and not can_load_programs():
        pytest.skip(EBPF)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter; pytest closes its own to them whenever another run begins."""
    with tempfile.TemporaryDirectory(prefix="ingero-open-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
