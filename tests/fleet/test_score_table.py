"""The score map: bounded, forgetful, and never two nodes in one row."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero_fleet import agent_instances
from ingero_fleet.receivers.messages import decode_batch, encode_batch
from ingero_fleet.score_table import ScoreLimits, ScoreTable
from ingero_fleet.state_codec import encode_state, sealed, unsealed
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


def test_jobs_that_end_together_leave_no_cohorts_behind() -> None:
    table = ScoreTable(ScoreLimits(nodes=400, clusters=1, ttl_seconds=10), ("job_id",))
    for now in (0, 5):
        for number in range(300):
            table.observe(report(f"n{number}", job_id=f"job-{number}"), now)
        table.expire(now)
    table.observe(report("steady", job_id="steady"), 20)
    table.expire(20)

    assert table.cohorts == [("c", "steady")]


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


def test_a_clock_that_was_set_back_a_little_costs_one_report_and_a_queue_changes_nothing() -> None:
    judge, receiver = map_of_agents(), map_of_agents()
    for number in range(8):
        now = 1000.0 + 10 * number
        sent = now - 30 if number > 2 else now
        push(receiver, "a", now, sent)
        judge.merge(decode_batch(encode_batch(receiver.take_fresh(9))))
        if number == 6:  # what waited in a queue
            for older in (1.0, 2.0, 3.0):
                push(receiver, "a", now + 0.1 * older, sent - 9 + older)

    assert [table.view("sent_ns")[0] for table in (receiver, judge)] == [1040 * 10**9] * 2
    assert (receiver.losses["late_reports"], receiver.view("seen")[0]) == (1 + 3, 1070.0)


WINDOW = 50.0


def push(table: ScoreTable, agent: str, now: float, sent: float | None = None) -> None:
    """A report of an agent of node `n`, which gives `sent` as its time."""
    found = table.observe(
        HealthReport(node_id="n", cluster_id="c", instance_id=agent, time_unix_nano=int((sent or now) * 1e9)), now
    )
    assert found == 0


def map_of_agents() -> ScoreTable:
    return ScoreTable(ScoreLimits(nodes=9, clusters=1, ttl_seconds=WINDOW), ())


@pytest.mark.parametrize(
    ("agents", "ahead"),
    [("ab", 0.0), ("ab", 7.0), ("ab", 45.0), ("ab", 4000.0), ("abcde", 3.0), (["", "a"], 0.0)],
    ids=["in time", "a clock ahead", "far ahead", "hours ahead", "five clones", "one without an id"],
)
def test_agents_that_take_turns_as_one_node_are_noticed_until_all_but_one_stop(
    agents: Sequence[str], ahead: float
) -> None:
    table = map_of_agents()
    for round_ in range(14):
        for place, agent in enumerate(agents):
            now = 1000.0 + 10 * round_ + place
            push(table, agent, now, now + ahead * place)

    assert table.instances.several(now) == [0]
    assert table.losses["contradicting_reports"] > 1
    for round_ in range(14, 21):
        now = 1000.0 + 10 * round_
        push(table, agents[0], now, now + 8000)
        table.expire(now)
    assert table.instances.several(now) == []


def test_agents_that_start_again_and_again_are_one_even_if_old_reports_come_late() -> None:
    table = map_of_agents()
    for start in range(40):
        now = 1000.0 + 15 * start
        push(table, f"process {start}", now)
        push(table, f"process {start}", now + 10)
        if start:  # the queue of a collector delivers what the process before had sent last
            push(table, f"process {start - 1}", now + 11, now - 1)
            push(table, f"process {start}", now + 12)
            push(table, f"process {start - 1}", now + 13, now - 0.5)
        assert table.instances.several(now + 13) == []

    assert table.losses["contradicting_reports"] == 0


def test_one_return_alone_as_by_a_clock_that_was_set_back_is_no_proof() -> None:
    table = map_of_agents()
    for now, agent, sent in (
        (1000.0, "before", 1000.0), (1010.0, "before", 1010.0), (1015.0, "after", 1005.0), (1016.0, "before", 1011.0),
        *((now, "after", now - 10) for now in (1025.0, 1035.0, 1045.0)),
    ):  # fmt: skip
        push(table, agent, now, sent)
        assert table.instances.several(now) == []


def test_agents_on_two_receivers_or_both_on_one_are_noticed_where_reports_meet() -> None:
    apart, together = (map_of_agents(), map_of_agents(), map_of_agents()), (map_of_agents(), map_of_agents())
    for round_ in range(4):
        now = 1000.0 + 10 * round_
        for receiver, agent in zip(apart[1:], "ab", strict=True):
            push(receiver, agent, now)
            apart[0].merge(decode_batch(encode_batch(receiver.take_fresh(9))))
            push(together[1], agent, now)
        together[0].merge(decode_batch(encode_batch(together[1].take_fresh(9))))

    for judge in (apart[0], together[0]):
        assert judge.instances.several(now) == [0]
        restored = map_of_agents()
        restored.restore(unsealed(sealed(encode_state(judge.state()))))
        assert restored.instances.proven() == judge.instances.proven()


def test_only_so_many_changes_of_agents_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_instances, "MAX_PAIRS", 2)
    table = map_of_agents()
    for agent in "aba":
        for node in "wxyz":
            table.observe(HealthReport(node_id=node, cluster_id="c", instance_id=agent), 1000.0)

    assert len(table.state()["instances"]) == 2
