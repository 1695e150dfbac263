"""A row for each step of a pipeline's ranks, with sends and receives, where nothing says which ranks are a stage."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ingero_analyze.diagnose.loop_logs import times_of
from ingero_fleet.cli import main

RANKS, STEPS = 16, 20


def steps(slow: tuple[int, ...] = (), idle: tuple[int, ...] = (), tensor: bool = True, seed: int = 0) -> Any:
    """By step, rank and operation (forward, backward, send, recv, all_reduce), milliseconds. Steps take a second.

    `slow` ranks compute a quarter longer; `idle` ones do nothing for 150 ms. Others receive the longer. Without
    `tensor` there is no all_reduce.
    """
    random = np.random.default_rng(seed)
    forward, backward = (mean * random.normal(1, 0.01, (STEPS, RANKS)) for mean in (200, 400))
    more = np.where(np.isin(np.arange(RANKS), slow), 1.25, 1.0)
    idles = np.where(np.isin(np.arange(RANKS), idle), 150.0, 0.0)
    meets = np.full((STEPS, RANKS), 20.0 if tensor else np.nan)
    send = np.full((STEPS, RANKS), 10.0)
    waits = 1000 - forward * more - backward * more - send - np.nan_to_num(meets) - idles
    return np.stack([forward * more, backward * more, send, waits, meets], axis=2)


NAMES = ("forward", "backward", "send", "recv", "all_reduce")


def table(file: Path, cells: Any) -> Path:
    lines = ["rank,step," + ",".join(f"{name}_ms" for name in NAMES)]
    for step, ranks in enumerate(cells.tolist()):
        for rank, row in enumerate(ranks):
            lines.append(f"{rank},{step}," + ",".join("" if np.isnan(one) else f"{one:.3f}" for one in row))
    file.write_text("\n".join(lines) + "\n")
    return file


def timeline(file: Path, cells: Any, idle: tuple[int, ...]) -> Path:
    """A row for each operation with its start; `idle` ranks begin a step 150 ms later."""
    lines = ["rank,step,op,start_ms,duration_ms"]
    for step, ranks in enumerate(cells.tolist()):
        for rank, row in enumerate(ranks):
            start = 1000.0 * step + 150.0 * (rank in idle)
            for name, one in zip(NAMES, row, strict=True):
                lines.append(f"{rank},{step},{name},{start:.3f},{one:.3f}")
                start += one
    file.write_text("\n".join(lines) + "\n")
    return file


def log(file: Path, cells: Any) -> Path:
    lines = []
    for step, ranks in enumerate(cells.tolist()):
        for rank, row in enumerate(ranks):
            told = [f"{name} {one:.2f}ms" for name, one in zip(NAMES, row, strict=True) if not np.isnan(one)]
            lines.append(f"[rank{rank}]: step {step} | loss 2.31 | " + " | ".join(told))
    file.write_text("\n".join(lines) + "\n")
    return file


def ask(path: Path) -> dict[str, Any]:
    done = CliRunner().invoke(main, ["diagnose", str(path), "--quiet", "--json"])
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("write", [table, log])
@pytest.mark.parametrize(
    ("stage", "by"),
    [((12, 13, 14, 15), "may_be_stage"), ((4, 5, 6, 7), "may_be_stage"), ((14, 15), "may_be_stage"),
     ((3, 7, 11, 15), "replica")],
    ids=str,
)  # fmt: skip
def test_ranks_that_may_be_a_heavier_stage_are_not_named(
    tmp_path: Path, write: Any, stage: tuple[int, ...], by: str
) -> None:
    found = ask(write(tmp_path / "steps.txt", steps(slow=stage)))

    assert (found["kind"], found["ranks"]) == ("unknown", [])
    assert (found["evidence"]["by"], found["evidence"]["possible"]) == (by, list(stage))


@pytest.mark.parametrize("slow", [(5,), (3, 9), (15,)], ids=str)
def test_slow_ranks_that_are_no_stage_are_named(tmp_path: Path, slow: tuple[int, ...]) -> None:
    found = ask(table(tmp_path / "steps.csv", steps(slow=slow)))

    assert (found["kind"], sorted(found["ranks"])) == ("node", list(slow))


def test_the_last_rank_of_a_pipeline_may_be_its_last_stage(tmp_path: Path) -> None:
    last = ask(table(tmp_path / "last.csv", steps(slow=(15,), tensor=False)))
    other = ask(table(tmp_path / "other.csv", steps(slow=(6,), tensor=False)))

    assert (last["ranks"], last["evidence"]["possible"]) == ([], [15])
    assert (other["kind"], other["ranks"]) == ("node", [6])


@pytest.mark.parametrize("write", [table, log])
@pytest.mark.parametrize("idle", [(3,), (0, 1, 2, 3)], ids=str)
def test_ranks_that_do_nothing_while_others_receive_are_possible(
    tmp_path: Path, write: Any, idle: tuple[int, ...]
) -> None:
    found = ask(write(tmp_path / "steps.txt", steps(idle=idle)))

    assert (found["kind"], found["ranks"]) == ("unknown", [])
    assert (found["evidence"]["by"], found["evidence"]["possible"]) == ("late_part", list(idle))
    assert found["seconds_lost_per_step"] == pytest.approx(0.15, rel=0.2)


@pytest.mark.parametrize("idle", [tuple(range(8)), tuple(range(8, 16))], ids=str)
def test_half_of_the_ranks_that_do_nothing_are_possible(tmp_path: Path, idle: tuple[int, ...]) -> None:
    found = ask(timeline(tmp_path / "steps.csv", steps(idle=idle), idle))

    assert (found["kind"], found["ranks"]) == ("unknown", [])
    assert (found["evidence"]["by"], found["evidence"]["possible"]) == ("slower_part", list(idle))
    assert found["seconds_lost_per_step"] == pytest.approx(0.15, rel=0.2)
    assert ask(timeline(tmp_path / "healthy.csv", steps(), ()))["kind"] == "none"


def test_half_of_the_ranks_that_do_nothing_are_mentioned_beside_a_slow_rank_that_costs_far_less(
    tmp_path: Path,
) -> None:
    cells, idle = steps(idle=tuple(range(8))), tuple(range(8))
    cells[:, 13, 1] *= 1.1
    cells[:, 13, 3] -= 40.0
    found = ask(timeline(tmp_path / "steps.csv", cells, idle))

    assert (found["kind"], found["ranks"]) == ("node", [13])
    assert [(also["by"], also["possible"]) for also in found["evidence"]["also"]] == [("slower_part", list(idle))]


def test_a_healthy_pipeline_whose_stages_nothing_tells_has_no_late_rank(tmp_path: Path) -> None:
    for seed in range(5):
        assert ask(table(tmp_path / "steps.csv", steps(seed=seed)))["kind"] == "none"


def test_sends_of_a_log_are_times_where_they_have_a_unit() -> None:
    line = "step 3 | fwd 1.5ms | send_forward 2ms | recv_backward: 3 ms | pp_send (ms): 4 | p2p 5ms"

    assert times_of(line) == {
        "fwd (s)": "0.0015", "send forward (s)": "0.002", "recv backward (s)": "0.003", "pp send (s)": "0.004",
        "p2p (s)": "0.005",
    }  # fmt: skip
    assert times_of("fwd 1.5ms bwd 2ms send 1024 recv: 7") == {"fwd (s)": "0.0015", "bwd (s)": "0.002"}
