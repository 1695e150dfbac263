"""A GPU that is slow while the collective runs: waits name nobody, NVML may, and unknown is an answer."""

from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from ingero_agent.health.throttle import Throttle, Throttling
from ingero_agent.throttle_metrics import encode_throttling
from ingero_contract import attributes, metrics
from ingero_contract.identifiers import node_key
from ingero_fleet.collectives.tracker import CollectivesTracker
from ingero_fleet.intake import Intake
from ingero_fleet.processor_settings import NcclConfig
from ingero_fleet.score_table import ScoreLimits, ScoreTable
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_receiver import Push
from ingero_kit.otlp_signal import Signal
from ingero_testing.collectives import BEGIN, Job, as_json, feed

HOT = frozenset({Throttle.THERMAL, Throttle.SW})
TICK = 5.0


def throttled(node: str, *kinds: Throttle, gpu: str = "GPU-1") -> bytes:
    throttled_gpus = Throttling({gpu: frozenset(kinds)})
    request = encode_throttling(throttled_gpus, HealthReport(node_id=node, cluster_id="c"), 1)
    return request.SerializeToString()


def clock(node: str, hz: float, gpu: str = "GPU-1") -> bytes:
    request = ExportMetricsServiceRequest()
    block = request.resource_metrics.add()
    for key, text in ((attributes.NODE_ID, node), (attributes.CLUSTER_ID, "c")):
        block.resource.attributes.add(key=key).value.string_value = text
    metric = block.scope_metrics.add().metrics.add(name=metrics.GPU_CLOCK_SM)
    point = metric.gauge.data_points.add(time_unix_nano=1, as_double=hz)
    point.attributes.add(key=attributes.GPU_UUID).value.string_value = gpu
    return request.SerializeToString()


class WaitProfile:
    """A job of 8 nodes in ticks; `throttled_gpus` is pushed with every tick."""

    def __init__(self, tracker: CollectivesTracker | None = None, **job: Any) -> None:
        self.tracker, self.job = tracker or CollectivesTracker(NcclConfig()), Job(8, **job)
        self.throttled_gpus: list[bytes] = []
        self.now = BEGIN

    def ticks(self, count: int) -> None:
        for _ in range(count):
            self.now += TICK
            feed(self.tracker, [*self.throttled_gpus, *self.job.pushes(45)], self.now)
            self.tracker.judge(self.now)

    def hurt(self, step_ms: float, *throttled_gpus: bytes) -> None:
        self.job.step_ms, self.throttled_gpus = step_ms, list(throttled_gpus)

    @property
    def named(self) -> set[str]:
        return {node for _, node in self.tracker.stragglers}

    @property
    def verdict(self) -> str:
        return str(self.tracker.answer(None, self.now)["communicators"][0]["verdict"])


def test_who_is_held_back_since_the_job_is_slower_is_named_with_the_evidence() -> None:
    sent: list[Push] = []
    wait_profile = WaitProfile(CollectivesTracker(NcclConfig(), export_logs=sent.append))
    wait_profile.ticks(5)
    wait_profile.hurt(110.0, throttled("node-5", *HOT))
    wait_profile.ticks(7)

    found = wait_profile.tracker.stragglers[node_key("c", "node-5")]
    assert wait_profile.named == {"node-5"}
    assert (found["kind"], found["rank"], found["pod"]) == ("gpu_throttled", 5, "pod-5")
    assert found["nvml"]["throttled_by"] == ["heat"]
    assert found["nvml"]["gpu"] == "GPU-1"
    assert found["nvml"]["slower_since"] == pytest.approx(1 - 100 / 110, rel=0.1)
    assert wait_profile.tracker.shares() == {("c", "node-5"): found["share"]}
    assert found["share"] == pytest.approx(1 - 100 / 110, rel=0.1)
    assert "throttled by heat; since then 9." in found["why"]
    assert wait_profile.verdict == "GPU: nobody is late, and node-5 is throttled by heat"

    wait_profile.ticks(40)
    assert wait_profile.named == {"node-5"}
    wait_profile.hurt(100.0, throttled("node-5"))
    wait_profile.ticks(1)
    assert wait_profile.named == set()
    assert [facts(push)[0] for push in sent] == ["straggler", "healthy"]
    assert facts(sent[0])[1] == "gpu_throttled"
    assert "delays the collectives" in facts(sent[1])[2]


def facts(push: Push) -> tuple[str, str, str]:
    record = ExportLogsServiceRequest.FromString(push.body).resource_logs[0].scope_logs[0].log_records[0]
    pairs = {pair.key: pair.value.string_value for pair in record.attributes}
    return pairs[attributes.VERDICT_STATE], pairs[attributes.VERDICT_KIND], record.body.string_value


@pytest.mark.parametrize(
    ("step_ms", "throttled_gpus", "verdict"),
    [
        (110.0, [], "none: "),
        (110.0, [throttled("node-5", Throttle.SW)], "none: "),
        (100.0, [throttled("node-5", *HOT)], "unknown: nobody is late; GPUs are throttled on node-5 (heat)"),
        (
            110.0,
            [throttled("node-5", Throttle.POWER)],
            "unknown: nobody is late; GPUs are throttled on node-5 (power)",
        ),
        (110.0, [throttled("node-5", *HOT), throttled("node-6", Throttle.HW)], "unknown: nobody is late; GPUs"),
        (110.0, [throttled("elsewhere", *HOT)], "none: "),
    ],
    ids=["no evidence", "clocks that were set", "no slower", "a power cap", "two at once", "a node of another job"],
)
def test_without_proof_nobody_is_named_and_the_verdict_says_so(
    step_ms: float, throttled_gpus: list[bytes], verdict: str
) -> None:
    wait_profile = WaitProfile()
    wait_profile.ticks(5)
    wait_profile.hurt(step_ms, *throttled_gpus)
    wait_profile.ticks(8)

    assert wait_profile.named == set()
    assert wait_profile.verdict.startswith(verdict)


def test_a_gpu_that_is_held_back_now_and_then_is_not_named() -> None:
    wait_profile = WaitProfile()
    wait_profile.ticks(5)
    for _ in range(8):
        wait_profile.hurt(110.0, throttled("node-5", *HOT))
        wait_profile.ticks(1)
        wait_profile.hurt(110.0, throttled("node-5"))
        wait_profile.ticks(1)
        assert wait_profile.named == set()


def test_a_clock_far_below_its_peers_proves_it_too_but_not_what_it_costs() -> None:
    wait_profile = WaitProfile()
    clocks = [clock(f"node-{rank}", 1.2e9 if rank == 5 else 1.98e9) for rank in range(8)]
    wait_profile.hurt(100.0, throttled("node-5", Throttle.HW), *clocks)
    wait_profile.ticks(4)

    found = wait_profile.tracker.stragglers[node_key("c", "node-5")]
    assert found["nvml"]["clock_over_peers"] == pytest.approx(1.2 / 1.98, abs=1e-4)
    assert "its clock is 61 % of its peers', what that costs was not measured" in found["why"]
    assert wait_profile.tracker.shares() == {}


def at_power_limit(but: int, *kinds: Throttle) -> list[bytes]:
    """All eight nodes at their power limit, as at full load; one of them is throttled by these kinds."""
    return [
        throttled(f"node-{rank}", *(kinds if rank == but else (Throttle.POWER, Throttle.SW))) for rank in range(8)
    ]


def test_at_full_load_every_gpu_is_at_its_power_limit_and_that_is_no_reason() -> None:
    wait_profile = WaitProfile()
    clocks = [clock(f"node-{rank}", 1.45e9 + 1e7 * rank) for rank in range(8)]
    wait_profile.ticks(5)
    wait_profile.hurt(110.0, *at_power_limit(0, Throttle.POWER), *clocks)
    wait_profile.ticks(8)

    assert wait_profile.named == set()
    assert wait_profile.verdict.startswith("none: ")


def test_at_full_load_the_one_that_is_hot_too_is_named() -> None:
    wait_profile = WaitProfile()
    wait_profile.hurt(100.0, *at_power_limit(0, Throttle.POWER))
    wait_profile.ticks(8)
    wait_profile.hurt(110.0, *at_power_limit(5, Throttle.POWER, *HOT))
    wait_profile.ticks(8)

    found = wait_profile.tracker.stragglers[node_key("c", "node-5")]
    assert wait_profile.named == {"node-5"}
    assert found["nvml"]["throttled_by"] == ["heat", "power"]


def test_at_full_load_the_one_whose_power_limit_is_far_lower_is_named() -> None:
    wait_profile = WaitProfile()
    clocks = [clock(f"node-{rank}", 0.9e9 if rank == 5 else 1.45e9) for rank in range(8)]
    wait_profile.hurt(100.0, *at_power_limit(0, Throttle.POWER), *clocks)
    wait_profile.ticks(4)

    found = wait_profile.tracker.stragglers[node_key("c", "node-5")]
    assert wait_profile.named == {"node-5"}
    assert found["nvml"]["clock_over_peers"] == pytest.approx(0.9 / 1.45, abs=1e-4)


def test_of_a_node_s_gpus_the_hot_one_tells_and_not_those_at_their_power_limit() -> None:
    tracker = CollectivesTracker(NcclConfig())
    feed(tracker, [throttled("node-5", Throttle.POWER, gpu="GPU-0")], BEGIN)
    feed(tracker, [throttled("node-5", Throttle.POWER, *HOT, gpu="GPU-1")], BEGIN + 9)

    found = tracker.gpus.throttled()[node_key("c", "node-5")]
    assert (found.uuid, found.kinds, found.since) == ("GPU-1", ("heat", "power"), BEGIN + 9)


def test_a_low_clock_that_nothing_holds_back_is_no_reason() -> None:
    wait_profile = WaitProfile()
    clocks = [clock(f"node-{rank}", 0.3e9 if rank == 5 else 1.98e9) for rank in range(8)]
    wait_profile.hurt(100.0, *clocks)
    wait_profile.ticks(4)

    assert wait_profile.named == set()
    assert wait_profile.verdict.startswith("none: ")


def test_a_late_rank_s_gpu_is_its_reason_and_whoever_is_delayed_with_it_is_not_named() -> None:
    wait_profile = WaitProfile(late_ms={5: 5.0})
    wait_profile.ticks(5)
    wait_profile.hurt(110.0, throttled("node-5", *HOT), throttled("node-3", *HOT))
    wait_profile.ticks(8)

    found = wait_profile.tracker.stragglers[node_key("c", "node-5")]
    assert wait_profile.named == {"node-5"}
    assert (found["kind"], found["nvml"]["throttled_by"]) == ("late_rank", ["heat"])
    assert wait_profile.verdict == "culprit"


def test_a_node_with_several_ranks_is_named_without_one() -> None:
    wait_profile = WaitProfile()
    push = wait_profile.job.pushes

    def two_nodes(steps: int, **how: Any) -> list[bytes]:
        return [body.replace(b"node-6", b"node-5") for body in push(steps, **how)]

    wait_profile.job.pushes = two_nodes  # type: ignore[method-assign]
    wait_profile.ticks(5)
    wait_profile.hurt(110.0, throttled("node-5", *HOT))
    wait_profile.ticks(8)

    assert wait_profile.tracker.stragglers[node_key("c", "node-5")]["rank"] is None


def test_silence_is_forgotten_and_no_more_gpus_are_kept_than_allowed() -> None:
    wait_profile = WaitProfile(CollectivesTracker(NcclConfig(max_gpus=2, gpu_age=12.0)))
    wait_profile.throttled_gpus = [throttled("node-5", *HOT, gpu=f"GPU-{number}") for number in range(3)]
    wait_profile.ticks(1)

    assert len(wait_profile.tracker.gpus) == 2
    refused = wait_profile.tracker.refused
    assert refused == {"more GPUs than Fleet keeps (processors.nccl.max_gpus)": 3}
    wait_profile.throttled_gpus = []
    wait_profile.ticks(3)
    assert len(wait_profile.tracker.gpus) == 0


@pytest.mark.parametrize("uuid", ["", "x" * 65, "a\nb"])
def test_points_without_a_gpu_are_counted(uuid: str) -> None:
    tracker = CollectivesTracker(NcclConfig())
    feed(tracker, [clock("node-1", 1e9, gpu=uuid)], BEGIN)

    assert tracker.refused == {"gpu.uuid is missing": 1}


def test_json_says_the_same() -> None:
    trackers = [CollectivesTracker(NcclConfig()) for _ in range(2)]
    feed(trackers[0], [throttled("node-5", *HOT), clock("node-5", 1e9)], BEGIN)
    for body in (throttled("node-5", *HOT), clock("node-5", 1e9)):
        request = ExportMetricsServiceRequest.FromString(body)
        for metric in request.resource_metrics[0].scope_metrics[0].metrics:
            single = ExportMetricsServiceRequest()
            single.CopyFrom(request)
            del single.resource_metrics[0].scope_metrics[0].metrics[:]
            copied = single.resource_metrics[0].scope_metrics[0].metrics.add()
            copied.CopyFrom(metric)
            for point in copied.gauge.data_points:
                point.as_double = float(point.as_int) or point.as_double
            trackers[1].take(Push(Signal.METRICS, "json", as_json(single.SerializeToString())), BEGIN)

    assert trackers[0].gpus.throttled() == trackers[1].gpus.throttled() != {}
    assert trackers[0].gpus.clock(node_key("c", "node-5")) == trackers[1].gpus.clock(node_key("c", "node-5")) == 1e9


def test_what_agents_push_of_their_gpus_reaches_the_tracker() -> None:
    tracker = CollectivesTracker(NcclConfig())
    intake = Intake(ScoreTable(ScoreLimits(9, 9, 9.0), ()), lambda: BEGIN, observe=tracker.take)
    intake(Push(Signal.METRICS, "protobuf", throttled("node-5", *HOT)))
    intake(Push(Signal.METRICS, "protobuf", clock("node-6", 1e9)))

    assert set(tracker.gpus.throttled()) == {("c", "node-5")}
