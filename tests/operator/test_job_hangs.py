"""Jobs that hang, by Fleet's answer, as a condition."""

from typing import Any

import pytest

from ingero_operator.conditions import Condition
from ingero_operator.job_hangs import jobs_progress, parse_hangs
from ingero_operator.workloads import stuck

SINCE = "2026-08-02T10:00:00.250Z"


def hang(**change: Any) -> dict[str, Any]:
    ranks = [{"rank": 2, "host": "10.0.0.2", "pid": 7, "gpu": 0}]
    found = {
        "cluster_id": "prod", "job_id": "llama", "kind": "hang", "since": SINCE, "why": "for 75 s", "comm": "0xa",
        "op": "AllReduce", "ranks": ranks, "rank_count": 1, "possible": [],
    }  # fmt: skip
    return found | change


def shown(*hangs: dict[str, Any]) -> Condition:
    found = jobs_progress(parse_hangs(3, list(hangs)))
    assert found is not None and stuck([found]) == []
    return found


def test_the_job_its_communicator_and_the_ranks_are_named() -> None:
    found = shown(hang())

    assert (found.status, found.reason) == ("False", "Hang")
    begun = "job llama waits since 2026-08-02T10:00:00Z in AllReduce of communicator 0xa for rank 2 on 10.0.0.2. "
    assert found.message.startswith(begun)


def test_what_passes_with_time_is_no_part_of_it() -> None:
    assert shown(hang(why="for 75 s")) == shown(hang(why="for 105 s"))


def test_a_dead_process_and_an_unknown_cause_are_told_apart() -> None:
    assert "for the dead process of rank 2 on 10.0.0.2" in shown(hang(kind="dead")).message
    unknown = shown(hang(kind="unknown", ranks=[], rank_count=0, comm=None, job_id=None)).message
    assert unknown.startswith("a job waits since 2026-08-02T10:00:00Z for a cause that is not known")


def test_many_jobs_and_ranks_are_counted() -> None:
    ranks = [{"rank": number, "host": f"h{number}"} for number in range(9)]
    message = shown(*[hang(ranks=ranks, rank_count=100)] * 5).message
    assert "rank 2 on h2 and 97 more" in message and "; and 2 more. No node" in message


def test_jobs_that_go_on_are_well() -> None:
    assert shown().holds


@pytest.mark.parametrize(
    ("watched", "hangs"), [(None, None), (0, []), (3, {}), (3, [7]), (-1, []), (True, []), (1, [{"kind": "hang"}])]
)
def test_where_no_job_is_watched_or_the_answer_is_unreadable_there_is_no_condition(watched: Any, hangs: Any) -> None:
    assert jobs_progress(parse_hangs(watched, hangs)) is None
