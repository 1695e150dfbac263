"""The state file of `fleet-push`, and what `ingero-agent healthy` makes of it. Judging is pure."""

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

from ingero_agent.health.phase import Phase
from ingero_contract.values import DetectionMode
from ingero_contract.verdicts import parse_verdict
from ingero_kit.clock import rfc3339
from ingero_kit.files import replacing

DEFAULT_PATH: Final = Path("/run/ingero/state.json")
VERSION: Final = 1
MAX_BYTES: Final = 64 << 10
MAX_AHEAD: Final = 60.0
"""How far ahead of the reader's clock a state may have been written, seconds."""


class NodeStatus(IntEnum):
    """Exit statuses of `ingero-agent healthy`."""

    HEALTHY = 0
    STRAGGLER = 1
    UNKNOWN = 3


@dataclass(frozen=True)
class NodeHealth:
    """The status of the node, and why in one line."""

    status: NodeStatus
    reason: str


class UnreadableState(Exception):
    """The state cannot be read; the text says why."""


def write_state(file: Path, state: Mapping[str, Any], now: float, valid_seconds: float) -> None:
    """Replace the state file; readers see the old or the new one. Raises `OSError`."""
    tree = {**state, "version": VERSION, "written_at": now, "valid_seconds": valid_seconds}
    with replacing(file) as part:
        part.write_text(json.dumps(tree))
        part.chmod(0o644)


def read_state(file: Path) -> dict[str, Any]:
    """The content of a state file. Waits for nothing, whatever the path is. Raises `UnreadableState`."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UnreadableState(f"{file} is no file")
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise UnreadableState(f"{file} is missing: does ingero-agent run with --state-file?") from None
    except OSError as error:
        raise UnreadableState(f"{file}: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise UnreadableState(f"{file} is larger than {MAX_BYTES} bytes")
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        raise UnreadableState(f"{file} holds no JSON") from None
    if not isinstance(tree, dict) or tree.get("version") != VERSION:
        raise UnreadableState(f"{file} is no state file of this version")
    return tree


def judge_state(state: Mapping[str, Any], now: float) -> NodeHealth:
    """The node's health by a state. Only what Fleet finds makes a straggler: without it nobody compares the node with
    its peers."""
    try:
        age = now - float(state["written_at"])
        if not -MAX_AHEAD <= age <= float(state["valid_seconds"]):
            written = rfc3339(float(state["written_at"]))
            return NodeHealth(NodeStatus.UNKNOWN, f"the agent wrote its state last at {written}")
        return _judge_current(state)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        return NodeHealth(NodeStatus.UNKNOWN, f"the state cannot be read: {error}")


def _judge_current(state: Mapping[str, Any]) -> NodeHealth:
    phase, by_fleet = Phase(state["phase"]), DetectionMode(state["detection_mode"]) is DetectionMode.FLEET
    verdict = parse_verdict(state["verdict"]) if state["verdict"] else None
    if phase is Phase.STALE:
        return NodeHealth(NodeStatus.UNKNOWN, "the agent cannot read its signals")
    if state["straggler"] and not by_fleet:
        why = f"straggler by the agent's own finding ({state['detection_mode']}), which Fleet does not confirm"
        return NodeHealth(NodeStatus.UNKNOWN, why)
    if state["straggler"]:
        return NodeHealth(NodeStatus.STRAGGLER, f"straggler by Fleet's {state['decision_source']}: {_facts(state)}")
    if by_fleet and verdict is not None and verdict.collectives:
        return NodeHealth(
            NodeStatus.STRAGGLER, f"the collectives of the job wait for this node: {verdict.collectives}"
        )
    away = "" if state["fleet_reachable"] else "; Fleet cannot be reached"
    return NodeHealth(NodeStatus.HEALTHY, f"{phase}, no straggler{away}")


def _facts(state: Mapping[str, Any]) -> str:
    verdict = parse_verdict(state["verdict"]) if state["verdict"] else None
    facts = [str(verdict.kind or verdict.state)] if verdict else []
    if verdict and verdict.severity is not None:
        facts.append(f"{verdict.severity:.0%} of its rate lost")
    if verdict and verdict.since is not None:
        facts.append(f"since {rfc3339(verdict.since)}")
    if state.get("score") is not None:
        facts.append(f"score {float(state['score']):.2f}, weakest signal {state.get('weakest_signal')}")
    if state.get("throttled"):
        facts.append(f"throttled: {', '.join(map(str, state['throttled']))}")
    return ", ".join(facts) or "no details"


def state_valid_seconds(interval: float, timeout: float, retry_after: float) -> float:
    """How long a state describes the present: three polls, each with slow answers of Fleet, and the wait it asked
    for."""
    return max(30.0, 3 * interval + 4 * timeout + retry_after)


def check_node(file: Path, now: float) -> NodeHealth:
    """The node's health by a state file."""
    try:
        return judge_state(read_state(file), now)
    except UnreadableState as error:
        return NodeHealth(NodeStatus.UNKNOWN, str(error))
