"""Names of Echo's interface: paths, tools, and the attributes that only Echo reads. "Open" paths need no token."""

from typing import Final

VERSIONS: Final = "/api/versions"
"""Open: which versions of the API this server speaks."""

HEALTH: Final = "/api/v2/health"
"""Open: whether the database is open, how full its volume is, and how far its events are sealed."""

VOLUME_USED: Final = "volume_used"
"""Field of the health answer: used share of the volume that the database is on, 0 to 1, as `df` counts it."""

SEALING: Final = "sealing"
"""Field of the health answer: `until` (Unix time until which all arrivals are in the shared tables), `files`, and
`failure`; null without such tables."""

SHARD_TAKEN: Final = "shard_taken"
"""A `failure` of sealing that only a user can end: another database seals under the name of this one."""

LIVE: Final = "/healthz"
"""Open: 503 when only a new process can help."""

READY: Final = "/readyz"
"""Open: 503 until the database is open, replayed and migrated."""

WHOAMI: Final = "/api/v2/whoami"
"""Name, scopes and clusters of the bearer token."""

TOOLS_LIST: Final = "/api/v2/tools/list"
"""Catalogue of tools with input and output JSON schemas."""

TOOLS: Final = "/api/v2/tools/"
"""POST to this path followed by a tool's name: call the tool."""

SQL: Final = "/api/v2/sql"
"""POST: one read-only statement."""

OPENAPI: Final = "/api/v2/openapi.json"
"""Description of the API, OpenAPI 3.1."""

BACKUPS: Final = "/api/v2/backups"
"""POST: write a consistent copy of the database into the configured folder."""

TAIL: Final = "/api/v2/tail"
"""GET with `after`: the rows of all tables that arrived later, for readers of the shared tables."""

METRICS_PAGE: Final = "/metrics"
"""Prometheus page."""

MCP: Final = "/mcp"
"""Model Context Protocol over streamable HTTP; also served at `/`."""

TOOL_PREFIX: Final = "fleet.cluster."
"""Prefix of every tool's name."""

INVESTIGATE: Final = "investigate"
"""Name of the prompt that guides a client from finding the straggler to its cause."""

CAUSAL_CHAIN_ID: Final = "causal_chain_id"
"""Point, log record or span: the causal chain that it belongs to; copied as it came."""

CAUSAL_CHAIN_EVENT: Final = "ingero.causal_chain"
"""Event name of a log record that describes a causal chain."""

CHAIN_SEVERITY: Final = "ingero.causal_chain.severity"
"""Log record: LOW, MEDIUM or HIGH."""

CHAIN_ROOT_CAUSE: Final = "ingero.causal_chain.root_cause"
"""Log record: root cause as text."""

CHAIN_SUBJECT: Final = "ingero.causal_chain.subject"
"""Log record: what the cause is about, such as a process or a GPU."""

CHAIN_EVIDENCE: Final = "ingero.causal_chain.evidence"
"""Log record: evidence, a line each."""

CHAIN_ADVICE: Final = "ingero.causal_chain.advice"
"""Log record: what to do, a line each."""
