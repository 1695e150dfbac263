"""Timers that Megatron-LM logs for every rank are steps of ranks."""

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ingero_analyze.diagnose import deepspeed_timers
from ingero_analyze.diagnose.rank_timers import rows_of
from ingero_fleet.cli import main

TIMERS = ("forward-backward", "forward-compute", "backward-compute", "batch-generator", "all-grads-sync")
RANKS = 4
SLOW = 2


def _block(times: dict[str, list[float]]) -> str:
    lines = ["times across ranks (ms):"]
    for name, values in times.items():
        lines += [f"  {name}:", *(f"     rank {rank:2d}: {value:.2f}" for rank, value in enumerate(values))]
    return "\n".join(lines) + "\n"


def _log() -> str:
    """Twelve blocks, ten iterations apart, after pages of settings and timers of the setup; one rank is slow."""
    text = "".join(f"  setting_{number} ....... {number}\n" for number in range(3000))
    text += _block({"model-and-optimizer-setup": [100.0] * RANKS})
    for step in range(1, 13):
        forward = [100.0 + (rank * step) % 3 / 5 + 20 * (rank == SLOW) for rank in range(RANKS)]
        waits = [max(forward) - own + 15 for own in forward]
        own = [forward, [2 * value for value in forward], [2.0] * RANKS, waits]
        own[0] = [value + 2 for value in forward]
        whole = [sum(values) for values in zip(own[0], own[1], own[3], strict=True)]
        text += f" [2026-01-01 00:00:{step:02d}] iteration {10 * step:8d}/ 1000 | lm loss: 1.0E+01 |\n"
        text += _block(dict(zip(TIMERS, [whole, *own], strict=True))) + "saving nothing\n"
    return text


@pytest.mark.parametrize("launcher", ["", "[default7]:"])
def test_the_slow_rank_of_a_log_is_named(tmp_path: Path, launcher: str) -> None:
    file = tmp_path / "train.log"
    file.write_text("".join(launcher + line for line in _log().splitlines(keepends=True)))
    result = CliRunner().invoke(main, ["diagnose", "--json", str(file)])
    answer = json.loads(result.stdout)
    assert (answer["kind"], answer["ranks"], answer["evidence"]["steps"]) == ("node", [SLOW], 12)
    assert answer["read"]["collectives_by_name"] == ["all grads sync"]


def test_what_a_timer_contains_counts_once() -> None:
    rows = [row for _, row in rows_of(_log().encode(), io.BytesIO(), lambda text, row: None)]
    assert len(rows) == 12 * RANKS
    assert rows[0] == {
        "step": "10", "rank": "0", "forward-backward (ms)": "0.0", "forward-compute (ms)": "100.0",
        "backward-compute (ms)": "200.0", "batch-generator (ms)": "2.0",
        "all-grads-sync (ms)": rows[0]["all-grads-sync (ms)"],
    }  # fmt: skip


@pytest.mark.parametrize(
    "timers",
    [
        "fwd: {0} | bwd: {1} | bwd_inner: {2} | bwd_allreduce: {3} | step: 12.00",
        "forward: {0} | backward: {1} | backward_allreduce: {3} | step: 12.00",
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_the_slow_rank_of_logs_of_deepspeed_is_named(tmp_path: Path, timers: str, together: bool) -> None:
    logs = [""] * RANKS
    for step in range(12):
        own = [300.0 + (rank * step) % 3 / 5 + 60 * (rank == SLOW) for rank in range(RANKS)]
        for rank, time in enumerate(own):
            wait = max(own) - time + 15
            values = (f"{value:.2f}" for value in (time / 3, 2 * time / 3 + wait, 2 * time / 3, wait))
            head = f"[2026-01-01 00:00:{step:02d},000] [INFO] [logging.py:96:log_dist] [Rank {rank}] "
            logs[rank] += f"steps: {step} loss: 2.3 iter time (s): 0.41 samples/sec: 97.5\n" * (rank == 0)
            logs[rank] += f"{head}time (ms) | {timers.format(*values)}\n"
            logs[rank] += f"{head}time (ms) | fwd_microstep: 9.10 | step_microstep: 0.10\n"
    # As torchrun writes them, a folder for each rank.
    files = [tmp_path / f"{place}" / "stdout.log" for place in (["all"] if together else range(RANKS))]
    for file, text in zip(files, ["".join(logs)] if together else logs, strict=True):
        file.parent.mkdir()
        file.write_text(text)
        file.with_name("stderr.log").write_text("a warning\n")

    result = CliRunner().invoke(main, ["diagnose", "--json", str(files[0] if together else tmp_path)])

    answer = json.loads(result.stdout)
    assert (answer["kind"], answer["ranks"], answer["evidence"]["steps"]) == ("node", [SLOW], 12)
    assert answer["read"]["collectives_by_name"] == ["allreduce"]


def test_lines_of_deepspeed_without_a_common_timer_are_of_one_step(tmp_path: Path) -> None:
    """With ZeRO the optimizer has a line of its own, of what is within the time of its step."""
    lines = []
    for _ in range(2):
        for rank in range(2):
            lines += [
                f"[Rank {rank}] time (ms) | optimizer_allgather: 4.0 | optimizer_gradients: 1.0 | optimizer_step: 2",
                f"[Rank {rank}] time (ms) | fwd: 20.0 | bwd: 9.0 | bwd_inner: 2.0 | bwd_allreduce: 6.0 | step: 8.5",
            ]

    rows = [row for _, row in deepspeed_timers.rows_of(b"", io.BytesIO("\n".join(lines).encode()), lambda *_: None)]

    assert [(row["rank"], row["step"]) for row in rows] == [("0", "0"), ("1", "0"), ("0", "1"), ("1", "1")]
    assert rows[0] | {"rank": "", "step": ""} == {
        "rank": "", "step": "", "optimizer_allgather (ms)": "4.0", "optimizer_gradients (ms)": "1.0",
        "optimizer_step (ms)": "2.0", "fwd (ms)": "20.0", "bwd (ms)": "1.0", "bwd_inner (ms)": "2.0",
        "allreduce (ms)": "6.0", "optimizer (ms)": "1.5",
    }  # fmt: skip
