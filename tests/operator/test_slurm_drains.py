"""Drains in Slurm: the checks of the taint policy, undrains of own drains only, and users who have the last word."""

import asyncio
import itertools
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from ingero_contract import routes
from ingero_kit.settings import SettingsError
from ingero_operator.fleet_answers import PollResult
from ingero_operator.slurm import command
from ingero_operator.slurm.controller import SlurmController, describe_drain
from ingero_operator.slurm.scontrol import Scontrol, ScontrolFailed
from ingero_operator.slurm.settings import SlurmSettings
from ingero_operator.slurm.state_store import DrainStateStore
from ingero_operator.taints.model import Accused, Decision, Evidence, Step
from ingero_operator.taints.nodes import moment
from ingero_testing.slurm import FakeScontrol, needs_slurm, real_slurm

START = moment("2026-11-23T04:00:00Z")
DAY = 86_400.0


class Cluster:
    """A controller with a fake clock; each pass comes with new statistics of Fleet."""

    def __init__(self, folder: Path, scontrol: Path | str, **settings: Any) -> None:
        self.now, self.audited = START, list[str]()
        limits: dict[str, Any] = {
            "drain": True, "max_percent": 50, "min_healthy_percent": 50, "confirm_for": "10s", "confirm_windows": 2,
            "drain_interval": "1m", "recover_for": "30s", "quiet": "1m", "min_node_age": "1s",
        }  # fmt: skip
        self.settings = SlurmSettings(
            fleet_url="http://127.0.0.1:1", cluster_id="prod", scontrol=str(scontrol),
            state_file=folder / "drains.json", **(limits | settings),
        )  # fmt: skip
        self.controller = self._start()

    def _start(self) -> SlurmController:
        self.store = DrainStateStore(self.settings.state_file, "prod")
        return SlurmController(self.settings, self.store, lambda: self.now, self._audit, chance=lambda: 0.0)

    def _audit(self, step: Step, message: str) -> None:
        self.audited.append(message)

    def restart(self) -> None:
        self.store.close()
        self.controller = self._start()

    def passes(self, count: int, *accused: str, healthy: tuple[str, ...] = (), **flags: bool) -> Decision:
        """So many passes, 10 s apart, each with new statistics."""
        for _ in range(count):
            self.now += 10
            evidence = Evidence(
                tick=f"{self.now:.0f}", received=self.now, healthy=frozenset(healthy),
                accused={name: Accused(active=True, windows=9, severity=0.4, kind="slow") for name in accused},
            )  # fmt: skip
            decision = asyncio.run(self.controller.run_pass(PollResult(evidence=evidence), **flags))
        return decision


@pytest.fixture
def fake(tmp_path: Path) -> FakeScontrol:
    return FakeScontrol(tmp_path)


@pytest.fixture
def cluster(tmp_path: Path, fake: FakeScontrol) -> Iterator[Cluster]:
    made = Cluster(tmp_path, fake.program)
    yield made
    made.store.close()


def test_a_confirmed_straggler_is_drained_once_with_evidence_in_the_reason(
    cluster: Cluster, fake: FakeScontrol
) -> None:
    cluster.passes(5, "n3")

    (update,) = fake.updates()
    assert update[:2] == ["nodename=n3", "state=drain"]
    assert update[2].startswith("reason=ingero[prod] ")
    assert update[2].endswith(": slow, 40% lost, 2 windows")
    assert cluster.audited == ["Node n3 was drained: slow, 40% lost, 2 windows"]


def test_a_dry_run_writes_nothing(tmp_path: Path, fake: FakeScontrol) -> None:
    cluster = Cluster(tmp_path, fake.program, drain=False)

    decision = cluster.passes(5, "n3")
    cluster.store.close()

    assert [step.node for step in decision.steps] == ["n3"]
    assert fake.updates() == [] and cluster.audited == [] and not cluster.settings.state_file.exists()


def test_one_node_at_a_time_and_never_more_than_the_budget(cluster: Cluster, fake: FakeScontrol) -> None:
    seen = [len(fake.updates()) for _ in range(16) if cluster.passes(1, "n1", "n2", "n3")]

    assert seen == [0, *[1] * 6, *[2] * 9]


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"state": "IDLE+DRAIN", "reason": "broken fan"}, "Cordoned"), ({"state": "DOWN"}, "NotReady"),
        ({"features": "ingero-exclude"}, "Excluded"), ({"state": "IDLE+REBOOT_REQUESTED"}, "Disrupted"),
        ({"state": "IDLE+DRAIN", "reason": "ingero[other] 0a1b2c3d until 2026-12-01T00:00:00Z: x"}, "Foreign"),
    ],
)  # fmt: skip
def test_what_the_policy_prevents(
    cluster: Cluster, fake: FakeScontrol, change: dict[str, object], check: str
) -> None:
    fake.change("n3", **change)

    decision = cluster.passes(4, "n3")

    assert [item.check for item in decision.checks] == [check]
    assert fake.updates() == []


def test_a_storm_a_pause_and_old_statistics_drain_nothing(tmp_path: Path, fake: FakeScontrol) -> None:
    storm = Cluster(tmp_path, fake.program)
    assert storm.passes(4, "n1", "n2", "n3", "n4", "n5").allowed.reason == "Storm"
    storm.store.close()
    paused = Cluster(tmp_path, fake.program, paused=True)
    assert paused.passes(4, "n1").allowed.reason == "Paused"
    old = Evidence(tick="1", received=paused.now - 31, accused={"n1": Accused(active=True, windows=9)})
    stale = asyncio.run(paused.controller.run_pass(PollResult(evidence=old)))
    paused.store.close()

    assert stale.steps == () and fake.updates() == []


def test_a_node_that_recovers_is_undrained(cluster: Cluster, fake: FakeScontrol) -> None:
    cluster.passes(3, "n3")
    cluster.passes(5, healthy=("n3",))

    assert fake.updates()[1:] == [["nodename=n3", "state=undrain"]]
    assert cluster.audited[1:] == ["Node n3 was undrained: Recovered"]


def test_a_drain_without_fresh_evidence_ends_when_its_time_is_over(cluster: Cluster, fake: FakeScontrol) -> None:
    cluster.passes(3, "n3")
    cluster.now += DAY
    cluster.passes(1)

    assert cluster.audited[1:] == ["Node n3 was undrained: Expired"]


def test_a_drain_is_renewed_while_the_node_straggles(cluster: Cluster, fake: FakeScontrol) -> None:
    cluster.passes(3, "n3")
    cluster.now += DAY * 0.8
    cluster.passes(3, "n3")

    assert [update[1].partition("=")[0] for update in fake.updates()] == ["state", "reason"]


def test_a_user_who_resumes_a_node_is_respected_until_the_cooldown_is_over(
    cluster: Cluster, fake: FakeScontrol
) -> None:
    cluster.passes(3, "n3")
    fake.change("n3", state="IDLE", reason="")
    during = cluster.passes(3, "n3")
    cluster.restart()
    again = cluster.passes(3, "n3")
    cluster.now += DAY
    cluster.passes(3, "n3")

    assert [item.check for item in (*during.checks, *again.checks)] == ["HandsOff", "HandsOff"]
    assert len(fake.updates()) == 2


def test_a_drain_that_a_user_took_over_is_not_ended(cluster: Cluster, fake: FakeScontrol) -> None:
    cluster.passes(3, "n3")
    fake.change("n3", reason="checking the fans")
    cluster.passes(5, healthy=("n3",))
    cluster.passes(1, release=True)

    assert len(fake.updates()) == 1


def test_after_a_restart_the_drain_is_known_and_without_the_file_the_reason_tells(
    cluster: Cluster, fake: FakeScontrol
) -> None:
    cluster.passes(3, "n3")
    cluster.restart()
    assert cluster.controller.drained == {"n3"}
    cluster.settings.state_file.unlink()
    cluster.restart()
    cluster.passes(5, healthy=("n3",))

    assert fake.updates()[1:] == [["nodename=n3", "state=undrain"]]


def test_a_release_undrains_all_of_this_cluster_and_nothing_else(cluster: Cluster, fake: FakeScontrol) -> None:
    cluster.passes(3, "n3")
    fake.change("n4", state="IDLE+DRAIN", reason="broken fan")
    fake.change("n5", state="IDLE+DRAIN", reason="ingero[other] 0a1b2c3d until 2026-12-01T00:00:00Z: x")

    cluster.passes(1, release=True)

    assert fake.updates()[1:] == [["nodename=n3", "state=undrain"]]
    assert cluster.controller.drained == frozenset()


def test_a_refusal_delays_no_other_node_and_is_not_repeated_at_once(cluster: Cluster, fake: FakeScontrol) -> None:
    fake.change("n1", refused=True)

    seen = [len(fake.updates()) for _ in range(9) if cluster.passes(1, "n1", "n2")]

    assert seen == [0, 1, *[2] * 6, 3]
    assert [update[0] for update in fake.updates()] == ["nodename=n1", "nodename=n2", "nodename=n1"]


def test_a_refused_drain_is_tried_again_after_growing_pauses(cluster: Cluster, fake: FakeScontrol) -> None:
    fake.change("n1", refused=True)

    seen = [len(fake.updates()) for _ in range(70) if cluster.passes(1, "n1")]

    tries = [number for number, (before, after) in enumerate(itertools.pairwise(seen)) if after > before]
    assert [10 * (after - before) for before, after in itertools.pairwise(tries)] == [20, 40, 80, 160, 300]


def test_a_drain_whose_outcome_is_unknown_counts_for_the_interval(cluster: Cluster, fake: FakeScontrol) -> None:
    cluster.passes(1, "n1", "n2")
    fake.change("n1", answer_lost=True)

    cluster.passes(3, "n1", "n2")

    assert [update[0] for update in fake.updates()] == ["nodename=n1"]


def test_a_node_whose_drain_was_refused_for_long_is_drained_when_it_is_allowed(
    cluster: Cluster, fake: FakeScontrol
) -> None:
    fake.change("n1", refused=True)
    for _ in range(4):
        cluster.passes(3, "n1")
        cluster.now += 300
    assert len(fake.updates()) == 5
    fake.change("n1", refused=False)

    cluster.passes(3, "n1")

    assert cluster.controller.drained == {"n1"}


def test_only_the_chosen_partitions_are_drained(tmp_path: Path, fake: FakeScontrol) -> None:
    cluster = Cluster(tmp_path, fake.program, partitions=("other",))
    cluster.passes(4, "n3")
    cluster.store.close()

    assert fake.updates() == []


@pytest.mark.parametrize("name", ["n[1-8]", "ALL", "all", "n1,n2", "", "-n1", "n1 state=down"])
def test_a_name_that_means_several_nodes_is_never_written(name: str, fake: FakeScontrol) -> None:
    with pytest.raises(ScontrolFailed, match="no name of one node"):
        asyncio.run(Scontrol(program=str(fake.program)).undrain(name))
    assert fake.updates() == []


def test_a_program_that_hangs_fails_or_is_missing_is_an_error(tmp_path: Path) -> None:
    for text, message in (("exec sleep 60", "did not end within"), ("echo no >&2; exit 3", "no .status 3")):
        (tmp_path / "scontrol").write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "scontrol").chmod(0o755)
        with pytest.raises(ScontrolFailed, match=message):
            asyncio.run(Scontrol(program=str(tmp_path / "scontrol"), timeout=0.2).nodes())
    with pytest.raises(ScontrolFailed, match="No such file"):
        asyncio.run(Scontrol(program=str(tmp_path / "none")).nodes())


def test_one_process_uses_the_state_and_a_damaged_one_is_refused(cluster: Cluster) -> None:
    with pytest.raises(SettingsError, match="another process"):
        DrainStateStore(cluster.settings.state_file, "prod")
    for content in ("{", "[]", '{"cluster": "prod", "drains": {"nodes": [{}]}}', '{"cluster": "b", "drains": {}}'):
        cluster.settings.state_file.write_text(content)
        with pytest.raises(SettingsError, match=r"damaged|cluster 'b'"):
            cluster.store.load()


def test_without_a_place_for_the_state_nothing_is_drained(cluster: Cluster, fake: FakeScontrol) -> None:
    cluster.settings.state_file.mkdir()

    with pytest.raises(OSError):
        cluster.passes(3, "n3")

    assert fake.updates() == []


def answers(cluster: str) -> dict[str, Any]:
    """Fleet's answer: n3 straggles."""
    return {
        "cluster_id": cluster, "generated_at": "2026-11-23T04:00:00Z", "interval_seconds": 10.0,
        "decided_by": "verdict", "quorum_met": True, "panic": False, "coverage_low": False, "threshold": 0.8,
        "stragglers": [
            {"node_id": "n3", "state": "active", "windows": 9, "kind": "slow", "verdict": {"severity": 0.4}}
        ],
    }  # fmt: skip


def test_the_command_polls_fleet_with_its_token_drains_and_sends_a_record(tmp_path: Path, fake: FakeScontrol) -> None:
    seen: dict[str, Any] = {}
    (tmp_path / "token").write_text("secret\n")

    async def stragglers(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != "Bearer secret":
            return web.json_response({}, status=401)
        return web.json_response(answers(request.query[routes.CLUSTER_PARAMETER]))

    async def run() -> None:
        sent = asyncio.Event()

        async def logs(request: web.Request) -> web.Response:
            seen["record"], seen["token"] = await request.json(), request.headers.get("Authorization")
            sent.set()
            return web.json_response({})

        app = web.Application()
        app.router.add_get(routes.FLEET_STRAGGLERS, stragglers)
        app.router.add_post(routes.OTLP_LOGS, logs)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        settings = SlurmSettings(
            fleet_url=url, fleet_otlp_url=url, cluster_id="prod", scontrol=str(fake.program), drain=True, poll=0.1,
            token_file=tmp_path / "token", state_file=tmp_path / "drains.json", confirm_windows=1, confirm_for="1ms",
            max_percent=50, min_node_age="1s",
        )  # fmt: skip
        controlling = asyncio.create_task(command.control(settings))
        await asyncio.wait({controlling, asyncio.create_task(sent.wait())}, return_when=asyncio.FIRST_COMPLETED)
        controlling.cancel()
        await asyncio.gather(controlling, return_exceptions=True)
        await runner.cleanup()

    asyncio.run(asyncio.wait_for(run(), 60))

    assert [update[:2] for update in fake.updates()] == [["nodename=n3", "state=drain"]]
    assert seen["token"] == "Bearer secret"
    text = json.dumps(seen["record"])
    assert "Node n3 was drained: slow, 40% lost, 1 windows" in text and '"drain"' in text and "secret" not in text


def test_a_step_is_described() -> None:
    gone = Step(verb="remove", node="n1", uid="n1", reason="Recovered", removed="0a1b2c3d")

    assert describe_drain(gone) == "Node n1 was undrained: Recovered"


@needs_slurm
def test_a_real_slurm_is_drained_undrained_and_left_to_its_administrator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        monkeypatch.setenv("SLURM_CONF", str(stack.enter_context(real_slurm(tmp_path))))
        scontrol = Scontrol()
        cluster = Cluster(tmp_path, "scontrol", needs_gpu=False, max_percent=99, min_healthy_percent=0)
        stack.callback(cluster.store.close)
        cluster.now = max(node.booted for node in asyncio.run(scontrol.nodes()).values()) + DAY

        cluster.passes(3, "n1")
        drained = asyncio.run(scontrol.node("n1"))
        cluster.passes(5, healthy=("n1",))
        undrained = asyncio.run(scontrol.node("n1"))
        assert drained is not None and "DRAIN" in drained.flags and drained.reason.startswith("ingero[prod] ")
        assert drained.reason_user == os.environ.get("USER", "root")
        assert undrained is not None and "DRAIN" not in undrained.flags and undrained.reason == ""

        cluster.passes(3, "n2")
        asyncio.run(scontrol.renew("n2", "checking the fans"))
        left = cluster.passes(5, healthy=("n2",))
        taken_over = asyncio.run(scontrol.node("n2"))
        assert taken_over is not None and "DRAIN" in taken_over.flags and taken_over.reason == "checking the fans"
        assert left.steps == ()
        with pytest.raises(ScontrolFailed, match="Invalid node name"):
            asyncio.run(scontrol.drain("n9", "x"))
