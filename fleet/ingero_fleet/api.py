"""The HTTP APIs: threshold and stragglers for agents and operator, and diagnostics."""

import base64
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Query

from ingero_contract import routes
from ingero_fleet.collectives.tracker import CollectivesTracker
from ingero_fleet.cost.tracker import CostTracker
from ingero_fleet.engine import Engine
from ingero_fleet.taints.tracker import TaintTracker
from ingero_fleet.tick_snapshot import (
    TickSnapshot,
    node_answer,
    stragglers_answer,
    summary_answer,
    threshold_answer,
    why_answer,
)
from ingero_kit.otlp_receiver import Authenticator
from ingero_kit.tokens import token_refusal

Cluster = Annotated[str, Query(alias=routes.CLUSTER_PARAMETER, min_length=1, max_length=253)]
OptionalCluster = Annotated[str | None, Query(alias=routes.CLUSTER_PARAMETER, min_length=1, max_length=253)]
Node = Annotated[str, Query(alias=routes.NODE_PARAMETER, min_length=1, max_length=253)]
OptionalNode = Annotated[str | None, Query(alias=routes.NODE_PARAMETER, min_length=1, max_length=253)]
OptionalNodes = Annotated[list[str] | None, Query(alias=routes.NODE_PARAMETER, max_length=1000)]
OptionalJob = Annotated[str | None, Query(min_length=1, max_length=1024)]
Limit = Annotated[int, Query(ge=1, le=10_000)]
Offset = Annotated[int, Query(ge=0)]


def bearer(authenticator: Authenticator) -> Callable[[str | None], None]:
    """A dependency that accepts a request only with a valid token."""

    def check(authorization: Annotated[str | None, Header(include_in_schema=False)] = None) -> None:
        if not authenticator.admit(authorization):
            raise HTTPException(401, token_refusal(authorization), {"www-authenticate": "Bearer"})

    return check


def browser_bearer(authenticator: Authenticator) -> Callable[[str | None], None]:
    """Like `bearer`, and for browsers: HTTP Basic authentication with the token as password and any user."""

    def check(authorization: Annotated[str | None, Header(include_in_schema=False)] = None) -> None:
        sent = as_bearer(authorization)
        if not authenticator.admit(sent):
            raise HTTPException(401, token_refusal(sent), {"www-authenticate": 'Basic realm="ingero Fleet"'})

    return check


def as_bearer(authorization: str | None) -> str | None:
    """An Authorization header with the password of a Basic one as bearer token."""
    scheme, _, text = (authorization or "").partition(" ")
    if scheme.lower() != "basic":
        return authorization
    try:
        _, separator, password = base64.b64decode(text, validate=True).decode().partition(":")
    except ValueError:
        return None
    return f"Bearer {password}" if separator else None


def _app(title: str, *dependencies: Any) -> FastAPI:
    return FastAPI(
        title=title, version="1", docs_url=None, redoc_url=None, dependencies=dependencies,
        generate_unique_id_function=lambda route: route.name,
    )  # fmt: skip


def agent_api(
    engine: Engine, authenticator: Authenticator, costs: CostTracker, collectives: CollectivesTracker,
    exporters: Callable[[], dict[str, Any]], log_answer: Callable[[], dict[str, Any]] | None = None,
) -> FastAPI:  # fmt: skip
    """Port 8080: the API for agents and the operator. `log_answer`: how a replica follows the shared log."""
    app = _app("ingero Fleet")
    secured = [Depends(bearer(authenticator))]

    @app.get(routes.FLEET_THRESHOLD, dependencies=secured)
    def threshold(cluster_id: Cluster, node_id: OptionalNode = None) -> dict[str, Any]:
        """The threshold of a cluster; 0 and false before the first quorum."""
        return threshold_answer(engine.snapshot, cluster_id, node_id)

    @app.get(routes.FLEET_STRAGGLERS, dependencies=secured)
    def stragglers(cluster_id: OptionalCluster = None) -> dict[str, Any]:
        """Who is a straggler now, since when, why, and at what cost."""
        config, snapshot = engine.config, _ready(engine)
        answer = stragglers_answer(
            snapshot, cluster_id, config.push_interval, collectives.stragglers, collectives.config.actionable,
            config.panic.straggler_fraction,
        )  # fmt: skip
        network = collectives.network.answer(cluster_id) if cluster_id else None
        hangs, now = engine.machine.hangs, snapshot.tick.now
        return {
            **answer, "cost": costs.summary(cluster_id), "exporters": exporters(), "network": network,
            "hangs": hangs.hangs(now, cluster_id), "watched_jobs": hangs.watched(now, cluster_id),
        }  # fmt: skip

    @app.get(routes.FLEET_VERDICTS, dependencies=secured)
    def verdicts(
        cluster_id: OptionalCluster = None, limit: Limit = 1000, offset: Offset = 0, node_id: OptionalNodes = None
    ) -> dict[str, Any]:
        """The detector's verdicts on all or the named nodes, paged."""
        snapshot = _ready(engine)
        rows = snapshot.rows(cluster_id)
        if node_id:
            wanted = frozenset(node_id)
            rows = [row for row in rows if snapshot.scores.names[row][1] in wanted]
        return _page(snapshot, rows, offset, limit)

    @app.get(routes.FLEET_COST, dependencies=secured)
    def cost(
        cluster_id: OptionalCluster = None, job: OptionalJob = None, limit: Limit = 1000, offset: Offset = 0
    ) -> dict[str, Any]:
        """What stragglers cost, now by the hour and since Fleet started; paged, the costliest first."""
        _ready(engine)
        return costs.answer(cluster_id, job, offset=offset, limit=limit)

    if log_answer:

        @app.get(routes.FLEET_LOG, dependencies=secured)
        async def shared_log() -> dict[str, Any]:
            """How this replica follows the shared log; before the first statistics too."""
            return log_answer()

    return app


def admin_api(
    engine: Engine, collectives: CollectivesTracker, taints: TaintTracker, authenticator: Authenticator
) -> FastAPI:
    """Port 8081: diagnostics for people, on loopback or with a token."""
    app = _app("ingero Fleet diagnostics", Depends(browser_bearer(authenticator)))

    @app.get(routes.FLEET_WHY)
    def why(node_id: Node, cluster_id: OptionalCluster = None) -> dict[str, Any]:
        """Why a node is, or is not, a straggler."""
        snapshot = _ready(engine)
        rows = [row for row in snapshot.rows(cluster_id) if snapshot.scores.names[row][1] == node_id]
        if not rows:
            raise HTTPException(404, f"no node {node_id!r} is known; {routes.FLEET_NODES} lists those that are")
        if len(rows) > 1:
            raise HTTPException(400, f"several clusters have a node {node_id!r}; add {routes.CLUSTER_PARAMETER}")
        node = snapshot.scores.names[rows[0]]
        return {
            **why_answer(snapshot, rows[0], engine.config), "collectives": collectives.stragglers.get(node),
            "network": collectives.network.now.get(node[0]),
            "taint": taints.taint(node, snapshot.tick.now),
        }  # fmt: skip

    @app.get(routes.FLEET_NODES)
    def nodes(cluster_id: OptionalCluster = None, limit: Limit = 1000, offset: Offset = 0) -> dict[str, Any]:
        """The state of every node, paged, and of every cluster."""
        snapshot = _ready(engine)
        clusters = [summary_answer(summary) for summary in snapshot.tick.clusters.values()]
        return {**_page(snapshot, snapshot.rows(cluster_id), offset, limit), "clusters": clusters}

    @app.get(routes.FLEET_COLLECTIVES)
    def lags(cluster_id: OptionalCluster = None, limit: Limit = 100) -> dict[str, Any]:
        """Which rank the collectives wait for, how late every rank is, and which jobs hang."""
        now, hangs = _ready(engine).tick.now, engine.machine.hangs
        return {
            **collectives.answer(cluster_id, now, limit), "hangs": hangs.hangs(now, cluster_id),
            "watched_jobs": hangs.watched(now, cluster_id),
        }  # fmt: skip

    return app


def _page(snapshot: TickSnapshot, rows: list[int], offset: int, limit: int) -> dict[str, Any]:
    nodes = [node_answer(snapshot, row) for row in rows[offset : offset + limit]]
    return {"total": len(rows), "offset": offset, "nodes": nodes}


def _ready(engine: Engine) -> TickSnapshot:
    if engine.snapshot is None:
        raise HTTPException(503, "the first statistics are not computed yet", {"retry-after": "1"})
    return engine.snapshot
