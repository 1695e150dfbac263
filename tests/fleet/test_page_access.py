"""The live page outside of loopback: only with a token, as browsers and programs send it."""

from pathlib import Path

import pytest

from ingero_contract import routes
from ingero_fleet.api import as_bearer
from ingero_testing.processes import FREE, fleet
from ingero_testing.web import web


def test_page_and_diagnostics_ask_for_the_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret-of-the-page\n")
    page = {"admin_endpoint": FREE, "admin_auth": {"bearer_token_file": str(file)}}
    settings = {"extensions": {"ingero_threshold": page}}
    with fleet(tmp_path / "fleet", settings) as service:
        for path in ("/", "/page.js", routes.FLEET_NODES, routes.FLEET_PAGE_EVENTS):
            refused = web.get(service.url("diagnostics", path))
            assert refused.status_code == 401 and refused.headers["www-authenticate"].startswith("Basic")
            assert web.get(service.url("diagnostics", path), auth=("any", "wrong")).status_code == 401
        assert "<html" in web.get(service.url("diagnostics", "/"), auth=("any", "secret-of-the-page")).text
        by_program = {"authorization": "Bearer secret-of-the-page"}
        assert web.get(service.url("diagnostics", "/"), headers=by_program).status_code == 200


def test_without_tokens_no_page_of_another_host_reads_the_answers(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret-of-the-api\n")
    by_token = {
        "extensions": {"ingero_threshold": {"agent_endpoint": FREE, "auth": {"bearer_token_file": str(token)}}}
    }
    pages = {
        "threshold": "/openapi.json", "diagnostics": "/", "health": routes.FLEET_HEALTH, "telemetry": "/metrics",
    }  # fmt: skip
    with fleet(tmp_path / "open") as service:
        for name, path in pages.items():
            url = service.url(name, path)
            for fields in ({"host": "rebound.example.com"}, {"origin": "https://elsewhere.example.com"}):
                refused = web.get(url, headers=fields)
                assert (refused.status_code, refused.text) == (403, "without tokens only loopback names are served\n")
            assert web.get(url, headers={"host": "localhost:1"}).status_code in (200, 503)
    with fleet(tmp_path / "guarded", by_token) as service:
        secret = {"host": "fleet.example.com", "authorization": "Bearer secret-of-the-api"}
        assert web.get(service.url("threshold", "/openapi.json"), headers=secret).status_code == 200


@pytest.mark.parametrize(
    ("header", "bearer"),
    [
        (None, None), ("Bearer a", "Bearer a"), ("Basic dTpwOnE=", "Bearer p:q"), ("basic dTpw", "Bearer p"),
        ("Basic !", None), ("Basic dQ==", None), ("Basic /w==", None), ("", ""),
    ],
)  # fmt: skip
def test_a_password_is_read_as_the_token(header: str | None, bearer: str | None) -> None:
    assert as_bearer(header) == bearer
