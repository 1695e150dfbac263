"""Answers why this node is slow over HTTP: `GET /api/v1/explain` on the listener of the agent's pages."""

import asyncio
import time
from dataclasses import asdict
from typing import Final
from urllib.parse import parse_qs

import orjson

from ingero_agent.causal_chains import find_recent
from ingero_agent.settings import AgentSettings
from ingero_contract import routes
from ingero_http.http1.messages import Request, Response
from ingero_kit.addresses import is_local_name, is_local_request, parse_listen
from ingero_kit.settings import parse_duration
from ingero_kit.tokens import TokenStore, read_digests

DEFAULT_SECONDS: Final = 300.0
"""How far back causes are searched if the request does not say."""

MIN_SECONDS, MAX_SECONDS = 10.0, 3600.0
"""Range of `since`, seconds."""

_JSON: Final = b"application/json"


class ExplainApi:
    """Searches the tracer's database, one search at a time.

    With `explain_token_file` a request needs one of its tokens. Without, only a loopback listener answers, and not to
    pages of other hosts. Raises `SettingsError` for a file without tokens.
    """

    def __init__(self, config: AgentSettings) -> None:
        file = config.explain_token_file
        self._tokens = TokenStore(file, read_digests) if file else None
        self._local = is_local_name(parse_listen(config.metrics_listen)[0])
        self._config = config
        self._busy = False

    async def answer(self, request: Request) -> Response:
        """The findings as JSON, or why there are none."""
        refusal = self._refusal(request)
        if refusal:
            return refusal
        config = self._config
        if config.signal_db_path is None:
            return Response(404, b"this agent reads no trace: run it with --signal-db-path\n")
        seconds = _since(request.query)
        if seconds is None:
            return Response(400, b"since must be a duration from 10s to 1h, such as 5m\n")
        if self._busy:
            return Response(429, b"another search runs\n", extra=b"retry-after: 1\r\n")
        self._busy, now = True, time.time()
        try:
            findings = await asyncio.to_thread(find_recent, config.signal_db_path, config.only_pid, now, seconds)
        except Exception as error:
            return Response(503, f"{error}\n".encode())
        finally:
            self._busy = False
        found = [{"id": one.id, **asdict(one)} for one in findings]
        body = {
            "node_id": config.fleet_node_id, "cluster_id": config.fleet_cluster_id,
            "begin": now - seconds, "end": now, "findings": found,
        }  # fmt: skip
        return Response(200, orjson.dumps(body), _JSON)

    def _refusal(self, request: Request) -> Response | None:
        if self._tokens is not None:
            if self._tokens.find(request.headers.get(b"authorization")) is None:
                return Response(401, b"a bearer token is required\n", extra=b"www-authenticate: Bearer\r\n")
        elif not self._local or not is_local_request(request.headers):
            return Response(403, b"without --explain-token-file only a loopback address is served\n")
        return None if request.method == b"GET" else Response(405, b"use GET\n", extra=b"allow: GET\r\n")


EXPLAIN_PATH: Final = routes.AGENT_EXPLAIN.encode()


def _since(query: bytes) -> float | None:
    """The duration that a query asks for; `None` for one that is not valid."""
    found = parse_qs(query.decode("latin-1"), keep_blank_values=True).get("since")
    if found is None:
        return DEFAULT_SECONDS
    try:
        seconds = float(str(parse_duration(found[-1])))
    except ValueError:
        return None
    return seconds if MIN_SECONDS <= seconds <= MAX_SECONDS else None
