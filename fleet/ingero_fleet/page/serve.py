"""The page's routes on the diagnostics port."""

import gzip
from collections.abc import Callable
from importlib.resources import files
from typing import Annotated, Final

import orjson
from fastapi import FastAPI, Header, HTTPException
from fastapi.responses import Response, StreamingResponse

from ingero_contract import routes
from ingero_contract.identifiers import node_key
from ingero_fleet.page.live import MAX_WATCHERS, LivePage

HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}

FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/node.js": ("node.js", "text/javascript; charset=utf-8"),
}
"""Every file that the page needs; nothing is loaded from elsewhere."""


def add_page(app: FastAPI, live: LivePage) -> FastAPI:
    """Add the page and its data to an application."""
    for path, (name, media) in FILES.items():
        content = (files("ingero_fleet.page") / "static" / name).read_bytes()
        app.get(path, include_in_schema=False)(_static(content, media))

    @app.get(routes.FLEET_PAGE_LAYOUT, include_in_schema=False)
    def layout(accept_encoding: Annotated[str, Header()] = "") -> Response:
        """The nodes in order, with everything seen of them so far."""
        body, headers = orjson.dumps(live.layout()), dict(HEADERS)
        if "gzip" in accept_encoding:
            body, headers["content-encoding"] = gzip.compress(body, 1), "gzip"
        return Response(body, media_type="application/json", headers=headers)

    @app.get(routes.FLEET_PAGE_UPDATE, include_in_schema=False)
    def update() -> Response:
        """The latest tick, for a page that polls."""
        return Response(live.update() or b"null", media_type="application/json", headers=HEADERS)

    @app.get(routes.FLEET_PAGE_NODE, include_in_schema=False)
    def node(cluster_id: str, node_id: str) -> Response:
        """What one node and its peers did over the latest ticks."""
        body = orjson.dumps(live.node(node_key(cluster_id, node_id)))
        return Response(body, media_type="application/json", headers=HEADERS)

    @app.get(routes.FLEET_PAGE_EVENTS, include_in_schema=False)
    async def events() -> StreamingResponse:
        """Every tick as a server-sent event."""
        if live.watchers >= MAX_WATCHERS:
            raise HTTPException(503, f"{MAX_WATCHERS} pages are open already", {"retry-after": "10"})
        return StreamingResponse(live.watch(), media_type="text/event-stream", headers=HEADERS)

    return app


def _static(content: bytes, media: str) -> Callable[[], Response]:
    def serve() -> Response:
        return Response(content, media_type=media, headers=HEADERS)

    return serve
