"""Tests that load programs into the kernel: as root with BTF, BCC and a C compiler; required with `--ebpf`."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

REASON = "needs root, BTF, python3-bpfcc and a C compiler"


def _can() -> bool:
    return bool(
        os.getuid() == 0
        and shutil.which("cc")
        and Path("/sys/kernel/btf/vmlinux").exists()
        and Path("/usr/lib/python3/dist-packages/bcc").exists()
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tracers see every process of the machine, so their tests run one after another."""
    for item in items:
        if item.get_closest_marker("ebpf"):
            item.add_marker(pytest.mark.xdist_group("ebpf"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("ebpf") and not _can():
        if os.environ.get("INGERO_TEST_EBPF"):
            pytest.fail(f"INGERO_TEST_EBPF is set, and this machine cannot: {REASON}")
        pytest.skip(REASON)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter; pytest closes its own to them whenever another run begins."""
    with tempfile.TemporaryDirectory(prefix="ingero-open-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
