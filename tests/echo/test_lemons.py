"""Nodes that are accused again after they recovered are told from nodes that were accused once, or flicker."""

import json
from pathlib import Path

import pytest

from ingero_contract import attributes
from ingero_contract.values import LATE_RANK
from ingero_testing.books import Books


def test_a_node_that_comes_back_is_named_with_how_often_and_how_long(tmp_path: Path) -> None:
    books = Books(tmp_path)
    try:
        for node in ("lemon", "once", "flickers", "a", "b"):
            books.alive(node)
        for began, ended in ((200, 197), (100, 98), (30, 29)):
            books.verdict("lemon", "straggler", began)
            books.verdict("lemon", "recovering", began - 0.5)
            books.verdict("lemon", "healthy", ended)
        proof = json.dumps({"gpu": "GPU3"})
        own = {attributes.VERDICT_KIND: LATE_RANK, attributes.VERDICT_EVIDENCE: proof}
        books.verdict("lemon", "straggler", 99, **own)  # at the same time, by the collectives
        books.verdict("lemon", "healthy", 98.5, **own)
        books.verdict("once", "straggler", 2)
        for minutes in (50, 40, 30):
            books.verdict("flickers", "straggler", minutes / 60)
            books.verdict("flickers", "healthy", (minutes - 5) / 60)
        found, several = books.ask("find_lemons"), books.ask("find_lemons", apart_minutes=3)
        lately, all_of_them = books.ask("find_lemons", since="1d"), books.ask("find_lemons", times=1)
    finally:
        books.close()

    (row,) = found["rows"]
    assert (row["node_id"], row["accusations"], row["accused"], row["gpus"]) == ("lemon", 3, False, ["GPU3"])
    assert row["hours"] == pytest.approx(3 + 2 + 1, abs=0.01)
    assert row["of_others"] == pytest.approx(2 / 4)
    assert found["summary"].startswith("lemon was accused 3 times on ")
    assert found["summary"].endswith(" days, for 6.0 hours in all; the other nodes 0.5 times on average.")
    assert [(row["node_id"], row["accusations"]) for row in several["rows"]] == [("lemon", 3), ("flickers", 3)]
    assert (lately["rows"], lately["summary"]) == ([], "No node was accused 2 times or more.")
    assert {row["node_id"]: row["accused"] for row in all_of_them["rows"]} == {
        "lemon": False, "once": True, "flickers": False,
    }  # fmt: skip
