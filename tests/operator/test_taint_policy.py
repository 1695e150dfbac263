"""The policy checks, one by one, then over long random histories in which they are the invariants."""

import json
import marshal
import math
import random
import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import pytest

from ingero_contract.values import SLOW_FROM_START
from ingero_operator.api.v1alpha1 import Budget, Mode, Taints
from ingero_operator.taints import patches
from ingero_operator.taints.model import Accused, ClusterObservation, Decision, Evidence
from ingero_operator.taints.nodes import EFFECTS, STRENGTH, NodeView, StragglerTaint, node_view, remover
from ingero_operator.taints.policy import decide
from ingero_operator.taints.removals import note_releases
from ingero_operator.taints.state import DAY, NodeTaintRecord, TaintState, from_status, to_status
from ingero_operator.taints.tracking import after_attempt, after_write

NOW = 1_700_000_000.0


def changed(policy: Taints, **update: Any) -> Taints:
    return policy.model_copy(update=update)


QUICK = changed(Taints(), mode=Mode.NO_SCHEDULE, confirm_windows=1, confirm_for="0s")


def fleet(count: int = 20, **change: Any) -> dict[str, NodeView]:
    nodes = [
        NodeView(name=f"n{number:02}", uid=f"u{number}", labels={}, created=NOW - DAY) for number in range(count)
    ]
    return {node.name: replace(node, **change) for node in nodes}


def says(*names: str, tick: str = "1", now: float = NOW, **change: Any) -> Evidence:
    accused = {name: Accused(active=True, windows=100, score=0.4, threshold=0.7) for name in names}
    return replace(Evidence(tick=tick, received=now, accused=accused), **change)


def observed(nodes: dict[str, NodeView], evidence: Evidence | None, **change: Any) -> ClusterObservation:
    return replace(ClusterObservation(owner="fc", nodes=nodes, watched=frozenset(nodes), evidence=evidence), **change)


def decided(policy: Taints = QUICK, nodes: dict[str, NodeView] | None = None, state: TaintState | None = None,
         *, evidence: Evidence | None = None, now: float = NOW, **change: Any) -> Decision:  # fmt: skip
    return decide(policy, observed(nodes or fleet(), evidence or says("n03"), **change), state or TaintState(), now)


def tainted(node: NodeView, effect: str = "NoSchedule", **change: Any) -> NodeView:
    taint = StragglerTaint(
        owner="fc", verdict="0" * 8, effect=effect, since=NOW, expires=NOW + DAY, node_uid=node.uid
    )
    return replace(node, taint=replace(taint, **change))


def check(decision: Decision, node: str = "n03") -> str:
    return next(result.check for result in decision.checks if result.node == node)


def test_a_confirmed_straggler_is_tainted_with_its_evidence() -> None:
    (step,) = decided().steps

    assert (step.verb, step.node, step.uid) == ("add", "n03", "u3")
    assert step.taint is not None
    assert (step.taint.effect, step.taint.score, step.taint.threshold) == ("NoSchedule", 0.4, 0.7)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"policy": changed(QUICK, mode=Mode.OBSERVE)}, "Observing"),
        ({"paused": "alice: maintenance"}, "Paused"),
        ({"node_policy_missing": "no policy"}, "NodePolicyMissing"),
        ({"deleting": True}, "Deleting"),
        ({"evidence": says("n03", now=NOW - 30)}, "StaleEvidence"),
        ({"evidence": says("n03", log_problem="NATS does not answer")}, "LogNotReady"),
        ({"evidence": says("n03", quorum=False)}, "NoQuorum"),
        ({"evidence": says("n03", panic=True)}, "Panic"),
        ({"evidence": says("n03", coverage_low=True)}, "LowCoverage"),
        ({"evidence": says("n03", threshold=False)}, "NoThreshold"),
        ({"policy": changed(QUICK, budget=Budget(max_nodes=0))}, "NoBudget"),
        ({"nodes": fleet(9)}, "NoBudget"),
        ({"evidence": says("n00", "n01", "n02", "n03", "n04")}, "Storm"),
        ({"state": TaintState(storm_until=NOW + 1)}, "Storm"),
    ],
)
def test_a_policy_check_of_the_cluster_stops_everything(change: dict[str, Any], reason: str) -> None:
    decision = decided(**change)

    assert decision.steps == ()
    assert (decision.allowed.status, decision.allowed.reason) == ("False", reason)


@pytest.mark.parametrize(
    ("change", "check_shown"),
    [
        ({}, "Observing"),
        ({"paused": "alice: maintenance"}, "Paused"),
        ({"evidence": says("n00", "n01", "n02", "n03", "n04")}, "Storm"),
        ({"nodes": fleet(9)}, "NoBudget"),
        ({"nodes": {name: replace(node, ready=name < "n16") for name, node in fleet().items()}}, "MinHealthy"),
    ],
)
def test_observing_shows_which_check_would_stop_a_taint(change: dict[str, Any], check_shown: str) -> None:
    decision = decided(changed(QUICK, mode=Mode.OBSERVE), **change)

    assert (decision.steps, decision.allowed.reason, check(decision)) == ((), "Observing", check_shown)


def test_without_any_answer_nothing_is_known() -> None:
    decision = decide(QUICK, observed(fleet(), None), TaintState(), NOW)

    assert (decision.steps, decision.allowed.status) == ((), "Unknown")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gpu": False}, "NoGpu"),
        ({"control_plane": True}, "ControlPlane"),
        ({"labels": {"ingero.io/exclude": ""}}, "Excluded"),
        ({"deleting": True}, "Deleting"),
        ({"ready": False}, "NotReady"),
        ({"cordoned": True}, "Cordoned"),
        ({"disrupted": "karpenter.sh/disrupted"}, "Disrupted"),
        ({"remediated": "draino/drain-retry"}, "Remediated"),
        ({"created": NOW - 60}, "TooYoung"),
        ({"foreign": True}, "Foreign"),
    ],
)
def test_a_policy_check_of_the_node_stops_that_node(change: dict[str, Any], reason: str) -> None:
    nodes = fleet()
    nodes["n03"] = replace(nodes["n03"], **change)

    decision = decided(nodes=nodes)

    assert (decision.steps, check(decision)) == ((), reason)


def test_a_node_with_several_agents_is_neither_tainted_nor_kept_tainted_by_what_is_said_of_it() -> None:
    evidence = replace(says("n03"), accused={"n03": replace(says("n03").accused["n03"], several_agents=True)})

    decision = decided(evidence=evidence)
    assert (decision.steps, decision.confirmed, check(decision)) == ((), 0, "SeveralAgents")
    assert not decision.state.accused


def test_a_node_that_was_slow_from_the_start_is_tainted_only_if_the_policy_says_so() -> None:
    finding = replace(says("n03").accused["n03"], kind=SLOW_FROM_START)
    evidence = replace(says("n03"), accused={"n03": finding})

    decision = decided(evidence=evidence)
    assert (decision.steps, decision.confirmed, check(decision)) == ((), 0, "SlowFromStart")
    (step,) = decided(changed(QUICK, slow_from_start=True), evidence=evidence).steps
    assert (step.verb, step.node) == ("add", "n03")


def test_nodes_that_were_slow_from_the_start_make_no_storm() -> None:
    evidence = says("n00", "n01", "n02", "n03", "n04")
    accused = {name: replace(item, kind=SLOW_FROM_START) for name, item in evidence.accused.items() if name != "n03"}
    decision = decided(evidence=replace(evidence, accused={**accused, "n03": evidence.accused["n03"]}))

    assert [step.node for step in decision.steps] == ["n03"]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (NodeTaintRecord(uid="u3", override_cooldown_until=NOW + 1), "HandsOff"),
        (NodeTaintRecord(uid="u3", released=NOW - 60), "Quiet"),
        (NodeTaintRecord(uid="u3", tainted=(NOW - 9000, NOW - 8000, NOW - 7000)), "Flapping"),
    ],
)
def test_what_is_remembered_of_a_node_stops_it(record: NodeTaintRecord, reason: str) -> None:
    decision = decided(state=TaintState(records={"n03": record}))

    assert (decision.steps, check(decision)) == ((), reason)


def test_a_write_without_an_answer_delays_the_next_and_counts_once_however_often_it_is_tried() -> None:
    policy, state = changed(QUICK, interval="10s", max_per_day=1), TaintState()
    for number in range(6):
        now = NOW + 10 * number
        decision = decided(policy, state=state, evidence=says("n03", tick=str(number), now=now), now=now)
        (step,) = decision.steps
        state = after_attempt(decision.state, step, now)

    soon = decided(policy, state=state, evidence=says("n03", tick="a", now=now + 9), now=now + 9)
    assert (soon.steps, check(soon)) == ((), "Rate")
    assert step.taint is not None
    found = fleet() | {"n03": tainted(fleet()["n03"], verdict=step.taint.verdict, since=step.taint.since)}
    after = decided(policy, nodes=found, state=state, evidence=says("n03", tick="b", now=now + 10), now=now + 10)
    assert after.state.records["n03"].tainted == (step.taint.since,)
    gap = decided(policy, state=state, evidence=says(tick="b", now=now + 10), now=now + 10)
    anew = decided(policy, state=gap.state, evidence=says("n03", tick="c", now=now + 20), now=now + 20)
    assert (anew.steps, check(anew)) == ((), "Flapping")


def test_a_node_whose_taint_was_refused_rests_and_gives_way_to_another() -> None:
    decision = decided(evidence=says("n03", "n04"), refused=frozenset({"n03"}))

    assert check(decision) == "Refused"
    assert [(step.verb, step.node) for step in decision.steps] == [("add", "n04")]


def test_what_is_remembered_says_nothing_about_another_machine_of_that_name() -> None:
    decision = decided(
        state=TaintState(records={"n03": NodeTaintRecord(uid="old", override_cooldown_until=NOW + DAY)})
    )

    assert [step.verb for step in decision.steps] == ["add"]


def test_a_verdict_older_than_the_machine_is_void() -> None:
    accused = {"n03": Accused(active=True, since=NOW - 2 * DAY, windows=100)}

    assert check(decided(evidence=replace(says(), accused=accused))) == "Identity"


def test_an_idle_node_is_not_judged() -> None:
    accused = {"n03": Accused(active=False, windows=100)}

    assert check(decided(evidence=replace(says(), accused=accused))) == "NotActive"


def test_two_fleet_clusters_over_one_node_both_keep_off() -> None:
    decision = decided(overlap={"n03": "FleetCluster a/b"})

    assert (decision.steps, check(decision), decision.allowed.reason) == ((), "Overlap", "Overlap")


def test_confirmation_takes_time_and_windows_and_a_break_starts_it_anew() -> None:
    policy = changed(QUICK, confirm_for="60s", confirm_windows=3)
    state, verbs = TaintState(), []
    for number in range(12):
        now = NOW + 10 * number
        evidence = says(*([] if number == 2 else ["n03"]), tick=str(number), now=now)
        decision = decided(policy, state=state, evidence=evidence, now=now)
        state = decision.state
        verbs.append([step.verb for step in decision.steps])

    assert verbs == [[]] * 9 + [["add"]] * 3


def test_the_same_statistics_count_once() -> None:
    policy, state = changed(QUICK, confirm_windows=2), TaintState()
    for _ in range(5):
        decision = decided(policy, state=state)
        state = decision.state

    assert check(decision) == "Confirming"


def test_after_a_restart_a_whole_confirmation_passes_first() -> None:
    policy = changed(QUICK, confirm_for="60s")
    first = decided(policy, evidence=says("n03"))
    later = decided(policy, state=first.state, evidence=says("n03", tick="2", now=NOW + 60), now=NOW + 60)
    restarted = from_status(to_status(first.state))
    anew = decided(policy, state=restarted, evidence=says("n03", tick="2", now=NOW + 60), now=NOW + 60)

    assert [step.verb for step in later.steps] == ["add"] and anew.steps == ()


def test_one_node_at_a_time() -> None:
    decision = decided(evidence=says("n03", "n04"))
    assert [step.node for step in decision.steps] == ["n03"]
    state = after_write(decision.state, decision.steps[0], NOW)
    nodes = fleet() | {"n03": tainted(fleet()["n03"], verdict=decision.steps[0].taint.verdict)}  # type: ignore[union-attr]

    soon = decided(nodes=nodes, state=state, evidence=says("n03", "n04", tick="2", now=NOW + 299), now=NOW + 299)
    later = decided(nodes=nodes, state=state, evidence=says("n03", "n04", tick="2", now=NOW + 300), now=NOW + 300)

    assert (soon.steps, check(soon, "n04")) == ((), "Rate")
    assert [step.node for step in later.steps] == ["n04"]


@pytest.mark.parametrize(
    ("labels", "effects", "reason"),
    [
        ({"nvidia.com/gpu.clique": "a"}, 1, "Domain"),
        ({"topology.kubernetes.io/zone": "z"}, 1, "Zone"),
        ({}, 2, "Budget"),
    ],
)
def test_room_is_limited(labels: dict[str, str], effects: int, reason: str) -> None:
    nodes = fleet(30, labels=labels)
    for number in range(effects):
        nodes[f"n2{number}"] = tainted(nodes[f"n2{number}"])

    decision = decided(nodes=nodes)

    assert (decision.steps, check(decision)) == ((), reason)


def test_enough_nodes_must_stay_well() -> None:
    nodes = fleet()
    for name in ("n10", "n11", "n12", "n13"):
        nodes[name] = replace(nodes[name], cordoned=True)

    decision = decided(nodes=nodes)

    assert (decision.steps, check(decision)) == ((), "MinHealthy")


def test_enough_nodes_must_stay_well_before_a_weak_taint_becomes_a_strong_one() -> None:
    nodes, state = held("PreferNoSchedule")
    for name in ("n10", "n11", "n12"):
        nodes[name] = replace(nodes[name], cordoned=True)
    assert removal(decided(nodes=nodes, state=state)) == [("raise", "Confirmed")]
    nodes["n13"] = replace(nodes["n13"], ready=False)

    decision = decided(nodes=nodes, state=state)

    assert (decision.steps, check(decision)) == ((), "MinHealthy")


def held(effect: str = "NoSchedule", **change: Any) -> tuple[dict[str, NodeView], TaintState]:
    nodes = fleet()
    nodes["n03"] = tainted(nodes["n03"], effect, **change)
    record = NodeTaintRecord(uid="u3", verdict="0" * 8, effect=effect, tainted=(NOW,))
    return nodes, TaintState(records={"n03": record}, healthy={"n03": NOW - 700}, tick="0")


def removal(decision: Decision) -> list[tuple[str, str]]:
    return [(step.verb, step.reason) for step in decision.steps]


def test_proof_of_recovery_releases_and_idleness_is_none() -> None:
    nodes, state = held()
    healthy = replace(says(), healthy=frozenset({"n03"}))

    assert removal(decided(nodes=nodes, state=state, evidence=healthy)) == [("remove", "Recovered")]
    assert removal(decided(nodes=nodes, state=state, evidence=says(tick="5"))) == []


@pytest.mark.parametrize("broken", [{"quorum": False}, {"panic": True}, {"coverage_low": True}, {"received": 0.0}])
def test_without_good_evidence_only_time_releases(broken: dict[str, Any]) -> None:
    nodes, state = held("PreferNoSchedule")
    evidence = replace(says(), healthy=frozenset({"n03"}), **broken)

    assert removal(decided(nodes=nodes, state=state, evidence=evidence)) == []
    assert removal(decided(nodes=nodes, state=state, evidence=evidence, now=NOW + DAY)) == [("remove", "Expired")]


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"deleting": True}, "Deleted"), ({"policy": changed(QUICK, mode=Mode.OBSERVE)}, "ModeLowered"),
     ({"watched": frozenset()}, "Excluded")],
)  # fmt: skip
def test_removal_needs_no_permission(change: dict[str, Any], reason: str) -> None:
    nodes, state = held()
    evidence = says("n03", "n04", "n05", "n06", "n07", "n08")

    assert removal(decided(nodes=nodes, state=state, evidence=evidence, **change)) == [("remove", reason)]


def test_pausing_removes_nothing() -> None:
    nodes, state = held()

    assert removal(decided(nodes=nodes, state=state, paused="bob")) == []


def test_no_schedule_ends_in_probation() -> None:
    nodes, state = held()
    (step,) = decided(nodes=nodes, state=state, evidence=says(now=NOW + DAY), now=NOW + DAY).steps

    assert (step.verb, step.reason) == ("lower", "Probation")
    assert step.taint is not None and (step.taint.effect, step.taint.probation) == ("PreferNoSchedule", True)
    nodes, state = held("PreferNoSchedule", probation=True)
    assert removal(decided(nodes=nodes, state=state, evidence=says(now=NOW + DAY), now=NOW + DAY)) == [
        ("remove", "Expired")
    ]


def test_fresh_evidence_renews() -> None:
    nodes, state = held()
    now = NOW + 0.8 * DAY

    assert removal(decided(nodes=nodes, state=state, evidence=says("n03", now=now), now=now)) == [
        ("renew", "StillConfirmed")
    ]


def test_a_lower_mode_lowers_and_a_higher_one_raises() -> None:
    nodes, state = held()
    lower = decided(changed(QUICK, mode=Mode.PREFER_NO_SCHEDULE), nodes, state)
    nodes, state = held("PreferNoSchedule")
    higher = decided(QUICK, nodes, state)

    assert removal(lower) == [("lower", "ModeLowered")]
    assert removal(higher) == [("raise", "Confirmed")]


def test_a_taint_that_vanished_means_hands_off() -> None:
    _, state = held()
    decision = decided(state=state)

    assert [item.node for item in decision.overrides] == ["n03"]
    assert (decision.steps, check(decision)) == ((), "HandsOff")
    assert decided(state=decision.state).overrides == ()


def node_with(taints: list[dict[str, str]], note: str | None) -> dict[str, Any]:
    return {
        "metadata": {"name": "n03", "uid": "u3", "resourceVersion": "7", "creationTimestamp": "2020-01-01T00:00:00Z",
                     "annotations": {KEY: note} if note is not None else {}},
        "spec": {"taints": [{"key": "team", "effect": "NoSchedule"}, *taints]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }  # fmt: skip


KEY = "ingero.io/straggler"
OURS = {"key": KEY, "value": "0" * 8, "effect": "NoSchedule"}
THEIRS = {"key": KEY, "value": "hands-off", "effect": "NoExecute"}
NOTE = patches.annotation(
    StragglerTaint(owner="fc", verdict="0" * 8, effect="NoSchedule", since=NOW, expires=NOW + DAY, node_uid="u3")
)
OTHERS_NOTE = NOTE.replace('"fc"', '"another"')


@pytest.mark.parametrize(
    ("taints", "note", "gone", "note_removed"),
    [
        ([OURS], NOTE, [OURS], True),
        ([OURS], None, [OURS], False),  # somebody took the annotation
        ([OURS], "nonsense", [OURS], True),
        ([OURS], NOTE.replace("0" * 8, "1" * 8), [OURS], True),  # somebody edited the verdict
        ([OURS], OTHERS_NOTE, [OURS], False),  # another FleetCluster's by now
        ([THEIRS, OURS], NOTE, [OURS], True),
        ([OURS, THEIRS], None, [OURS], False),
        ([OURS, {**OURS, "effect": "PreferNoSchedule"}], NOTE, [OURS, {**OURS, "effect": "PreferNoSchedule"}], True),
        ([], NOTE, [], True),
    ],
)
def test_everything_of_our_taint_goes_and_nothing_else(
    taints: list[dict[str, str]], note: str | None, gone: list[dict[str, str]], note_removed: bool
) -> None:
    body = node_with(taints, note)
    patch = patches.patch(body, "u3", "fc", None, "0" * 8)
    assert patch is not None
    apply_patch(body, patch)

    assert body["spec"]["taints"] == [{"key": "team", "effect": "NoSchedule"}, *(t for t in taints if t not in gone)]
    assert (KEY in body["metadata"]["annotations"]) is (note is not None and not note_removed)


@pytest.mark.parametrize(
    ("taints", "note"),
    [([THEIRS], None), ([THEIRS], "nonsense"), ([], OTHERS_NOTE), ([{**OURS, "value": "f" * 8}], None)],
)  # fmt: skip
def test_what_is_not_ours_is_never_touched(taints: list[dict[str, str]], note: str | None) -> None:
    body = node_with(taints, note)

    assert node_view(body).foreign or node_view(body).taint is not None
    assert patches.patch(body, "u3", "fc", None, "0" * 8) is None
    assert patches.patch(body, "u3", "fc", tainted(fleet()["n03"]).taint) is None


def test_a_second_taint_of_our_key_hides_no_taint() -> None:
    node = node_view(node_with([THEIRS, OURS], NOTE))

    assert node.taint is not None and (node.taint.effect, node.taint.owner) == ("NoSchedule", "fc")
    assert (node.foreign, node.strays) == (True, frozenset({"hands-off"}))
    _, state = held()
    healthy = replace(says(), healthy=frozenset({"n03"}))
    decision = decided(nodes=fleet() | {"n03": node}, state=state, evidence=healthy)
    assert (removal(decision), decision.overrides) == ([("remove", "Recovered")], ())


def test_who_removes_only_the_annotation_has_said_no_and_the_taint_goes_too() -> None:
    _, state = held()
    left = fleet() | {"n03": node_view(node_with([OURS], None))}
    first = decided(nodes=left, state=state)
    again = decided(nodes=left, state=from_status(json.loads(json.dumps(to_status(first.state)))))

    assert [item.node for item in first.overrides] == ["n03"] and again.overrides == ()
    assert removal(first) == removal(again) == [("remove", "Overridden")]
    after = after_write(again.state, again.steps[0], NOW + 1)
    assert (after.records["n03"].verdict, after.records["n03"].override_cooldown_until) == ("", NOW + DAY)
    died = from_status(json.loads(json.dumps(to_status(note_releases(state, list(first.steps))))))
    for nodes in (left, fleet()):  # the operator ended before, or after, it removed the rest
        later = decided(nodes=nodes, state=died)
        assert [item.node for item in later.overrides] == ["n03"] and check(later) in ("Foreign", "HandsOff")
        assert later.state.records["n03"].override_cooldown_until == NOW + DAY
    lost = decided(state=again.state)  # the release was written and its answer lost
    assert lost.overrides == () and [step.reason for step in lost.found_done] == ["Overridden"]


@pytest.mark.parametrize(
    "note",
    ["[" * 100_000, "[]", "null", "{}", '{"verdict": 5}',
     NOTE.replace('"fc"', '"fc", "windows": 1e999'), NOTE.replace('"fc"', '"fc", "score": "high"'),
     NOTE.replace("0" * 8, "zzz")],
)  # fmt: skip
def test_an_annotation_that_is_none_of_ours_is_no_taint_and_no_accident(note: str) -> None:
    node = node_view(node_with([], note))

    assert node.taint is None and node.foreign


@pytest.mark.parametrize(
    "since",
    ["9999-12-31T23:59:59.9999Z", "0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00", "yesterday", "2999-01-01"],
)
def test_an_impossible_time_in_an_annotation_stops_neither_the_status_nor_the_next_taint(since: str) -> None:
    tree = {**json.loads(NOTE), "since": since, "expires": since}
    nodes = fleet(40) | {"n03": node_view(node_with([OURS], json.dumps(tree)))}

    state = decided(nodes=nodes, evidence=says("n04"), now=NOW).state
    status = json.loads(json.dumps(to_status(state)))
    (row,) = status["nodes"]
    assert all(re.fullmatch(r"[0-9]{4}-[0-9-]{5}T[0-9:.]+Z", time) for time in row["tainted"])
    lower = decided(
        changed(QUICK, mode=Mode.PREFER_NO_SCHEDULE), nodes, state, evidence=says("n04", tick="2"), paused="x"
    )
    for step in lower.steps:
        assert step.taint is None or json.loads(patches.annotation(step.taint))["verdict"] == "0" * 8
    later = decided(nodes=nodes, state=from_status(status), evidence=says("n04", now=NOW + 301), now=NOW + 301)
    assert ("add", "n04") in [(step.verb, step.node) for step in later.steps]


@pytest.mark.parametrize(
    ("managed", "who"),
    [
        ([], None),
        ([("kubelet", "2026-01-02T00:00:00Z", {"f:metadata": {"f:labels": {}}})], None),
        ([("alice", "2026-01-01T00:00:00Z", {"f:spec": {"f:taints": {}}}),
          ("kubelet", "2026-01-02T00:00:00Z", {"f:metadata": {}}), ("odd", "2026-01-03T00:00:00Z", None)], "alice"),
        ([("ingero-operator", "2026-01-02T00:00:00Z", {"f:spec": {"f:taints": {}}})], None),
    ],
)  # fmt: skip
def test_only_who_wrote_the_taints_is_named_as_their_remover(managed: Any, who: str | None) -> None:
    entries = [{"manager": name, "time": time, "fieldsV1": fields} for name, time, fields in managed]

    assert remover(entries, "ingero-operator") == who


def test_a_taint_that_was_being_removed_is_no_override() -> None:
    _, state = held()
    state = replace(state, records={"n03": replace(state.records["n03"], releasing="Recovered")})
    decision = decided(state=state)

    assert decision.overrides == ()
    assert [(step.verb, step.reason) for step in decision.found_done] == [("remove", "Recovered")]
    assert check(decision) == "Quiet"


def test_a_taint_found_after_a_restart_is_taken_over() -> None:
    nodes, _ = held(since=NOW - 60)
    decision = decided(nodes=nodes, evidence=says("n03", "n04"))

    assert decision.state.records["n03"].verdict == "0" * 8
    assert decision.state.last_taint == NOW - 60
    assert [step.verb for step in decision.found_done] == ["add"] and check(decision, "n04") == "Rate"


def test_memory_survives_its_status() -> None:
    _, state = held()
    state = replace(state, last_taint=NOW + 0.25, storm_until=NOW + 900)

    back = from_status(json.loads(json.dumps(to_status(state))))

    assert (back.records, back.last_taint, back.storm_until) == (state.records, state.last_taint, NOW + 900)


# Long random histories: a small cluster with everything that happens to one, and a ledger that knows only the rules.


@lru_cache(4096)
def view_of(stored: bytes) -> NodeView:
    """The facts of a Node, read once for each state of it."""
    return node_view(marshal.loads(stored))


@dataclass
class Truth:
    """One machine in the simulated cluster, as the API server would store it."""

    body: dict[str, Any]
    foreign: list[dict[str, str]] = field(default_factory=list)


POLICY = Taints(
    mode=Mode.NO_SCHEDULE, budget=Budget(max_nodes=2, max_percent=25), confirm_for="40s", confirm_windows=3,
    recover_for="40s", min_healthy_percent=60, interval="30s", storm_cooldown="60s", ttl="400s", probation="120s",
    quiet="60s", max_per_day=3, hands_off="300s", min_node_age="60s",
)  # fmt: skip


class Simulation:
    """A cluster, an operator that may die anywhere, and checks that know the policy and not the code."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = NOW
        self.serial = 0
        self.nodes: dict[str, Truth] = {}
        for number in range(12):
            self.join(f"n{number:02}", age=1000)
        self.state, self.stored = TaintState(), TaintState()
        self.policy, self.paused, self.deleting = POLICY, "", False
        self.overlap: dict[str, str] = {}
        self.accused: set[str] = set()
        self.idle: set[str] = set()
        self.good: dict[str, Any] = {"quorum": True, "panic": False, "coverage_low": False}
        self.reachable, self.tick = True, 0
        self.evidence: Evidence | None = None
        self.streak: dict[str, tuple[str, float, int]] = {}
        self.healthy: dict[str, float] = {}
        self.adds: list[tuple[float, str, str]] = []
        self.released: dict[str, float] = {}
        self.overridden: dict[str, float] = {}
        self.storm = -math.inf
        self.last_good = -math.inf
        self.tracking: defaultdict[str, int] = defaultdict(int)
        self.verdicts: set[str] = set()

    def join(self, name: str, age: float = 0.0) -> None:
        self.serial += 1
        number = int(name[1:])
        labels = {"topology.kubernetes.io/zone": f"z{number % 3}", "nvidia.com/gpu.present": "true"}
        if number % 2:
            labels["nvidia.com/gpu.clique"] = f"c{number // 4}"
        created = self.timestamp(self.now - age)
        self.nodes[name] = Truth(
            {
                "metadata": {"name": name, "uid": f"m{self.serial}", "resourceVersion": str(self.serial),
                             "labels": labels, "creationTimestamp": created},
                "spec": {"providerID": f"p{self.serial}", "taints": []},
                "status": {"conditions": [{"type": "Ready", "status": "True"}], "capacity": {"nvidia.com/gpu": "8"}},
            }
        )  # fmt: skip

    @staticmethod
    def timestamp(time: float) -> str:
        from ingero_operator.taints.state import timestamp

        return timestamp(time)

    def views(self) -> dict[str, NodeView]:
        return {name: view_of(marshal.dumps(truth.body, 2)) for name, truth in self.nodes.items()}

    def happen(self) -> None:
        """Something happens that nobody asked the operator about."""
        dice, names = self.random, sorted(self.nodes)
        name = dice.choice(names)
        truth = self.nodes[name]
        spec, metadata = truth.body["spec"], truth.body["metadata"]
        what = dice.random()
        if what < 0.12:
            self.accused |= {name} if len(self.accused) < 4 else set()
        elif what < 0.25:
            self.accused -= {name}
        elif what < 0.29:
            self.idle.symmetric_difference_update({name})
        elif what < 0.295:
            self.accused |= set(dice.sample(names, 6))
        elif what < 0.31:
            self.idle.clear()
        elif what < 0.36:
            self.accused -= set(dice.sample(names, min(8, len(names))))
        elif what < 0.40:
            self.good = {"quorum": True, "panic": False, "coverage_low": False}
            if dice.random() < 0.3:
                key = dice.choice(sorted(self.good))
                self.good[key] = not self.good[key]
        elif what < 0.43:
            self.reachable = not self.reachable if dice.random() < 0.4 else True
        elif what < 0.46:
            del self.nodes[name]
            self.idle.discard(name)
            self.join(name, age=dice.choice([0, 0, 120]))
        elif what < 0.50:
            spec["unschedulable"] = not spec.get("unschedulable", False) if dice.random() < 0.3 else False
        elif what < 0.54:
            ready = "True" if dice.random() < 0.7 else "False"
            truth.body["status"]["conditions"][0]["status"] = ready
        elif what < 0.58:
            taint = {"key": f"other/{dice.randrange(3)}", "effect": "NoSchedule"}
            if taint in spec["taints"]:
                spec["taints"].remove(taint)
            else:
                spec["taints"].insert(dice.randrange(len(spec["taints"]) + 1), taint)
        elif what < 0.583:
            person = {"key": "ingero.io/straggler", "value": "theirs", "effect": "NoExecute"}
            if person in spec["taints"]:
                spec["taints"].remove(person)
            elif dice.random() < 0.3:
                spec["taints"].insert(dice.randrange(len(spec["taints"]) + 1), person)
        elif what < 0.62:
            self.admin_removes(next((item for item in names if node_view(self.nodes[item].body).taint), name))
        elif what < 0.64:
            if dice.random() < 0.3:
                metadata["labels"]["ingero.io/exclude"] = ""
            elif dice.random() < 0.9:
                metadata["labels"].pop("ingero.io/exclude", None)
        elif what < 0.67:
            self.paused = "x" if dice.random() < 0.3 else ""
        elif what < 0.70:
            modes = [*Mode, *[Mode.NO_SCHEDULE] * 12]
            self.policy = changed(self.policy, mode=dice.choice(modes))
        elif what < 0.72:
            self.overlap = {name: "other"} if dice.random() < 0.2 else {}
        elif what < 0.735:
            self.deleting = dice.random() < 0.1
        elif what < 0.75:
            self.state = from_status(json.loads(json.dumps(to_status(self.stored))))
            self.tracking["restart"] += 1

    def admin_removes(self, name: str) -> None:
        """An administrator removes our taint, our annotation, or both."""
        node = node_view(self.nodes[name].body)
        if node.taint is None:
            return
        spec, metadata = self.nodes[name].body["spec"], self.nodes[name].body["metadata"]
        how = self.random.random()
        record = self.state.records.get(name)
        known = record is not None and record.verdict == node.taint.verdict
        if how < 0.3 and node.taint.effect and known:
            metadata["annotations"].pop("ingero.io/straggler")
            self.tracking["annotation"] += 1
        elif how < 0.8 and known:
            before = len(spec["taints"])
            spec["taints"] = [taint for taint in spec["taints"] if taint.get("value") not in self.verdicts]
            if len(spec["taints"]) == before:
                metadata["annotations"].pop("ingero.io/straggler")
        else:
            spec["taints"] = [taint for taint in spec["taints"] if taint.get("value") not in self.verdicts]
            metadata["annotations"].pop("ingero.io/straggler")
        if known:  # what goes before an operator has seen it is missed by nobody
            self.overridden[node.uid] = self.now
        self.tracking["override"] += 1

    def ask(self) -> None:
        """Fleet computes, and is asked if it can be reached."""
        self.tick += 1
        if not self.reachable:
            return
        accused = {
            name: Accused(active=name not in self.idle, windows=100, score=0.4, threshold=0.7)
            for name in self.accused if name in self.nodes
        }  # fmt: skip
        healthy = frozenset(set(self.nodes) - set(accused) - self.idle)
        self.evidence = Evidence(
            tick=str(self.tick), received=self.now, accused=accused, healthy=healthy, **self.good
        )
        self.ledger(accused)
        self.healthy = {name: self.healthy.get(name, self.now) for name in healthy} if self.trusted() else {}

    def ledger(self, accused: dict[str, Accused]) -> None:
        """What the policy says about confirmation, counted independently."""
        if not (self.good["quorum"] and not self.good["panic"] and not self.good["coverage_low"]):
            self.streak = {}
            return
        streak = {}
        for name, item in accused.items():
            uid = self.nodes[name].body["metadata"]["uid"]
            if item.active:
                before = self.streak.get(name)
                streak[name] = (uid, before[1], before[2] + 1) if before and before[0] == uid else (uid, self.now, 1)
        self.streak = streak

    def observed(self) -> ClusterObservation:
        views = self.views()
        return ClusterObservation(
            owner="fc", nodes=views, watched=frozenset(views), evidence=self.evidence, overlap=self.overlap,
            paused=self.paused, deleting=self.deleting,
        )  # fmt: skip

    def act(self) -> None:
        """One reconcile, which may die between any two of its writes."""
        seen = self.observed()
        decision = decide(self.policy, seen, self.state, self.now)
        assert len({step.node for step in decision.steps}) == len(decision.steps)
        for item in decision.overrides:
            assert item.uid in self.overridden, "what the operator removed itself is nobody's no"
        candidates = sum(
            name in self.nodes and item.active and seen.nodes[name].taint is None
            for name, item in (self.evidence.accused if self.evidence else {}).items()
        )
        base = [node for node in seen.nodes.values() if not node.excluded]
        budget = min(self.policy.budget.max_nodes, self.policy.budget.max_percent * len(base) // 100)
        storm = self.trusted() and budget and candidates > 2 * budget
        state = decision.state
        dies = self.random.random() < 0.1
        cut = self.random.randrange(2 * len(decision.steps) + 2) if dies else -1
        writes = 0
        leaving = [step for step in decision.steps if step.verb in ("remove", "lower")]
        if leaving:
            if cut == writes:
                return self.die()
            self.stored = note_releases(self.state, leaving)
            writes += 1
        self.state = state
        for step in decision.steps:
            if cut == writes:
                return self.die()
            self.check(step, seen, budget, candidates, base)
            self.write(step)
            writes += 1
            if self.random.random() < 0.1:
                self.tracking["lost"] += 1  # written, and the answer did not arrive
                state = after_attempt(state, step, self.now)
                continue
            state = after_write(state, step, self.now)
        if cut == writes:
            return self.die()
        self.state = self.stored = state
        if storm:  # one that an operator saw and did not live to record is seen by nobody
            self.storm = self.now
        for name, record in state.records.items():
            left = {taint["value"] for taint in self.ours(name)} & self.verdicts
            taint = node_view(self.nodes[name].body).taint if name in self.nodes else None
            assert not left or record.verdict in left or taint is not None, "what is left of a mark is known"
        return None

    def ours(self, name: str) -> list[dict[str, str]]:
        taints = self.nodes[name].body["spec"]["taints"] if name in self.nodes else []
        return [taint for taint in taints if taint["key"] == "ingero.io/straggler"]

    def die(self) -> None:
        self.tracking["death"] += 1
        self.state = from_status(json.loads(json.dumps(to_status(self.stored))))

    def trusted(self) -> bool:
        evidence = self.evidence
        fresh = evidence is not None and self.now - evidence.received < 30
        return bool(
            fresh and evidence and evidence.quorum and not evidence.panic and not evidence.coverage_low
        )  # fmt: skip

    def write(self, step: Any) -> None:
        body = self.nodes[step.node].body
        if step.taint:
            self.verdicts.add(step.taint.verdict)
        foreign = [taint for taint in body["spec"]["taints"] if taint.get("value") not in self.verdicts]
        known = self.state.records.get(step.node, NodeTaintRecord(uid="")).verdict
        patch = patches.patch(body, step.uid, "fc", step.taint, "" if step.taint else known)
        assert patch is not None
        apply_patch(body, patch)
        after = [taint for taint in body["spec"]["taints"] if taint.get("value") not in self.verdicts]
        assert after == foreign, "other taints stay as they are, in their order"
        self.serial += 1
        body["metadata"]["resourceVersion"] = str(self.serial)
        self.tracking[step.verb] += 1
        if step.verb == "add":
            self.adds.append((self.now, step.node, step.uid))
        if step.verb == "remove":
            self.released[step.uid] = self.now

    def check(self, step: Any, seen: ClusterObservation, budget: int, candidates: int, base: list[NodeView]) -> None:
        node = seen.nodes[step.node]
        assert step.uid == node.uid
        if step.verb in ("remove", "lower", "renew"):
            assert (node.taint is not None and node.taint.owner == "fc") or node.strays & self.verdicts
            if step.reason in ("Recovered", "StillConfirmed"):
                assert self.trusted()
            if step.reason == "Recovered":
                assert self.now - self.healthy[step.node] >= 40
            if step.reason == "Expired":
                assert node.taint is not None and self.now >= node.taint.expires
            return
        mode = self.policy.mode
        assert STRENGTH[step.taint.effect] <= STRENGTH[EFFECTS[mode]] and mode is not Mode.OBSERVE  # R1
        assert self.trusted()  # R2
        uid, since, windows = self.streak[step.node]
        assert uid == node.uid and self.now - since >= 40 and windows >= 3  # R3, R10
        assert not self.paused and not self.deleting and step.node not in self.overlap  # R13, R14
        assert candidates <= 2 * budget and self.now - self.storm >= 60  # R8
        assert all(self.now - time >= 30 for time, _, _ in self.adds[-1:])  # R7
        assert node.ready and not node.cordoned and not node.excluded and not node.foreign  # R9
        assert self.now - node.created >= 60
        assert self.now - self.overridden.get(node.uid, -math.inf) >= 300  # R11
        held = [item for item in seen.nodes.values() if item.taint is not None]
        if step.verb == "add":
            assert len(held) + 1 <= budget  # R4
            zone, domain = node.labels["topology.kubernetes.io/zone"], node.labels.get("nvidia.com/gpu.clique")
            zones = sum(item.labels["topology.kubernetes.io/zone"] == zone for item in held)
            assert zones + 1 <= math.ceil(budget / 2)  # R5
            assert domain is None or all(item.labels.get("nvidia.com/gpu.clique") != domain for item in held)
            assert self.now - self.released.get(node.uid, -math.inf) >= 60  # R12
            assert sum(self.now - time < DAY and owner == node.uid for time, _, owner in self.adds) < 3
        if step.taint.effect:
            healthy = [
                item for item in base
                if item.ready and not item.cordoned and not (item.taint and item.taint.effect) and item is not node
            ]  # fmt: skip
            assert len(healthy) >= math.ceil(0.6 * len(base))  # R6

    def step(self) -> None:
        self.now += self.random.choice([1.0, 5.0, 10.0, 10.0, 10.0, 25.0, 70.0])
        for _ in range(self.random.choice([0, 0, 0, 1, 1])):
            self.happen()
        if self.random.random() < 0.85:
            self.ask()
        self.act()


def apply_patch(body: dict[str, Any], patch: list[dict[str, Any]]) -> None:
    """JSON patch, as far as the operator uses it."""
    for item in patch:
        parts = [part.replace("~1", "/").replace("~0", "~") for part in item["path"].split("/")[1:]]
        place: Any = body
        for part in parts[:-1]:
            place = place[int(part)] if isinstance(place, list) else place[part]
        last = parts[-1]
        if item["op"] == "test":
            assert place[last] == item["value"]
        elif isinstance(place, list):
            if item["op"] == "remove":
                del place[int(last)]
            elif item["op"] == "replace":
                place[int(last)] = item["value"]
            else:
                place.insert(len(place) if last == "-" else int(last), item["value"])
        elif item["op"] == "remove":
            del place[last]
        else:
            place[last] = item["value"]


@pytest.mark.parametrize("seed", range(2))
def test_the_policy_checks_hold_over_long_random_histories(seed: int) -> None:
    simulation = Simulation(seed)
    for _ in range(25_000):
        simulation.step()

    assert simulation.tracking["add"] > 80 and simulation.tracking["remove"] > 60, simulation.tracking
    assert simulation.tracking["override"] > 10 and simulation.tracking["death"] > 100, simulation.tracking
    assert simulation.tracking["annotation"] > 3 and simulation.tracking["lost"] > 5, simulation.tracking


@pytest.mark.parametrize("seed", range(20))
def test_after_the_resource_is_deleted_no_taint_is_left(seed: int) -> None:
    simulation = Simulation(seed)
    for _ in range(400):
        simulation.step()
    simulation.deleting = True
    for _ in range(5):
        simulation.act()

    assert all(node.taint is None for node in simulation.views().values())
    left = {taint["value"] for name in simulation.nodes for taint in simulation.ours(name)}
    assert not left & simulation.verdicts
