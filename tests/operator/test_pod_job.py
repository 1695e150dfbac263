"""The demo's workload of pods: ranks that share nothing but a network find each other and keep in step."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ingero_testing.processes import next_line
from scripts.controlplane import free_ports
from scripts.pod_job import build, objects


@contextmanager
def three_ranks(folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Three ranks that compute; they end with the block."""
    program, *_ = build(folder)
    (port,) = free_ports(1)
    shared = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [program, "1000", "0", "0"], env={**os.environ, **shared, "RANK": str(rank)}, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for rank in range(3)
    ]  # fmt: skip
    try:
        assert [next_line(rank) for rank in ranks] == [f"rank {rank} of 3 computes" for rank in range(3)]
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate(timeout=60)


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_ranks_meet_at_rank_0_and_end_when_one_is_gone(tmp_path: Path) -> None:
    with three_ranks(tmp_path) as ranks:
        ranks[2].send_signal(signal.SIGTERM)
        assert [rank.wait(30) for rank in reversed(ranks)] == [0, 1, 1]


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_ranks_that_work_alone_need_no_other(tmp_path: Path) -> None:
    with three_ranks(tmp_path) as ranks:
        ranks[0].send_signal(signal.SIGHUP)
        assert [next_line(rank) for rank in ranks] == [f"rank {rank} works alone" for rank in range(3)]
        for rank in ranks:
            rank.send_signal(signal.SIGTERM)
            assert rank.wait(30) == 0


def test_every_rank_has_a_node_of_its_own_and_no_privilege(tmp_path: Path) -> None:
    (tmp_path / "pod_job").write_bytes(b"program")
    *_, job = objects([tmp_path / "pod_job"], "image:1", 3)
    pod = job["spec"]["template"]["spec"]

    (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
    assert {item["name"] for item in pod["containers"][0]["env"]} >= {"RANK", "WORLD_SIZE", "MASTER_ADDR"}
