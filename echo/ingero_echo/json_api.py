"""The JSON API: parse, ask the query service, encode. JSON, CSV, Arrow and Parquet by Accept."""

import io
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal

import orjson
from fastapi import Body, FastAPI, Header, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException

from ingero_contract import echo
from ingero_echo.arrays import pa
from ingero_echo.auth import Identity, Scope
from ingero_echo.errors import EchoApiError, internal
from ingero_echo.lake.plan import SealFailure
from ingero_echo.lake.sealer import SealCounters
from ingero_echo.middleware import OPEN
from ingero_echo.query_runner import QueryResult, shown
from ingero_echo.query_service import ANALYSIS, TOOLS, QueryReply, QueryService, Tool, cancel_when
from ingero_echo.window import LATEST
from ingero_kit.exposition import CONTENT_TYPE, Collector, exposition

CSV: Final = "text/csv"
ARROW: Final = "application/vnd.apache.arrow.stream"
PARQUET: Final = "application/vnd.apache.parquet"


class Described(BaseModel):
    """Base of what the API answers besides tools; the docstrings are the documentation."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Problem(Described):
    """Why something was refused."""

    code: str
    """For machines."""
    message: str
    """For people."""
    hint: str
    """What to do."""
    request_id: str
    """Stands in the log as well."""


class Versions(Described):
    """Versions of the API."""

    versions: list[str]
    current: str
    mcp: str
    """Path of MCP."""


class Sealing(Described):
    """How far a writer has sealed its events into the shared tables."""

    until: float
    """Unix time until which all that arrived is sealed."""
    files: int
    """Data files added since the start."""
    failure: SealFailure | None
    """Why the last seal failed; null after one that succeeded."""
    source_away_since: float | None
    """Unix time since when the stream of `source` cannot be read; null while it can, and without one."""


class Health(Described):
    """Whether the database is open and written, how full its volume is, and how far its events are sealed."""

    status: Literal["ok", "failing"]
    """`failing` while events cannot be written."""
    ready: bool
    volume_used: float | None
    """Used share of the volume, 0 to 1; null where the system does not say."""
    write_failure: str | None
    """Why the last events could not be written, and what to do; null after some that could."""
    sealing: Sealing | None
    """Null without shared tables."""


class Whoami(Described):
    """What a token is good for."""

    name: str
    scopes: list[str]
    clusters: list[str] | None
    """Clusters that the token is bound to; null for all."""


class ToolList(Described):
    """The catalogue."""

    tools: list[Tool]


class BackupFile(Described):
    """A copy that was written into the backup folder."""

    name: str
    bytes: int


_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"description": text, "model": Problem}
    for status, text in {
        400: "the body is not JSON", 401: "no or an unknown token", 403: "the token may not", 408: "took too long",
        413: "the body is too large", 422: "cannot be answered", 429: "too often, or no place became free in time",
        500: "could not be served", 503: "not ready",
    }.items()
}  # fmt: skip


def json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON response; numbers that JSON does not support become null."""
    return Response(orjson.dumps(content, default=str), status, headers, "application/json")


def error(refused: EchoApiError, request_id: str) -> Response:
    """The response for an error; all errors have this format."""
    return json(refused.fields(request_id), refused.status, refused.headers(request_id))


def identity_of(request: Request) -> Identity:
    """The caller, set by the middleware."""
    identity: Identity = request.scope["ingero.identity"]
    return identity


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def render(reply: QueryReply, accept: str) -> Response:
    """The answer in the format of Accept that is wanted most, of those that we speak."""
    for media in _accepted(accept):
        if media in _ENCODERS:
            return Response(_ENCODERS[media](reply.result), media_type=media, headers=_facts(reply))
        if media in ("application/json", "*/*", "application/*", ""):
            break
    return json(reply.body)


def _accepted(accept: str) -> list[str]:
    """The media types of an Accept header, the most wanted first, without those of quality 0 (RFC 9110, 12.5.1)."""
    wanted = []
    for part in accept.split(","):
        media, *parameters = (text.strip().lower() for text in part.split(";"))
        quality = next((text[2:] for text in parameters if text.startswith("q=")), "1")
        try:
            wanted.append((float(quality), media))
        except ValueError:
            wanted.append((1.0, media))
    return [media for quality, media in sorted(wanted, key=lambda item: -item[0]) if quality > 0]


def _facts(reply: QueryReply) -> dict[str, str]:
    facts = {"x-truncated": str(reply.result.truncated).lower()}
    if reply.sources.as_of is not None:
        facts["x-as-of"] = orjson.dumps({**reply.sources.as_of}).decode()
        facts["x-missing"] = ",".join(reply.sources.missing)
    if reply.next_cursor:
        facts["x-next-cursor"] = reply.next_cursor
    return facts


def _csv(result: QueryResult) -> bytes:
    from pyarrow.csv import write_csv  # imported late: most servers never need it

    sink = io.BytesIO()
    write_csv(_flat(result), sink)
    return sink.getvalue()


def _flat(result: QueryResult) -> "pa.Table":
    """Columns that CSV can hold: numbers and truth values as such, everything else as the text that JSON has."""
    columns = []
    for name, column in zip(result.columns, result.table.columns, strict=True):
        kind = column.type
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
            columns.append(column)
        else:
            texts = [
                item if item is None or isinstance(item, str) else orjson.dumps(item, default=str).decode()
                for item in shown(name, column)
            ]
            columns.append(pa.chunked_array([pa.array(texts, pa.string())]))
    return pa.table(columns, names=result.columns)


def _parquet(result: QueryResult) -> bytes:
    import pyarrow.parquet as pq  # imported late: most servers never need it

    sink = io.BytesIO()
    try:
        pq.write_table(result.table, sink, compression="zstd")
    except (pa.ArrowException, ValueError) as error:
        message = f"the result cannot be written as Parquet: {error!s:.200}"
        raise EchoApiError("bad_query", message, "cast its columns, or ask for Arrow", status=422) from None
    return sink.getvalue()


_ENCODERS: Final[dict[str, Callable[[QueryResult], bytes]]] = {
    CSV: _csv, ARROW: QueryResult.stream, PARQUET: _parquet,
}  # fmt: skip


def make_api(
    service: QueryService,
    ready: Callable[[], bool],
    collectors: Sequence[Collector],
    backup: Callable[[], dict[str, Any]],
    sealing: Callable[[], SealCounters | None],
    write_failure: Callable[[], str | None],
) -> FastAPI:
    """The application; authentication stands in front of it."""
    app = FastAPI(
        title="ingero Echo", version="2", openapi_url=echo.OPENAPI, docs_url=None, redoc_url=None,
        description="Keeps every event and answers questions about them.",
    )  # fmt: skip

    @app.exception_handler(EchoApiError)
    async def refused(request: Request, problem: EchoApiError) -> Response:
        return error(problem, request.scope["ingero.request_id"])

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, problem: RequestValidationError) -> Response:
        text = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in problem.errors()[:5])
        in_body = all(item["loc"][0] == "body" for item in problem.errors())
        hint = "send a JSON object, with Content-Type: application/json" if in_body else f"see {echo.OPENAPI}"
        return error(EchoApiError("bad_arguments", text, hint, status=422), request.scope["ingero.request_id"])

    @app.exception_handler(HTTPException)
    async def other(request: Request, problem: HTTPException) -> Response:
        code = {404: "not_found", 405: "method_not_allowed"}.get(problem.status_code, "error")
        headers = problem.headers or {}
        hint = f"use {headers['Allow']}; see {echo.OPENAPI}" if "Allow" in headers else f"see {echo.OPENAPI}"
        answer = error(
            EchoApiError(code, str(problem.detail), hint, problem.status_code), request.scope["ingero.request_id"]
        )
        answer.headers.update(headers)
        return answer

    @app.exception_handler(Exception)
    async def failed(request: Request, _: Exception) -> Response:
        """The middleware in front has the exception next, and logs it."""
        return error(internal(), request.scope["ingero.request_id"])

    @app.get(echo.VERSIONS, operation_id="versions")
    def versions() -> Versions:
        """Which versions of the API this server speaks."""
        return Versions(versions=["v2"], current="v2", mcp=echo.MCP)

    @app.get(echo.HEALTH, operation_id="health")
    def health() -> Health:
        """Whether the database is open and written, how full its volume is, and how far its events are sealed."""
        found, failure = sealing(), write_failure()
        sealed = (
            Sealing(
                until=found.until, files=found.files, failure=found.failure,
                source_away_since=found.source.away_since if found.source else None,
            )
            if found else None
        )  # fmt: skip
        return Health(
            status="failing" if failure else "ok", ready=ready(), volume_used=service.volume_used(),
            write_failure=failure, sealing=sealed,
        )  # fmt: skip

    @app.get(echo.WHOAMI, operation_id="whoami", responses=_ERRORS)
    def whoami(request: Request) -> Whoami:
        """Name, scopes and clusters of the token."""
        who = identity_of(request)
        clusters = None if who.clusters is None else sorted(who.clusters)
        return Whoami(name=who.name, scopes=sorted(who.scopes), clusters=clusters)

    @app.get(echo.TOOLS_LIST, operation_id="listTools", responses=_ERRORS)
    def tools() -> ToolList:
        """Every tool with the schemas of its arguments and of its answer."""
        return ToolList(tools=list(TOOLS.values()))

    @app.post(echo.BACKUPS, operation_id="backup", responses=_ERRORS)
    async def backups(request: Request) -> BackupFile:
        """Write a consistent copy of the database into the configured folder."""
        identity_of(request).require(Scope.BACKUP)
        return BackupFile.model_validate(await run_in_threadpool(backup))

    @app.get(echo.TAIL, include_in_schema=False)
    async def tail(request: Request, after: Annotated[int, Query(ge=-LATEST, le=LATEST)]) -> Response:
        return Response(await service.tail(identity_of(request), after), media_type=ARROW)

    @app.get(echo.METRICS_PAGE, include_in_schema=False)
    def metrics(request: Request) -> Response:
        identity_of(request).require(Scope.METRICS)
        return Response(exposition(collectors), media_type=CONTENT_TYPE)

    _route(app, service, echo.SQL, ANALYSIS, "sql")
    for name in TOOLS:
        _route(app, service, echo.TOOLS + name, name, name.removeprefix(echo.TOOL_PREFIX))

    @app.post(echo.TOOLS + "{name:path}", include_in_schema=False)
    async def unknown(name: str) -> Response:
        raise EchoApiError("unknown_tool", f"there is no tool {name[:100]!r}", f"see {echo.TOOLS_LIST}", 404)

    _complete(app.openapi())
    return app


def _complete(document: dict[str, Any]) -> None:
    """Add to the OpenAPI document what routes do not declare: tokens, and the arguments of every tool."""
    document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"bearer": []}]
    paths = document["paths"]
    for path in OPEN & paths.keys():
        paths[path]["get"]["security"] = []
    for name, tool in TOOLS.items():
        body = {"content": {"application/json": {"schema": tool.input_schema}}, "required": False}
        paths[echo.TOOLS + name]["post"]["requestBody"] = body
    document["components"]["schemas"]["AnalysisArguments"] = TOOLS[ANALYSIS].input_schema
    schema = {"$ref": "#/components/schemas/AnalysisArguments"}
    paths[echo.SQL]["post"]["requestBody"] = {"content": {"application/json": {"schema": schema}}, "required": True}


def _answer(tool: Tool) -> dict[str, Any]:
    """The OpenAPI description of a tool's answer, in every format."""
    return {
        "description": tool.title,
        "content": {
            "application/json": {"schema": tool.output_schema},
            CSV: {"schema": {"type": "string"}},
            ARROW: {"schema": {"type": "string", "format": "binary"}},
            PARQUET: {"schema": {"type": "string", "format": "binary"}},
        },
    }


def _route(app: FastAPI, service: QueryService, path: str, name: str, operation: str) -> None:
    tool = TOOLS[name]

    async def call(
        request: Request,
        arguments: Annotated[dict[str, Any] | None, Body()] = None,
        accept: Annotated[str, Header()] = "*/*",
    ) -> Response:
        answer = service.answer(identity_of(request), name, arguments or {}, lambda reply: render(reply, accept))
        return await cancel_when(_gone(request), answer)

    app.add_api_route(
        path, call, methods=["POST"], operation_id=operation, summary=tool.title, description=tool.description,
        responses={200: _answer(tool), **_ERRORS}, response_class=Response,
    )  # fmt: skip
