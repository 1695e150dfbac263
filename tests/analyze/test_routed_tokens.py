"""Jobs that route tokens to experts: a rank with more of them is told from a slow one where these are recorded."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ingero_fleet.cli import main

RANKS, STEPS, RANK = 8, 60, 5


def job(hot: bool = False, slow: bool = False) -> dict[str, Any]:
    """By step and rank: tokens, and seconds of attention, of experts and of the exchange after each."""
    random = np.random.default_rng(3)
    tokens = 8192 * random.normal(1, 0.03, (STEPS, RANKS))
    tokens[:, RANK] *= 1.15 if hot else 1
    own = random.normal(1, 0.01, (2, STEPS, RANKS))
    own[:, :, RANK] *= 1.15 if slow else 1
    attention, experts = 0.1 * own[0], 0.2 * own[1] * tokens / 8192
    waits = [each.max(axis=1, keepdims=True) + 0.005 - each for each in (attention, experts)]
    return {"tokens": tokens.astype(int), "attention": attention, "experts": experts, "waits": sum(waits)}


def ask(file: Path, **columns: Any) -> dict[str, Any]:
    with file.open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(("rank", "step", *columns))
        for step, rank in np.ndindex(STEPS, RANKS):
            rows.writerow((rank, step, *(values[step, rank] for values in columns.values())))
    done = CliRunner().invoke(main, ["diagnose", str(file), "--quiet"])
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "name", ["tokens", "expert_tokens", "num_tokens_routed", "tokens_received", "alltoall_bytes"]
)
@pytest.mark.parametrize("slow", [False, True])
def test_told_tokens_tell_a_rank_with_more_of_them_from_a_slow_one(tmp_path: Path, name: str, slow: bool) -> None:
    told = job(hot=not slow, slow=slow)
    compute = told["attention"] + told["experts"]
    answer = ask(tmp_path / "steps.csv", compute_s=compute, alltoall_s=told["waits"], **{name: told["tokens"]})
    named = ("node", [RANK]) if slow else ("sequence_imbalance", [])
    assert (answer["kind"], answer["ranks"]) == named


@pytest.mark.parametrize("slow", [False, True])
def test_without_tokens_one_time_for_all_compute_does_not_tell_them_apart(tmp_path: Path, slow: bool) -> None:
    told = job(hot=not slow, slow=slow)
    compute = told["attention"] + told["experts"]
    for columns in ({"compute_s": compute}, {"forward_s": compute / 3, "backward_s": compute / 1.5}):
        answer = ask(tmp_path / "steps.csv", **columns, alltoall_s=told["waits"])
        assert (answer["kind"], answer["evidence"]["possible"], answer["evidence"]["by"]) == (
            "unknown",
            [RANK],
            "routed",
        )
        done = CliRunner().invoke(main, ["diagnose", str(tmp_path / "steps.csv"), "--table"])
        assert "more tokens may be routed to its experts" in done.output and "column tokens" in done.output


@pytest.mark.parametrize("exchange", ["alltoall_s", "allreduce_s"])
def test_a_rank_that_is_slow_in_what_is_no_work_of_experts_is_named(tmp_path: Path, exchange: str) -> None:
    for slow in (False, True):
        told = job(hot=not slow, slow=slow)
        columns = {"attention_s": told["attention"], "expert_mlp_s": told["experts"], exchange: told["waits"]}
        answer = ask(tmp_path / "steps.csv", **columns)
        assert (answer["kind"], answer["ranks"]) == (("node", [RANK]) if slow else ("unknown", []))


def test_kernels_without_names_of_experts_are_doubted_where_one_alone_takes_longer(tmp_path: Path) -> None:
    for slow in (False, True):
        told = job(hot=not slow, slow=slow)
        columns = {"flash_s": told["attention"], "gemm_s": told["experts"], "all_to_all_s": told["waits"]}
        answer = ask(tmp_path / "steps.csv", **columns)
        assert (answer["kind"], answer["ranks"]) == (("node", [RANK]) if slow else ("unknown", []))


def test_without_an_exchange_with_all_a_rank_that_computes_longer_is_named(tmp_path: Path) -> None:
    told = job(slow=True)
    compute = told["attention"] + told["experts"]
    answer = ask(tmp_path / "steps.csv", compute_s=compute, allreduce_s=told["waits"])
    assert (answer["kind"], answer["ranks"]) == ("node", [RANK])


def traced(folder: Path, told: dict[str, Any], sizes: bool) -> dict[str, Any]:
    """The verdict on profiler traces of the first steps, with one kernel for all compute before an exchange."""
    compute = told["attention"] + told["experts"]
    waits = compute.max(axis=1, keepdims=True) + 0.01 - compute
    for rank in range(RANKS):
        events, now = [], 0.0
        for step in range(STEPS):
            begin = now
            for name, seconds, args in (
                ("gemm", compute[step, rank], {}),
                ("ncclDevKernel_SendRecv", waits[step, rank], {"Collective name": "all_to_allv"}),
            ):
                more = {"Process Group Name": "0", "Out msg nelems": int(told["tokens"][step, rank])}
                named = {**args, **(more if sizes else {"Process Group Name": "0"})} if args else {}
                events.append({"ph": "X", "cat": "kernel", "name": name, "ts": now * 1e6, "dur": seconds * 1e6,
                               "args": named})  # fmt: skip
                now += seconds
            events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": begin * 1e6,
                           "dur": (now - begin) * 1e6})  # fmt: skip
        tree = {"deviceProperties": [], "distributedInfo": {"rank": rank, "world_size": RANKS}, "traceEvents": events}
        (folder / f"rank{rank}.json").write_text(json.dumps(tree))
    done = CliRunner().invoke(main, ["diagnose", "--kineto", str(folder), "--json"])
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("sizes", [False, True])
def test_traces_tell_how_much_a_rank_receives(tmp_path: Path, slow: bool, sizes: bool) -> None:
    answer = traced(tmp_path, job(hot=not slow, slow=slow), sizes)
    named = ("node", [RANK]) if slow else ("sequence_imbalance", [])
    assert (answer["kind"], answer["ranks"]) == (named if sizes else ("unknown", []))


def test_a_rank_that_lacks_some_times_of_its_operations_is_judged_by_the_others(tmp_path: Path) -> None:
    told = job(slow=True)
    attention = told["attention"].astype(object)
    attention[3::10, 2] = ""
    attention[7::15, RANK] = ""
    answer = ask(
        tmp_path / "steps.csv", attention_s=attention, expert_mlp_s=told["experts"], alltoall_s=told["waits"]
    )
    assert (answer["kind"], answer["ranks"]) == ("node", [RANK])
