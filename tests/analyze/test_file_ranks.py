"""Timelines in a file for each rank, whose names say more than the rank."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ingero_analyze.diagnose.file_ranks import ranks_of_files
from ingero_fleet.cli import main

RANKS, LATE, STEPS = 16, 9, 12


def exports(folder: Path, name: str) -> Path:
    """What `nsys stats --report cuda_gpu_trace` writes of each rank of two nodes with eight GPUs, one rank slow.

    The column Device is the GPU in its node, so that GPU 1 of both nodes, of which one is slow, has the same.
    """
    folder.mkdir()
    random = np.random.default_rng(2)
    compute = random.normal(0.2, 0.002, (STEPS, RANKS)) * np.where(np.arange(RANKS) == LATE, 1.25, 1.0)
    ends = np.cumsum(compute.max(axis=1) + 0.02)
    for rank in range(RANKS):
        lines = ["Start (ns),Duration (ns),CorrId,Device,Ctx,Strm,Name"]
        clock = 40.0 + 5 * (rank // 8)
        for step in range(STEPS):
            begin = clock + (ends[step - 1] if step else 0.0)
            wait = clock + ends[step] - begin - compute[step, rank]
            device = f"NVIDIA H100 80GB HBM3 ({rank % 8})"
            for start, lasts, kernel in (
                (begin, compute[step, rank], "ampere_gemm_128x128"),
                (begin + compute[step, rank], wait, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
            ):
                lines.append(f"{int(start * 1e9)},{int(lasts * 1e9)},7,{device},1,7,{kernel}")
        file = name.format(rank=rank, node=rank // 8, gpu=rank % 8, process=4711 + 13 * rank)
        (folder / file).write_text("\n".join(lines) + "\n")
    return folder


def ask(*paths: Path) -> dict[str, Any]:
    done = CliRunner().invoke(main, ["diagnose", *map(str, paths), "--quiet", "--json"])
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "name", ["rank{rank}.csv", "n{node}.gpu{gpu}.rank{rank}_cuda_gpu_trace.csv", "rank{rank}_pid{process}.csv"]
)
def test_a_gpu_of_the_same_number_on_another_node_is_another_rank(tmp_path: Path, name: str) -> None:
    found = ask(exports(tmp_path / "nsys", name))

    assert (found["kind"], found["ranks"], found["evidence"]["ranks"]) == ("node", [LATE], RANKS)


def test_gpus_in_a_file_for_each_node_are_ranks_of_that_node(tmp_path: Path) -> None:
    folder = exports(tmp_path / "nsys", "n{node}.rank{rank}.csv")
    for node in range(2):
        files = sorted(folder.glob(f"n{node}.*"))
        lines = [line for file in files for line in file.read_text().splitlines()[1:]]
        (tmp_path / f"n{node}.csv").write_text("\n".join([files[0].read_text().splitlines()[0], *lines]) + "\n")

    found = ask(tmp_path / "n0.csv", tmp_path / "n1.csv")

    assert (found["kind"], found["ranks"]) == ("node", ["1/NVIDIA H100 80GB HBM3 (1)"])
    assert found["evidence"]["ranks"] == RANKS


def test_a_file_for_each_gpu_needs_no_number_of_the_gpu(tmp_path: Path) -> None:
    found = ask(exports(tmp_path / "nsys", "worker{rank}.csv"))

    assert (found["kind"], found["ranks"]) == ("node", [LATE])


@pytest.mark.parametrize(
    ("files", "ranks"),
    [
        pytest.param(["a/rank0_pid71.csv", "a/rank1_pid93.csv"], ["0", "1"], id="processes"),
        pytest.param(["a/rank0.csv", "b/rank0.csv"], [], id="two jobs of one rank"),
        pytest.param(
            ["a/rank0.csv", "a/rank1.csv", "b/rank0.csv", "b/rank1.csv"], ["0", "1", "0", "1"], id="two jobs"
        ),
        pytest.param(["n3.x1.csv", "n4.x2.csv"], [], id="numbers of something"),
        pytest.param(["rank_0/a.csv", "rank_1/a.csv"], ["0", "1"], id="folders"),
        pytest.param(["rank0.csv"], [], id="one file"),
    ],
)
def test_names_of_files_say_ranks(files: list[str], ranks: list[str]) -> None:
    assert list(ranks_of_files(files).values()) == ranks
