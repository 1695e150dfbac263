"""Questions about a store that is larger than the memory they may take: answered, and answered right."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ingero_contract import echo
from ingero_echo.auth import ANONYMOUS
from ingero_echo.query_service import QueryService
from ingero_echo.settings import EchoConfig, StoreConfig
from ingero_echo.store import Store

START = 1_700_000_000 * 10**9


class Answers:
    """A store that was filled without a writer, and the service that answers from it."""

    def __init__(self, folder: Path, memory_mb: int = 160, spill_mb: int = 1024) -> None:
        store = StoreConfig(path=folder / "e.duckdb", memory_limit_mb=memory_mb, spill_limit_mb=spill_mb)
        config = EchoConfig(insecure=True, store=store)
        self.store = Store.open(config.store)
        self.service = QueryService(config, lambda: self.store)

    def fill(self, rows: int, chain: str = "NULL", message: str = "NULL") -> None:
        """One event a millisecond; `chain` and `message` are SQL over the number `i` of an event."""
        self.store.connection.execute(
            f"INSERT INTO events SELECT md5(i::VARCHAR)::UUID, make_timestamp_ns(? + i * 1000000), now()::TIMESTAMP, "
            f"'logs', 'c' || i % 2, 'n' || i % 8, 'm', i, NULL, NULL, {chain}, {message}, '{{}}', 1 "
            f"FROM range(?) r(i)",
            [START, rows],
        )
        self.store.checkpoint()

    def ask(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return asyncio.run(self.service.call(ANONYMOUS, echo.TOOL_PREFIX + tool, {"since": "all", **arguments})).body

    def close(self) -> None:
        self.service.close()
        self.store.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Answers]:
    made = Answers(tmp_path, memory_mb=64, spill_mb=0)
    yield made
    made.close()


@pytest.fixture
def answers(tmp_path: Path) -> Iterator[Answers]:
    made = Answers(tmp_path)
    yield made
    made.close()


def test_the_history_of_all_events_is_answered_however_wide_they_are(small: Answers) -> None:
    small.fill(200_000, message="repeat(md5(i::VARCHAR), 20)")

    first = small.ask("event_history", limit=100)
    second = small.ask("event_history", limit=100, cursor=first["next_cursor"])

    numbers = [row["value_double"] for row in first["rows"] + second["rows"]]
    assert numbers == list(range(199_999, 199_799, -1))
    assert small.ask("event_history", limit=1, node_id="n5")["rows"][0]["value_double"] == 199_997
    cited = ["c4ca4238-a0b9-2382-0dcc-509a6f75849b", "c81e728d-9d4c-2f63-6f06-7f89cc14862c"]  # MD5 of 1 and of 2
    assert [row["value_double"] for row in small.ask("event_history", event_ids=cited)["rows"]] == [2, 1]


@pytest.mark.parametrize("chain", ["'x' || i % 3", "'x' || i // 2", "CASE WHEN i < 5000 THEN 'x' || i // 100 END"])
@pytest.mark.parametrize("described", [False, True])
def test_the_newest_causal_chains_are_named_however_many_events_each_has(
    answers: Answers, chain: str, described: bool
) -> None:
    answers.fill(20_000, chain)
    if described:
        answers.store.connection.execute(
            'INSERT INTO causal_chains SELECT uuid(), "timestamp", cluster_id, node_id, causal_chain_id, '
            "CASE value_double WHEN 7 THEN 'HIGH' ELSE 'LOW' END, 'cause', 'summary', '{}', 1 "
            "FROM events WHERE value_double IN (7, 9) AND causal_chain_id IS NOT NULL"
        )

    body = answers.ask("causal_chains", limit=6)

    expected = answers.store.connection.execute(
        """
        WITH carried AS (
            SELECT cluster_id, causal_chain_id, count(*) AS events, list(DISTINCT node_id ORDER BY node_id) AS nodes,
                   max("timestamp") AS last_seen
            FROM events WHERE causal_chain_id IS NOT NULL GROUP BY ALL
        ),
        severities AS (
            SELECT cluster_id, causal_chain_id, arg_max(severity, "timestamp") AS severity
            FROM causal_chains GROUP BY ALL
        )
        SELECT cluster_id, causal_chain_id, events, nodes, severity
        FROM carried LEFT JOIN severities USING (cluster_id, causal_chain_id)
        ORDER BY (severity = 'HIGH') DESC NULLS LAST, last_seen DESC, causal_chain_id
        """
    ).fetchall()
    found = [
        (row["cluster_id"], row["causal_chain_id"], row["events"], row["nodes"], row["severity"])
        for row in body["rows"]
    ]
    assert found == expected[:6]
    assert body["truncated"] is (len(expected) > 6)
