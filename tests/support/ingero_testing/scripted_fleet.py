"""A scripted run of Fleet's state machine in which everything that decides takes part."""

import sys

import numpy as np
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from ingero_contract import attributes, metrics
from ingero_contract.identifiers import node_key
from ingero_contract.values import NodeState
from ingero_fleet.processor_settings import CohortConfig, DetectorConfig, IngeroConfig, ProcessorsConfig, QuorumConfig
from ingero_fleet.state_codec import encode_state, hash_of
from ingero_fleet.state_machine import StateMachine
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_receiver import Push
from ingero_kit.otlp_signal import Signal
from ingero_testing.collectives import BEGIN, Job

CONFIG = ProcessorsConfig(
    ingero=IngeroConfig(
        push_interval=10.0, quorum=QuorumConfig(statistical_min=3), detector=DetectorConfig(warmup_ticks=10),
        cohort=CohortConfig(by=("workload_type", "gpu_model")), ttl_multiplier=3.0,
    )
)  # fmt: skip

NODES = 9
TICKS = 76


def new_machine(config: ProcessorsConfig = CONFIG) -> StateMachine:
    """A state machine that exports, to nowhere."""
    return StateMachine(config, BEGIN, lambda push: None, lambda push: None)


def state_hash(machine: StateMachine, now: float) -> str:
    """The hash of its state."""
    return hash_of(encode_state(machine.state(now)))


def play(machine: StateMachine, first: int = 0, last: int = TICKS) -> list[tuple[str, str, float]]:
    """Ticks `first` to `last`, each 10 s; returns the changes of verdicts: what, node, time.

    Nodes come and go, halve and recover, one rank is late, a GPU is throttled, a node is tainted, early polls happen.
    """
    found = []
    for tick in range(first, last):
        now = BEGIN + 10.0 * tick
        for report in _reports(tick):
            assert isinstance(machine.table.observe(report, now), int)
        if tick > 30:
            job = Job(late_ms={3: 30.0} if tick % 2 else {}, seed=tick)
            job.moment, job.done = now, 60 * tick
            for body in job.pushes(60, drop=0.01):
                machine.take(Push(Signal.METRICS, "protobuf", body), now + 6)
            machine.collectives.gpus.note(
                node_key("c", "node-1"), metrics.GPU_THROTTLE_THERMAL, "GPU-1", 1.0, now + 6
            )
        if tick % 20 == 5:
            machine.take(_taint(f"node-{tick % 7}", now), now + 6)
        machine.early_poll(now + 7)
        machine.collectives.early_poll(now + 8)
        result = machine.tick(now + 9)
        assert result.snapshot.findings is not None and not machine.failed_bookings
        found += [(edge.what, edge.verdict.node, edge.verdict.time) for edge in result.snapshot.findings.edges]
    return found


def end_of(tick: int) -> float:
    """When a tick of `play` took place."""
    return BEGIN + 10.0 * tick + 9


def _reports(tick: int) -> list[HealthReport]:
    random = np.random.default_rng(tick)
    noise = np.exp(0.02 * random.normal(size=NODES)).tolist()
    reports = []
    for number in range(NODES):
        if (number == 8 and tick < 12) or (number == 7 and 20 < tick < 30):
            continue
        slow = (number == 2 and 32 < tick < 45) or (number == 5 and tick > 55)
        share = 0.3 if slow else 1.0
        reports.append(
            HealthReport(
                node_id=f"node-{number}", cluster_id="c", state=NodeState.ACTIVE, score=0.9 * share,
                rate=None if number == 6 else 100 * noise[number] * share, workload_type="train",
                gpu_model="H200" if number == 4 else "H100", gpu_count=8, provider="aws",
                last_verdict="straggler;kind=slow;severity=0.3000" if number == 8 and tick == 12 else "",
            )
        )  # fmt: skip
    return reports


def _taint(node: str, now: float) -> Push:
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add(
        time_unix_nano=int(now * 1e9), event_name=metrics.TAINT_EVENT
    )  # fmt: skip
    record.body.string_value = f"Node {node} was tainted"
    for key, text in ((attributes.NODE_ID, node), (attributes.CLUSTER_ID, "c"), (attributes.TAINT_ACTION, "add")):
        record.attributes.add(key=key).value.string_value = text
    return Push(Signal.LOGS, "protobuf", request.SerializeToString())


if __name__ == "__main__":
    machine = new_machine()
    play(machine)
    sys.stdout.write(state_hash(machine, end_of(TICKS)) + "\n")
