"""What began before a window and goes on is in it: accusations, what they cost, and the events that answers cite."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingero_contract import attributes, metrics
from ingero_contract.values import LATE_RANK
from ingero_kit.otlp_signal import Signal
from ingero_testing import telemetry
from ingero_testing.books import HOUR, Books


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    made = Books(tmp_path)
    yield made
    made.close()


def test_a_node_that_was_accused_two_hours_ago_and_never_cleared_is_accused(books: Books) -> None:
    books.verdict("slow", "straggler", 2)
    books.verdict("repaired", "straggler", 3)
    books.verdict("repaired", "healthy", 2)
    for node in ("slow", "repaired", "well"):
        books.alive(node)

    (row,) = books.ask("summary")["rows"]
    stragglers = books.ask("find_stragglers")["rows"]
    why = books.ask("why_not", node_id="slow")
    verdicts = books.ask("verdict", open_only=True)["rows"]
    anomalies = books.ask("anomaly_stream")["rows"]

    assert (row["stragglers"], row["straggler_nodes"]) == (1, ["slow"])
    assert [found["node_id"] for found in stragglers] == ["slow"]
    assert "slow is a straggler" in why["summary"]
    assert [found["node_id"] for found in verdicts] == ["slow"]
    assert [found["node_id"] for found in anomalies] == ["slow"]
    assert "repaired is no straggler" in books.ask("why_not", node_id="repaired")["summary"]


def test_the_end_of_an_accusation_inside_the_window_counts(books: Books) -> None:
    books.verdict("slow", "straggler", 2)
    books.verdict("slow", "healthy", 0.5)
    books.alive("slow")

    assert books.ask("summary")["rows"][0]["stragglers"] == 0
    assert books.ask("get_cost")["rows"][0]["hours"] == pytest.approx(0.5, abs=0.01)


def change(books: Books, event: str, kind: str, message: str, hours_ago: float, **evidence: str) -> None:
    """A record of Fleet that the network or a job changed."""
    own = {attributes.VERDICT_KIND: kind, attributes.VERDICT_EVIDENCE: json.dumps(evidence)}
    at = books.now - int(hours_ago * HOUR)
    books.put(Signal.LOGS, telemetry.logs([(event, message, own)], "c", "", at))


def test_a_slow_network_and_a_hang_are_anomalies_and_in_the_summary_until_they_end(books: Books) -> None:
    books.alive("well")
    slow = "Slow: nic n-1/mlx5_1; collectives take up to 60 % longer than like ones there."
    change(books, metrics.NETWORK_EVENT, "nic", slow, 0.9)
    change(books, metrics.HANG_EVENT, "hang", "The job waits for rank 5.", 0.8, key="a")
    change(books, metrics.HANG_EVENT, "hang", "Another job waits.", 0.7, key="b")
    change(books, metrics.HANG_EVENT, "none", "The job goes on.", 0.6, key="b")

    summary, anomalies = books.ask("summary"), books.ask("anomaly_stream")
    assert summary["summary"] == f"c: 1 node, no straggler (The job waits for rank 5. {slow})"
    assert summary["rows"][0]["faults"] == ["The job waits for rank 5.", slow]
    assert [(row["anomaly"], row["detail"]) for row in anomalies["rows"]] == [
        ("hang", "Another job waits."), ("hang", "The job waits for rank 5."), ("network", slow),
    ]  # fmt: skip
    assert anomalies["summary"] == "3 anomalies, newest: hang at c."
    assert [row["detail"] for row in books.ask("anomaly_stream", node_id="n-1")["rows"]] == [slow]
    assert books.ask("anomaly_stream", node_id="n-11")["rows"] == []

    change(books, metrics.NETWORK_EVENT, "none", "No part of the network is slow any more.", 0.5)
    assert books.ask("summary")["rows"][0]["faults"] == ["The job waits for rank 5."]


def test_a_rank_that_is_known_by_its_gpu_only_is_named_by_it(books: Books) -> None:
    proof = json.dumps({"gpu": "GPU2", "share": 0.1, "lag_ms": 12.0, "lasts": 60, "collectives": 64})
    own = {attributes.VERDICT_KIND: LATE_RANK, attributes.VERDICT_EVIDENCE: proof, attributes.NCCL_COMM_HASH: "0xa"}
    books.verdict("late", "straggler", 0.5, **own)

    asked = {
        tool: books.ask(tool, **more)
        for tool, more in (("find_stragglers", {}), ("why_not", {"node_id": "late"}), ("nccl_slow_rank", {}),
                           ("verdict", {}))
    }  # fmt: skip
    assert {tool: body["rows"][0]["gpu"] for tool, body in asked.items()} == dict.fromkeys(asked, "GPU2")
    assert "(late_rank), GPU2 in communicator 0xa" in asked["find_stragglers"]["summary"]
    assert asked["nccl_slow_rank"]["summary"].startswith("Fleet names GPU2 (late) of communicator 0xa")
    assert "GPU2 in communicator 0xa" in books.ask("anomaly_stream")["rows"][0]["detail"]


def test_lags_alone_are_no_calls_of_collectives(books: Books) -> None:
    lag: list[telemetry.Point] = [(metrics.COLLECTIVE_PEER_LAG, 1.0, {attributes.NCCL_COMM_HASH: "0xa"})]
    books.put(Signal.METRICS, telemetry.gauges(lag, "c", "n", books.now - 10**9))

    body = books.ask("nccl_collective_summary")
    assert (body["rows"], body["summary"]) == ([], "Nobody sent durations or bytes of collectives in this window.")


@pytest.mark.parametrize(
    ("told", "reports", "ago", "accused"),
    [
        ("healthy", 3, 0.01, False),
        ("healthy;collectives=late_rank", 3, 0.01, False),
        ("straggler;kind=slow;since=1;severity=0.5", 3, 0.01, True),
        ("learning", 3, 0.01, True),
        ("healthy", 3, 0.6, True),
        ("healthy", 2, 0.01, True),
        ("healthy", 3, 0.49, True),
        ("", 3, 0.01, True),
    ],
    ids=["healthy", "collectives", "straggler", "learning", "earlier", "few", "soon", "silent"],
)
def test_a_node_that_fleet_calls_healthy_is_no_straggler_though_no_record_ended_the_accusation(
    books: Books, told: str, reports: int, ago: float, accused: bool
) -> None:
    """As after its FleetCluster was deleted and made again: the new Fleet knows of no accusation to end."""
    books.verdict("slow", "straggler", 0.5)
    points: list[telemetry.Point] = [(metrics.HEALTH_SCORE, 0.9, {})]
    more = {attributes.LAST_VERDICT: told} if told else {}
    for number in range(reports):
        at = books.now - int(ago * HOUR) + number * 10**9
        books.put(Signal.METRICS, telemetry.gauges(points, "c", "slow", at, **more))

    assert books.ask("summary")["rows"][0]["straggler_nodes"] == (["slow"] if accused else [])
    assert [row["node_id"] for row in books.ask("find_stragglers")["rows"]] == (["slow"] if accused else [])
    assert books.ask("why_not", node_id="slow")["rows"][0]["straggler"] is accused


def test_a_window_that_ended_before_the_accusation_does_not_know_it(books: Books) -> None:
    books.verdict("slow", "straggler", 2)
    books.alive("slow")

    assert books.ask("find_stragglers", since="4h", until="3h")["rows"] == []
    assert [row["node_id"] for row in books.ask("find_stragglers", since="90m", until="80m")["rows"]] == ["slow"]


def test_an_accusation_from_before_the_window_costs_from_its_beginning(books: Books) -> None:
    books.verdict("slow", "straggler", 5, severity=0.5)
    books.verdict("new", "straggler", 0.25, severity=0.5)
    for node in ("slow", "new"):
        books.alive(node)

    hours = {row["node_id"]: row["hours"] for row in books.ask("get_cost")["rows"]}
    longer = {row["node_id"]: row["hours"] for row in books.ask("get_cost", since="24h")["rows"]}

    assert hours == {"slow": pytest.approx(1, abs=0.01), "new": pytest.approx(0.25, abs=0.01)}
    assert longer == {"slow": pytest.approx(5, abs=0.01), "new": pytest.approx(0.25, abs=0.01)}


def test_a_cluster_that_sent_nothing_but_has_somebody_accused_is_in_the_summary(books: Books) -> None:
    books.verdict("dead", "stopped", 2, "quiet")
    books.alive("well", "loud")

    body = books.ask("summary")

    assert [(row["cluster_id"], row["nodes"], row["stragglers"]) for row in body["rows"]] == [
        ("loud", 1, 0), ("quiet", 0, 1),
    ]  # fmt: skip
    assert body["summary"].startswith("quiet: 0 nodes, nothing since ")
    assert body["summary"].endswith(", straggler then: dead; loud: 1 node, no straggler")


def test_a_summary_of_many_clusters_names_those_with_stragglers_and_says_how_many_it_leaves_out(books: Books) -> None:
    for number in range(9):
        books.alive("n", f"c{number}")
    for number in range(7):
        books.verdict(f"s{number}", "straggler", 0.1, "c8")
    books.verdict("s", "straggler", 0.1, "c7")

    words = books.ask("summary")["summary"]

    assert words.startswith("c7: 2 nodes, straggler: s; c8: 8 nodes, straggler: s0, s1, s2, s3, s4 and 2 more; ")
    assert words.endswith("; 4 more clusters, none of them with stragglers")


def test_evidence_is_shown_when_it_is_asked_for_by_id_however_old_it_is(books: Books) -> None:
    one = str(uuid.uuid4())
    books.verdict("slow", "straggler", 50, **{attributes.EVENT_ID: one})
    books.alive("slow")

    (row,) = books.ask("find_stragglers")["rows"]
    found = books.ask("event_history", event_ids=row["evidence"])["rows"]

    assert one in row["evidence"]
    assert {event["event_id"] for event in found} == set(row["evidence"])
    assert books.ask("event_history", node_id="slow", signal="logs")["rows"] == []


def test_what_an_agent_repeats_with_every_push_is_one_anomaly_until_it_pauses(books: Books) -> None:
    books.verdict("slow", "straggler", 0.9)
    for minutes in (50, 49, 48, 47, 10, 9):
        at = books.now - minutes * 60 * 10**9
        points: list[telemetry.Point] = [
            (metrics.STRAGGLER_EVENT, 1.0, {attributes.DOMINANT_SIGNAL: "throughput"}),
            (metrics.DEGRADATION_WARNING, float(minutes < 20), {}),
        ]
        books.put(Signal.METRICS, telemetry.gauges(points, "c", "slow", at))

    rows = books.ask("anomaly_stream")["rows"]

    assert [row["anomaly"] for row in rows] == ["degradation", "self_reported", "self_reported", "verdict"]
    assert rows[2]["detail"].startswith("straggler throughput, 4 reports until ")
    assert [len(row["evidence"]) for row in rows] == [2, 2, 2, 1]
