"""Fleet's verdict on the network as a condition."""

from typing import Any

import pytest

from ingero_operator.conditions import Condition
from ingero_operator.network_health import network_healthy, parse_network
from ingero_operator.workloads import stuck

SINCE = "2026-08-02T10:00:00Z"
NIC, LEAF = {"kind": "nic", "name": "node-1/mlx5_0"}, {"kind": "switch", "name": "leaf-0"}


def shown(verdict: dict[str, Any] | None, compared: int = 96) -> Condition:
    found = network_healthy(parse_network({"compared": compared, "verdict": verdict}))
    assert found is not None and stuck([found]) == []
    return found


def verdict(elements: list[Any], possible: list[list[Any]]) -> dict[str, Any]:
    return {"since": SINCE, "kind": "nic", "why": "", "elements": elements, "possible": possible}


def test_the_slow_part_is_named_with_its_begin() -> None:
    found = shown(verdict([NIC], []))

    assert (found.status, found.reason) == ("False", "SlowPart")
    assert f"slow since {SINCE}: nic node-1/mlx5_0." in found.message


def test_a_cause_that_is_not_certain_lists_what_remains() -> None:
    found = shown(verdict([], [[NIC, LEAF], [LEAF]]))

    assert (found.status, found.reason) == ("Unknown", "CauseUnknown")
    assert found.message.endswith("one of nic node-1/mlx5_0, switch leaf-0")
    assert shown(verdict([], [])).message.endswith("nothing in the topology explains it")
    many = [[{"kind": "nic", "name": f"node-{number}/mlx5_0"} for number in range(20)]]
    assert shown(verdict([], many)).message.endswith("node-7/mlx5_0 and 12 more")


def test_without_a_slow_part_it_says_whether_anything_was_compared() -> None:
    assert shown(None).holds
    assert (shown(None, 0).status, shown(None, 0).reason) == ("Unknown", "NothingCompared")


def test_a_network_of_which_nodes_are_missing_is_not_known_to_be_well() -> None:
    def said(names: list[str], count: int, compared: int = 96, **more: Any) -> Condition:
        answer = {"compared": compared, "missing_nodes": names, "missing_node_count": count, **more}
        found = network_healthy(parse_network(answer))
        assert found is not None
        return found

    assert (said(["n-7"], 1).status, said(["n-7"], 1, 0).reason) == ("Unknown", "NodesMissing")
    assert "the topology lacks n-7: " in said(["n-7"], 1).message
    assert "n-7 and 299 more: " in said([f"n-{number}" for number in range(32)], 307).message
    assert said(["n-7"], 1, verdict=verdict([NIC], [])).reason == "SlowPart"


@pytest.mark.parametrize("payload", [None, [], {}, {"compared": -1}, {"compared": 1, "verdict": {"elements": 3}}])
def test_without_a_topology_or_a_readable_answer_there_is_no_condition(payload: Any) -> None:
    assert network_healthy(parse_network(payload)) is None
