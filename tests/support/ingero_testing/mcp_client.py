"""Calls of an MCP server, with the official client."""

from typing import Any

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from ingero_contract import echo


def call(url: str, *tools: tuple[str, dict[str, Any]], token: str = "") -> list[Any]:
    """The results of tools, in order; `list`, `prompt` and `resource` stand for the other requests."""
    results: list[Any] = []

    async def talk() -> None:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=30) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            for name, arguments in tools:
                if name == "list":
                    results.append(await client.list_tools())
                elif name == "prompt":
                    results.append(await client.get_prompt(echo.INVESTIGATE, arguments))
                elif name == "resource":
                    results.append(await client.read_resource("echo://schema"))
                else:
                    results.append(await client.call_tool(name, arguments))

    anyio.run(talk)
    return results
