"""Prints Fleet's HTTP API: its OpenAPI document, and a page of it."""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from ingero_fleet.api import admin_api, agent_api
from ingero_fleet.plain_pages import Pages, health_pages
from ingero_kit.otlp_receiver import Authenticator

NOTE: Final = "<!-- Printed by `make generate` from the code; edit the docstrings there. -->"


def _documents() -> dict[int, dict[str, Any]]:
    """The OpenAPI documents by port. The services of the applications are not used: only their routes are read."""
    unused: Any = None
    some_tokens: Any = ()
    nobody = Authenticator(some_tokens)
    return {
        8080: agent_api(unused, nobody, unused, unused, dict, dict).openapi(),
        8081: admin_api(unused, unused, unused, nobody).openapi(),
        8088: _described(health_pages(lambda: (True, {}), nobody)),
    }


def _described(pages: Pages) -> dict[str, Any]:
    """The paths of plain pages, of which the function's name and docstring tell everything."""
    responses = {"200": {"description": "Successful Response"}, "503": {"description": "Not healthy"}}
    return {
        "paths": {
            path: {
                "get": {
                    "description": page.__doc__, "operationId": page.__name__, "responses": responses,
                    "summary": page.__name__.capitalize(),
                }
            }
            for path, page in pages.items()
        }
    }  # fmt: skip


def openapi() -> str:
    """docs/fleet-openapi.json: one document for all ports."""
    merged: dict[str, Any] = {}
    for port, document in _documents().items():
        merged = merged or {**document, "info": {"title": "ingero Fleet", "version": "1"}, "paths": {}}
        for path, operations in document["paths"].items():
            operations["servers"] = [{"url": f"http://127.0.0.1:{port}"}]
            merged["paths"][path] = operations
    merged["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    merged["security"] = [{"bearer": []}, {}]
    return json.dumps(merged, indent=1, sort_keys=True) + "\n"


def _rows(port: int, document: dict[str, Any]) -> Iterator[str]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            names = [
                f"**`{item['name']}`**" if item["required"] else f"`{item['name']}`"
                for item in operation.get("parameters", [])
            ]
            text = " ".join(operation.get("description", "").split())
            yield f"| {port} | `{method.upper()} {path}` | {', '.join(names) or '–'} | {text} |"


def page() -> str:
    """docs/fleet-api.md"""
    rows = [row for port, document in _documents().items() for row in _rows(port, document)]
    return "\n".join(
        [
            "# Fleet's HTTP API",
            NOTE,
            "",
            "Answers are JSON. Required parameters are bold. Where tokens are configured, each request needs",
            "`Authorization: Bearer TOKEN`; browsers send the token of port 8081 as the password. Names may be added",
            "to answers: ignore those that you do not know.",
            "",
            "| port | path | parameters | answer |",
            "| --- | --- | --- | --- |",
            *rows,
            "",
            "Statuses: 200; 400 and 404 name what is wrong with a node; 401 a token is missing or wrong; 422 a",
            "parameter is missing or invalid, `detail` says which; 503 before the first statistics.",
            "",
            "The [OpenAPI document](fleet-openapi.json) has all of it; ports 8080 and 8081 serve their part of it at",
            "`/openapi.json`. [Architecture](architecture.md) lists the other ports. Echo describes its API at",
            "`/api/v2/openapi.json`, and its questions are on [a page of their own](questions.md).",
            "",
        ]
    )


DOCUMENTS: Final[dict[str, Callable[[], str]]] = {"docs/fleet-api.md": page, "docs/fleet-openapi.json": openapi}
