"""The score map: bounded, forgetful, and never two nodes in one row."""

from hypothesis import given
from hypothesis import strategies as st

from ingero_fleet.scores import Limits, ScoreTable
from ingero_kit.health_report import HealthReport


def report(node: str, cluster: str = "c", **fields: str) -> HealthReport:
    return HealthReport(node_id=node, cluster_id=cluster, score=0.5, **fields)  # type: ignore[arg-type]


def test_nodes_beyond_the_limit_are_refused_in_words_and_counted() -> None:
    table = ScoreTable(Limits(nodes=2, clusters=9, ttl_seconds=10), ())
    for name in "ab":
        assert table.observe(report(name), 0) is None

    refusal = table.observe(report("c"), 0)

    assert refusal is not None
    assert "max_nodes" in refusal
    assert (len(table), table.losses.nodes_over_limit) == (2, 1)
    assert table.observe(report("a"), 1) is None


def test_clusters_beyond_the_limit_are_refused() -> None:
    table = ScoreTable(Limits(nodes=9, clusters=1, ttl_seconds=10), ())
    table.observe(report("a", "one"), 0)

    refusal = table.observe(report("a", "two"), 0)

    assert refusal is not None
    assert "max_clusters" in refusal


def test_a_silent_node_is_forgotten_and_makes_room() -> None:
    table = ScoreTable(Limits(nodes=1, clusters=1, ttl_seconds=10), ())
    table.observe(report("a", "old"), 0)

    assert table.expire(10) == []
    assert table.expire(10.1) == [("old", "a")]
    assert table.observe(report("b", "new"), 11) is None
    assert table.losses.expired == 1


def test_jobs_that_come_and_go_leave_no_cohorts_behind() -> None:
    table = ScoreTable(Limits(nodes=5, clusters=1, ttl_seconds=10), ("job_id",))
    for number in range(300):
        table.observe(report("a", job_id=f"job-{number}"), number)
        table.expire(number)

    assert len(table.cohorts) <= 66
    assert table.cohorts[int(table.view("cohort")[0])] == ("c", "job-299")


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 8)), max_size=60))
def test_names_and_rows_agree_whatever_comes_and_goes(history: list[tuple[str, int]]) -> None:
    table = ScoreTable(Limits(nodes=4, clusters=2, ttl_seconds=5), ())
    now = 0.0
    for name, pause in history:
        now += pause
        table.expire(now)
        table.observe(report(name), now)

    alive = [row for row, living in enumerate(table.view("alive")) if living]
    assert len(alive) == len(table) <= 4
    assert all(table.row_of(table.names[row]) == row for row in alive)
