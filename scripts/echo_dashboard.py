"""Grafana dashboard of Echo and its readers, over the data source plugin Infinity. Every panel asks one tool."""

import json
from dataclasses import dataclass, field
from typing import Any, Final

from ingero_contract import echo, metrics
from ingero_echo.query_service import TOOLS

PLUGIN: Final = "yesoreyeram-infinity-datasource"
SOURCE: Final = {"type": PLUGIN, "uid": "${source}"}
WINDOW: Final = {"since": "${__from:date:iso}", "until": "${__to:date:iso}"}
CLUSTER: Final = {"cluster_id": "${cluster}"}
NODE: Final = {"node_id": "${node}"}


@dataclass(frozen=True)
class Panel:
    """One panel: its columns are fields of the rows of `question`, or of the answer itself."""

    title: str
    kind: str
    width: int
    question: str
    columns: tuple[str, ...]
    arguments: dict[str, Any] = field(default_factory=dict)
    rows: bool = True
    height: int = 8


PANELS: Final = (
    Panel("Answer", "table", 24, "summary", ("summary", "truncated"), rows=False, height=4),
    Panel("Clusters", "table", 24, "summary", (
        "cluster_id", "nodes", "active", "idle", "calibrating", "stragglers", "median_score", "lowest_score",
        "lowest_node", "events", "last_event",
    ), height=6),
    Panel("Stragglers", "table", 24, "find_stragglers", (
        "node_id", "state", "kind", "since", "severity", "score", "peer_median", "rank", "communicator", "pod",
    ), CLUSTER),
    Panel("Late ranks", "table", 12, "nccl_slow_rank", (
        "communicator", "rank", "node_id", "share_last", "mean_lag_ms", "worst_lag_ms", "accused",
    ), CLUSTER),
    Panel("Cost of waiting", "table", 12, "get_cost", (
        "node_id", "gpu_model", "gpus", "hours", "severity", "cost", "currency",
    ), CLUSTER),
    Panel("Score of the node", "timeseries", 24, "event_history", ("timestamp", "value_double"),
          {**CLUSTER, **NODE, "metric_name": metrics.HEALTH_SCORE, "limit": 10_000}),
    Panel("Anomalies of the node", "table", 12, "anomaly_stream", (
        "timestamp", "anomaly", "severity", "detail",
    ), {**CLUSTER, **NODE}),
    Panel("Verdicts on the node", "table", 12, "verdict", (
        "timestamp", "source", "state", "kind", "since", "severity", "proof",
    ), {**CLUSTER, **NODE}),
)  # fmt: skip
"""In reading order."""


def _kind(name: str, schema: dict[str, Any]) -> str:
    """The plugin's type of a column, from the schema of the answer."""
    if name == "timestamp":
        return "timestamp"
    types = {schema.get("type"), *(option.get("type") for option in schema.get("anyOf", ()))}
    return "number" if types & {"integer", "number"} else "boolean" if "boolean" in types else "string"


def _query(question: str, columns: tuple[str, ...], arguments: dict[str, Any], rows: bool = True) -> dict[str, Any]:
    """One request of the plugin's backend; it puts the address of the data source before `url`."""
    tool = echo.TOOL_PREFIX + question
    answer = TOOLS[tool].output_schema["properties"]
    fields = answer["rows"]["items"]["properties"] if rows else answer
    return {
        "refId": "A",
        "type": "json",
        "parser": "backend",
        "source": "url",
        "format": "table",
        "url": echo.TOOLS + tool,
        "url_options": {
            "method": "POST",
            "body_type": "raw",
            "body_content_type": "application/json",
            "data": json.dumps({**WINDOW, **arguments}),
        },
        "root_selector": "rows" if rows else "",
        "columns": [{"selector": name, "text": name, "type": _kind(name, fields[name])} for name in columns],
        "filters": [],
    }


def _variable(name: str, question: str, column: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": {"queryType": "infinity", "infinityQuery": _query(question, (column,), arguments)},
        "refresh": 2,
        "regex": "/.+/",
        "sort": 1,
    }


def dashboard() -> str:
    """manifests/monitoring/grafana-echo-dashboard.json"""
    panels: list[dict[str, Any]] = []
    across = down = 0
    for number, panel in enumerate(PANELS, 1):
        panels.append(
            {
                "id": number,
                "title": panel.title,
                "type": panel.kind,
                "datasource": SOURCE,
                "gridPos": {"x": across, "y": down, "w": panel.width, "h": panel.height},
                "fieldConfig": {"defaults": {}, "overrides": []},
                "options": {},
                "targets": [
                    {"datasource": SOURCE, **_query(panel.question, panel.columns, panel.arguments, panel.rows)}
                ],
            }
        )
        across += panel.width
        if across == 24:
            across, down = 0, down + panel.height
    variables = [
        {"name": "source", "label": "data source", "type": "datasource", "query": PLUGIN},
        _variable("cluster", "summary", "cluster_id", {}),
        _variable("node", "verdict", "node_id", {**CLUSTER, "limit": 1000}),
    ]
    tree = {
        "uid": "ingero-echo",
        "title": "ingero Echo",
        "tags": ["ingero"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "1m",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "annotations": {"list": []},
        "panels": panels,
    }
    return json.dumps(tree, indent=1) + "\n"


DOCUMENTS = {"manifests/monitoring/grafana-echo-dashboard.json": dashboard}
