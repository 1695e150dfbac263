"""The state of the node, as it is answered and written into the state file after every decision."""

from pathlib import Path
from typing import Any

from ingero_agent.loop import PushLoop
from ingero_agent.push import FleetClient
from ingero_agent.settings import AgentSettings
from ingero_agent.state_file import state_valid_seconds, write_state
from ingero_contract.signals import RATIOS
from ingero_kit.clock import Clock
from ingero_kit.write_watch import WriteWatch


def node_state(health: PushLoop, client: FleetClient) -> dict[str, Any]:
    """The node now: the agent's classification, Fleet's verdict, and the signals behind them."""
    latest, verdict = health.latest, client.response.verdict
    state: dict[str, Any] = {
        "phase": str(health.phase.phase), "straggler": health.straggler, "detection_mode": str(health.rule.mode),
        "decision_source": str(health.rule.source), "threshold": health.rule.threshold,
        "fleet_reachable": client.response.reachable, "verdict": verdict.format() if verdict else None,
        "throttled": sorted(health.throttling.active),
    }  # fmt: skip
    if latest:
        state |= {
            "score": latest.score.value, "throughput_per_second": latest.observation.rate,
            "signals": {str(name): getattr(latest.observation, name) for name in RATIOS},
            "weakest_signal": str(latest.score.dominant), "gpus": latest.gpus.count,
        }  # fmt: skip
    return state


class StateWriter:
    """Writes the state of one loop. A failure is logged once and delays nothing."""

    def __init__(
        self, file: Path, config: AgentSettings, health: PushLoop, client: FleetClient, clock: Clock
    ) -> None:
        self._file, self._config, self._health, self._client, self._clock = file, config, health, client, clock
        self._watch = WriteWatch("state", file)

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
            self._watch.failed(error)
        else:
            self._watch.succeeded()
