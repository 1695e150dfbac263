"""The Grafana dashboard: every request that it sends is answered, and every column that it shows is in the answer."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ingero_contract import echo, metrics
from ingero_echo.auth import ANONYMOUS
from ingero_echo.query_service import QueryService
from ingero_kit.otlp_signal import Signal
from ingero_testing import telemetry
from ingero_testing.lakes import OpenReader, Shard, open_reader, table_config

FILE = Path(__file__).parents[2] / "manifests/monitoring/grafana-echo-dashboard.json"
TREE: dict[str, Any] = json.loads(FILE.read_text())
CHOSEN = {
    "${__from:date:iso}": "2000-01-01T00:00:00.000Z", "${__to:date:iso}": "2200-01-01T00:00:00.000Z",
    "${cluster}": "c", "${node}": "n1",
}  # fmt: skip
QUERIES = {panel["title"]: panel["targets"][0] for panel in TREE["panels"]} | {
    item["name"]: item["query"]["infinityQuery"] for item in TREE["templating"]["list"] if item["type"] == "query"
}
TYPES = {"number": (int, float), "string": (str,), "boolean": (bool,), "timestamp": (str,)}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenReader]:
    """A reader of sealed events and of newer ones."""
    folder = tmp_path_factory.mktemp("lake")
    tables = table_config(folder / "lake")
    shard = Shard(folder / "e.duckdb", tables)
    for node in ("n1", "n2"):
        shard.put(telemetry.verdict(node, "straggler"))
        shard.put(telemetry.gauges([(metrics.HEALTH_SCORE, 0.5, {})], node=node), Signal.METRICS)
    shard.seal()
    shard.put(telemetry.gauges([(metrics.HEALTH_SCORE, 0.4, {})], node="n1"), Signal.METRICS)
    with open_reader(folder, tables, {"0": shard}) as opened:
        opened.follow()
        yield opened
    shard.close()


def answer(reader: OpenReader, query: dict[str, Any]) -> dict[str, Any]:
    """The answer to what Grafana sends, with the variables replaced."""
    assert query["url_options"]["method"] == "POST"
    assert query["url"].startswith(echo.TOOLS)
    body = query["url_options"]["data"]
    for variable, value in CHOSEN.items():
        body = body.replace(variable, value)
    assert "$" not in body
    service = QueryService(reader.config, lambda: reader.store)
    try:
        reply = asyncio.run(service.call(ANONYMOUS, query["url"].removeprefix(echo.TOOLS), json.loads(body)))
    finally:
        service.close()
    return reply.body


@pytest.mark.parametrize("title", QUERIES)
def test_a_reader_answers_with_the_columns_of_a_panel(reader: OpenReader, title: str) -> None:
    query = QUERIES[title]
    body = answer(reader, query)
    rows = body[query["root_selector"]] if query["root_selector"] else [body]

    for row in rows:
        for column in query["columns"]:
            value = row[column["selector"]]
            assert value is None or isinstance(value, TYPES[column["type"]]), column


@pytest.mark.parametrize(
    ("title", "count"), [("Stragglers", 2), ("Score of the node", 2), ("node", 2), ("cluster", 1)]
)
def test_panels_and_variables_have_the_rows_of_the_reader(reader: OpenReader, title: str, count: int) -> None:
    assert len(answer(reader, QUERIES[title])["rows"]) == count


def test_panels_use_the_chosen_data_source_and_do_not_overlap() -> None:
    sources = [panel["datasource"] for panel in TREE["panels"]] + [
        target["datasource"] for panel in TREE["panels"] for target in panel["targets"]
    ]
    (choice,) = (item for item in TREE["templating"]["list"] if item["type"] == "datasource")
    assert {(source["type"], source["uid"]) for source in sources} == {(choice["query"], "${source}")}
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in TREE["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len({*cells})
    assert max(x for x, _ in cells) < 24
