"""Slow parts of a network from the collectives that Fleet takes: what `diagnose` names, and no node."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from ingero_contract import attributes, metrics
from ingero_detect.network.links import RankPort
from ingero_detect.network.slow_links import slow_elements
from ingero_detect.network.topology import WHOLE_NODE, nearest_switches, ports_of
from ingero_fleet.collectives.batch import POINT
from ingero_fleet.collectives.communicators import Communicators
from ingero_fleet.collectives.excuses import Claim
from ingero_fleet.collectives.gpu_states import GpuStates
from ingero_fleet.collectives.long_waits import long_waits
from ingero_fleet.collectives.migrations import with_transfer_times, with_work
from ingero_fleet.collectives.points import CommKey, PointReader, PointSource
from ingero_fleet.collectives.slow_network import NetworkVerdict, SlowNetwork
from ingero_fleet.collectives.slow_transfers import slowed_communicators
from ingero_fleet.collectives.topology_file import TopologyFile
from ingero_fleet.collectives.tracker import CollectivesTracker
from ingero_fleet.collectives.transfer_times import MAX_SERIES, MAX_SERIES_OF_COMMUNICATOR, TICKS, TransferTimes
from ingero_fleet.collectives.window import CommunicatorWindow
from ingero_fleet.processor_settings import NcclConfig, ProcessorsConfig
from ingero_fleet.receivers.messages import encode_push
from ingero_fleet.replication.log_bodies import Marker
from ingero_fleet.replication.ordered_log import LogMessage
from ingero_fleet.replication.replicated_state import ReplicatedState
from ingero_fleet.replication.rules import rules_of
from ingero_fleet.state_codec import encode_state, sealed, unsealed
from ingero_fleet.state_machine import StateMachine
from ingero_kit.otlp_receiver import Push
from ingero_kit.otlp_signal import Signal
from ingero_kit.settings import SettingsError
from ingero_testing.collectives import BEGIN, feed
from ingero_testing.fabric_jobs import FabricJob, fabric_job, gpu_topology, inspector_exports, recorded
from ingero_testing.scripted_fleet import CONFIG

STEPS = 15
"""One for each tick; the judgements after 12 and 15 agree."""


@cache
def job_of(fault: str) -> FabricJob:
    return fabric_job(3, 5, fault, STEPS)


def new_tracker(folder: Path, job: FabricJob) -> CollectivesTracker:
    file = folder / "topology.yaml"
    file.write_text(json.dumps(gpu_topology(job)))
    return CollectivesTracker(NcclConfig(topology_file=file))


def play(tracker: CollectivesTracker, job: FabricJob, first: int = 0, end: int = STEPS, **form: Any) -> None:
    for step in range(first, end):
        feed(tracker, inspector_exports(job, step, **form), BEGIN + 5 * step, "json")
        tracker.judge(BEGIN + 5 * step)


def play_tick(tracker: CollectivesTracker, job: FabricJob, tick: int) -> None:
    """A tick with the next step of a job that runs over and over."""
    now = BEGIN + 5 * tick
    feed(tracker, inspector_exports(job, tick % STEPS, first_seq=tick - tick % STEPS), now, "json")
    tracker.judge(now)


def verdicts(tracker: CollectivesTracker) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tracker.answer("c", BEGIN)["network"]
    return found


def pairs(items: list[dict[str, str]]) -> set[tuple[str, str]]:
    return {(item["kind"], item["name"]) for item in items}


def test_nodes_that_the_topology_lacks_are_told(tmp_path: Path) -> None:
    job = job_of("nic")
    topology = gpu_topology(job)
    lost = sorted({item["node"] for item in topology["nics"]})[1]
    file = tmp_path / "topology.yaml"
    file.write_text(json.dumps({**topology, "nics": [item for item in topology["nics"] if item["node"] != lost]}))
    tracker, whole = CollectivesTracker(NcclConfig(topology_file=file)), new_tracker(tmp_path, job)
    play(tracker, job)
    play(whole, job)

    answer, complete = tracker.network.answer("c"), whole.network.answer("c")
    assert answer and (answer["missing_nodes"], answer["missing_node_count"]) == ([lost], 1)
    assert complete and (complete["missing_nodes"], complete["missing_node_count"]) == ([], 0)


@pytest.mark.parametrize("fault", ["nothing", "nic", "leaf", "spine", "node"])
def test_fleet_names_what_diagnose_names(fault: str, tmp_path: Path) -> None:
    job = job_of(fault)
    tracker = new_tracker(tmp_path, job)
    timed = recorded(job).line
    unknown = np.full(len(timed.rank), -1)
    wanted = slow_elements(
        replace(timed, stage=unknown, data_parallel=unknown),
        {int(rank): port for rank, port in ports_of(job.topology).items()},
    )

    play(tracker, job)

    assert tracker.refused == {}
    assert tracker.network.compared == {"c": wanted.compared}
    if not wanted.causes:
        assert verdicts(tracker) == []
        return
    (verdict,) = verdicts(tracker)
    assert verdict["slow_group_count"] == len(wanted.slow)
    if wanted.certain:
        assert pairs(verdict["elements"]) == {cause[0] for cause in wanted.causes} == {(job.kind, job.name)}
        assert verdict["kind"] == job.kind
    else:
        assert verdict["kind"] == "unknown"
        assert [pairs(cause) for cause in verdict["possible"]] == [set(cause) for cause in wanted.causes]


def accused_nodes(tracker: CollectivesTracker, job: FabricJob) -> set[str]:
    """Nodes of all ranks that were accused at any tick."""
    nodes: set[str] = set()
    for step in range(STEPS):
        play(tracker, job, step, step + 1)
        nodes |= {node for _, node in tracker.stragglers}
    return nodes


@pytest.mark.parametrize("fault", ["nic", "link", "spine"])
def test_ranks_that_a_slow_network_makes_late_are_not_accused(fault: str, tmp_path: Path) -> None:
    job = job_of(fault)

    assert accused_nodes(CollectivesTracker(NcclConfig()), job), "without a topology they are"
    assert accused_nodes(new_tracker(tmp_path, job), job) == set()


def test_a_slow_node_is_accused_with_a_topology_as_without_one(tmp_path: Path) -> None:
    job = job_of("node")

    assert accused_nodes(new_tracker(tmp_path, job), job) == accused_nodes(CollectivesTracker(NcclConfig()), job)
    assert job.name in accused_nodes(new_tracker(tmp_path, job), job)


def test_a_slow_nodes_partner_in_the_pipeline_is_not_accused() -> None:
    """It waits for the slow node in their pair, and so comes late to its own data-parallel group."""
    job = fabric_job(22, 0, "node", 24)
    tracker, nodes = CollectivesTracker(NcclConfig()), set()
    for step in range(24):
        play(tracker, job, step, step + 1)
        nodes |= {node for _, node in tracker.stragglers}

    assert nodes == {job.name}
    known = Communicators(tracker.reader, tracker.windows)
    longer = long_waits(known, "c", {f"node-{node}" for node in range(8)})
    assert len({node for waits in longer.values() for node in waits} - {job.name}) == 1


def test_collectives_excuse_by_the_time_that_they_take_longer_than_like_ones(tmp_path: Path) -> None:
    job = job_of("nic")
    tracker = new_tracker(tmp_path, job)
    play(tracker, job)
    known = Communicators(tracker.reader, tracker.windows)

    number, share = max(slowed_communicators(known, tracker.transfers).items(), key=lambda item: item[1])

    members = {known.source(known.windows[number], rank).node for rank in range(known.windows[number].ranks)}
    assert job.name.partition("/")[0] in members
    slowed = known.wait_profile(number, share)
    assert slowed.excuses(Claim(number + 1, min(members), 1.9 * share))
    assert not slowed.excuses(Claim(number + 1, min(members), 2.1 * share)), "too late for that"
    assert not slowed.excuses(Claim(number, min(members), share)), "its own collectives make nobody late for them"
    assert not slowed.excuses(Claim(number + 1, "another", share))


def test_without_message_sizes_larger_messages_may_be_the_cause(tmp_path: Path) -> None:
    job = job_of("nic")
    tracker = new_tracker(tmp_path, job)

    play(tracker, job, sizes=False)

    (verdict,) = verdicts(tracker)
    assert (verdict["kind"], verdict["elements"]) == ("unknown", [])
    assert ("nic", job.name) in pairs(verdict["possible"][0])
    assert ("work", "collectives of unknown size") in pairs(verdict["possible"][0])


def test_a_change_is_an_event_of_the_cluster_and_of_no_node(tmp_path: Path) -> None:
    job, bodies = job_of("nic"), list[Push]()
    new_tracker(tmp_path, job)
    tracker = CollectivesTracker(NcclConfig(topology_file=tmp_path / "topology.yaml"), export_logs=bodies.append)

    play(tracker, job)
    for tick in range(STEPS, 3 * STEPS):
        tracker.judge(BEGIN + 5 * tick)

    requests = [ExportLogsServiceRequest.FromString(push.body) for push in bodies]
    found = [
        ({pair.key: pair.value.string_value for pair in block.resource.attributes}, record)
        for request in requests for block in request.resource_logs for record in block.scope_logs[0].log_records
        if record.event_name == metrics.NETWORK_EVENT
    ]  # fmt: skip
    assert [resource for resource, _ in found] == [{attributes.CLUSTER_ID: "c"}] * 2
    facts, cleared = ({pair.key: pair.value.string_value for pair in record.attributes} for _, record in found)
    assert (facts[attributes.VERDICT_KIND], cleared[attributes.VERDICT_KIND]) == ("nic", "none")
    assert json.loads(facts[attributes.VERDICT_EVIDENCE])["elements"] == [{"kind": "nic", "name": job.name}]
    assert found[0][1].body.string_value.startswith(f"Slow: nic {job.name}; collectives take up to ")


def test_a_verdict_needs_two_judgements_and_ends_when_the_network_is_well(tmp_path: Path) -> None:
    slow, well = job_of("nic"), job_of("nothing")
    tracker = new_tracker(tmp_path, slow)
    named = []
    for tick in range(3 * STEPS):
        part = slow if tick < STEPS else well
        play_tick(tracker, part, tick)
        named.append(bool(verdicts(tracker)))

    assert named.index(True) == 11, "judged after ticks 9 and 12"
    assert named[-1] is False


def state_of(tracker: CollectivesTracker) -> bytes:
    return sealed(encode_state(tracker.state()))


def test_a_restored_state_goes_on_as_one_that_was_never_interrupted(tmp_path: Path) -> None:
    job = job_of("nic")
    first, second, third = (new_tracker(tmp_path, job) for _ in range(3))

    play(first, job)
    play(second, job, end=10)
    third.restore(unsealed(state_of(second)))
    play(third, job, 10)

    assert verdicts(first) == verdicts(third) != []
    assert state_of(first) == state_of(third)


def test_fleets_on_one_log_agree_and_one_that_joins_goes_on_from_a_snapshot(tmp_path: Path) -> None:
    job = job_of("nic")
    new_tracker(tmp_path, job)
    config = CONFIG.model_copy(update={"nccl": NcclConfig(topology_file=tmp_path / "topology.yaml")})

    def new_state() -> ReplicatedState:
        return ReplicatedState(lambda export: StateMachine(config, 0.0, export, export), rules_of(config))

    first, second, third = new_state(), new_state(), new_state()
    exported: dict[str, list[bytes]] = {"first": [], "second": []}
    log: list[LogMessage] = []

    def add(kind: Literal["push", "marker"], step: int, body: bytes) -> None:
        number = len(log) + 1
        log.append(LogMessage(number, BEGIN + config.ingero.push_interval * step, kind, f"a-{number}", body))

    for step in range(STEPS):
        for export in inspector_exports(job, step):
            add("push", step, encode_push(Push(Signal.METRICS, "json", export), 0.0))
        add("marker", step, Marker("collectives_poll", 2 * step + 1, "a", first.rules, 0).encode())
        add("marker", step, Marker("tick", 2 * step + 2, "a", first.rules, 0).encode())
    joins = 2 * len(log) // 3
    for message in log:
        exported["first"] += [push.body for push in first.apply(message).findings]
        exported["second"] += [push.body for push in second.apply(message).findings]
        if message.sequence == joins:
            third.restore(second.snapshot())
        elif message.sequence > joins:
            third.apply(message)

    assert first.machine.collectives.network.now["c"]["kind"] == "nic"
    assert first.state_hash() == second.state_hash() == third.state_hash()
    assert exported["first"] == exported["second"] != []


def test_fleets_with_different_topologies_do_not_judge_together(tmp_path: Path) -> None:
    file, same, other = tmp_path / "a.yaml", tmp_path / "b.yaml", tmp_path / "c.yaml"
    file.write_text("nics: [{node: n, nic: mlx5_0, gpus: [GPU0]}]")
    same.write_text("nics: [{nic: mlx5_0, node: n, gpus: [GPU0]}]")
    other.write_text("nics: [{node: n, nic: mlx5_0, gpus: [GPU0], switch: leaf}]")
    rules = [rules_of(ProcessorsConfig(nccl=NcclConfig(topology_file=one))) for one in (file, same, other)]

    assert rules[0] == rules[1] != rules[2]


@pytest.mark.parametrize(
    ("content", "place"),
    [("nics: [", "line 2, column 1"), ("nics: [{node: n, nic: a}]", "nics[0]: node, nic and ranks or gpus"),
     ("nics: [{node: n, nic: a, gpus: [1]}]", "nics[0].gpus"), ("nodes: [n]", "nodes: every node"),
     ("nodes: {n: 1}", "nodes.n: a switch's name"), ("nodes: {}\nnics: []", "either nics or nodes"),
     ("\0", "control characters"), (None, "topology.yaml: cannot be read: No such file or directory"),
     ("- " * 100_000, "line 1: more than 64 lists")],
)  # fmt: skip
def test_a_topology_that_cannot_be_used_is_an_error_with_its_place(
    tmp_path: Path, content: str | None, place: str
) -> None:
    file = tmp_path / "topology.yaml"
    if content is not None:
        file.write_text(content)

    with pytest.raises(SettingsError) as caught:
        CollectivesTracker(NcclConfig(topology_file=file))

    assert f"processors.nccl.topology_file {file}" in str(caught.value)
    assert place in str(caught.value)


def test_a_flood_of_groups_and_message_sizes_stays_bounded_and_is_counted() -> None:
    times, count = TransferTimes(), MAX_SERIES + 500
    comms = [CommKey("c", f"{number:016x}", 2) for number in range(count)]
    numbers, ones = np.arange(count), np.ones(count)

    times.add(comms, ["allreduce"], np.zeros(count, np.int64), np.zeros(count, np.int64), numbers, ones)
    assert len(times) == MAX_SERIES_OF_COMMUNICATOR
    times.add(comms, ["allreduce"], numbers, np.zeros(count, np.int64), np.full(count, 8), ones)
    assert len(times) == MAX_SERIES
    assert sum(times.dropped.values()) == 2 * count - MAX_SERIES - 1
    for _ in range(TICKS):
        times.next_tick()
    assert len(times) == 0
    assert len(times.table()) == 0


def test_points_of_a_state_without_message_sizes_are_kept(tmp_path: Path) -> None:
    job = job_of("nic")
    tracker = new_tracker(tmp_path, job)
    first, *rest = inspector_exports(job, 0)
    feed(tracker, [first], BEGIN, "json")
    tracker.judge(BEGIN)
    feed(tracker, rest[:1], BEGIN + 1, "json")
    old: dict[str, Any] = unsealed(state_of(tracker))
    del old["transfers"], old["network"], old["matcher"]["waiting"]["size"], old["matcher"]["waiting"]["work"]
    points = np.frombuffer(bytes(old["batch"]), POINT)
    names = [name for name in POINT.names or () if name not in ("size", "work")]
    packed = np.zeros(len(points), [(name, POINT[name]) for name in names])
    for name in names:
        packed[name] = points[name]
    migrated = with_work(with_transfer_times({"version": 1, "collectives": {**old, "batch": packed.tobytes()}}))

    later = new_tracker(tmp_path, job)
    later.restore(migrated["collectives"])
    feed(later, rest[1:], BEGIN + 2, "json")
    later.judge(BEGIN + 5)

    assert migrated["version"] == 3
    assert tracker.outcomes["whole"] + later.outcomes["whole"] == 96, "every collective of the step"


def test_the_nearest_switch_above_all_nics_of_a_node() -> None:
    ports = [
        RankPort("a", "n0", ("leaf-0", "spine")),
        RankPort("b", "n0", ("leaf-0", "spine")),
        RankPort("b", "n1", ("leaf-1", "spine")),
        RankPort("c", "n0", ("leaf-1",)),
        RankPort("c", "n1", ("leaf-2",)),
        RankPort("d", "n0"),
    ]

    assert nearest_switches(ports) == {"a": "leaf-0", "b": "spine"}


LEAVES, NODES_OF_LEAF, SLOW_LEAF = 4, 4, 1


def node_topology(nodes: int) -> dict[str, Any]:
    leaves = {f"n{node}": f"spine/leaf-{node // NODES_OF_LEAF}" for node in range(nodes)}
    return {"nodes": leaves, "switches": dict.fromkeys(leaves.values(), "spine")}


def pairs_of_nodes(slow: Callable[[int, int], bool], ports: dict[str, RankPort], gpu: str) -> NetworkVerdict | None:
    """The verdict on pairs of nodes in and between leaves, of which some are slow."""
    nodes = LEAVES * NODES_OF_LEAF
    rings = [(one, other) for step in (1, NODES_OF_LEAF) for one in range(nodes) for other in [(one + step) % nodes]]
    reader = PointReader(1000, 1000, GpuStates(1, 1.0))
    communicators, times, network = Communicators(reader), TransferTimes(), SlowNetwork(ports)
    for number, ring in enumerate(rings):
        reader.comms.append(CommKey("c", f"{number:016x}", len(ring)))
        reader.sources += [PointSource("c", f"n{node}", "pod", gpu) for node in ring]
        members = np.arange(len(reader.sources) - len(ring), len(reader.sources), dtype=np.int32)
        communicators.windows[number] = CommunicatorWindow(len(ring), members, 0.0)
    random, count = np.random.default_rng(0), np.arange(len(rings))
    usual = np.array([1.3 if slow(*ring) else 1.0 for ring in rings])
    for step in range(STEPS):
        times.next_tick()
        seconds = usual * random.lognormal(0, 0.01, len(rings))
        times.add(reader.comms, ["send"], count, 0 * count, 0 * count + 8, seconds)
        network.tick(communicators, times, 5.0 * step)
    return network.now.get("c")


@pytest.mark.parametrize("gpu", ["GPU3", ""])
def test_nearest_switches_of_nodes_suffice_to_name_a_switch(gpu: str) -> None:
    ports = ports_of(node_topology(LEAVES * NODES_OF_LEAF))
    under = range(SLOW_LEAF * NODES_OF_LEAF, (SLOW_LEAF + 1) * NODES_OF_LEAF)

    leaf = pairs_of_nodes(lambda one, other: one in under or other in under, ports, gpu)
    node = pairs_of_nodes(lambda one, other: 6 in (one, other), ports, gpu)

    assert leaf and pairs(leaf["elements"]) == {("switch", f"spine/leaf-{SLOW_LEAF}")}
    assert node and node["kind"] in ("nic", "unknown")
    causes = node["possible"] or [node["elements"]]
    assert {re.split("[/:]", item["name"])[0] for cause in causes for item in cause} == {"n6"}
    assert pairs_of_nodes(lambda one, other: False, ports, gpu) is None


@pytest.mark.parametrize("fault", ["nothing", "nic", "leaf", "link"])
def test_without_nics_a_fault_of_one_rail_names_nothing_that_is_healthy(fault: str, tmp_path: Path) -> None:
    job = job_of(fault)
    file = tmp_path / "topology.yaml"
    nodes = {nic["node"]: nic["switch"].rpartition("-")[0] for nic in gpu_topology(job)["nics"]}
    file.write_text(json.dumps({"nodes": nodes, "switches": dict.fromkeys(nodes.values(), "spine")}))
    tracker = CollectivesTracker(NcclConfig(topology_file=file))

    play(tracker, job)

    assert all(verdict["kind"] == "unknown" for verdict in verdicts(tracker))


def test_a_changed_topology_is_used_and_a_broken_one_is_not(tmp_path: Path) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text("nodes: {}")
    tracker = CollectivesTracker(NcclConfig(topology_file=file))
    topology = TopologyFile(file, tracker.network.ports)
    assert topology.changed() is None and tracker.answer("c", BEGIN)["network"] == []

    file.write_text(json.dumps(gpu_topology(job_of("leaf"))))
    ports = topology.changed()
    assert ports
    tracker.use_topology(ports)
    play(tracker, job_of("leaf"))

    (verdict,) = verdicts(tracker)
    assert ("switch", job_of("leaf").name) in pairs([item for cause in verdict["possible"] for item in cause])
    file.write_text("nodes: [")
    assert topology.changed() is None
    file.unlink()
    assert topology.changed() is None


def test_a_topology_that_changed_before_it_was_followed_is_used(tmp_path: Path) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text("nodes: {}")
    tracker = CollectivesTracker(NcclConfig(topology_file=file))
    file.write_text(json.dumps({"nodes": {"a": "leaf"}}))

    assert TopologyFile(file, tracker.network.ports).changed() == {"a:": RankPort("a", WHOLE_NODE, ("leaf",))}
