"""The preview of a policy: histories made by hand, then random ones in which skipped time must change nothing."""

import io
import json
import random
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from ingero_kit.settings import SettingsError
from ingero_operator.api.v1alpha1 import FleetClusterSpec, Mode
from ingero_operator.cli import main
from ingero_operator.preview.command import read_manifest, usable_token
from ingero_operator.preview.history import History, read_history
from ingero_operator.preview.replay import ReplayResult, ReplaySetup, replay
from ingero_operator.preview.report import Preview, as_json, as_text, notes
from ingero_operator.taints.nodes import NodeView

DAY = 86_400.0
SINCE = 1_700_006_400.0
"""A full hour."""
HOUR, MINUTE = 3600.0, 60.0


def setup(**taints: Any) -> ReplaySetup:
    tree = {"clusterId": "prod", "taints": {"mode": "NoSchedule", **taints}}
    return ReplaySetup.from_spec(FleetClusterSpec.model_validate(tree))


def edge(node: str, at: float, what: str = "accused", **change: Any) -> dict[str, Any]:
    """A change of a verdict, seconds after the begin of the window."""
    state = {"accused": "straggler", "relapsed": "straggler", "recovering": "recovering", "cleared": "healthy"}
    row = {
        "t": int((SINCE + at) * 1e9), "node_id": node, "source": "fleet", "state": state.get(what, "learning"),
        "kind": "slow", "since": None, "severity": 0.4, "communicator": None, "rank": None, "pod": None, "edge": what,
        "detected": None,
    }  # fmt: skip
    return row | change


def reports(*names: str, begin: float = 0.0, end: float = 4 * HOUR, state: str = "active") -> list[dict[str, Any]]:
    first, last = int((SINCE + begin) // 60), int((SINCE + end) // 60) - 1
    return [{"node_id": name, "state": state, "first": first, "last": last} for name in names]


NAMES = [f"n{number:02}" for number in range(20)]


def history(*edges: dict[str, Any], runs: list[dict[str, Any]] | None = None, hours: float = 4.0) -> History:
    given = reports(*NAMES, end=hours * HOUR) if runs is None else runs
    return read_history(edges, given, SINCE, SINCE + hours * HOUR, 10.0)


def taints_of(outcome: ReplayResult) -> list[tuple[str, float, float | None, str]]:
    return [
        (taint.node, taint.begin - SINCE, None if taint.end is None else taint.end - SINCE, taint.reason)
        for taint in outcome.taints
    ]


def stopped(outcome: ReplayResult, node: str = "n03") -> dict[str, float]:
    return dict(next(item.stopped for item in outcome.nodes if item.node == node))


def test_a_straggler_is_tainted_after_the_confirmation_and_released_after_the_recovery() -> None:
    outcome = replay(setup(), history(edge("n03", HOUR), edge("n03", 2 * HOUR, "cleared")), {})

    assert taints_of(outcome) == [("n03", HOUR + 600, 2 * HOUR + 600, "Recovered")]
    assert outcome.taints[0].effects == ("NoSchedule",)
    assert stopped(outcome) == {"Confirming": 600.0}
    assert outcome.most == 1


def test_a_short_accusation_stays_below_the_confirmation() -> None:
    outcome = replay(setup(), history(edge("n03", HOUR), edge("n03", HOUR + 590, "cleared")), {})

    assert (taints_of(outcome), stopped(outcome)) == ([], {"Confirming": 590.0})


def test_recovering_is_still_accused() -> None:
    outcome = replay(
        setup(),
        history(edge("n03", HOUR), edge("n03", HOUR + 300, "recovering"), edge("n03", 2 * HOUR, "cleared")),
        {},
    )

    assert [row[1] for row in taints_of(outcome)] == [HOUR + 600]


def test_what_lasts_at_the_end_has_no_end() -> None:
    assert taints_of(replay(setup(), history(edge("n03", HOUR)), {})) == [("n03", HOUR + 600, None, "")]


def test_an_observing_policy_taints_nothing_and_says_so() -> None:
    outcome = replay(setup(mode="Observe"), history(edge("n03", HOUR)), {})

    assert taints_of(outcome) == []
    assert stopped(outcome) == {"Observing": 3 * HOUR - 600, "Confirming": 600.0}


def test_a_pause_request_stops_everything() -> None:
    outcome = replay(setup(pauseRequests=["alice: maintenance"]), history(edge("n03", HOUR)), {})

    assert taints_of(outcome) == [] and "Paused" in stopped(outcome)


def test_the_record_begins_in_the_middle_of_an_accusation() -> None:
    whole = edge("n03", -DAY, "accused", detected=SINCE - DAY)
    changed = edge("n04", HOUR, "relapsed", detected=SINCE - 1000)
    ended = edge("n05", HOUR, "cleared")

    found = history(whole, changed, ended)

    times = [(item.node, item.begin - SINCE, item.end, item.whole) for item in found.accusations]
    assert times == [("n03", 0.0, None, False), ("n04", 0.0, None, False), ("n05", 0.0, SINCE + HOUR, False)]
    # Like an operator that has just started, the preview confirms the accusation itself.
    first, second, *_ = taints_of(replay(setup(), found, {}))
    assert (first[:2], second[:2]) == (("n03", 600.0), ("n04", 900.0))
    assert "3 of 3 accusations began before the record" in notes(found, 10.0, facts=False, actionable=False)


def test_a_record_that_begins_later_accuses_nobody_before() -> None:
    runs = reports(*NAMES, begin=2 * HOUR)

    found = history(edge("n03", 3 * HOUR, "recovering"), runs=runs)

    assert found.accusations[0].begin == SINCE + 2 * HOUR
    assert any(
        note.startswith("the record begins at 2023-11-15 02:")
        for note in notes(found, 10.0, facts=False, actionable=False)
    )


def test_a_node_known_as_healthy_is_not_accused_by_a_second_end() -> None:
    assert history(edge("n03", -HOUR, "cleared"), edge("n03", HOUR, "cleared")).accusations == ()


def test_a_restart_of_fleet_begins_the_confirmation_anew() -> None:
    """Fleet withdraws late ranks when it stops; without a snapshot it accuses the other nodes a second time."""
    rank: dict[str, Any] = {"source": "collectives", "communicator": "c", "rank": 3, "kind": "late_rank"}
    late = replace(setup(), actionable=True)
    restart = (edge("n03", HOUR + 300, "withdrawn", **rank), edge("n03", HOUR + 360, **rank))

    withdrawn = replay(late, history(edge("n03", HOUR, **rank), *restart), {})
    forgotten = replay(setup(), history(edge("n03", HOUR), edge("n03", HOUR + 360)), {})

    assert [row[1] for row in taints_of(withdrawn)] == [HOUR + 360 + 600]
    assert [row[1] for row in taints_of(forgotten)] == [HOUR + 370 + 600]


def test_late_ranks_count_only_where_they_are_actionable() -> None:
    found = history(edge("n03", HOUR, source="collectives", communicator="c", rank=3, kind="late_rank"))

    assert taints_of(replay(setup(), found, {})) == []
    assert any(
        note.startswith("1 accusations are of collectives")
        for note in notes(found, 10.0, facts=True, actionable=False)
    )
    counted = replay(replace(setup(), actionable=True), found, {})
    assert ([row[0] for row in taints_of(counted)], counted.nodes[0].kinds) == (["n03"], ("late_rank",))
    assert not any("collectives" in note for note in notes(found, 10.0, facts=True, actionable=True))


def test_the_end_of_one_rank_does_not_end_the_accusation_of_another() -> None:
    ranks: list[dict[str, Any]] = [{"source": "collectives", "communicator": "c", "rank": rank} for rank in (3, 4)]
    found = history(
        edge("n03", HOUR, **ranks[0]), edge("n03", HOUR, **ranks[1]), edge("n03", HOUR + 60, "cleared", **ranks[0])
    )

    assert [row[0] for row in taints_of(replay(replace(setup(), actionable=True), found, {}))] == ["n03"]


def test_a_node_that_leaves_takes_its_taint_with_it() -> None:
    runs = reports(*NAMES[:3], *NAMES[4:]) + reports("n03", end=2 * HOUR)

    outcome = replay(setup(), history(edge("n03", HOUR), runs=runs), {})

    assert taints_of(outcome) == [("n03", HOUR + 600, 2 * HOUR + 120, "Left")]


def test_no_node_has_left_because_the_record_ends() -> None:
    found = history(edge("n03", HOUR), runs=reports(*NAMES, end=3 * HOUR))

    assert taints_of(replay(setup(), found, {})) == [("n03", HOUR + 600, None, "")]
    assert "the record has no health report after 2023-11-15 03:00" in notes(
        found, 10.0, facts=False, actionable=False
    )


def test_a_machine_that_replaces_another_one_is_not_tainted_for_it() -> None:
    known = {name: NodeView(name=name, uid=name, labels=LABELS, created=SINCE - DAY) for name in NAMES}
    known["n03"] = replace(known["n03"], created=SINCE + 2 * HOUR)

    outcome = replay(setup(), history(edge("n03", HOUR, since="2023-11-15T00:30:00Z")), known)

    assert taints_of(outcome) == [("n03", HOUR + 600, 2 * HOUR, "Left")]
    assert "Identity" in stopped(outcome)


LABELS = {"nvidia.com/gpu.present": "true"}


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"control_plane": True}, "ControlPlane"),
        ({"gpu": False}, "NoGpu"),
        ({"labels": {**LABELS, "ingero.io/exclude": ""}}, "Excluded"),
        ({"created": SINCE + HOUR - 60}, "TooYoung"),
    ],
)
def test_facts_of_the_cluster_stop_a_node(change: dict[str, Any], check: str) -> None:
    known = {name: NodeView(name=name, uid=name, labels=LABELS) for name in NAMES}
    known["n03"] = replace(known["n03"], **change)

    assert check in stopped(replay(setup(), history(edge("n03", HOUR)), known))


def test_states_of_now_say_nothing_of_the_past() -> None:
    known = {name: NodeView(name=name, uid=name, labels=LABELS, cordoned=True, ready=False) for name in NAMES}

    assert [row[0] for row in taints_of(replay(setup(), history(edge("n03", HOUR)), known))] == ["n03"]


def test_nodes_of_one_domain_are_held_one_by_one() -> None:
    known = {name: NodeView(name=name, uid=name, labels={**LABELS, "rack": "r"}) for name in NAMES}
    found = history(edge("n03", HOUR), edge("n04", HOUR))

    assert "Domain" in stopped(replay(setup(domainLabel="rack"), found, known), "n04")
    assert len(taints_of(replay(setup(), found, known))) == 2


def test_the_smaller_budget_stops_the_second_node() -> None:
    found = history(edge("n03", HOUR), edge("n04", HOUR))

    wide = replay(setup(), found, {})
    tight = replay(setup(budget={"maxNodes": 1}), found, {})

    assert [row[:2] for row in taints_of(wide)] == [("n03", HOUR + 600), ("n04", HOUR + 900)]
    assert [row[0] for row in taints_of(tight)] == ["n03"] and "Budget" in stopped(tight, "n04")


def test_many_at_once_are_a_storm() -> None:
    edges = [edge(name, HOUR) for name in NAMES[:5]]
    edges += [edge(name, 2 * HOUR, "cleared") for name in NAMES[1:5]]

    outcome = replay(setup(), history(*edges), {})

    # The storm ends with the last statistic that showed it, and then 15 minutes pass.
    assert taints_of(outcome) == [("n00", 2 * HOUR - 10 + 900, None, "")]
    assert stopped(outcome, "n00")["Storm"] == pytest.approx(HOUR - 600 + 890)


def test_idle_nodes_and_too_few_nodes_stop_taints() -> None:
    idle = reports(*NAMES[1:], end=4 * HOUR) + reports("n00", state="idle")
    few = reports(*NAMES[:4]) + reports(*NAMES[4:], state="idle")

    assert stopped(replay(setup(), history(edge("n00", HOUR), runs=idle), {}), "n00") == {"NotActive": 3 * HOUR}
    assert "NoQuorum" not in stopped(replay(setup(), history(edge("n00", HOUR), runs=idle), {}), "n00")
    quorum = stopped(replay(setup(), history(edge("n00", HOUR), runs=few), {}), "n00")
    assert set(quorum) == {"Confirming"}  # without a quorum no window counts


def test_no_reports_at_all_are_stale_evidence() -> None:
    silent = reports(*NAMES, end=HOUR + 300) + reports(*NAMES, begin=HOUR + 1500)

    outcome = replay(setup(), history(edge("n00", HOUR), runs=silent), {})

    # The confirmation before the silence is lost.
    assert [row[1] for row in taints_of(outcome)] == [HOUR + 1500 + 600]


def test_quiet_and_the_limit_of_a_day() -> None:
    edges = [
        edge("n03", hour * HOUR + at, what)
        for hour in range(1, 8)
        for at, what in ((0, "accused"), (1200, "cleared"))
    ]

    outcome = replay(setup(quiet="30m"), history(*edges, hours=9.0), {})

    assert [round((row[1]) / HOUR, 2) for row in taints_of(outcome)] == [1.17, 2.17, 3.17]
    assert stopped(outcome)["Flapping"] > 0


def test_an_old_taint_is_weakened_and_ends() -> None:
    """A node that goes idle proves nothing: its taint is weakened when its time is over, and removed after that."""
    runs = reports(*NAMES[:3], *NAMES[4:], end=48 * HOUR)
    runs += reports("n03", end=2 * HOUR) + reports("n03", begin=2 * HOUR, end=48 * HOUR, state="idle")

    outcome = replay(setup(), history(edge("n03", HOUR), edge("n03", 3 * HOUR, "cleared"), runs=runs, hours=48.0), {})

    assert taints_of(outcome) == [("n03", HOUR + 600, HOUR + 600 + 30 * HOUR, "Expired")]
    assert outcome.taints[0].effects == ("NoSchedule", "PreferNoSchedule")


def test_without_reports_every_named_node_counts_as_active() -> None:
    found = history(edge("n03", HOUR), runs=[])

    assert "NoBudget" in stopped(replay(setup(), found, {}))
    known = {name: NodeView(name=name, uid=name, labels=LABELS) for name in NAMES}
    assert [row[0] for row in taints_of(replay(setup(), found, known))] == ["n03"]
    assert any("no health reports" in note for note in notes(found, 10.0, facts=True, actionable=True))


def test_pods_are_those_that_verdicts_name_and_otherwise_unknown() -> None:
    rank: dict[str, Any] = {"source": "collectives", "communicator": "c", "rank": 3, "pod": "train-3"}
    named = replay(setup(), history(edge("n03", HOUR), edge("n03", HOUR, **rank)), {})
    unnamed = replay(setup(), history(edge("n03", HOUR)), {})

    assert named.taints[0].pods == {"train-3"}
    assert unnamed.taints[0].pods is None


def test_rows_that_cannot_be_read_are_counted_and_lose_nothing_else() -> None:
    found = history(edge("n03", HOUR), edge("n04", HOUR, severity="much"), edge("", HOUR))

    assert (len(found.accusations), found.unreadable) == (1, 2)
    assert any(note.startswith("2 rows") for note in notes(found, 10.0, facts=False, actionable=False))


def random_history(dice: random.Random) -> History:
    edges, runs = [], []
    for name in NAMES:
        at = dice.uniform(0, 2 * HOUR) if dice.random() < 0.7 else 9 * HOUR
        while at < 4 * HOUR:
            last = at + dice.choice([30, 400, 3000, 9000]) * dice.uniform(0.5, 1.5)
            edges += [edge(name, at), edge(name, last, dice.choice(["cleared", "withdrawn"]))]
            at = last + dice.uniform(60, 4 * HOUR)
        at = dice.choice([0.0, 0.0, HOUR])
        while at < 4 * HOUR:
            last = at + dice.choice([600, HOUR, 20 * HOUR])
            runs += reports(name, begin=at, end=min(last, 4 * HOUR), state=dice.choice(["active"] * 4 + ["idle"]))
            at = last + dice.choice([0.0, 0.0, 1200.0])
    return history(*edges, runs=runs)


@pytest.mark.parametrize("seed", range(5))
def test_skipping_time_changes_nothing(seed: int) -> None:
    dice = random.Random(seed)
    found = random_history(dice)
    policy = setup(
        confirmFor=dice.choice(["1m", "10m"]), confirmWindows=dice.choice([1, 6, 20]),
        interval=dice.choice(["1m", "20m"]), recoverFor=dice.choice(["2m", "10m"]),
        stormCooldown=dice.choice(["1m", "15m"]), ttl=dice.choice(["20m", "24h"]), probation="30m",
        quiet=dice.choice(["1m", "2h"]), budget={"maxNodes": dice.choice([1, 3]), "maxPercent": 20},
        minHealthyPercent=dice.choice([50, 90]),
    )  # fmt: skip
    known = {
        name: NodeView(
            name=name, uid=name, labels={**LABELS, "topology.kubernetes.io/zone": dice.choice("ab")},
            created=SINCE + dice.choice([-DAY, -DAY, 2 * HOUR]),
        )
        for name in NAMES[:15]
    }  # fmt: skip

    fast, slow = replay(policy, found, known), replay(policy, found, known, skip=False)

    assert fast.decisions < slow.decisions
    assert (taints_of(fast), fast.most) == (taints_of(slow), slow.most)
    assert [item.effects for item in fast.taints] == [item.effects for item in slow.taints]
    for quick, full in zip(fast.nodes, slow.nodes, strict=True):
        assert dict(quick.stopped) == pytest.approx(dict(full.stopped))


def test_the_report_compares_both_policies() -> None:
    found = history(edge("n03", HOUR), edge("n03", 2 * HOUR, "cleared"))
    shown = Preview(
        cluster="prod", history=found, proposed=replay(setup(), found, {}),
        present=replay(setup(mode="Observe"), found, {}), nodes=20,
        notes=notes(found, 10.0, facts=False, actionable=False),
    )  # fmt: skip

    text, tree = as_text(shown), json.loads(json.dumps(as_json(shown)))

    lines = [line.split() for line in text.splitlines()]
    assert ["nodes", "tainted", "0", "1"] in lines
    assert ["pods", "on", "tainted", "nodes", "0", "unknown"] in lines
    assert ["n03", "2023-11-15", "01:10", "1h", "NoSchedule", "Recovered", "unknown"] in lines
    assert "PRESENT: no node would have been tainted" in text
    assert tree["present"]["taints"] == [] and tree["proposed"]["mode"] == Mode.NO_SCHEDULE
    assert tree["proposed"]["taints"] == [
        {
            "node": "n03", "from": "2023-11-15T01:10:00.000Z", "to": "2023-11-15T02:10:00.000Z", "seconds": 3600.0,
            "effects": ["NoSchedule"], "reason": "Recovered", "pods": None,
        }
    ]  # fmt: skip
    assert tree["present"]["accused"][0]["stoppedBy"][0]["check"] == "Observing"


MANIFEST = "apiVersion: ingero.io/v1alpha1\nkind: FleetCluster\nmetadata: {name: prod}\nspec: {clusterId: prod%s}\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kind: [", "f.yaml: is not YAML"),
        ("kind: 2026-13-45", "f.yaml: is not YAML"),
        ("kind: Pod", "f.yaml: 0 FleetClusters"),
        (MANIFEST % ", clusterId: b", "f.yaml: line 4: the key 'clusterId'"),
        (MANIFEST % "" + "---\n" + MANIFEST % "", "f.yaml: 2 FleetClusters"),
        (MANIFEST % ", taints: {mode: Evict}", "f.yaml: spec.taints.mode"),
        (MANIFEST % ", taints: {confirmFr: 5m}", "f.yaml: spec.taints.confirmFr: there is no such field"),
        (MANIFEST % ", taints: {budget: {nodes: 2}}", "f.yaml: spec.taints.budget.nodes: there is no such field"),
        (MANIFEST % ", taints: 3", "f.yaml: spec.taints"),
    ],
)
def test_a_manifest_that_is_wrong_is_refused_with_the_place(text: str, problem: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read_manifest(io.StringIO(text), "f.yaml")

    assert str(refused.value).startswith(problem)


def test_a_manifest_that_is_no_text_is_named_with_the_line() -> None:
    stream = io.TextIOWrapper(io.BytesIO(b"kind: x\nname: caf\xe9\n"), encoding="utf-8")

    with pytest.raises(SettingsError, match=r"f.yaml: line 2 is not UTF-8 text \(byte 18 is 0xE9\)"):
        read_manifest(stream, "f.yaml")


def test_a_manifest_is_read_from_among_others() -> None:
    text = "kind: Namespace\n---\n" + MANIFEST % ", taints: {mode: NoSchedule, budget: {maxNodes: 3}}"

    assert read_manifest(io.StringIO(text), "f.yaml")["metadata"]["name"] == "prod"


def test_the_token_is_one_that_may_use_sql() -> None:
    lines = ["# tokens", "in scopes=ingest", "bound clusters=a", "good name=x scopes=read,sql", "later"]

    assert (usable_token(lines), usable_token(["only scopes=read"]), usable_token([])) == ("good", "only", "")


@pytest.mark.parametrize(
    ("arguments", "status", "problem"),
    [
        (["-", "--offline"], 2, "--echo is missing"),
        (["-", "--offline", "--echo", "http://127.0.0.1:1"], 1, "http://127.0.0.1:1 cannot be asked: no connection"),
    ],
)
def test_the_exit_status_says_whose_fault_it_is(arguments: list[str], status: int, problem: str) -> None:
    done = CliRunner().invoke(main, ["preview", *arguments], input=MANIFEST % "")

    assert done.exit_code == status
    assert problem in done.stderr


def test_fleet_s_panic_is_replayed_with_the_fraction_of_the_fleet_cluster() -> None:
    def by_setting(*values: str) -> ReplaySetup:
        settings = [{"name": "processors.ingero.panic.straggler_fraction", "value": value} for value in values]
        tree = {"clusterId": "prod", "taints": {"mode": "NoSchedule"}, "fleet": {"settings": settings}}
        return ReplaySetup.from_spec(FleetClusterSpec.model_validate(tree))

    past = history(*(edge(name, MINUTE) for name in NAMES[:4]))  # a fifth of the nodes

    assert (by_setting().panic_fraction, by_setting("0.1").panic_fraction) == (0.5, 0.1)
    assert replay(by_setting(), past, {}).taints and not replay(by_setting("0.1"), past, {}).taints
    for text in ("0", "1.5", "many"):
        with pytest.raises(SettingsError, match=r"straggler_fraction"):
            by_setting(text)
