"""Definition of a question: name, arguments, SQL, model of a row, and one sentence. Front ends are built from it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from ingero_contract import attributes, echo, metrics
from ingero_echo.settings import RatesConfig

MAX_ID: Final = 253
"""Longest cluster, node or metric name."""


class Arguments(BaseModel):
    """Base of every argument model: unknown names are refused, the docstrings are the documentation."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Ending(Arguments):
    """Where, and up to when."""

    cluster_id: str | None = Field(default=None, min_length=1, max_length=MAX_ID)
    """One cluster; without it all that the token may see."""
    until: str = Field(default="0s", max_length=64)
    """End of the window: how long ago (`15m`, `2h`, `7d`), RFC 3339, or `now`, which is the default."""
    limit: int = Field(default=100, ge=1, le=10_000)
    """Most rows."""


class Scoped(Ending):
    """Where and when."""

    since: str = Field(default="1h", max_length=64)
    """Start of the window: how long ago (`15m`, `2h`, `7d`), RFC 3339, or `all`; the last hour by default."""


class NodeFilter(Scoped):
    """Where and when, or one node."""

    node_id: str | None = Field(default=None, min_length=1, max_length=MAX_ID)
    """One node."""


class Row(BaseModel):
    """Base of every row model."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class EvidenceRow(Row):
    """A row that rests on events."""

    evidence: list[str]
    """Ids of events that the row rests on; `event_history` shows them."""


class NodeRow(EvidenceRow):
    """A row about one node."""

    cluster_id: str
    node_id: str


class VerdictFacts(NodeRow):
    """A row with the newest verdict on a node."""

    rank: int | None
    """Of the job, or where collectives accuse the node, of the communicator."""
    communicator: str | None
    """Whose collectives wait for the node's rank; null where none do."""
    gpu: str | None
    """Of the node, where collectives name the rank by its GPU: NCCL Inspector sends no ranks."""
    pod: str | None
    state: str | None
    """State of the newest verdict; null when there is none."""
    kind: str | None
    since: str | None
    """Estimated onset, as the verdict says it."""
    severity: float | None
    """Share of its own rate that the node lost, 0 to 1."""


CHANGES: Final = f"""
    changes AS (
        SELECT "timestamp", cluster_id, node_id, event_id, message,
               CASE metric_name WHEN '{metrics.NETWORK_EVENT}' THEN 'network' ELSE 'hang' END AS what,
               json_extract_string(attributes, '$."{attributes.VERDICT_KIND}"') AS kind,
               json_extract_string(attributes, '$."{attributes.VERDICT_SEVERITY}"') AS severity,
               json_extract_string(attributes, '$."{attributes.VERDICT_EVIDENCE}"') ->> '$.key' AS job
        FROM events WHERE signal = 'logs' AND metric_name IN ('{metrics.NETWORK_EVENT}', '{metrics.HANG_EVENT}')
    )
"""
"""Every record of the window that the network became slow or well, or that a job hangs or goes on (kind `none`)."""

Sentence = Callable[[list[dict[str, Any]], Any], str]
Parameters = Callable[[Any, RatesConfig], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question that Echo can answer.

    `sql` reads the published tables by their bare names, already restricted to the window. It may use `$name` for
    every argument, and for what `parameters` adds. `sentence` summarises the rows.
    """

    name: str
    title: str
    description: str
    sql: str
    row: type[Row]
    sentence: Sentence
    arguments: type[Ending] = Scoped
    parameters: Parameters | None = None
    filters: Mapping[str, str] = field(default_factory=dict)
    """Conditions by argument. Those whose argument is given replace `$filters` in `sql`. The engine could not use a
    condition for the scan that tests at run time whether it applies."""
    paged: bool = False
    """Whether `cursor` of the arguments continues after the last row."""

    @property
    def tool(self) -> str:
        """Full name on the wire."""
        return echo.TOOL_PREFIX + self.name

    def statement(self, given: Any) -> str:
        """The SQL for these arguments."""
        conditions = [condition for name, condition in self.filters.items() if getattr(given, name)]
        return self.sql.replace("$filters", " AND ".join(conditions) or "true")

    def output_schema(self) -> dict[str, Any]:
        """JSON schema of the answer."""
        row = self.row.model_json_schema()
        definitions = row.pop("$defs", {})
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {
                "summary": {"type": "string", "description": "The answer in one sentence."},
                "rows": {"type": "array", "items": row},
                "truncated": {"type": "boolean", "description": "Whether there are more rows than were returned."},
                "next_cursor": {"type": ["string", "null"], "description": "Give it back to go on."},
            },
            "required": ["summary", "rows", "truncated", "next_cursor"],
        }
        return {**schema, "$defs": definitions} if definitions else schema


def plural(count: int, word: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count} {word}{'' if count == 1 else 's'}"
