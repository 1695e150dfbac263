"""Pages for probes and scrapes need no web framework; the APIs are loaded once, with their first request."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from ingero_fleet.plain_pages import Page, health_pages, late_app, metrics_pages, plain_app, zpages
from ingero_kit.otlp_receiver import Authenticator
from ingero_kit.tokens import TokenStore, read_digests


def ask(app: Any, *requests: tuple[str, str], headers: dict[str, str] | None = None) -> list[httpx.Response]:
    """The answers of an application to requests made at the same time."""

    async def all_of_them() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://fleet") as client:
            return await asyncio.gather(*(client.request(*one, headers=headers) for one in requests))

    return asyncio.run(all_of_them())


def test_health_is_short_and_says_so_by_its_status() -> None:
    nobody = Authenticator(None)
    well = plain_app(health_pages(lambda: (True, {}), nobody))
    ill = plain_app(health_pages(lambda: (False, {"problem": "why"}), nobody))

    assert [(one.status_code, one.text) for one in ask(well, ("GET", "/healthz/ee"))] == [(200, "ok\n")]
    assert [(one.status_code, one.text) for one in ask(ill, ("GET", "/healthz/ee"))] == [(503, "unhealthy: why\n")]
    assert ask(well, ("GET", "/internal/ee/state"))[0].status_code == 404


def test_the_state_is_for_those_with_a_token(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("a-token-of-32-characters-or-more\n")
    app = plain_app(health_pages(lambda: (True, {"nodes": 5}), Authenticator(TokenStore(tokens, read_digests))))

    refused, _ = ask(app, ("GET", "/internal/ee/state"), ("GET", "/healthz/ee"))
    told = ask(
        app, ("GET", "/internal/ee/state"), headers={"authorization": "Bearer a-token-of-32-characters-or-more"}
    )[0]

    other = ask(app, ("GET", "/internal/ee/state"), headers={"authorization": "Bearer another"})[0]

    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert [one.json()["detail"] for one in (refused, other)] == [
        "a bearer token is required", "this bearer token is not accepted",
    ]  # fmt: skip
    assert told.json() == {"healthy": True, "nodes": 5}


def test_only_reading_is_served_and_only_what_there_is() -> None:
    wrong, absent, head = ask(
        plain_app(metrics_pages([])), ("POST", "/metrics"), ("GET", "/elsewhere"), ("HEAD", "/metrics")
    )

    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD")
    assert (absent.status_code, absent.text) == (404, "not found; here is /metrics\n")
    assert head.status_code == 200


def test_what_runs_cannot_write_the_page_of_it() -> None:
    (page,) = ask(plain_app(zpages(lambda: (True, {"cluster": "<script>"}))), ("GET", "/debug/servicez"))

    assert "<td>cluster</td><td>&lt;script&gt;</td>" in page.text


def test_the_apis_are_loaded_once_for_all_who_wait_for_them() -> None:
    loads = []

    def load() -> Any:
        loads.append("loaded")
        return plain_app({"/": lambda _: Page(200, b"here", "text/plain")})

    answers = ask(late_app(load), *[("GET", "/")] * 5)

    assert ([one.text for one in answers], loads) == (["here"] * 5, ["loaded"])


def test_apis_that_cannot_be_loaded_say_so_to_each_who_asks() -> None:
    def load() -> Any:
        raise ModuleNotFoundError("no web framework")

    app = late_app(load)
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError):
            ask(app, ("GET", "/"))
