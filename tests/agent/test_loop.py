"""Ticks of the real loop against Fleet's own receiver; only the node's signals are simulated."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from ingero_agent.devices import BackgroundDevices, GpuReading
from ingero_agent.health.throttle import throttle_kinds
from ingero_agent.loop import PushLoop
from ingero_agent.push import FleetClient
from ingero_agent.settings import AgentSettings
from ingero_agent.sources import SignalSource
from ingero_agent.sources.scripted import ScriptedSource, Stage
from ingero_contract import attributes, headers, metrics
from ingero_contract.signals import MEMORY_HEADROOM
from ingero_kit.clock import Clock
from ingero_kit.otlp_client import ClientConfig
from ingero_kit.otlp_receiver import Answer, Authenticator, OtlpHttpReceiver, Push
from ingero_kit.tls import ClientTls


@dataclass
class Played:
    """GPUs that play readings, one per poll; the last one repeats."""

    readings: list[GpuReading] = field(default_factory=lambda: [GpuReading()])

    def read(self) -> GpuReading:
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]


def gpu(**bits: int) -> GpuReading:
    return GpuReading(
        "NVIDIA Imaginary 80GB", len(bits), 0.5, 0, {name: throttle_kinds(value) for name, value in bits.items()}
    )


def pushes_of(
    folder: Path, devices: Played, source: SignalSource, clock: Clock, drive: Callable[[PushLoop], Awaitable[None]]
) -> list[ExportMetricsServiceRequest]:
    """What arrives at Fleet while a loop is driven."""
    taken: list[ExportMetricsServiceRequest] = []

    def handler(push: Push) -> Answer:
        taken.append(ExportMetricsServiceRequest.FromString(push.body))
        return Answer(http_headers=f"{headers.VERDICT}: healthy\r\n".encode())

    async def work() -> None:
        server = OtlpHttpReceiver(handler, Authenticator())
        address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
        client = FleetClient(ClientConfig(endpoint=address, cluster="c", tls=ClientTls(insecure=True)))
        config = AgentSettings(
            fleet_endpoint=address, fleet_cluster_id="c", fleet_node_id="n", stub=True, warmup_samples=5,
            fleet_persist_path=folder / "baseline.json",
        )  # fmt: skip
        await drive(PushLoop(config, source, devices.read, client, None, clock))
        await client.close()
        await server.stop(0.1)

    asyncio.run(asyncio.wait_for(work(), 30))
    return taken


def ticks(folder: Path, count: int, devices: Played) -> list[ExportMetricsServiceRequest]:
    """What arrives at Fleet in so many ticks."""

    async def drive(loop: PushLoop) -> None:
        for _ in range(count):
            await loop.tick()

    return pushes_of(folder, devices, ScriptedSource.constant(), lambda: 1_700_000_000.0, drive)


def throttle_points(request: ExportMetricsServiceRequest) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for metric in request.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.gauge.data_points:
            keys = {pair.key: pair.value.string_value for pair in point.attributes}
            found.setdefault(metric.name, {})[keys[attributes.GPU_UUID]] = point.as_int
    return found


def names(request: Any) -> set[str]:
    return {metric.name for metric in request.resource_metrics[0].scope_metrics[0].metrics}


def test_throttling_is_reported_while_it_lasts_and_once_when_it_ends(tmp_path: Path) -> None:
    hot = gpu(a=0x40, b=0x1)

    pushes = ticks(tmp_path, 5, Played([gpu(a=0, b=0), hot, hot, gpu(a=0, b=0), gpu(a=0, b=0)]))

    throttling = [throttle_points(push) for push in pushes if metrics.HEALTH_SCORE not in names(push)]
    on = {
        metrics.GPU_THROTTLE_POWER: {"a": 0, "b": 0}, metrics.GPU_THROTTLE_THERMAL: {"a": 1, "b": 0},
        metrics.GPU_THROTTLE_SW: {"a": 0, "b": 0}, metrics.GPU_THROTTLE_HW: {"a": 1, "b": 0},
    }  # fmt: skip
    off = {name: {"a": 0, "b": 0} for name in on}
    assert throttling == [on, on, off]
    assert len(pushes) == 8


def test_a_throttled_gpu_that_is_lost_is_reported_as_free(tmp_path: Path) -> None:
    pushes = ticks(tmp_path, 2, Played([gpu(a=0x4), GpuReading("NVIDIA Imaginary 80GB", 1, None, 1)]))

    assert throttle_points(pushes[-1])[metrics.GPU_THROTTLE_POWER] == {"a": 0}


def test_memory_headroom_of_the_gpus_replaces_the_source_s(tmp_path: Path) -> None:
    [push] = ticks(tmp_path, 1, Played([gpu(a=0)]))

    memory = [
        point.as_double
        for metric in push.resource_metrics[0].scope_metrics[0].metrics
        if metric.name == MEMORY_HEADROOM
        for point in metric.gauge.data_points
    ]
    assert memory == [0.5]


def test_a_node_without_gpus_says_nothing_about_throttling(tmp_path: Path) -> None:
    assert all(metrics.HEALTH_SCORE in names(push) for push in ticks(tmp_path, 3, Played()))


def rates(pushes: list[ExportMetricsServiceRequest]) -> list[float]:
    """The rate of work in every push."""
    return [
        point.as_double
        for push in pushes
        for metric in push.resource_metrics[0].scope_metrics[0].metrics
        if metric.name == metrics.THROUGHPUT_RATE
        for point in metric.gauge.data_points
    ]


def test_a_collapse_between_ticks_is_pushed_at_once_over_a_whole_interval(tmp_path: Path) -> None:
    """Ticks every 10 s, short polls every second; the work nearly stops 2 s after the last tick."""
    now = [1_700_000_000.0]
    source = ScriptedSource([Stage(seconds=82.0), Stage(seconds=1e9, launches_per_second=15.0)])
    seen: list[tuple[int, int]] = []

    async def drive(loop: PushLoop) -> None:
        for second in range(100):
            if second % 10 == 0:
                await loop.tick()
            else:
                await loop.early_poll()
            seen.append((loop.counters.ticks, loop.counters.early))
            now[0] += 1

    pushed = rates(pushes_of(tmp_path, Played(), source, lambda: now[0], drive))

    assert [second for second in range(1, 100) if seen[second][1] > seen[second - 1][1]] == [84, 86, 93, 96, 99]
    assert all(rate == 100 for rate in pushed[:9])
    assert 65 <= pushed[9] < 75
    assert pushed[10:] == sorted(pushed[10:], reverse=True)


class Stuck:
    """A driver that answers the first call, and then not before it is let go."""

    def __init__(self) -> None:
        self.calls, self.let_go = 0, threading.Event()

    def read(self) -> GpuReading:
        self.calls += 1
        if self.calls > 1:
            self.let_go.wait(60)
        return GpuReading("NVIDIA Imaginary 80GB", 8, 0.5)


def test_a_driver_that_does_not_answer_holds_up_nobody() -> None:
    async def work() -> tuple[list[GpuReading], int, int]:
        stuck = Stuck()
        devices = BackgroundDevices(stuck.read, timeout=0.01)
        readings = [await _read_within(devices, 1000)]
        readings += [await devices.read() for _ in range(3)]
        calls = stuck.calls
        stuck.let_go.set()
        readings.append(await _read_within(devices, 1000))
        return readings, calls, devices.timeouts

    readings, calls, timeouts = asyncio.run(asyncio.wait_for(work(), 60))

    whole, lost = GpuReading("NVIDIA Imaginary 80GB", 8, 0.5), GpuReading("NVIDIA Imaginary 80GB", 8, None, 8)
    assert readings == [whole, lost, lost, lost, whole]
    assert calls == 2 and timeouts >= 3


async def _read_within(devices: BackgroundDevices, tries: int) -> GpuReading:
    """The first reading that is whole."""
    for _ in range(tries):
        reading = await devices.read()
        if not reading.unreadable and reading.count:
            return reading
    return reading
