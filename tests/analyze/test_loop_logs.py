"""Console logs of training loops: times of the steps of each rank among other lines, and logs without such times."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ingero_analyze.diagnose.loop_logs import are_of_loop, is_of_training, times_of
from ingero_fleet.cli import main

RANKS, STEPS, LATE = 8, 20, 5

BEFORE = {
    "torchrun": "[rank{rank}]: ", "roles": "[default{rank}]:", "srun": "{rank}: ", "srun aligned": "{rank:2d}: ",
    "mpirun": "[1,{rank}]<stdout>:", "words": "[2026-03-01 12:00:00] [rank {rank}] ", "cell": "INFO rank={rank} ",
}  # fmt: skip
HOSTS = {
    "compose": "node-{rank} | ", "dated": "[2026-03-01 12:00:00 node-{rank}] ", "kubectl": "[pod/node-{rank}/torch] ",
    "ray": "(RayTrainWorker pid=7, ip=node-{rank}) ",
}  # fmt: skip
LINES: dict[str, Callable[[int, list[float]], str]] = {
    "strokes": lambda step, ms: "step {} | fwd {:.2f}ms | bwd {:.2f}ms | allreduce {:.2f}ms".format(step, *ms),
    "colons": lambda step, ms: "step: {}, forward: {} ms, backward: {} ms, all_reduce: {} ms".format(step, *ms),
    "pairs": lambda step, ms: "step={} loss=2.3 forward_ms={} backward_ms={} comm_ms={}".format(step, *ms),
    "seconds": lambda step, ms: "step={} forward_time={:.5f} backward_time={:.5f} sync={:.5f}".format(
        step, *(time / 1e3 for time in ms)
    ),
    "json": lambda step, ms: json.dumps({"step": step, "forward_ms": ms[0], "backward_ms": ms[1], "wait_ms": ms[2]}),
    "printed": lambda step, ms: str({"step": step, "fwd_ms": ms[0], "bwd_ms": ms[1], "allreduce_ms": ms[2]}),
    "brackets": lambda step, ms: "iter {}: fwd (ms): {} bwd (ms): {} grad sync (ms): {}".format(step, *ms),
}  # fmt: skip
NOISE = ("Setting OMP_NUM_THREADS environment variable for each process to be 1 in default", "NCCL version 2.21.5")


def times(late: int | None) -> Any:
    """By step, rank and operation, milliseconds."""
    random = np.random.default_rng(4)
    compute = random.normal(1, 0.01, (STEPS, RANKS, 2)) * [100, 200]
    if late is not None:
        compute[:, late] *= 1.3
    busy = compute.sum(axis=2)
    return np.concatenate((compute, (busy.max(axis=1, keepdims=True) + 20 - busy)[:, :, None]), axis=2)


def ask(path: Path) -> tuple[dict[str, Any], str, int]:
    done = CliRunner().invoke(main, ["diagnose", str(path), "--quiet"])
    return json.loads(done.stdout) if done.exit_code == 0 else {}, done.stderr, done.exit_code


def written(file: Path, before: str, line: Callable[[int, list[float]], str], late: int | None) -> Path:
    lines = [before.format(rank=rank) + noise for rank in range(RANKS) for noise in NOISE]
    for step, cells in enumerate(times(late).tolist()):
        order = np.random.default_rng(step).permutation(RANKS).tolist()
        lines += [before.format(rank=rank) + line(step, cells[rank]) for rank in order]
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_the_late_rank_of_a_log_of_all_is_named(
    tmp_path: Path, before: str, line: Callable[[int, list[float]], str]
) -> None:
    answer, error, _ = ask(written(tmp_path / "train.log", before, line, LATE))
    assert (answer["kind"], answer["ranks"], answer["evidence"]["steps"], error) == ("node", [LATE], STEPS, "")


@pytest.mark.parametrize("before", HOSTS.values(), ids=HOSTS)
def test_a_rank_without_a_number_is_named_by_its_host(tmp_path: Path, before: str) -> None:
    answer, _, _ = ask(written(tmp_path / "train.log", before, LINES["strokes"], LATE))
    assert (answer["kind"], len(answer["ranks"])) == ("node", 1)
    assert f"node-{LATE}" in answer["ranks"][0]


def test_nobody_is_named_in_a_healthy_log(tmp_path: Path) -> None:
    answer, _, _ = ask(written(tmp_path / "train.log", BEFORE["torchrun"], LINES["strokes"], None))
    assert (answer["kind"], answer["ranks"]) == ("none", [])


def test_a_folder_with_a_log_of_each_rank_is_read(tmp_path: Path) -> None:
    for rank in range(RANKS):
        lines = [*NOISE, *(LINES["pairs"](step, cells[rank]) for step, cells in enumerate(times(LATE).tolist()))]
        (tmp_path / f"rank{rank}.log").write_text("\n".join(lines) + "\n")
    answer, _, _ = ask(tmp_path)
    assert (answer["kind"], answer["ranks"]) == ("node", [LATE])


@pytest.mark.parametrize(
    "line",
    [
        "{'loss': 2.1, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.1}",
        "[default0]: 10%|#   | 10/100 [00:12<01:48,  1.21s/it]",
        "[batch=10/1000]:\n\t Train throughput/samples_per_sec: 128.0\n\t Train time/train: 0.01",
        "Training epoch 0, iteration 9/99 | lr: 1.5e-05 | train_step_timing in s: 2.02 | consumed_samples: 80",
        "[rank3]: iteration 10/ 100 | elapsed time per iteration (ms): 812.2 | lm loss: 7.1E+00 |",
        "[Rank 0] epoch=0/micro_step=10, RunningAvgSamplesPerSec=8.1, CurrSamplesPerSec=8.2, MemAllocated=1.2GB",
        "[titan] 2026-03-01 12:00:00,1 - root - INFO - step: 1  loss:  7.1  memory: 20GiB(21%)  tps: 8,000  mfu: 30%",
    ],
)
def test_a_log_without_times_of_ranks_is_refused_with_what_to_record(tmp_path: Path, line: str) -> None:
    file = tmp_path / "train.log"
    file.write_text("[2026-03-01 12:00:00] training starts\n" + f"{line}\n" * STEPS)
    _, error, status = ask(file)
    assert status == 2
    assert "tells none; record what tells ranks apart" in error and "JSON" not in error


@pytest.mark.parametrize("before", ["", "[INFO] 2026-03-01 12:00:00,000 api: "])
def test_events_of_torchrun_are_refused_with_who_failed_and_what_to_give(tmp_path: Path, before: str) -> None:
    file = tmp_path / "events.jsonl"
    states = ["SUCCEEDED"] * 3 + ["FAILED"] + ["TERMINATED"] * 4
    with file.open("w") as stream:
        for rank, state in enumerate(states):
            metadata = {"run_id": "a", "global_rank": rank, "role": "trainer", "state": state, "total_run_time": 3600}
            event = {"name": "torchelastic.worker", "source": "WORKER", "timestamp": 0, "metadata": metadata}
            stream.write(f"{before}{json.dumps(event)}\n")

    _, error, status = ask(file)

    assert status == 2
    assert "the worker of rank 3 failed" in error and "--flight-recorder" in error


def test_what_is_no_line_of_a_loop_has_no_times() -> None:
    for line in (
        "batch size 8, data parallel size 4, optimizer adam 1", "forward-backward .....: (101.22, 103.10)",
        "rank,step,forward_ms,backward_ms", "Data: 0.010 (0.010)  Time: 0.3s",
        "comm 0x12 rank 3 nranks 8 forward 0x1",
        "fwd 1.0 " * 1000,
    ):  # fmt: skip
        assert times_of(line) == {}, line
    assert times_of("Train: 0 [ 50/1251]  Time: 0.4s, 2000/s  Data: 12ms") == {"data (s)": "0.012", "step (s)": "0.4"}
    assert times_of("step_time: 0.4 data_time: 0.012") == {"data time": "0.012", "step time": "0.4"}
    assert times_of("fwd 1.5ms, wait 2 s") == {"fwd (s)": "0.0015", "wait (s)": "2"}
    document = '{"forward_ms": 1, "backward_ms": 2}\n' * 3
    assert not are_of_loop(document) and not is_of_training(document)


def test_layers_of_a_log_are_compute_where_they_have_a_unit() -> None:
    line = (
        "step 3 | attention_fwd 12ms | experts_bwd (ms): 30 | mlp 4.5 ms | all_to_all 2ms | experts 64 | moe_loss 0.1"
    )

    assert times_of(line) == {
        "attention fwd (s)": "0.012", "experts bwd (s)": "0.03", "mlp (s)": "0.0045", "all to all (s)": "0.002",
    }  # fmt: skip
    assert times_of("experts: 64 attn: 8 all_reduce 3ms") == {}
