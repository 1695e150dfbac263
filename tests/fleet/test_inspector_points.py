"""NCCL Inspector's OTLP export: in the verbose form the late GPU is named, in the default form nobody is."""

import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from ingero_contract import attributes, routes
from ingero_fleet.collectives.inspector_points import UNMATCHED
from ingero_fleet.collectives.tracker import CollectivesTracker
from ingero_fleet.processor_settings import NcclConfig
from ingero_fleet.state_codec import encode_state, sealed, unsealed
from ingero_kit.otlp_receiver import Push
from ingero_testing.collectives import BEGIN, Job, feed, named
from ingero_testing.inspector import exports
from ingero_testing.processes import fleet, wait_until
from ingero_testing.web import web


def run(tracker: CollectivesTracker, job: Job, times: int, **form: Any) -> int:
    """Feed exports of 25 collectives each until somebody is named; returns how many exports that took."""
    for count in range(1, times + 1):
        feed(tracker, exports(job, 25, **form), BEGIN + 5 * count, "json")
        tracker.judge(BEGIN + 5 * count)
        if tracker.stragglers:
            return count
    return 0


@pytest.mark.parametrize("seed", range(8))
def test_the_late_gpu_is_named_within_two_exports(seed: int) -> None:
    late = 3 * seed % 16
    tracker = CollectivesTracker(NcclConfig())

    taken = run(tracker, Job(16, late_ms={late: 5.0}, clock_seconds=10, seed=seed), 2)

    assert taken in (1, 2)
    (item,) = tracker.stragglers.values()
    assert (item["node_id"], item["gpu"], item["rank"]) == (f"node-{late // 4}", f"GPU{late % 4}", None)
    assert item["why"].startswith(f"GPU{late % 4} came last")
    assert tracker.refused == {}


def test_among_equals_nobody_is_named() -> None:
    for seed in range(8):
        tracker = CollectivesTracker(NcclConfig())

        assert run(tracker, Job(16, seed=seed), 4) == 0
        assert tracker.answer("c", BEGIN + 20)["outcomes"]["whole"] == 100


def test_averages_prove_nothing_and_the_cure_is_counted() -> None:
    tracker = CollectivesTracker(NcclConfig())

    assert run(tracker, Job(8, late_ms={2: 20.0}), 3, verbose=False) == 0

    assert tracker.refused == {UNMATCHED: 24}
    assert tracker.answer("c", BEGIN)["total"] == 0


def test_processes_that_name_their_gpus_alike_are_not_judged() -> None:
    tracker = CollectivesTracker(NcclConfig())

    assert run(tracker, Job(8, late_ms={2: 20.0}), 3, gpus=2, gpu="GPU0") == 0

    (comm,) = tracker.answer("c", BEGIN + 15)["communicators"]
    assert comm["verdict"].startswith("unknown: a rank is claimed")


def test_the_node_s_name_in_the_resource_comes_first() -> None:
    tracker = CollectivesTracker(NcclConfig())
    resource = {attributes.CLUSTER_ID: "c", attributes.NODE_ID: "gpu-node-7", attributes.POD_NAME: "pod-7"}

    run(tracker, Job(4, late_ms={2: 20.0}), 2, resource=resource)

    (item,) = tracker.stragglers.values()
    assert (item["node_id"], item["pod"], item["gpu"]) == ("gpu-node-7", "pod-7", "GPU2")


def test_a_restart_from_the_state_goes_on_with_the_same_members() -> None:
    job, tracker, other = Job(8, late_ms={5: 5.0}), CollectivesTracker(NcclConfig()), CollectivesTracker(NcclConfig())
    feed(tracker, exports(job, 5), BEGIN + 5, "json")
    tracker.judge(BEGIN + 5)
    other.restore(unsealed(sealed(encode_state(tracker.state()))))
    bodies = exports(job, 40)

    for one, order in ((tracker, bodies), (other, bodies[::-1])):
        feed(one, order, BEGIN + 10, "json")
        one.judge(BEGIN + 10)

    assert named(tracker) == {"node-1"}
    assert [item | {"since": ""} for item in other.stragglers.values()] == [
        item | {"since": ""} for item in tracker.stragglers.values()
    ]


def test_more_gpus_than_ranks_are_refused_and_counted() -> None:
    tracker = CollectivesTracker(NcclConfig())
    bodies = exports(Job(4), 10)

    feed(tracker, [*bodies, bodies[0].replace(b'"GPU0"', b'"GPU9"')], BEGIN, "json")

    assert tracker.refused == {"more GPUs than nranks are in the communicator": 10}


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b'"nranks","value":{"stringValue":"4"}', b'"nranks","value":{"stringValue":"4.5"}', "nccl.nranks is not"),
        (b'"GPU0"', b'""', "a point of NCCL Inspector names no GPU"),
        (b'"node-0"', b'""', "the resource attribute ingero.node.id is empty"),
        (b'"coll_sn","value":{"stringValue"', b'"coll_sn","value":{"intValue"', UNMATCHED),
        (b'"0x0123456789abcdef"', b'"unknown"', UNMATCHED),
    ],
)  # fmt: skip
def test_points_that_cannot_be_used_are_counted_by_reason(old: bytes, new: bytes, reason: str) -> None:
    tracker = CollectivesTracker(NcclConfig())
    body = exports(Job(4), 10)[0]
    assert old in body

    feed(tracker, [body.replace(old, new)], BEGIN, "json")

    ((found, count),) = tracker.refused.items()
    assert found.startswith(reason)
    assert (count, tracker.points) == (10, 0)


def test_the_exported_verdict_names_the_gpu_and_no_rank() -> None:
    sent: list[Push] = []
    tracker = CollectivesTracker(NcclConfig(), export_logs=sent.append)

    run(tracker, Job(8, late_ms={5: 5.0}), 2)

    (record,) = ExportLogsServiceRequest.FromString(sent[0].body).resource_logs[0].scope_logs[0].log_records
    pairs = {item.key: item.value for item in record.attributes}
    assert pairs[attributes.NCCL_GPU].string_value == "GPU1"
    assert attributes.NCCL_RANK not in pairs
    assert json.loads(pairs[attributes.VERDICT_EVIDENCE].string_value)["gpu"] == "GPU1"


def test_a_running_fleet_takes_the_export(tmp_path: Path) -> None:
    job, averages = Job(8, late_ms={5: 5.0}), Job(8, comm="f" * 16)
    headers = {"content-type": "application/json", "accept": "application/json"}
    with fleet(tmp_path) as service:
        for body in exports(job, 50) + exports(averages, 50, verbose=False):
            answer = web.post(service.url("otlp/http", routes.OTLP_METRICS), content=body, headers=headers)
            assert (answer.status_code, answer.content) == (200, b"{}")

        def found() -> Any:
            return web.get(service.url("diagnostics", routes.FLEET_COLLECTIVES)).json()

        wait_until(lambda: bool(found().get("culprits")), "a late GPU")

        answer = found()
        assert [(item["node_id"], item["gpu"]) for item in answer["culprits"]] == [("node-1", "GPU1")]
        assert answer["refused"] == {UNMATCHED: 8}
