"""A node or cluster that sends nothing any more is silent, and is not named before one that is slow now."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ingero_contract import attributes
from ingero_echo.window import Sources, rfc3339
from ingero_testing.books import Books

TOLD = {attributes.LAST_VERDICT: "healthy"}


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    made = Books(tmp_path)
    yield made
    made.close()


def test_a_node_that_stopped_reporting_while_others_go_on_is_silent(books: Books) -> None:
    for node in ("a", "b", "c"):
        books.reports(node, 50, 0)
    books.reports("dead", 50, 15)

    summary, why = books.ask("summary"), books.ask("why_not", node_id="dead")
    (row,) = summary["rows"]

    assert (row["nodes"], row["silent"], row["silent_nodes"], row["silent_since"]) == (4, 1, ["dead"], None)
    assert summary["summary"] == "c: 4 nodes, no straggler, silent: dead"
    assert why["rows"][0]["silent"]
    since = rfc3339(books.now - (15 * 60 + 10) * 10**9)[:19]
    assert why["summary"].startswith(
        f"dead has sent nothing since {since}Z. It is no straggler: no verdict names it;"
    )


def test_nodes_that_report_are_not_silent_however_seldom(books: Books) -> None:
    for node in ("a", "b"):
        for minutes in range(50, 0, -5):
            books.reports(node, minutes + 4.5, minutes + 4.4)
    books.reports("new", 1, 0.5)

    (row,) = books.ask("summary")["rows"]
    assert (row["silent"], row["silent_since"]) == (0, None)
    assert not books.ask("why_not", node_id="a")["rows"][0]["silent"]


def test_a_cluster_that_ended_under_an_accusation_comes_after_what_is_slow_now(books: Books) -> None:
    books.reports("ended", 58, 45, "gone")
    books.reports("other", 58, 45, "gone")
    books.verdict("ended", "straggler", 50 / 60, "gone")
    books.reports("slow", 58, 0, "busy")
    books.reports("well", 58, 0, "busy")
    books.verdict("slow", "straggler", 10 / 60, "busy", **{attributes.VERDICT_SEVERITY: 0.01})

    summary, found = books.ask("summary"), books.ask("find_stragglers")

    since = rfc3339(books.now - (45 * 60 + 10) * 10**9)[:19]
    assert [(row["node_id"], row["silent"]) for row in found["rows"]] == [("slow", False), ("ended", True)]
    assert found["summary"].startswith("slow is the straggler")
    assert summary["summary"] == (
        f"busy: 2 nodes, straggler: slow; gone: 2 nodes, nothing since {since}Z, straggler then: ended"
    )
    only = books.ask("find_stragglers", cluster_id="gone")["summary"]
    assert only.startswith(f"ended has sent nothing since {since}Z. It was the straggler")


def test_an_accusation_costs_until_the_node_fell_silent_or_was_called_healthy(books: Books) -> None:
    books.reports("ended", 58, 45)
    books.verdict("ended", "straggler", 55 / 60)
    books.reports("forgotten", 58, 40)
    books.reports("forgotten", 40, 0, **TOLD)
    books.verdict("forgotten", "straggler", 50 / 60)
    books.reports("slow", 58, 0)
    books.verdict("slow", "straggler", 30 / 60)

    hours = {row["node_id"]: row["hours"] for row in books.ask("get_cost")["rows"]}

    minutes = {"ended": 55 - 45, "forgotten": 50 - 40, "slow": 30}
    assert hours == {node: pytest.approx(value / 60, abs=0.01) for node, value in minutes.items()}
    lately = books.ask("get_cost", since="20m")["rows"]
    assert {row["node_id"] for row in lately if row["hours"] > 0.01} == {"slow"}


def test_silence_is_judged_at_the_end_of_the_window(books: Books) -> None:
    for node in ("a", "b", "c"):
        books.reports(node, 50, 15)
    assert books.ask("summary", until="20m")["summary"] == "c: 3 nodes, no straggler"
    assert "nothing since" in books.ask("summary")["summary"]


def test_events_that_a_writer_has_not_handed_over_are_no_silence() -> None:
    assert Sources().known_until(50) == 50
    assert Sources(as_of={"0": rfc3339(10**18), "1": rfc3339(3 * 10**9)}).known_until(10**19) == 3 * 10**9
    assert Sources(as_of={"0": rfc3339(10**18)}).known_until(50) == 50
