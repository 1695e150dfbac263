"""Answers why this node is slow over HTTP: `GET /api/v1/explain`."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

import orjson

from ingero_agent.causal_chains import find_recent
from ingero_agent.settings import AgentSettings
from ingero_contract import routes
from ingero_http.http1.messages import Request, Response
from ingero_kit.addresses import is_local_name, is_local_request, parse_listen
from ingero_kit.settings import parse_duration
from ingero_kit.tokens import TokenStore, read_digests, token_refusal

DEFAULT_SECONDS: Final = 300.0
"""How far back causes are searched if the request does not say."""

MIN_SECONDS, MAX_SECONDS = 10.0, 3600.0
"""Range of `since`, seconds."""

_JSON: Final = b"application/json"

Read = Callable[[Path, int | None, float, float], dict[str, Any]]
"""Reads the database: its file, the only process or `None`, now and the length of the time window in seconds."""


class ApiAccess:
    """Decides who may ask why this node is slow, on one listener.

    With a token file a request needs one of its tokens. Without, only a loopback listener answers, and not to pages
    of other hosts. Raises `SettingsError` for a file without tokens.
    """

    def __init__(self, listen: str, token_file: Path | None) -> None:
        self._tokens = TokenStore(token_file, read_digests) if token_file else None
        self._local = is_local_name(parse_listen(listen)[0])

    def refusal(self, request: Request, method: bytes) -> Response | None:
        """Why a request is not answered; `method` is the only one that is."""
        if self._tokens is not None:
            authorization = request.headers.get(b"authorization")
            if self._tokens.find(authorization) is None:
                text = f"{token_refusal(authorization)}\n".encode()
                return Response(401, text, extra=b"www-authenticate: Bearer\r\n")
        elif not self._local or not is_local_request(request.headers):
            return Response(403, b"without --explain-token-file only a loopback address is served\n")
        if request.method != method:
            return Response(405, b"use %b\n" % method, extra=b"allow: %b\r\n" % method)
        return None


class CannotAnswer(Exception):
    """A question about this node that is not answered, with the HTTP status that says why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class TraceReader:
    """Reads the tracer's database for questions, one at a time."""

    def __init__(self, config: AgentSettings) -> None:
        self._config = config
        self._busy = False

    async def read(self, since: object, read: Read) -> dict[str, Any]:
        """What `read` finds in the time window that ends now, with the node and the window. Raises `CannotAnswer`.

        `since`: the length of the window as text; `None` for the default.
        """
        config = self._config
        if config.signal_db_path is None:
            raise CannotAnswer(404, "this agent reads no trace: run it with --signal-db-path")
        seconds = _seconds(since)
        if self._busy:
            raise CannotAnswer(429, "another search runs")
        self._busy, now = True, time.time()
        try:
            found = await asyncio.to_thread(read, config.signal_db_path, config.only_pid, now, seconds)
        except Exception as error:
            raise CannotAnswer(503, str(error)) from None
        finally:
            self._busy = False
        return {
            "node_id": config.fleet_node_id, "cluster_id": config.fleet_cluster_id,
            "begin": now - seconds, "end": now, **found,
        }  # fmt: skip


def causes(file: Path, pid: int | None, now: float, seconds: float) -> dict[str, Any]:
    """The findings, as `ingero-agent explain --json` has them."""
    return {"findings": [{"id": one.id, **asdict(one)} for one in find_recent(file, pid, now, seconds)]}


class ExplainApi:
    """Answers with the causes that the tracer's database shows."""

    def __init__(self, access: ApiAccess, reader: TraceReader) -> None:
        self._access, self._reader = access, reader

    async def answer(self, request: Request) -> Response:
        """The findings as JSON, or why there are none."""
        refusal = self._access.refusal(request, b"GET")
        if refusal:
            return refusal
        query = parse_qs(request.query.decode("latin-1"), keep_blank_values=True)
        try:
            body = await self._reader.read(query.get("since", [None])[-1], causes)
        except CannotAnswer as error:
            again = b"retry-after: 1\r\n" if error.status == 429 else b""
            return Response(error.status, f"{error}\n".encode(), extra=again)
        return Response(200, orjson.dumps(body), _JSON)


EXPLAIN_PATH: Final = routes.AGENT_EXPLAIN.encode()


def _seconds(since: object) -> float:
    """Seconds of a duration that a question names. Raises `CannotAnswer`."""
    if since is None:
        return DEFAULT_SECONDS
    try:
        seconds = float(str(parse_duration(since)))
    except ValueError:
        seconds = 0.0
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise CannotAnswer(400, "since must be a duration from 10s to 1h, such as 5m")
    return seconds
