"""Questions over real sockets: JSON, CSV, Arrow and MCP give the same answers, to those who may ask."""

import io
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import jsonschema
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
import trustme
from mcp import Client
from mcp.shared.exceptions import MCPError
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from ingero_contract import attributes, echo, metrics, routes
from ingero_echo.client import EchoHttpClient
from ingero_echo.json_api import ARROW, PARQUET, render
from ingero_echo.middleware import AuditLog
from ingero_echo.query_runner import QueryResult, arrow_stream
from ingero_echo.query_service import TOOLS, QueryReply
from ingero_echo.questions import QUESTIONS
from ingero_echo.questions.base import EvidenceRow, Question
from ingero_fleet.processor_settings import ThresholdConfig
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_encode import encode_report
from ingero_testing import telemetry
from ingero_testing.mcp_client import call
from ingero_testing.processes import BIN, Running, process, wait_until
from ingero_testing.processes import echo as start_echo
from ingero_testing.web import web

PROTOBUF = {"content-type": "application/x-protobuf"}
PREFIX = echo.TOOL_PREFIX


def push(service: Running, path: str, message: Any) -> None:
    response = web.post(service.url("otlp/http", path), content=message.SerializeToString(), headers=PROTOBUF)
    assert (response.status_code, response.content) == (200, b""), response.content


def ask(service: Running, tool: str, **arguments: Any) -> dict[str, Any]:
    response = web.post(service.url("api", echo.TOOLS + PREFIX + tool), json=arguments)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    jsonschema.validate(body, TOOLS[PREFIX + tool].output_schema)
    return body


def fill(service: Running) -> None:
    """A cluster of five nodes, one of which is slow for a reason."""
    for number in range(5):
        node, bad = f"gpu-node-{number}", number == 3
        report = HealthReport(
            node_id=node, cluster_id="lab", score=0.3 if bad else 0.9 + number / 1000, compute=0.2 if bad else 0.8,
            throughput=0.9, gpu_model="NVIDIA H100 80GB HBM3", gpu_count=8, provider="aws", world_size=40, rank=number,  # noqa: E501
        )  # fmt: skip
        push(service, routes.OTLP_METRICS, encode_report(report))
        for sequence in range(20):
            own = {
                attributes.NCCL_OP_TYPE: "ncclAllReduce", attributes.NCCL_COMM_HASH: "ab" * 8, attributes.NCCL_RANK: number,  # noqa: E501
                attributes.NCCL_NRANKS: 5, attributes.NCCL_SEQ: sequence,
            }  # fmt: skip
            points = [
                (metrics.COLLECTIVE_BARRIER_WAIT, 1.0 if bad else 30.0 + number, own),
                (metrics.COLLECTIVE_DURATION, 2.0, own),
                (metrics.COLLECTIVE_BYTES, 1e6, own),
            ]
            if sequence % 10 == 0:
                points.append(
                    (metrics.GPU_MEMORY_FRAGMENTATION, 0.4 if bad else 0.1, {attributes.GPU_UUID: f"GPU-{number}"})
                )
                points.append((metrics.GPU_MEMCPY_BYTES, 1e9 * (sequence + 1), {attributes.MEMCPY_DIRECTION: "h2d"}))
                points.append((metrics.LAUNCHES_TOTAL, 100.0 * sequence, {attributes.CGROUP_PATH_HASH: "c"}))
            push(service, routes.OTLP_METRICS, telemetry.gauges(points, "lab", node))
        loaded = {"pid": 7, "comm": "python", "libnccl_path": "/usr/lib/libnccl.so.2", "libnccl_version": "2.27"}
        push(
            service, routes.OTLP_METRICS, telemetry.gauges([(metrics.NCCL_PROCESS_LOADED, 1.0, loaded)], "lab", node)
        )
    push(service, routes.OTLP_LOGS, telemetry.verdict("gpu-node-3", "straggler", "lab"))
    push(service, routes.OTLP_LOGS, telemetry.verdict("gpu-node-1", "healthy", "lab"))
    chain = {
        echo.CAUSAL_CHAIN_ID: "gpu-node-3:tail:1", echo.CHAIN_SEVERITY: "HIGH", echo.CHAIN_ROOT_CAUSE: "CPU contention",  # noqa: E501
    }  # fmt: skip
    push(
        service,
        routes.OTLP_LOGS,
        telemetry.logs([(echo.CAUSAL_CHAIN_EVENT, "p99 is 5 x p50", chain)], "lab", "gpu-node-3"),
    )
    push(service, routes.OTLP_LOGS, telemetry.logs([("note", "", {})], "elsewhere", "m0"))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("echo")
    with start_echo(folder, {"store": {"backup_folder": str(folder / "backups")}}) as running:
        fill(running)
        yield running


def test_the_summary_counts_nodes_and_names_the_straggler(service: Running) -> None:
    body = ask(service, "summary", cluster_id="lab")

    row = body["rows"][0]
    assert (row["nodes"], row["active"], row["stragglers"]) == (5, 5, 1)
    assert row["straggler_nodes"] == ["gpu-node-3"]
    assert row["lowest_node"] == "gpu-node-3"
    assert body["summary"] == "lab: 5 nodes, straggler: gpu-node-3"
    assert [row["cluster_id"] for row in ask(service, "summary")["rows"]] == ["elsewhere", "lab"]


ARGUMENTS: dict[str, dict[str, Any]] = {
    "why_not": {"node_id": "gpu-node-3"}, "compare_windows": {"metric_name": metrics.COLLECTIVE_DURATION},
    "find_outlier_nodes": {"k": 1.0}, "find_lemons": {"times": 1},
}  # fmt: skip


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=lambda question: str(question.name))
def test_every_answer_has_the_columns_it_promises_and_cites_events_that_are_there(
    service: Running, question: Question
) -> None:
    rows = ask(service, question.name, cluster_id="lab", **ARGUMENTS.get(question.name, {}))["rows"]

    assert rows
    for row in rows:
        question.row.model_validate(row, strict=True)
        assert set(row) == set(question.row.model_fields)
    if issubclass(question.row, EvidenceRow):
        cited = {event for row in rows for event in row["evidence"]}
        found = ask(service, "event_history", event_ids=sorted(cited), since="all", limit=1000)["rows"]
        assert {row["event_id"] for row in found} == cited
        assert all(row["evidence"] for row in rows)


def test_the_straggler_is_first_with_its_verdict_and_events_that_can_be_found(service: Running) -> None:
    body = ask(service, "find_stragglers", cluster_id="lab")

    row = body["rows"][0]
    assert (row["node_id"], row["rank"], row["state"], row["kind"]) == ("gpu-node-3", 3, "straggler", "slow")
    assert (row["severity"], row["source"]) == (0.4, "fleet")
    assert row["score"] == pytest.approx(0.3)
    assert len(body["rows"]) == 1
    assert body["summary"].startswith("gpu-node-3 is the straggler (slow), since 2026-01-01T00:00:00Z")
    assert "; it lost 40%; score 0.300 against" in body["summary"]
    cited = ask(service, "event_history", event_ids=row["evidence"], since="all")["rows"]
    assert {one["metric_name"] for one in cited} == {metrics.VERDICT_EVENT, metrics.HEALTH_SCORE}


def test_outliers_are_found_in_any_metric(service: Running) -> None:
    low = ask(service, "find_outlier_nodes", cluster_id="lab")["rows"]
    high = ask(service, "find_outlier_nodes", metric_name=metrics.GPU_MEMORY_FRAGMENTATION, direction="high")["rows"]

    assert [row["node_id"] for row in low] == ["gpu-node-3"]
    assert [row["node_id"] for row in high] == ["gpu-node-3"]
    assert ask(service, "find_outlier_nodes", direction="high", cluster_id="lab")["rows"] == []


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (
            "gpu-node-3",
            ["is a straggler (slow)", "place 1 of 5", "weakest against its peers: compute", "cause: p99 is 5 x p50"],
        ),
        ("gpu-node-1", ["is no straggler", "newest verdict says healthy"]),
        ("gpu-node-0", ["is no straggler", "no verdict names it"]),
        ("nobody", ["sent nothing"]),
    ],
)
def test_why_and_why_not(service: Running, node: str, words: list[str]) -> None:
    body = ask(service, "why_not", cluster_id="lab", node_id=node)

    for word in words:
        assert word in body["summary"]


def test_the_cause_of_a_node_is_its_most_severe_causal_chain(tmp_path: Path) -> None:
    now = time.time_ns()

    def describe(running: Running, chain: str, severity: str, at: int, summary: str, node: str = "n1") -> None:
        facts = {echo.CAUSAL_CHAIN_ID: chain, echo.CHAIN_SEVERITY: severity, echo.CHAIN_ROOT_CAUSE: "kind"}
        record = (echo.CAUSAL_CHAIN_EVENT, summary, facts)
        push(running, routes.OTLP_LOGS, telemetry.logs([record], "c", node, now + at * 10**9))

    with start_echo(tmp_path) as store:
        points: list[telemetry.Point] = [(metrics.HEALTH_SCORE, 0.9, {})]
        for node in ("n0", "n1", "n2"):
            push(store, routes.OTLP_METRICS, telemetry.gauges(points, "c", node))
        describe(store, "a", "HIGH", -50, "it was severe")
        describe(store, "a", "LOW", -40, "it is no longer severe")
        describe(store, "b", "MEDIUM", -30, "the older one")
        describe(store, "c", "MEDIUM", -20, "the newer one")
        describe(store, "d", "LOW", -10, "a light one")
        describe(store, "e", "HIGH", -10, "another node's", "n2")
        (row,) = ask(store, "why_not", cluster_id="c", node_id="n1")["rows"]
        (calm,) = ask(store, "why_not", cluster_id="c", node_id="n0")["rows"]
        evidence = ask(store, "event_history", event_ids=row["evidence"])["rows"]
        anomalies = ask(store, "anomaly_stream", cluster_id="c", node_id="n1")["rows"]
        chains = ask(store, "causal_chains", cluster_id="c")["rows"]

    assert (row["cause"], row["causal_chain_id"]) == ("the newer one", "c")
    assert (calm["cause"], calm["causal_chain_id"]) == (None, None)
    assert "the newer one" in {event["message"] for event in evidence}
    assert [(one["anomaly"], one["detail"], one["severity"]) for one in anomalies[:2]] == [
        ("causal_chain", "a light one", "LOW"), ("causal_chain", "the newer one", "MEDIUM"),
    ]  # fmt: skip
    assert {(one["causal_chain_id"], one["severity"], one["summary"]) for one in chains} >= {
        ("a", "LOW", "it is no longer severe"), ("e", "HIGH", "another node's"),
    }  # fmt: skip


def test_the_threshold_of_why_not_is_the_one_that_fleet_uses_where_nothing_is_set(service: Running) -> None:
    row = ask(service, "why_not", cluster_id="lab", node_id="gpu-node-3")["rows"][0]
    others = "cluster_id = 'lab' AND node_id <> 'gpu-node-3'"
    sql = f"SELECT avg(health_score) FROM node_metrics WHERE {others} GROUP BY node_id"
    scores = [found[0] for found in ask(service, "run_analysis", sql=sql)["rows"]]
    median = statistics.median(scores)
    spread = statistics.median([abs(score - median) for score in scores])
    rule = ThresholdConfig()

    assert row["threshold"] == pytest.approx(median - max(rule.k * 1.4826 * spread, rule.min_band))


def test_the_late_rank_is_the_one_that_waits_least(service: Running) -> None:
    row = ask(service, "nccl_slow_rank", cluster_id="lab")["rows"][0]

    assert (row["rank"], row["node_id"], row["collectives"], row["last"]) == (3, "gpu-node-3", 20, 20)
    assert row["mean_lag_ms"] == pytest.approx(30.0)


def test_rollups(service: Running) -> None:
    collectives = ask(service, "nccl_collective_summary", cluster_id="lab")["rows"][0]
    copies = ask(service, "memcpy_bandwidth_summary", cluster_id="lab")["rows"]
    launches = ask(service, "kernel_launch_summary", cluster_id="lab")["rows"]
    fragments = ask(service, "memfrag_hotspots", cluster_id="lab")["rows"]
    loaded = ask(service, "find_nccl_processes", cluster_id="lab")["rows"]

    assert (collectives["operation"], collectives["ranks"], collectives["calls"]) == ("allreduce", 5, 100)
    assert (collectives["p50_ms"], collectives["gigabytes_per_second"]) == (2.0, 0.5)
    assert {(row["direction"], row["bytes"]) for row in copies} == {("h2d", 1e10)}
    assert {row["launches"] for row in launches} == {1000.0}
    assert (fragments[0]["node_id"], fragments[0]["gpu"], fragments[0]["highest"]) == ("gpu-node-3", "GPU-3", 0.4)
    assert len(loaded) == 5
    assert loaded[0]["version"] == "2.27"


def test_who_is_well_again_is_no_anomaly_and_not_called_slow(service: Running) -> None:
    anomalies = ask(service, "anomaly_stream", cluster_id="lab")["rows"]
    well = ask(service, "verdict", cluster_id="lab", node_id="gpu-node-1")

    assert not [row for row in anomalies if "healthy" in (row["detail"] or "")]
    assert well["summary"].startswith("gpu-node-1: healthy")
    assert "slow" not in well["summary"].split(",")[0]


def test_verdicts_chains_anomalies_and_cost(service: Running) -> None:
    verdicts = ask(service, "verdict", cluster_id="lab")["rows"]
    chains = ask(service, "causal_chains", cluster_id="lab")["rows"]
    anomalies = ask(service, "anomaly_stream", cluster_id="lab")["rows"]
    cost = ask(service, "get_cost", cluster_id="lab")["rows"]

    assert [(row["node_id"], row["state"]) for row in verdicts] == [
        ("gpu-node-3", "straggler"),
        ("gpu-node-1", "healthy"),
    ]
    assert json.loads(verdicts[0]["proof"]) == {"value": 0.5, "baseline": 0.9}
    assert (chains[0]["causal_chain_id"], chains[0]["severity"]) == ("gpu-node-3:tail:1", "HIGH")
    assert (chains[0]["root_cause"], chains[0]["nodes"]) == ("CPU contention", ["gpu-node-3"])
    assert {row["anomaly"] for row in anomalies} == {"verdict", "causal_chain"}
    assert [row["node_id"] for row in cost] == ["gpu-node-3"]
    assert (cost[0]["rate"], cost[0]["gpus"]) == (12.29, 40)


def test_cost_is_what_fleet_counted_and_an_unknown_rate_is_said(tmp_path: Path) -> None:
    minute, now = 60 * 10**9, time.time_ns() - 600 * 10**9
    dollars = {attributes.CURRENCY: "EUR", attributes.JOB_ID: "j"}
    with start_echo(tmp_path) as service:
        for number, value in enumerate([0.0, 2.0, 5.0, 1.0, 1.5]):
            point = (metrics.STRAGGLER_COST, value, dollars)
            body = telemetry.gauges([point], "lab", "late-node", at=now + number * minute)
            push(service, routes.OTLP_METRICS, body)
        push(service, routes.OTLP_LOGS, telemetry.verdict("unpriced", "straggler", "lab"))
        answer = ask(service, "get_cost", cluster_id="lab")

    priced, unknown = answer["rows"]
    assert (priced["node_id"], priced["cost"], priced["currency"], priced["source"]) == (
        "late-node",
        6.5,
        "EUR",
        "fleet",
    )
    assert (unknown["node_id"], unknown["cost"], unknown["rate"], unknown["source"]) == (
        "unpriced", None, None, "estimate",
    )  # fmt: skip
    assert answer["summary"].startswith("6.50 EUR lost to 2 stragglers")
    assert "no rate is known for unpriced" in answer["summary"]


def test_two_windows_are_compared(service: Running) -> None:
    body = ask(service, "compare_windows", cluster_id="lab", length="10m", apart="20m")

    assert {(row["before"] is None, row["after"] is None) for row in body["rows"]} == {(True, False)}


def test_history_is_paged_without_gaps_or_repeats(service: Running) -> None:
    seen: list[str] = []
    cursor = None
    while True:
        body = ask(service, "event_history", cluster_id="lab", limit=100, cursor=cursor)
        seen += [row["event_id"] for row in body["rows"]]
        cursor = body["next_cursor"]
        if cursor is None:
            break

    total = web.post(
        service.url("api", echo.SQL), json={"sql": "SELECT count(*) FROM events WHERE cluster_id = 'lab'"}
    )
    assert len(seen) == len(set(seen)) == total.json()["rows"][0][0]


@pytest.mark.parametrize(
    ("tool", "arguments", "status", "code"),
    [
        ("nothing", {}, 404, "unknown_tool"),
        ("summary", {"clustr_id": "x"}, 422, "bad_arguments"),
        ("summary", {"since": "yesterday"}, 422, "bad_arguments"),
        ("summary", {"limit": 0}, 422, "bad_arguments"),
        ("event_history", {"cursor": "rubbish"}, 422, "bad_arguments"),
        ("event_history", {"event_ids": ["rubbish"]}, 422, "bad_arguments"),
        ("why_not", {}, 422, "bad_arguments"),
        ("run_analysis", {"sql": "DROP TABLE events"}, 422, "sql_refused"),
        ("run_analysis", {"sql": "SELECT nothing FROM events"}, 422, "bad_query"),
    ],
)
def test_errors_have_one_shape(
    service: Running, tool: str, arguments: dict[str, Any], status: int, code: str
) -> None:
    response = web.post(service.url("api", echo.TOOLS + PREFIX + tool), json=arguments)

    assert (response.status_code, response.json()["code"]) == (status, code)
    assert set(response.json()) == {"code", "message", "hint", "request_id"}


def test_a_place_in_the_tail_beyond_every_number_is_refused_like_other_arguments(service: Running) -> None:
    response = web.get(service.url("api", echo.TAIL), params={"after": "9" * 30})

    assert (response.status_code, response.json()["code"]) == (422, "bad_arguments")
    assert response.json()["hint"] == f"see {echo.OPENAPI}"


@pytest.mark.parametrize("content", [b"{", b"[1]", b'"x"', b"x" * (2 << 20)])
def test_rubbish_is_refused(service: Running, content: bytes) -> None:
    response = web.post(
        service.url("api", echo.TOOLS + PREFIX + "summary"),
        content=content,
        headers={"content-type": "application/json"},
    )

    assert response.status_code in (413, 422)
    assert set(response.json()) == {"code", "message", "hint", "request_id"}


def test_csv_and_arrow_by_accept(service: Running) -> None:
    url = service.url("api", echo.TOOLS + PREFIX + "find_stragglers")
    text = web.post(url, headers={"accept": "text/csv"}).text
    raw = web.post(url, headers={"accept": "application/vnd.apache.arrow.stream"}).content
    table = pa.ipc.open_stream(io.BytesIO(raw)).read_all()

    assert '"gpu-node-3"' in text.splitlines()[1]
    for accept in ("text/csv;q=0", "text/csv;q=0.1, application/json", "text/csv; q=0.2, */*;q=0.5"):
        assert "rows" in web.post(url, headers={"accept": accept}).json()
    assert web.post(url, headers={"accept": "application/json;q=0.1, text/csv"}).text == text
    healthy, head = (web.request(method, service.url("api", echo.HEALTH)) for method in ("GET", "HEAD"))
    assert (healthy.status_code, head.status_code, head.text) == (200, 200, "")
    with pytest.raises(ConnectionError, match="begin the address with http://"):
        EchoHttpClient(service.url("api").replace("http", "https"), "t").tool(PREFIX + "summary", {})
    assert table["node_id"].to_pylist() == ["gpu-node-3"]


def test_large_formats_have_the_rows_of_json_for_questions_and_sql(service: Running) -> None:
    sql = "SELECT event_id, timestamp, node_id, value_double FROM events ORDER BY timestamp, event_id"
    asked: list[tuple[str, dict[str, Any]]] = [
        (echo.TOOLS + PREFIX + "event_history", {"limit": 3, "since": "all"}), (echo.SQL, {"sql": sql, "limit": 5}),
    ]  # fmt: skip
    for path, arguments in asked:
        expected = web.post(service.url("api", path), json=arguments).json()
        first = expected["rows"][0]
        node = first["node_id"] if isinstance(first, dict) else first[2]
        for media, read in (
            ("arrow.stream", lambda raw: pa.ipc.open_stream(raw).read_all()),
            ("parquet", pq.read_table),
        ):
            accept = f"application/vnd.apache.{media}"
            answer = web.post(service.url("api", path), json=arguments, headers={"accept": accept})
            table = read(io.BytesIO(answer.content))

            assert (answer.headers["content-type"], answer.headers["x-truncated"]) == (accept, "true")
            assert answer.headers.get("x-next-cursor") == expected.get("next_cursor")
            assert (table.num_rows, table["node_id"][0].as_py()) == (len(expected["rows"]), node)
            assert table.schema.field("timestamp").type == pa.timestamp("ns")


def test_formats_of_columns_need_no_rows_of_python() -> None:
    def rows() -> Any:
        raise AssertionError("rows were made")

    table = pa.table({"n": [1, 2, 3]})
    came = arrow_stream(table).to_pybytes()
    reply = QueryReply(QueryResult(came, truncated=True), rows)

    assert render(reply, ARROW).body is came
    assert pq.read_table(io.BytesIO(bytes(render(reply, f"{PARQUET};q=1, */*").body))).equals(table)
    assert pa.ipc.open_stream(QueryResult(table).stream()).read_all().equals(table)


def test_what_a_format_cannot_hold_is_refused_and_named(service: Running) -> None:
    sql = {"sql": "SELECT INTERVAL 1 DAY AS span, DATE '12000-01-01' AS far"}
    parquet = web.post(service.url("api", echo.SQL), json=sql, headers={"accept": PARQUET})
    arrow = web.post(service.url("api", echo.SQL), json=sql, headers={"accept": ARROW})

    assert (parquet.status_code, parquet.json()["code"], arrow.status_code) == (422, "bad_query", 200)


def test_values_that_json_does_not_know_become_null(service: Running) -> None:
    body = web.post(
        service.url("api", echo.SQL), json={"sql": "SELECT 'nan'::DOUBLE, '-inf'::DOUBLE, 1.5::DECIMAL(3,1)"}
    )

    assert body.json()["rows"] == [[None, None, 1.5]]


def test_values_within_lists_maps_and_structures_are_those_of_columns() -> None:
    times = pa.array([[None, 1], None, []], pa.list_(pa.timestamp("ns")))
    maps = pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.timestamp("us")))
    pairs = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.decimal128(20), 2))
    rows = pa.array([{"t": [1], "b": b"\xff"}, None, {"t": None, "b": None}],
                    pa.struct({"t": pa.list_(pa.timestamp("s")), "b": pa.binary()}))  # fmt: skip
    found = QueryResult(pa.table({"times": times, "maps": maps, "pairs": pairs, "rows": rows}))
    expected = [
        [[None, "1970-01-01T00:00:00.000000001Z"], [["a", "1970-01-01T00:00:00.000001000Z"]], [1, 2],
         {"t": ["1970-01-01T00:00:01.000000000Z"], "b": "ff"}],
        [None, None, None, None],
        [[], [], [3, 4], {"t": None, "b": None}],
    ]  # fmt: skip

    assert found.lists() == expected
    assert QueryResult(found.table.slice(2)).lists() == expected[2:]


def test_the_description_is_openapi_31_and_names_every_tool(service: Running) -> None:
    document = web.get(service.url("api", echo.OPENAPI)).json()

    assert document["openapi"].startswith("3.1")
    assert {f"{echo.TOOLS}{name}" for name in TOOLS} <= set(document["paths"])
    listed = web.get(service.url("api", echo.TOOLS_LIST)).json()["tools"]
    assert [tool["name"] for tool in listed] == list(TOOLS)
    for tool in listed:
        jsonschema.Draft202012Validator.check_schema(tool["inputSchema"])
        jsonschema.Draft202012Validator.check_schema(tool["outputSchema"])


def test_open_pages_and_metrics(service: Running) -> None:
    assert web.get(service.url("api", echo.VERSIONS)).json()["current"] == "v2"
    health = web.get(service.url("api", echo.HEALTH)).json()
    assert 0 <= health.pop(echo.VOLUME_USED) <= 1
    assert health == {"status": "ok", "ready": True, "write_failure": None, echo.SEALING: None}
    assert web.get(service.url("api", echo.READY)).status_code == 200
    families = {
        family.name: family
        for family in text_string_to_metric_families(web.get(service.url("api", echo.METRICS_PAGE)).text)
    }
    assert families["ingero_echo_events"].samples[0].value > 300
    labels = {tuple(sorted(sample.labels)) for sample in families["ingero_echo_requests"].samples}
    assert labels == {("api_version", "handler", "status_class")}


def test_a_backup_can_be_restored(service: Running, tmp_path: Path) -> None:
    made = web.post(service.url("api", echo.BACKUPS)).json()
    folder = service.log.parent / "backups"
    with process(
        tmp_path / "log", str(BIN / "ingero-echo"), "restore", str(folder / made["name"]),
        "--database", str(tmp_path / "echo.duckdb"),
    ) as done:  # fmt: skip
        assert done.process.wait(60) == 0, done.words()
    with start_echo(tmp_path) as second:
        assert ask(second, "summary", cluster_id="lab")["rows"] == ask(service, "summary", cluster_id="lab")["rows"]


def test_without_tokens_a_web_page_cannot_reach_through_the_browser(service: Running) -> None:
    response = web.post(service.url("api", echo.TOOLS + PREFIX + "summary"), headers={"host": "evil.example.com"})

    assert response.status_code == 403


# MCP, with the official client.


@pytest.mark.parametrize("path", [echo.MCP, "/"])
def test_an_mcp_client_gets_the_same_answers(service: Running, path: str) -> None:
    listed, response, wrong, table, prompt, schema = call(
        service.url("api", path),
        ("list", {}),
        (PREFIX + "find_stragglers", {"cluster_id": "lab"}),
        (PREFIX + "summary", {"nonsense": 1}),
        (PREFIX + "run_analysis", {"sql": "SELECT 1 AS one"}),
        ("prompt", {"cluster_id": "lab"}),
        ("resource", {}),
    )

    assert [tool.name for tool in listed.tools] == list(TOOLS)
    assert response.structured_content == ask(service, "find_stragglers", cluster_id="lab")
    assert response.content[0].text.startswith("gpu-node-3 is the straggler")
    assert wrong.is_error
    assert json.loads(wrong.content[0].text)["code"] == "bad_arguments"
    assert table.structured_content["rows"] == [[1]]
    steps = prompt.messages[0].content.text
    assert steps.index("summary") < steps.index("find_stragglers") < steps.index("why_not")
    assert "events(event_id UUID" in schema.contents[0].text


def test_the_2025_handshake_with_a_session_header_works(service: Running) -> None:
    url = service.url("api", "/")
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    hello = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {
            "protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"},
        },
    }  # fmt: skip
    first = web.post(url, json=hello, headers=headers)
    session = {**headers, "mcp-session-id": first.headers["mcp-session-id"]}
    assert '"protocolVersion":"2025-03-26"' in first.text
    ready = web.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=session)
    assert ready.status_code == 202
    response = {
        "jsonrpc": "2.0", "id": 2, "method": "tools/call",
        "params": {"name": PREFIX + "run_analysis", "arguments": {"sql": "SELECT 1 AS one"}},
    }  # fmt: skip
    text = web.post(url, json=response, headers=session).text
    data = next(line.removeprefix("data: ") for line in text.splitlines() if line.startswith(("data: ", "{")))

    assert json.loads(data)["result"]["structuredContent"]["rows"] == [[1]]


# Who may.


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "tokens").write_text(
        "# all of it\nall-of-it name=all\nreader name=reader scopes=read\nsender name=sender scopes=ingest clusters=a\n"  # noqa: E501
        "tenant-a name=tenant clusters=a\nslow name=slow scopes=read\n"
    )
    change = {
        "auth": {"tokens_file": str(folder / "tokens"), "audit_file": str(folder / "audit.jsonl"), "grace": "1s"},
        "api": {"requests_per_second": 1, "burst": 30},
    }
    with start_echo(folder, change) as running:
        for cluster in ("a", "b"):
            response = web.post(
                running.url("otlp/http", routes.OTLP_LOGS), headers={**PROTOBUF, "authorization": "Bearer all-of-it"},
                content=telemetry.logs([("e", "", {})], cluster).SerializeToString(),
            )  # fmt: skip
            assert response.status_code == 200
        yield running


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_every_surface_asks_for_a_token(guarded: Running) -> None:
    paths = [echo.WHOAMI, echo.TOOLS_LIST, echo.OPENAPI, echo.METRICS_PAGE, echo.MCP, "/", "/anything"]
    for path in paths:
        for headers in ({}, bearer("wrong"), {"authorization": "Basic abc"}):
            response = web.get(guarded.url("api", path), headers=headers)
            assert (response.status_code, response.json()["code"]) == (401, "unauthenticated")
    for path in (echo.SQL, echo.BACKUPS, echo.TOOLS + PREFIX + "summary"):
        assert web.post(guarded.url("api", path)).status_code == 401
    for path in (routes.OTLP_LOGS, routes.OTLP_METRICS, routes.OTLP_TRACES):
        assert web.post(guarded.url("otlp/http", path), headers=PROTOBUF).status_code == 401
    assert web.get(guarded.url("api", echo.HEALTH)).status_code == 200


def test_scopes_are_kept_apart(guarded: Running) -> None:
    who = web.get(guarded.url("api", echo.WHOAMI), headers=bearer("tenant-a")).json()
    assert (who["name"], who["clusters"]) == ("tenant", ["a"])
    sql = {"sql": "SELECT 1"}
    assert web.post(guarded.url("api", echo.SQL), json=sql, headers=bearer("reader")).status_code == 403
    assert web.post(guarded.url("api", echo.SQL), json=sql, headers=bearer("tenant-a")).status_code == 403
    assert web.get(guarded.url("api", echo.METRICS_PAGE), headers=bearer("reader")).status_code == 403
    assert web.post(guarded.url("api", echo.BACKUPS), headers=bearer("all-of-it")).status_code == 403
    summary = guarded.url("api", echo.TOOLS + PREFIX + "summary")
    assert web.post(summary, headers=bearer("sender")).status_code == 403
    response = web.post(
        guarded.url("otlp/http", routes.OTLP_LOGS), content=b"", headers={**PROTOBUF, **bearer("reader")}
    )
    assert response.status_code == 401


def test_a_tenant_sees_and_writes_its_own_clusters_only(guarded: Running) -> None:
    for tool in TOOLS:
        if tool == PREFIX + "run_analysis":
            continue
        arguments = {"node_id": "n0"} if tool.endswith("why_not") else {}
        response = web.post(guarded.url("api", echo.TOOLS + tool), json=arguments, headers=bearer("tenant-a"))
        assert response.status_code == 200, response.text
        assert {row.get("cluster_id", "a") for row in response.json()["rows"]} <= {"a"}
    history = guarded.url("api", echo.TOOLS + PREFIX + "event_history")
    assert web.post(history, json={"cluster_id": "b"}, headers=bearer("tenant-a")).status_code == 403
    mixed = telemetry.logs([("e", "", {})], "a")
    mixed.resource_logs.extend(telemetry.logs([("e", "", {})], "b").resource_logs)
    response = web.post(
        guarded.url("otlp/http", routes.OTLP_LOGS), content=mixed.SerializeToString(),
        headers={**PROTOBUF, **bearer("sender")},
    )  # fmt: skip
    assert b"may not write to this cluster (1)" in response.content
    result = call(guarded.url("api", echo.MCP), (PREFIX + "summary", {}), token="tenant-a")[0]
    assert [row["cluster_id"] for row in result.structured_content["rows"]] == ["a"]


def test_who_asks_too_often_is_asked_to_retry_later(guarded: Running) -> None:
    url = guarded.url("api", echo.WHOAMI)
    answers = [web.get(url, headers=bearer("slow")) for _ in range(40)]

    refused = [response for response in answers if response.status_code == 429]
    assert refused
    assert int(refused[0].headers["retry-after"]) >= 1
    assert web.get(url, headers=bearer("reader")).status_code == 200


def test_the_audit_log_names_the_hash_and_never_the_token(guarded: Running) -> None:
    web.get(guarded.url("api", echo.WHOAMI), headers=bearer("reader"))
    audit = guarded.log.parent / "audit.jsonl"

    def found() -> list[Any]:
        return [
            json.loads(line) for line in audit.read_text().splitlines() if '"reader"' in line and echo.WHOAMI in line
        ]

    wait_until(lambda: bool(found()), "the line")
    (line, *_), text = found(), audit.read_text()

    assert len(line["token_sha256"]) == 64
    assert (line["method"], line["path"], line["source"]) == ("GET", echo.WHOAMI, "127.0.0.1")
    assert "all-of-it" not in text + guarded.words()


def test_a_full_disk_does_not_stop_the_audit_and_a_moved_file_is_begun_anew(tmp_path: Path) -> None:
    file, fields = tmp_path / "audit.jsonl", {"path": "/x"}
    audit = AuditLog(file)
    audit.write(**fields)
    file.rename(tmp_path / "audit.1")
    audit.reopen()
    audit.write(**fields)
    full = AuditLog(Path("/dev/full"))

    with capture_logs() as said:
        full.write(**fields)
    full.close()
    audit.close()

    assert file.read_text().count("\n") == (tmp_path / "audit.1").read_text().count("\n") == 1
    assert [line["event"] for line in said] == ["audit_file_not_written", "request"]
    assert said[1]["path"] == "/x"


def test_tokens_rotate_with_a_grace(guarded: Running) -> None:
    file = guarded.log.parent / "tokens"
    before = file.read_text()

    def status(token: str) -> int:
        return web.post(
            guarded.url("otlp/http", routes.OTLP_LOGS), content=b"", headers={**PROTOBUF, **bearer(token)}
        ).status_code

    file.write_text(before.replace("sender name", "fresh name"))
    wait_until(lambda: status("fresh") == 200, "the new token")
    wait_until(lambda: status("sender") == 401, "the old token to end")
    file.write_text("bad scopes=everything\n")
    wait_until(lambda: status("fresh") == 200 and "tokens_not_reloaded" in guarded.words(), "the refusal")
    assert "no such scope: everything" in guarded.words()
    assert status("fresh") == 200


def test_tls_on_every_listener(tmp_path: Path) -> None:
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    server.private_key_pem.write_to_path(tmp_path / "key.pem")
    server.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    (tmp_path / "tokens").write_text("t\n")
    change = {
        "insecure": False, "tls": {"cert_file": str(tmp_path / "cert.pem"), "key_file": str(tmp_path / "key.pem")},
        "auth": {"tokens_file": str(tmp_path / "tokens")},
    }  # fmt: skip
    with start_echo(tmp_path, change) as service:
        api = f"https://127.0.0.1:{service.ports['api']}"
        for protocol in ("http", "grpc"):
            with process(
                tmp_path / "stress.log", str(BIN / "ingero-echo"), "stress", "--protocol", protocol, "--tls",
                "--endpoint", f"127.0.0.1:{service.ports[f'otlp/{protocol}']}", "--nodes", "8", "--events", "250",
                "--cluster", protocol, "--ca-file", str(tmp_path / "ca.pem"), "--token-file", str(tmp_path / "tokens"),  # noqa: E501
                "--api", api, "--json",
            ) as stress:  # fmt: skip
                assert stress.process.wait(120) == 0, stress.words()
                facts = json.loads(stress.words())
                assert (facts["acknowledged"], facts["missing"], facts["doubled"]) == (2000, 0, 0)
        with process(
            tmp_path / "ask.log", str(BIN / "ingero-echo"), "ask", "summary", "--api", api, "--ca-file",
            str(tmp_path / "ca.pem"), "--token-file", str(tmp_path / "tokens"), "--json",
        ) as asked:  # fmt: skip
            assert asked.process.wait(60) == 0, asked.words()
            assert [row["nodes"] for row in json.loads(asked.words())["rows"]] == [8, 8]
        with pytest.raises(ConnectionError, match=r"its certificate is refused: .*; --ca-file names"):
            EchoHttpClient(api, "t").tool(PREFIX + "summary", {})
        with pytest.raises(ConnectionError, match="begin the address with https://"):
            EchoHttpClient(api.replace("https", "http"), "t").tool(PREFIX + "summary", {})


def test_mcp_over_standard_streams(service: Running) -> None:
    from mcp import StdioServerParameters

    async def talk() -> Any:
        server = StdioServerParameters(
            command=sys.executable, args=["-m", "ingero_echo", "mcp", "--api", service.url("api")]
        )
        async with Client(server) as client:
            return await client.call_tool(PREFIX + "find_stragglers", {"cluster_id": "lab"})

    assert anyio.run(talk).structured_content["rows"][0]["node_id"] == "gpu-node-3"


def test_an_unknown_tool_is_an_mcp_error(service: Running) -> None:
    with pytest.raises((MCPError, ExceptionGroup)):
        call(service.url("api", echo.MCP), (PREFIX + "nothing", {}))
