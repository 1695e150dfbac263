"""Paths and query parameters."""

from typing import Final

OTLP_METRICS: Final = "/v1/metrics"
"""OTLP/HTTP metrics."""

OTLP_LOGS: Final = "/v1/logs"
"""OTLP/HTTP logs."""

OTLP_TRACES: Final = "/v1/traces"
"""OTLP/HTTP traces."""

CLUSTER_PARAMETER: Final = "cluster_id"
"""Query parameter that names the cluster, on pushes and on Fleet's API."""

NODE_PARAMETER: Final = "node_id"
"""Query parameter that names the node, on Fleet's API."""

AGENT_MCP: Final = "/mcp"
"""Model Context Protocol of the agent, over streamable HTTP without sessions."""

TRACER_HEALTH: Final = "/api/v1/health"
"""The tracer's state: `ready`, `modes` by capability, and `problems`: sentence with the cure by `TraceProblem`."""

FLEET_THRESHOLD: Final = "/api/v1/threshold"
"""`{"threshold": number, "quorum_met": bool}`; threshold 0 and false before the first quorum."""

FLEET_STRAGGLERS: Final = "/api/v1/stragglers"
"""Which nodes are stragglers now, since when and why; the operator acts on it."""

FLEET_VERDICTS: Final = "/api/v1/verdicts"
"""The detector's verdict on every node."""

FLEET_COST: Final = "/api/v1/cost"
FLEET_LOG: Final = "/api/v1/log"
"""What jobs cost, how much of it was spent waiting, and for which nodes."""

FLEET_COLLECTIVES: Final = "/api/v1/collectives"
"""Diagnostics: which rank the collectives wait for, and how late every rank is."""

FLEET_WHY: Final = "/api/v1/why"
"""Diagnostics: why a node is, or is not, a straggler."""

FLEET_NODES: Final = "/api/v1/nodes"
"""Diagnostics: the state of every node."""

FLEET_PAGE_LAYOUT: Final = "/api/v1/page/layout"
"""The live page: nodes in order, with what was seen of them so far."""

FLEET_PAGE_UPDATE: Final = "/api/v1/page/update"
"""The live page: the latest tick."""

FLEET_PAGE_NODE: Final = "/api/v1/page/node"
"""What one node and its peers did over the latest ticks, for the page."""

FLEET_PAGE_EVENTS: Final = "/api/v1/page/events"
"""The live page: every tick as it comes, as server-sent events."""

FLEET_HEALTH: Final = "/healthz/ee"
"""Open health answer of Fleet."""

FLEET_STATE: Final = "/internal/ee/state"
"""Detailed health of Fleet, with a bearer token."""

AGENT_EXPLAIN: Final = "/api/v1/explain"
"""Agent: causes of a slow-down of this node in the last minutes, as JSON."""
