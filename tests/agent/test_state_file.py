"""`ingero-agent healthy`: a status and a reason from the state that the agent wrote, and never a wait."""

import asyncio
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ingero_agent.app import fleet_push
from ingero_agent.cli import main
from ingero_agent.settings import AgentSettings
from ingero_agent.state_file import (
    NodeStatus,
    UnreadableState,
    check_node,
    judge_state,
    read_state,
    state_valid_seconds,
    write_state,
)

NOW = 1_800_000_000.0
STATE: dict[str, Any] = {
    "written_at": NOW, "valid_seconds": 30.0, "phase": "active", "straggler": False, "detection_mode": "fleet",
    "decision_source": "verdict", "verdict": "healthy", "fleet_reachable": True, "score": 0.5,
    "weakest_signal": "throughput", "throttled": [],
}  # fmt: skip


def status(**changes: Any) -> NodeStatus:
    return judge_state(STATE | changes, NOW).status


def test_a_straggler_is_named_with_fleets_reason() -> None:
    verdict = "straggler;kind=slow;since=1799999000;severity=0.41"

    found = judge_state(STATE | {"straggler": True, "verdict": verdict, "throttled": ["thermal"]}, NOW)

    assert found.status is NodeStatus.STRAGGLER
    assert found.reason == (
        "straggler by Fleet's verdict: slow, 41% of its rate lost, since 2027-01-15T07:43:20.000Z, "
        "score 0.50, weakest signal throughput, throttled: thermal"
    )


@pytest.mark.parametrize("phase", ["calibrating", "active", "idle"])
def test_without_a_straggler_every_phase_is_healthy(phase: str) -> None:
    assert status(phase=phase) is NodeStatus.HEALTHY
    assert "Fleet cannot be reached" in judge_state(STATE | {"fleet_reachable": False}, NOW).reason


def test_a_node_that_its_job_waits_for_is_a_straggler() -> None:
    assert status(verdict="healthy;collectives=late_rank") is NodeStatus.STRAGGLER


@pytest.mark.parametrize("mode", ["local-baseline", "local-cached", "fleet-cached"])
def test_what_the_agent_finds_alone_is_not_enough(mode: str) -> None:
    assert status(straggler=True, detection_mode=mode, verdict=None) is NodeStatus.UNKNOWN


@pytest.mark.parametrize(
    "changes",
    [
        {"written_at": NOW - 31}, {"written_at": NOW + 61}, {"written_at": float("nan")}, {"written_at": "x"},
        {"written_at": float("inf")}, {"written_at": -1e300}, {"phase": "stale"}, {"phase": "?"}, {"verdict": 5},
        {"detection_mode": None}, {"straggler": True, "score": []},
    ],
)  # fmt: skip
def test_old_and_unreadable_states_say_nothing(changes: dict[str, Any]) -> None:
    assert status(**changes) is NodeStatus.UNKNOWN


def test_a_missing_field_is_unknown() -> None:
    for name in ("written_at", "valid_seconds", "phase", "straggler", "detection_mode", "verdict"):
        left = {key: value for key, value in STATE.items() if key != name}
        assert judge_state(left, NOW).status is NodeStatus.UNKNOWN


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 2}', b"\xff", b"[" * 60_000, b" " * 70_000])
def test_a_damaged_file_is_unknown(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_bytes(content)

    assert check_node(tmp_path / "state.json", NOW).status is NodeStatus.UNKNOWN


def test_nothing_that_lies_at_the_path_makes_it_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name in ("fifo", "socket", ".", "missing"):
            with pytest.raises(UnreadableState):
                read_state(tmp_path / name)


def test_a_state_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "state.json").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        write_state(tmp_path / "state.json", STATE, 0, 1)

    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]


def test_a_state_outlives_three_polls_and_what_fleet_asked_to_wait() -> None:
    assert state_valid_seconds(1, 1, 0) == 30
    assert state_valid_seconds(10, 5, 20) == 70


def test_the_command_answers_with_status_and_reason(tmp_path: Path) -> None:
    file, now = tmp_path / "state.json", time.time()
    flags = ["healthy", "--state-file", str(file)]
    absent = CliRunner().invoke(main, flags)
    write_state(file, STATE | {"straggler": True}, now, 3600)
    named = CliRunner().invoke(main, [*flags, "--json"])
    write_state(file, STATE, now, 3600)
    healthy = CliRunner().invoke(main, ["healthy"], env={"INGERO_AGENT_STATE_FILE": str(file)})

    assert [absent.exit_code, named.exit_code, healthy.exit_code] == [3, 1, 0]
    assert absent.output.startswith("unknown: ") and absent.output.count("\n") == 1
    assert json.loads(named.output)["status"] == "straggler"
    assert healthy.output == "healthy: active, no straggler\n"


def test_the_agent_writes_its_state_and_takes_it_away_when_it_ends(tmp_path: Path) -> None:
    file = tmp_path / "run" / "state.json"
    config = AgentSettings(
        fleet_endpoint="127.0.0.1:1", fleet_insecure=True, fleet_cluster_id="c", fleet_node_id="n", stub=True,
        detect_provider=False, fleet_persist_path=tmp_path / "baseline.json", state_file=file, fleet_timeout=0.1,
    )  # fmt: skip

    async def run() -> dict[str, Any]:
        agent = asyncio.create_task(fleet_push(config))
        while not file.exists():
            await asyncio.sleep(0.01)
        state = read_state(file)
        agent.cancel()
        await asyncio.gather(agent, return_exceptions=True)
        return state

    state = asyncio.run(asyncio.wait_for(run(), 30))

    assert (state["node"], state["cluster"], state["phase"], state["straggler"]) == ("n", "c", "calibrating", False)
    assert judge_state(state, time.time()).status is NodeStatus.HEALTHY
    assert not file.exists()
