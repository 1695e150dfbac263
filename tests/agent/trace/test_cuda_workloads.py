"""The demo's workloads: measured by their CUDA and NCCL calls, one process at a time."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ingero_testing.processes import wait_until
from ingero_testing.trace_database import query
from scripts.cuda_workloads import CudaWorkloads, find_libraries
from scripts.lab import Lab, Site


def test_nvidias_own_libraries_are_taken_only_when_both_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGERO_GPU_LIBRARIES", str(tmp_path))
    runtime, nccl = (
        tmp_path / "nvidia" / name for name in ("cuda_runtime/lib/libcudart.so.12", "nccl/lib/libnccl.so.2")
    )
    runtime.parent.mkdir(parents=True)
    runtime.touch()
    assert find_libraries(tmp_path).runtime == tmp_path / "libcudart.so.12"

    nccl.parent.mkdir(parents=True)
    nccl.touch()
    assert find_libraries(tmp_path).nccl == nccl


def counted(database: Path, pid: int, source: int, operation: int) -> int:
    text = "SELECT SUM(count) FROM event_aggregates WHERE pid = ? AND source = ? AND op = ?"
    return int(query(database, text, pid, source, operation)[0][0] or 0)


@pytest.mark.ebpf
def test_a_slowed_process_makes_half_the_calls_of_its_peer(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    try:
        site = Site(lab, "lab", 0.2, ("a", "b"))
        cuda = CudaWorkloads(site)
        cuda.start()
        watching = cuda.watching("b")
        database = Path(watching[1])
        pids = [lab.processes[site.name(f"{node}-workload")].pid for node in site.nodes]
        for source, operation in ((1, 3), (1, 5), (9, 3)):
            wait_until(lambda s=source, o=operation: all(counted(database, pid, s, o) for pid in pids), "calls")  # type: ignore[misc]

        site.hurt(signal.SIGUSR1, "b")
        wait_until(since(lambda: [counted(database, pid, 1, 3) for pid in pids]), "the slowed one to fall behind")
    finally:
        lab.stop()

    assert watching[-1] == str(pids[1])


def since(counts: Callable[[], list[int]]) -> Callable[[], bool]:
    """Whether, of what was counted since now, the second has clearly less than the first."""
    first, second = counts()

    def behind() -> bool:
        a, b = counts()
        return a - first > 400 and b - second < 0.7 * (a - first)

    return behind
