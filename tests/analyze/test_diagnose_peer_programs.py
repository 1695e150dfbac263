"""A rank whose program changed is told from its peers by what all of them called before."""

import json
from typing import Any

import pytest

from ingero_analyze.diagnose.flight_recorder_dumps import dump_of
from ingero_analyze.diagnose.hangs import Hang, find_hang
from ingero_analyze.diagnose.sources import OperationRows, Problems
from ingero_contract.identifiers import Rank

TENSOR, RANKS = 4, 8
BATCH = ["tensor", "data"]
GROUPS = {
    "world": list(range(RANKS)),
    **{f"tensor{place}": list(range(TENSOR * place, TENSOR * place + TENSOR)) for place in range(RANKS // TENSOR)},
    **{f"data{place}": [place, place + TENSOR] for place in range(TENSOR)},
}


def dumped(rank: int, calls: list[str], pending: bool = True) -> tuple[int, dict[str, Any]]:
    """The dump of a rank that made these calls, of which the last one has not ended."""
    own = {"world": "world", "tensor": f"tensor{rank // TENSOR}", "data": f"data{rank % TENSOR}"}
    entries = []
    for place, kind in enumerate(calls):
        ended = place + 1 < len(calls) or not pending
        entries.append({
            "record_id": place, "pg_id": list(GROUPS).index(own[kind]), "process_group": (own[kind], kind),
            "collective_seq_id": calls[: place + 1].count(kind), "p2p_seq_id": 0, "profiling_name": "nccl:all_reduce",
            "input_sizes": [[len(kind)]], "input_dtypes": ["Float"], "time_created_ns": 10**18 + place * 10**7,
            "state": "completed" if ended else "scheduled", "retired": ended, "is_p2p": False,
        })  # fmt: skip
    members = {name: {"desc": "", "ranks": json.dumps(GROUPS[name])} for name in own.values()}
    return rank, {"version": "2.10", "pg_config": members, "pg_status": {}, "entries": entries}


def hang_where(rank_one: list[str], batches: int, odd_before: bool = False) -> Hang:
    """All ranks call two batches a step and meet; in the last step rank 1 calls `rank_one` instead."""
    before = BATCH * batches + ["world"]
    calls = {rank: before + BATCH * 2 + ["world"] for rank in range(RANKS)}
    calls[5] = before + BATCH * 2  # the partner of rank 1 waits for the call that it left out
    calls[1] = before + rank_one
    if odd_before:
        calls[1] = ["tensor", "tensor", "data", "data", *BATCH * (batches - 2), "world", *rank_one]
    dumps = [
        dump_of(value, Rank(rank), str(rank), Problems(), OperationRows())
        for rank, value in (dumped(rank, made) for rank, made in calls.items())
    ]
    return find_hang(dumps)


def test_of_ranks_that_wait_for_each_other_the_one_that_contradicts_its_peers_is_named() -> None:
    hang = hang_where(["tensor", "data", "tensor", "world"], batches=4)

    assert (hang.kind, hang.ranks, hang.possible) == ("order", (1,), ())
    assert "whose members called the same before" in hang.why[Rank(1)]


@pytest.mark.parametrize(("batches", "odd_before"), [(1, False), (4, True)], ids=["too few before", "never the same"])
def test_without_equal_calls_before_nobody_is_named(batches: int, odd_before: bool) -> None:
    hang = hang_where(["tensor", "data", "tensor", "world"], batches, odd_before)

    assert (hang.kind, hang.ranks) == ("order", ())
    assert {1, 5} <= {*hang.possible}
