"""The score map: bounded, forgetful, and never two nodes in one row."""

from hypothesis import given
from hypothesis import strategies as st

from ingero_fleet.score_table import ScoreLimits, ScoreTable
from ingero_kit.health_report import HealthReport


def report(node: str, cluster: str = "c", **fields: str) -> HealthReport:
    return HealthReport(node_id=node, cluster_id=cluster, score=0.5, **fields)  # type: ignore[arg-type]


def test_nodes_beyond_the_limit_are_refused_in_words_and_counted() -> None:
    table = ScoreTable(ScoreLimits(nodes=2, clusters=9, ttl_seconds=10), ())
    for name in "ab":
        assert isinstance(table.observe(report(name), 0), int)

    refusal = table.observe(report("c"), 0)

    assert isinstance(refusal, str)
    assert "max_nodes" in refusal
    assert (len(table), table.losses["nodes_over_limit"]) == (2, 1)
    assert isinstance(table.observe(report("a"), 1), int)


def test_a_world_larger_than_the_score_map_is_not_used_and_counted() -> None:
    table = ScoreTable(ScoreLimits(nodes=9, clusters=9, ttl_seconds=10), ())
    for number, size in enumerate((9, 10, 2**31 - 1)):
        table.observe(HealthReport(node_id=str(number), cluster_id="c", world_size=size), 0)

    assert table.view("world_size").tolist() == [9, 0, 0]
    assert table.losses["world_sizes_over_limit"] == 2


def test_clusters_beyond_the_limit_are_refused() -> None:
    table = ScoreTable(ScoreLimits(nodes=9, clusters=1, ttl_seconds=10), ())
    table.observe(report("a", "one"), 0)

    refusal = table.observe(report("a", "two"), 0)

    assert isinstance(refusal, str)
    assert "max_clusters" in refusal


def test_a_silent_node_is_forgotten_and_makes_room() -> None:
    table = ScoreTable(ScoreLimits(nodes=1, clusters=1, ttl_seconds=10), ())
    table.observe(report("a", "old"), 0)

    assert table.expire(10) == []
    assert table.expire(10.1) == [("old", "a")]
    assert isinstance(table.observe(report("b", "new"), 11), int)
    assert table.losses["expired"] == 1


def test_jobs_that_come_and_go_leave_no_cohorts_behind() -> None:
    table = ScoreTable(ScoreLimits(nodes=5, clusters=1, ttl_seconds=10), ("job_id",))
    for number in range(300):
        table.observe(report("a", job_id=f"job-{number}"), number)
        table.expire(number)

    assert len(table.cohorts) <= 66
    assert table.cohorts[int(table.view("cohort")[0])] == ("c", "job-299")


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 8)), max_size=60))
def test_names_and_rows_agree_whatever_comes_and_goes(history: list[tuple[str, int]]) -> None:
    table = ScoreTable(ScoreLimits(nodes=4, clusters=2, ttl_seconds=5), ())
    now = 0.0
    for name, pause in history:
        now += pause
        table.expire(now)
        table.observe(report(name), now)

    alive = [row for row, living in enumerate(table.view("alive")) if living]
    assert len(alive) == len(table) <= 4
    assert all(table.row_of(table.names[row]) == row for row in alive)


def test_cohorts_beyond_the_limit_are_refused_in_words_and_counted_and_make_room_again() -> None:
    table = ScoreTable(ScoreLimits(nodes=9, clusters=1, ttl_seconds=10, cohorts=2), ("job_id",))
    for name in "ab":
        assert isinstance(table.observe(report(name, job_id=f"job-{name}"), 0), int)

    refusal = table.observe(report("c", job_id="job-c"), 0)

    assert isinstance(refusal, str)
    assert "max_cohorts" in refusal
    assert (len(table), len(table.cohorts), table.losses["cohorts_over_limit"]) == (2, 2, 1)
    assert isinstance(table.observe(report("c", job_id="job-a"), 0), int)
    assert isinstance(table.observe(report("b", job_id="job-a"), 11), int)
    table.expire(11)
    assert isinstance(table.observe(report("d", job_id="job-d"), 11), int)
    assert table.cohorts == [("c", "job-a"), ("c", "job-d")]


def test_an_older_score_that_comes_later_does_not_replace_a_newer_one() -> None:
    table = ScoreTable(ScoreLimits(nodes=9, clusters=1, ttl_seconds=50), ())

    for second, score in ((100, 0.9), (97, 0.1), (99, 0.2)):
        sent_ns = HealthReport(node_id="a", cluster_id="c", score=score, time_unix_nano=second * 10**9)
        assert isinstance(table.observe(sent_ns, 1000), int)

    assert (table.view("score")[0], table.view("pushes")[0], table.losses["late_reports"]) == (0.9, 1, 2)


def test_a_node_whose_clock_was_set_back_is_heard_at_once() -> None:
    table = ScoreTable(ScoreLimits(nodes=9, clusters=1, ttl_seconds=50), ())

    for second, score in ((7200, 0.9), (100, 0.1), (110, 0.2)):
        table.observe(HealthReport(node_id="a", cluster_id="c", score=score, time_unix_nano=second * 10**9), 1000)

    assert (table.view("score")[0], table.losses["late_reports"]) == (0.2, 0)
