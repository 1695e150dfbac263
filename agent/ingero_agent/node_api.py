"""The questions about this node that the agent answers over HTTP and MCP, and the listener for other machines."""

from pathlib import Path
from typing import Any, Final

from ingero_agent.explain_api import EXPLAIN_PATH, ApiAccess, ExplainApi, TraceReader, causes
from ingero_agent.loop import PushLoop
from ingero_agent.push import FleetClient
from ingero_agent.settings import AgentSettings
from ingero_agent.state_writer import node_state
from ingero_agent.trace.queries import Filter, open_database, read_stacks
from ingero_contract import routes
from ingero_http.http1.messages import Handler
from ingero_http.sockets import format_address
from ingero_kit.addresses import parse_listen
from ingero_kit.extras import pip_command
from ingero_kit.logs import get
from ingero_kit.metrics_server import PageServer
from ingero_kit.settings import SettingsError
from ingero_kit.tls import ServerTls

log = get(__name__)

MAX_STACKS: Final = 100
"""Most call stacks of an answer."""


def recent_stacks(file: Path, pid: int | None, now: float, seconds: float) -> dict[str, Any]:
    """The sampled call stacks of a time window."""
    wanted = Filter(begin=now - seconds, end=now, pid=pid, limit=MAX_STACKS)
    with open_database(file) as database:
        found = read_stacks(database, wanted)
    return {
        "stacks": [
            {"pid": one.pid, "at": one.at_ns / 1e9, "share": one.share, "samples": one.samples, "frames": one.frames}
            for one in found
        ]
    }


class NodeApi:
    """Makes the pages of one agent for its listeners. One database is read at a time, whatever listener asks."""

    def __init__(self, config: AgentSettings, health: PushLoop, client: FleetClient) -> None:
        self._config, self._health, self._client = config, health, client
        self._reader = TraceReader(config)

    def pages(self, listen: str) -> dict[bytes, Handler]:
        """The pages for a listener. Raises `SettingsError`."""
        access = ApiAccess(listen, self._config.explain_token_file)
        pages: dict[bytes, Handler] = {EXPLAIN_PATH: ExplainApi(access, self._reader).answer}
        if self._config.mcp:
            pages[routes.AGENT_MCP.encode()] = self._mcp(access)
        return pages

    def serve(self) -> PageServer:
        """Serve the pages alone at `api_listen`, with TLS where it is set. Raises `OSError`, `SettingsError`."""
        config = self._config
        tls = None
        if config.api_tls_cert and config.api_tls_key:
            tls = ServerTls(cert_file=config.api_tls_cert, key_file=config.api_tls_key)
        address = parse_listen(config.api_listen)
        server = PageServer(address, self.pages(config.api_listen), tls, "api")
        log.info("api_listening", address=format_address(address[0], server.port), tls=tls is not None)
        return server

    def _mcp(self, access: ApiAccess) -> Handler:
        try:
            from ingero_agent.mcp_api import AgentTool, McpApi
        except ImportError as error:
            raise SettingsError(f"--mcp: {error}: {pip_command('agent-mcp')}") from None

        async def state(_: object) -> dict[str, Any]:
            return node_state(self._health, self._client)

        async def chains(_: object) -> dict[str, Any]:
            return {"chains": list(self._health.chains.latest) if self._health.chains else []}

        tools = {
            "state": AgentTool("Whether this node straggles now, by whose decision, and its signals.", state),
            "explain": AgentTool(
                "Why jobs were slow on this node: causes with evidence and advice.",
                lambda since: self._reader.read(since, causes), takes_since=True,
            ),
            "chains": AgentTool("The last causal chains that were sent to Fleet and Echo, newest last.", chains),
            "stacks": AgentTool(
                "Call stacks of a late rank, sampled while its job waited for it.",
                lambda since: self._reader.read(since, recent_stacks), takes_since=True,
            ),
        }  # fmt: skip
        return McpApi(access, tools).answer
