"""What an answer says in words where there is nothing to answer, or a question cannot be asked."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ingero_echo.errors import EchoApiError
from ingero_kit.tokens import token_refusal
from ingero_testing.books import Books


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    made = Books(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("tool", "well"),
    [
        ("find_stragglers", "No node is accused, and none lies below its peers."),
        ("anomaly_stream", "Nothing out of the ordinary."),
        ("get_cost", "No time was lost to stragglers."),
        ("verdict", "No verdicts in this window."),
    ],
)
def test_a_cluster_without_events_is_not_called_well(books: Books, tool: str, well: str) -> None:
    nothing = "There are no events in this window, so nothing is known; summary with since=all names the clusters."
    assert books.ask(tool)["summary"] == nothing
    books.alive("a", "prod")
    assert books.ask(tool, cluster_id="prod")["summary"] == well
    assert books.ask(tool, cluster_id="prdo")["summary"].startswith(
        "There are no events of cluster prdo in this window"
    )


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("summary", {"since": "1h", "until": "2h"}, "the window ends before it begins: since="),
        ("why_not", {}, "node_id: this argument is needed (it takes cluster_id, until, limit, since, node_id;"),
        ("verdict", {"node": "n"}, "node: there is no such argument (it takes "),
        ("compare_windows", {"since": "2h"}, "since: there is no such argument"),
    ],
)
def test_a_question_that_cannot_be_asked_says_how_to(
    books: Books, tool: str, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(EchoApiError) as refused:
        books.ask(tool, **arguments)
    assert str(refused.value).startswith(words) or words in f"{refused.value} ({refused.value.hint}"


def test_unpriced_nodes_say_what_is_missing(books: Books) -> None:
    books.alive("a")
    books.verdict("a", "straggler", 0.5)
    assert "no rate is known for a, which report no GPU model" in books.ask("get_cost")["summary"]


def test_sql_shows_intervals_as_durations_and_whole_numbers_whole(books: Books) -> None:
    sql = (
        "SELECT INTERVAL 1 DAY + INTERVAL 259689211 MICROSECOND AS took, sum(i::BIGINT) AS n, "
        "sum(0.5::DECIMAL(4, 1)) AS x FROM range(3) AS t(i)"
    )
    answer = books.ask("run_analysis", sql=sql)
    assert (answer["columns"], answer["rows"]) == (["took", "n", "x"], [["P0M1DT259.689211S", 3, 1.5]])


def test_a_wrong_token_is_told_from_none() -> None:
    assert token_refusal(None) == token_refusal(b"Basic abc") == "a bearer token is required"
    assert token_refusal(b"Bearer wrong") == "this bearer token is not accepted"
