"""The agent answers questions about its node over MCP: on the loopback, or over TLS to who has a token."""

import asyncio
import json
import ssl
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trustme
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from ingero_agent.settings import AgentSettings
from ingero_agent.trace.counts import CallCount
from ingero_agent.trace.probes.table import SCHED_SWITCH
from ingero_agent.trace.stacks import CallStack
from ingero_agent.trace.store import TraceStore
from ingero_contract import routes
from ingero_testing.processes import BIN, process, wait_until


def database(folder: Path) -> Path:
    """A process has waited for a processor, and its stacks were sampled."""
    file, now = folder / "trace.db", time.time()
    store = TraceStore(file)
    store.add([CallCount(SCHED_SWITCH, 7, 10, 200 * 10**9)], now - 10, {7: "train"})
    stack = CallStack(
        at_ns=int((now - 5) * 1e9), pid=7, frames=("main", "load"), samples=9, nanoseconds=90, sampled_ns=100
    )
    store.stacks([stack])
    store.close()
    return file


def command(folder: Path, *flags: object) -> list[str]:
    return [
        str(BIN / "ingero-agent"), "fleet-push", "--signal-db-path", str(database(folder)), "--no-detect-provider",
        "--fleet-endpoint", "127.0.0.1:1", "--fleet-insecure", "--fleet-cluster-id", "c", "--fleet-node-id", "n",
        "--fleet-persist-path", str(folder / "baseline.json"), "--ports-file", str(folder / "ports.json"),
        "--mcp", *map(str, flags),
    ]  # fmt: skip


def port(folder: Path, name: str) -> int:
    file = folder / "ports.json"
    wait_until(file.exists, "the port")
    return int(json.loads(file.read_text())[name])


async def ask_all(url: str, http: httpx2.AsyncClient) -> tuple[set[str], dict[str, Any], str]:
    """The tools, the structured answer of each, and the error of a duration that is not valid."""
    async with http, Client(streamable_http_client(url, http_client=http)) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        answers = {name: (await client.call_tool(name, {})).structured_content for name in sorted(tools)}
        wrong = await client.call_tool("explain", {"since": "1s"})
        assert wrong.is_error
        return tools, answers, str(wrong.content[0])


def test_an_mcp_client_learns_the_state_the_causes_and_the_stacks_over_tls(tmp_path: Path) -> None:
    authority, tokens = trustme.CA(), tmp_path / "tokens"
    tokens.write_text("secret\n")
    certificate = authority.issue_cert("localhost")
    certificate.private_key_pem.write_to_path(tmp_path / "tls.key")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    flags = [
        "--api-listen", ":0", "--api-tls-cert", tmp_path / "tls.crt", "--api-tls-key", tmp_path / "tls.key",
        "--explain-token-file", tokens,
    ]  # fmt: skip
    with process(tmp_path / "log", *command(tmp_path, *flags)):
        url = f"https://localhost:{port(tmp_path, 'api')}"
        trusted = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
        with httpx2.Client(verify=trusted) as stranger:
            asked = stranger.post(url + routes.AGENT_MCP), stranger.get(url + routes.AGENT_EXPLAIN)
            refused = [one.status_code for one in asked]
            absent = stranger.get(f"{url}/metrics").status_code
        http = httpx2.AsyncClient(verify=trusted, headers={"authorization": "Bearer secret"})
        tools, answers, wrong = asyncio.run(asyncio.wait_for(ask_all(url + routes.AGENT_MCP, http), 60))

    assert (refused, absent) == ([401, 401], 404)
    assert tools == {"state", "explain", "chains", "stacks"}
    assert {"cpu-starved", "late-rank-stack"} == {one["kind"] for one in answers["explain"]["findings"]}
    assert answers["explain"]["node_id"] == "n"
    assert answers["stacks"]["stacks"][0]["frames"] == ["main", "load"]
    assert answers["state"]["straggler"] is False
    assert answers["chains"] == {"chains": []}
    assert "from 10s to 1h" in wrong


def test_on_the_loopback_pages_of_other_hosts_get_nothing(tmp_path: Path) -> None:
    with process(tmp_path / "log", *command(tmp_path, "--metrics-listen", "127.0.0.1:0")):
        url = f"http://127.0.0.1:{port(tmp_path, 'metrics')}{routes.AGENT_MCP}"
        tools, *_ = asyncio.run(asyncio.wait_for(ask_all(url, httpx2.AsyncClient()), 60))
        with httpx2.Client() as client:
            rebound = client.post(url, headers={"host": "rebound.example"})
            rubbish = client.post(url, content=b"{", headers={"content-type": "application/json"})
            reading = client.get(url)

    assert "explain" in tools
    assert (rebound.status_code, reading.status_code) == (403, 405)
    assert 400 <= rubbish.status_code < 500


@pytest.mark.parametrize(
    "given", [{}, {"api_tls_cert": "c", "api_tls_key": "k"}, {"explain_token_file": "t"}, {"api_tls_cert": "c"}]
)
def test_other_machines_need_tls_and_a_token(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="api_"):
        AgentSettings.model_validate(
            {"fleet_endpoint": "x:1", "fleet_cluster_id": "c", "stub": True, "api_listen": ":9467", **given}
        )
