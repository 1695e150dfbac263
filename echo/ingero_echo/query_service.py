"""Answers questions for both front ends: wait for a place, run the query, summarise the rows.

Echo's own questions run on threads of this process; users' SQL runs in processes that can be killed.
"""

import asyncio
import base64
import re
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from ingero_contract import echo
from ingero_echo.arrays import pa
from ingero_echo.auth import Identity, Scope, caller_key
from ingero_echo.concurrency import ConcurrencyLimiter
from ingero_echo.database_file import volume_used
from ingero_echo.errors import EchoApiError
from ingero_echo.lake.tail import tail_page
from ingero_echo.query_runner import CancelToken, QueryResult, cancelled, run_query
from ingero_echo.questions import QUESTIONS
from ingero_echo.questions.base import Arguments, Question, plural
from ingero_echo.sandbox import MAX_TEXT
from ingero_echo.schema_versions import published_columns
from ingero_echo.settings import EchoConfig
from ingero_echo.sql_pool import SqlPool
from ingero_echo.store import Store
from ingero_echo.tables import TABLES
from ingero_echo.window import Sources, Window, parse_moment, rfc3339, scoped
from ingero_kit.settings import parse_duration

T = TypeVar("T")

ANALYSIS: Final = echo.TOOL_PREFIX + "run_analysis"
"""The tool that takes SQL."""

DESCRIBE: Final = echo.TOOL_PREFIX + "describe"
"""The tool that names tables and columns."""


class DescribeArguments(Arguments):
    """Which table."""

    table: str | None = Field(default=None, pattern=f"^({'|'.join(TABLES)})$")
    """One table; without it all."""


class AnalysisArguments(Arguments):
    """One read-only SELECT over the published tables."""

    sql: str = Field(min_length=1, max_length=MAX_TEXT)
    """The query, DuckDB's dialect; the tables are in the resource echo://schema."""
    limit: int = Field(default=1000, ge=1, le=100_000)
    """Most rows."""


_PROBLEMS: Final = {"missing": "this argument is needed", "extra_forbidden": "there is no such argument"}
"""What is wrong with an argument, by pydantic's name, where its words are those of a schema."""

DESCRIBE_OUTPUT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "summary": {"type": "string"},
        "rows": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {name: {"type": "string"} for name in ("table", "column", "type")},
            },
        },
        "truncated": {"type": "boolean"},
    },
    "required": ["summary", "rows", "truncated"],
}

ANALYSIS_OUTPUT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "columns": {"type": "array", "items": {"type": "string"}},
        "rows": {"type": "array", "items": {"type": "array", "items": {}}},
        "row_count": {"type": "integer"},
        "truncated": {"type": "boolean"},
    },
    "required": ["columns", "rows", "row_count", "truncated"],
}


class Tool(BaseModel):
    """One tool, as MCP describes it."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    name: str
    title: str
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any]


def _tool(name: str, title: str, text: str, arguments: type[Arguments], output: dict[str, Any]) -> Tool:
    schema = arguments.model_json_schema()
    return Tool(name=name, title=title, description=text, input_schema=schema, output_schema=output)


TOOLS: Final[dict[str, Tool]] = {
    **{
        name: _tool(name, question.title, question.description, question.arguments, question.output_schema())
        for name, question in QUESTIONS.items()
    },
    ANALYSIS: _tool(
        ANALYSIS, "SQL",
        "Run one read-only SELECT (DuckDB) over events(timestamp, cluster_id, node_id, metric_name, value_double, "
        "rank, message, attributes, …), node_metrics, node_rollups, collectives, verdicts, causal_chains; for what "
        "no other tool answers. fleet.cluster.describe names all columns.",
        AnalysisArguments, ANALYSIS_OUTPUT,
    ),
    DESCRIBE: _tool(
        DESCRIBE, "Tables and columns", "Names the tables that run_analysis reads, their columns and types.",
        DescribeArguments, DESCRIBE_OUTPUT,
    ),
}  # fmt: skip


@dataclass
class QueryReply:
    """An answer: `body` for JSON, `text` for people and agents, `result` for other formats, which need no rows of
    Python: `body` and `text` are made when they are asked for."""

    result: QueryResult
    show: Callable[[], tuple[dict[str, Any], str]]
    """Makes `body` and `text`."""
    next_cursor: str | None = None
    sources: Sources = field(default_factory=Sources)

    @property
    def body(self) -> dict[str, Any]:
        """The answer as JSON."""
        return self._shown[0]

    @property
    def text(self) -> str:
        """The answer as a sentence."""
        return self._shown[1]

    @cached_property
    def _shown(self) -> tuple[dict[str, Any], str]:
        body, text = self.show()
        if self.sources.as_of is None:
            return body, text
        if self.sources.missing:
            text = f"{text} The newest events of {', '.join(self.sources.missing)} are missing."
        body |= {"as_of": {**self.sources.as_of}, "missing": [*self.sources.missing]}
        return body | {"summary": text} if "summary" in body else body, text


@dataclass(frozen=True)
class _Prepared:
    """One of Echo's own questions, before it is known what it reads."""

    statement: str
    window: Window
    parameters: dict[str, Any]
    limit: int


class QueryService:
    """Answers questions. `store` returns the open store, or `None` while it is being opened."""

    def __init__(
        self, config: EchoConfig, store: Callable[[], Store | None], unread: Callable[[str], None] = lambda _: None
    ) -> None:
        self._unread = unread
        self._config = config
        self._store = store
        query = config.query
        self.limiter = ConcurrencyLimiter(query.at_once, query.queue_wait)
        """Limit of Echo's own questions that run at once."""
        self.sql_limiter = ConcurrencyLimiter(query.sql_at_once, query.queue_wait)
        """Limit of users' SQL that runs at once."""
        self.sql_pool = SqlPool(config)
        self._threads = ThreadPoolExecutor(query.at_once + query.sql_at_once, "question")

    def stuck(self, now: float) -> bool:
        """Whether a query runs that cannot be cancelled; `now` on the monotonic clock."""
        return self.limiter.stuck(now, self._config.query.timeout)

    def volume_used(self) -> float | None:
        """Used share of the volume that the database is on, 0 to 1."""
        return volume_used(self._config.store.path)

    def close(self) -> None:
        """End the processes that wait for SQL."""
        self.sql_pool.close()
        self._threads.shutdown(wait=False)

    async def call(self, identity: Identity, tool: str, arguments: dict[str, Any]) -> QueryReply:
        """Answer one call of a tool, in JSON and text. As `answer`."""
        return await self.answer(identity, tool, arguments, _shown)

    async def answer(
        self, identity: Identity, tool: str, arguments: dict[str, Any], encode: Callable[[QueryReply], T]
    ) -> T:
        """Answer one call of a tool, encoded on the question's thread, so that its limits bound that too.

        Cancelling the call takes it from the queue, or ends its query. Raises `EchoApiError`.
        """
        if tool == ANALYSIS:
            given = _validate(AnalysisArguments, arguments)
            return await self._sql(identity, given.sql, given.limit, encode)
        if tool == DESCRIBE:
            return encode(_describe(_validate(DescribeArguments, arguments).table))
        question = QUESTIONS.get(tool)
        if question is None:
            hint = echo.TOOL_PREFIX + tool if echo.TOOL_PREFIX + tool in TOOLS else f"see {echo.TOOLS_LIST}"
            raise EchoApiError("unknown_tool", f"there is no tool {tool[:100]!r}", hint, status=404)
        identity.require(Scope.READ)
        given = _validate(question.arguments, arguments)
        store, prepared = self._open(), self._prepare(identity, question, given)
        async with self.limiter.slot(caller_key(identity)):
            self._unread(caller_key(identity))
            return await self._on_thread(lambda cancel: encode(self._reply(store, question, given, prepared, cancel)))

    async def _sql(self, identity: Identity, text: str, limit: int, encode: Callable[[QueryReply], T]) -> T:
        """Run a query that the caller wrote."""
        identity.require(Scope.SQL)
        if identity.clusters is not None and not self._config.api.sql_for_tenants:
            raise EchoApiError(
                "forbidden", "SQL is not for tokens that are bound to clusters",
                "use the other tools, or have api.sql_for_tenants set", status=403,
            )  # fmt: skip
        store, most = self._open(), min(limit, self._config.query.max_rows)

        def ask(cancel: CancelToken) -> T:
            snapshots, clusters = store.snapshots, identity.clusters
            with store.pinned(Window(clusters=clusters)) as sources:
                result = self.sql_pool.run(snapshots, text, clusters, most, cancel, sources.tables)
            return encode(QueryReply(result, lambda: _table(result), sources=sources))

        async with self.sql_limiter.slot(caller_key(identity)):
            self._unread(caller_key(identity))
            return await self._on_thread(ask)

    async def tail(self, identity: Identity, after: int) -> bytes:
        """The rows that arrived after others, for readers of the shared tables. Raises `EchoApiError`."""
        identity.require(Scope.READ)
        if identity.clusters is not None:
            raise EchoApiError("forbidden", "the tail has the rows of all clusters", status=403)
        store = self._open()
        return await asyncio.to_thread(tail_page, store, after)

    async def _on_thread(self, work: Callable[[CancelToken], T]) -> T:
        """Run blocking work on a thread; a cancelled call stops the work and returns once it has ended."""
        cancel = CancelToken()
        running = asyncio.get_running_loop().run_in_executor(self._threads, work, cancel)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            cancel.request()
            await asyncio.wait([running])
            if not running.cancelled():
                running.exception()  # retrieved, so that asyncio does not log it
            raise

    def _open(self) -> Store:
        store = self._store()
        if store is None:
            raise EchoApiError(
                "not_ready", "the database is still being opened", "ask again", status=503, retry_seconds=1
            )
        return store

    def _prepare(self, identity: Identity, question: Question, given: Any) -> _Prepared:
        """SQL, window, parameters and the row limit of one of Echo's own questions."""
        window, extra = _window(identity, given)
        limit = min(given.limit, self._config.query.max_rows)
        values = {**given.model_dump(), **extra}
        if question.paged:
            values["cursor_time"], values["cursor_id"] = read_cursor(given.cursor)
        if question.parameters:
            values |= question.parameters(given, self._config.cost)
        statement = question.statement(given)
        used = set(re.findall(r"\$(\w+)", statement))
        return _Prepared(statement, window, {name: value for name, value in values.items() if name in used}, limit)

    def _reply(
        self,
        store: Store,
        question: Question,
        given: Any,
        prepared: _Prepared,
        cancel: CancelToken,
    ) -> QueryReply:
        window, limit = prepared.window, prepared.limit
        with store.pinned(window) as sources:
            sql = f"{scoped(prepared.statement, window, sources.tables)} LIMIT {limit + 1}"
            values = prepared.parameters
            if "window_end" in values:
                values = {**values, "window_end": sources.known_until(values["window_end"])}
            result = run_query(store.cursor(), sql, values, self._config.query, limit, cancel)
            nothing = ""
            if not result.table.num_rows and not question.paged:
                probe = f"{scoped('SELECT 1 AS one FROM events', window, sources.tables)} LIMIT 1"
                if not run_query(store.cursor(), probe, {}, self._config.query, 1, cancel).table.num_rows:
                    nothing = _nothing(given.cluster_id)
        following = None
        if question.paged and result.truncated and result.table.num_rows:
            (last,) = QueryResult(result.table.slice(result.table.num_rows - 1)).objects()
            following = write_cursor(last["timestamp"], last["event_id"])

        def show() -> tuple[dict[str, Any], str]:
            rows = result.objects()
            text = nothing or question.sentence(rows, given)
            return {"summary": text, "rows": rows, "truncated": result.truncated, "next_cursor": following}, text

        return QueryReply(result, show, following, sources)


async def cancel_when(gone: Awaitable[Any], answer: Awaitable[T]) -> T:
    """The answer, unless `gone` ends first: the client disconnected, and its question is cancelled."""
    asked, left = asyncio.ensure_future(answer), asyncio.ensure_future(gone)
    try:
        await asyncio.wait([asked, left], return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            asked.cancel()
        try:
            return await asked
        except asyncio.CancelledError:
            if left.done():
                raise cancelled() from None
            raise
    finally:
        left.cancel()
        asked.cancel()


def _describe(table: str | None) -> QueryReply:
    found = [entry for entry in published_columns() if table in (None, entry[0])]
    result = QueryResult(pa.table(dict(zip(("table", "column", "type"), zip(*found, strict=True), strict=True))))
    text = f"{len(found)} columns. Times are UTC; attributes is JSON text, read with attributes->>'$.\"name\"'."
    return QueryReply(result, lambda: ({"summary": text, "rows": result.objects(), "truncated": False}, text))


def _table(result: QueryResult) -> tuple[dict[str, Any], str]:
    """The answer to a query that the caller wrote."""
    rows = result.lists()
    body = {"columns": result.columns, "rows": rows, "row_count": len(rows), "truncated": result.truncated}
    more = ", and there are more" if result.truncated else ""
    return body, f"{plural(len(rows), 'row')} of {', '.join(result.columns)}{more}."


def _nothing(cluster: str | None) -> str:
    """That no answer can be given, which is not the same as that all is well."""
    of = f" of cluster {cluster}" if cluster is not None else ""
    return f"There are no events{of} in this window, so nothing is known; summary with since=all names the clusters."


def _shown(reply: QueryReply) -> QueryReply:
    assert reply.body is not None  # made here, and not on the event loop
    return reply


def _validate(model: type[Arguments], arguments: dict[str, Any]) -> Any:
    try:
        return model.model_validate(arguments)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        first = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'arguments'}: {_PROBLEMS.get(problem['type'], problem['msg'])}"
            for problem in problems[:5]
        )
        raise EchoApiError(
            "bad_arguments", first, f"it takes {', '.join(model.model_fields)}; see {echo.TOOLS_LIST}", status=422
        ) from None


def _window(identity: Identity, given: Any) -> tuple[Window, dict[str, Any]]:
    """The window that a question may see, and its edges as parameters."""
    clusters = identity.clusters
    if given.cluster_id is not None:
        if not identity.sees(given.cluster_id):
            raise EchoApiError("forbidden", f"the token does not see cluster {given.cluster_id}", status=403)
        clusters = frozenset({given.cluster_id})
    now = time.time_ns()
    try:
        until = parse_moment(given.until, now)
        extra: dict[str, Any] = {}
        if hasattr(given, "apart"):
            length, apart = _nanos(given.length), _nanos(given.apart)
            end = until if until is not None else now
            since: int | None = max(0, end - apart - length)
            extra = {"newer_start": max(0, end - length), "older_end": max(0, end - apart)}
        else:
            since = parse_moment(given.since, now)
        if since is not None and until is not None and since >= until:
            raise ValueError(f"the window ends before it begins: since={rfc3339(since)}, until={rfc3339(until)}")
    except (ValueError, OverflowError) as error:
        raise EchoApiError("bad_arguments", str(error), status=422) from None
    extra["window_end"] = until if until is not None else now
    if given.until == "0s":
        until = None
    if getattr(given, "event_ids", ()):
        since = until = None
    extra["window_start"] = since
    return Window(clusters=clusters, since=since, until=until), extra


def _nanos(text: str) -> int:
    seconds = parse_duration(text)
    if not isinstance(seconds, float):
        raise ValueError(f"{text!r} is not a duration such as 15m")
    return int(seconds * 1e9)


def write_cursor(timestamp: str, event_id: str) -> str:
    """An opaque cursor of a place in the history."""
    return base64.urlsafe_b64encode(f"{timestamp}|{event_id}".encode()).decode().rstrip("=")


def read_cursor(cursor: str | None) -> tuple[int | None, str | None]:
    """Time in nanoseconds and event id of a place; raises `EchoApiError` for anything else."""
    if cursor is None:
        return None, None
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        moment, _, event_id = text.partition("|")
        whole, _, rest = moment.rstrip("Z").partition(".")
        seconds = parse_moment(whole, 0)
        if seconds is None or len(rest) > 9:
            raise ValueError
        return seconds + int(rest.ljust(9, "0") or 0), str(UUID(event_id))
    except (ValueError, OverflowError):
        raise EchoApiError(
            "bad_arguments", "cursor: not one of ours", "leave it out to begin anew", status=422
        ) from None
