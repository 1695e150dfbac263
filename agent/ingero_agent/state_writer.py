"""Writes the state file after every decision."""

from pathlib import Path

from ingero_agent.loop import PushLoop
from ingero_agent.node_api import node_state
from ingero_agent.push import FleetClient
from ingero_agent.settings import AgentSettings
from ingero_agent.state_file import state_valid_seconds, write_state
from ingero_kit.clock import Clock
from ingero_kit.logs import get

log = get(__name__)


class StateWriter:
    """Writes the state of one loop. A failure is logged once and delays nothing."""

    def __init__(
        self, file: Path, config: AgentSettings, health: PushLoop, client: FleetClient, clock: Clock
    ) -> None:
        self._file, self._config, self._health, self._client, self._clock = file, config, health, client, clock
        self._failed = False

    def write(self) -> None:
        """Replace the file."""
        node, verdict = self._health.identity, self._health.rule.verdict
        state = {
            "node": node.node_id, "cluster": node.cluster_id, "job": node.job_id,
            **node_state(self._health, self._client), "verdict": verdict.format() if verdict else None,
        }  # fmt: skip
        config = self._config
        valid = state_valid_seconds(config.fleet_push_interval, config.fleet_timeout, self._client.retry_after)
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_state(self._file, state, self._clock(), valid)
        except OSError as error:
            if not self._failed:
                log.warning("state_not_written", file=str(self._file), reason=str(error))
            self._failed = True
        else:
            self._failed = False
