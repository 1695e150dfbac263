"""Nodes that are slow in job after job, each of which is too small or too short to accuse them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingero_analyze.replay.behind import behind
from ingero_testing.replays import shown_twice


def levels(lost: float, seed: int, first: int = 0, jobs: int = 6) -> list[Any]:
    """Levels of 24 nodes in jobs of four, of which n7 loses a share from one job on."""
    random = np.random.default_rng(seed)
    rows = []
    for job in range(jobs):
        for place, node in enumerate(random.permutation(24).tolist()):
            level = random.normal(0, 0.01) + (np.log(1 - lost) if node == 7 and job >= first else 0.0)
            rows.append((node, 6 * job + place // 4, level, 100, 1000.0 * job))
    nodes, of, found, ticks, begun = (np.array(column) for column in zip(*rows, strict=True))
    middle = np.array([np.median(found[of == one]) for one in range(6 * jobs)])
    return [nodes, of, found - middle[of], ticks, begun]


@pytest.mark.parametrize(("first", "jobs"), [(0, 6), (2, 6), (3, 7), (5, 8)])
def test_a_node_that_is_slow_in_its_last_jobs_is_found_with_their_begin(first: int, jobs: int) -> None:
    (one,) = behind(*levels(0.15, seed=first, first=first, jobs=jobs))
    assert (one.node, one.jobs, one.since) == (7, jobs - first, 1000.0 * first)
    assert one.lost == pytest.approx(0.15, abs=0.03)


def test_nobody_is_behind_in_healthy_jobs_nor_for_one_slow_job() -> None:
    assert sum(bool(behind(*levels(0.0, seed))) for seed in range(20)) <= 2
    node, job, level, ticks, begun = levels(0.0, 1)
    level[(node == 7) & (begun == 2000)] -= 0.4
    assert behind(node, job, level, ticks, begun) == []


def test_one_job_says_nothing() -> None:
    node = np.arange(24)
    level = np.where(node == 3, -0.3, 0.01 * np.random.default_rng(1).normal(size=24))
    assert behind(node, np.zeros(24, np.int64), level, np.full(24, 500), np.zeros(24)) == []


def test_a_history_of_small_jobs_says_who_is_slow_in_all_of_them(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    lines = ["time,node,job_id,rate"]
    for job in range(5):
        nodes = random.permutation(24).tolist()
        for tick in range(100):
            for place, node in enumerate(nodes):
                rate = (
                    (100 + 50 * (place // 4))
                    * np.exp(0.03 * random.normal())
                    * (0.85 if node == 7 and job > 1 else 1)
                )
                lines.append(f"{20 * (120 * job + tick)},n{node},j{job}-{place // 4},{rate:.2f}")
    (tmp_path / "history.csv").write_text("\n".join(lines) + "\n")
    found, shown = shown_twice(str(tmp_path / "history.csv"))

    assert found["episodes"] == []
    ((node, jobs, since),) = [(one["node"], one["jobs"], one["since"]) for one in found["summary"]["behind"]]
    assert (node, jobs, since) == ("n7", 3, 4800)
    assert "n7 was 1" in shown.stdout
    assert "% slower than its peers in its 3 jobs since 4800" in shown.stdout
