"""What is done with a spec that cannot be read: existing taints are kept or removed, and none is set."""

from typing import Any

import pytest

from ingero_operator.api.v1alpha1 import FleetClusterSpec, Mode
from ingero_operator.errors import ReconcileError
from ingero_operator.resources import parse, readable_spec

GOOD = {
    "clusterId": "c",
    "agents": {"nodeSelector": {"pool": "a"}},
    "taints": {"mode": "PreferNoSchedule", "recoverFor": "1m"},
}


@pytest.mark.parametrize(
    ("change", "mode", "selector", "cluster"),
    [
        ({"fleet": {"pushInterval": "soon"}}, Mode.PREFER_NO_SCHEDULE, {"pool": "a"}, "c"),
        ({"unheardOf": 1}, Mode.PREFER_NO_SCHEDULE, {"pool": "a"}, "c"),
        ({"clusterId": "not a name"}, Mode.PREFER_NO_SCHEDULE, {"pool": "a"}, "unreadable"),
        ({"clusterId": None}, Mode.PREFER_NO_SCHEDULE, {"pool": "a"}, "unreadable"),
        ({"taints": {"mode": "NoSchedule", "ttl": "for ever"}}, Mode.NO_SCHEDULE, {"pool": "a"}, "c"),
        ({"taints": 5, "fleet": 5}, Mode.NO_SCHEDULE, {"pool": "a"}, "c"),
    ],
)
def test_what_can_be_read_counts_and_nothing_new_is_tainted(
    change: dict[str, Any], mode: Mode, selector: dict[str, str], cluster: str
) -> None:
    spec = readable_spec({"spec": {**GOOD, **change}}, "spec.x: wrong")

    assert (spec.taints.mode, spec.agents.node_selector, spec.cluster_id) == (mode, selector, cluster)
    assert spec.taints.pause_requests == ("spec.x: wrong",)


@pytest.mark.parametrize("tree", [None, {}, {"clusterId": []}])
def test_a_spec_without_anything_is_borne(tree: Any) -> None:
    assert readable_spec({"spec": tree}, "x").taints.mode is Mode.OBSERVE


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"agents": {"nodeSelector": {"a b": "c"}}}, "spec.agents.nodeSelector: 'a b' cannot be the key of a label"),
        ({"fleet": {"pushInterval": "soon"}}, "spec.fleet.pushInterval: String should match"),
    ],
)
def test_the_message_names_the_field_and_a_key_that_the_schema_cannot_check(
    change: dict[str, Any], words: str
) -> None:
    error = parse(FleetClusterSpec, {"spec": {**GOOD, **change}})

    assert isinstance(error, ReconcileError)
    assert error.message.startswith(words)
