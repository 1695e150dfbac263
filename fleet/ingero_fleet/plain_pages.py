"""Pages that probes and scrapes read, answered without a web framework, and applications that are loaded late.

FastAPI and what it needs take more memory than all else of Fleet's own code, and a Fleet whose APIs nobody asks does
without it.
"""

import asyncio
import gc
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, Final, NamedTuple

import orjson

from ingero_contract import routes
from ingero_fleet.health_facts import PROBLEM, Health
from ingero_kit.exposition import CONTENT_TYPE, Collector, exposition
from ingero_kit.otlp_receiver import Authenticator
from ingero_kit.tokens import token_refusal

METHODS: Final = ("GET", "HEAD")


class Page(NamedTuple):
    """An answer. `headers` beside the content's type and length."""

    status: int
    body: bytes
    media_type: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


Pages = Mapping[str, Callable[[str | None], Page]]
"""Pages by path. Their functions get the Authorization header and run in a thread."""


def not_found(pages: Pages) -> Page:
    """The answer to a path without a page."""
    return Page(404, f"not found; here is {', '.join(pages)}\n".encode(), "text/plain; charset=utf-8")


def metrics_pages(collectors: Sequence[Collector]) -> Pages:
    """A Prometheus page."""
    return {"/metrics": lambda _: Page(200, exposition(collectors), CONTENT_TYPE)}


def health_pages(health_now: Callable[[], Health], authenticator: Authenticator) -> Pages:
    """Port 8088: health of Fleet itself. The detailed state is served only when a token is configured."""

    def health(_: str | None) -> Page:
        """A short state without authentication."""
        healthy, facts = health_now()
        text = "ok" if healthy else f"unhealthy: {facts[PROBLEM]}"
        return Page(200 if healthy else 503, f"{text}\n".encode(), "text/plain; charset=utf-8")

    def state(authorization: str | None) -> Page:
        """Everything about Fleet's own health."""
        if not authenticator.admit(authorization):
            refusal = orjson.dumps({"detail": token_refusal(authorization)})
            return Page(401, refusal, "application/json", ((b"www-authenticate", b"Bearer"),))
        healthy, facts = health_now()
        return Page(200 if healthy else 503, orjson.dumps({"healthy": healthy, **facts}), "application/json")

    public: Pages = {routes.FLEET_HEALTH: health}
    return public if authenticator.tokens is None else {**public, routes.FLEET_STATE: state}


def zpages(health_now: Callable[[], Health]) -> Pages:
    """Port 55679: pages for probes and people."""

    def servicez(_: str | None) -> Page:
        healthy, facts = health_now()
        rows = "".join(
            f"<tr><td>{escape(str(key))}</td><td>{escape(str(value))}</td></tr>" for key, value in facts.items()
        )
        page = f"<!doctype html><html lang=en><title>ingero Fleet</title><h1>ingero Fleet</h1><table>{rows}</table>"
        return Page(200 if healthy else 503, page.encode(), "text/html; charset=utf-8")

    return {"/debug/servicez": servicez}


def plain_app(pages: Pages) -> Any:
    """An ASGI application of pages."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] not in METHODS:
            page = Page(405, b"only GET\n", "text/plain; charset=utf-8", ((b"allow", b"GET, HEAD"),))
        elif answer := pages.get(scope["path"]):
            page = await asyncio.to_thread(answer, _authorization(scope))
        else:
            page = not_found(pages)
        headers = [
            (b"content-type", page.media_type.encode()), (b"content-length", b"%d" % len(page.body)), *page.headers
        ]  # fmt: skip
        await send({"type": "http.response.start", "status": page.status, "headers": headers})
        await send({"type": "http.response.body", "body": page.body})

    return serve


def late_app(load: Callable[[], Any]) -> Any:
    """An ASGI application that is loaded, in a thread, with the first request for it; requests wait for that."""
    loading: asyncio.Future[Any] | None = None

    def loaded() -> Any:
        app = load()
        # Like what was loaded at the start, it lives as long as the process.
        gc.freeze()
        return app

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        nonlocal loading
        if loading is None:
            loading = asyncio.ensure_future(asyncio.to_thread(loaded))
        await (await asyncio.shield(loading))(scope, receive, send)

    return serve


def _authorization(scope: Any) -> str | None:
    found = [value for name, value in scope["headers"] if name == b"authorization"]
    return found[-1].decode("latin-1") if found else None
