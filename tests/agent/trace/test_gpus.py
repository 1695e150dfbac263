"""GPUs one by one: through the real nvidia-ml-py over an imaginary driver, and what polls add up to."""

import json
import os
import sqlite3
import subprocess
import sys
import threading
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

from ingero_agent.health.throttle import Throttle
from ingero_agent.trace.evidence import read_time_window
from ingero_agent.trace.export import build_request
from ingero_agent.trace.findings import GpuUse, Severity, TimeWindow, find_causes
from ingero_agent.trace.gpu_stats import GpuSample, GpuStats
from ingero_agent.trace.gpus import LATE, LATE_SECONDS, NONE, NVML, GpuPoller
from ingero_agent.trace.queries import GPUS, Filter, gpus
from ingero_agent.trace.stats import TraceStats
from ingero_agent.trace.store import TraceStore
from ingero_contract import metrics
from ingero_testing.gpu_job import listening_port
from ingero_testing.nvml import build_nvml
from ingero_testing.processes import BIN, process, wait_until

THERMAL, POWER, HW, SW = Throttle.THERMAL, Throttle.POWER, Throttle.HW, Throttle.SW
POLL = """
import dataclasses, json
from ingero_agent.nvml import find_reader
from ingero_kit import logs
logs.configure("error")
reader = find_reader()
if isinstance(reader, str):
    print(json.dumps(reader))
else:
    print(json.dumps([
        {**dataclasses.asdict(gpu), "throttle": None if gpu.throttle is None else sorted(gpu.throttle)}
        for gpu in reader.read()
    ]))
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_nvml(tmp_path_factory.mktemp("nvml"))


def polled(driver: Path, **state: str) -> list[dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-c", POLL], capture_output=True, text=True, timeout=60,
        env={**os.environ, "LD_LIBRARY_PATH": str(driver), **state},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def gpu(index: int = 0, **changes: object) -> GpuSample:
    known = {"index": index, "uuid": f"GPU-{index}", "used": 20, "free": 70, "total": 100, "throttle": frozenset()}
    return GpuSample(**{**known, **changes})  # type: ignore[arg-type]


def test_each_gpu_reports_memory_clocks_throttling_and_who_holds_what(driver: Path) -> None:
    first, second = polled(
        driver, NVML_COUNT="2", NVML_USED_GIB="20,60", NVML_REASONS="0x40,1", NVML_SM_MHZ="1200", NVML_PIDS="77",
        NVML_PID_GIB="12", NVML_THERMAL_NS="5,6", NVML_POWER_NS="7,8",
    )  # fmt: skip

    assert first == {
        "index": 0, "uuid": "GPU-0", "model": "NVIDIA Imaginary 80GB", "used": 20 << 30,
        "free": 60 << 30, "total": 80 << 30,
        "throttle": ["hw", "thermal"], "sm_mhz": 1200, "sm_max_mhz": 1980, "memory_mhz": 1980,
        "throttled_ns": {"power": 7, "thermal": 5}, "processes": {"77": 12 << 30},
    }  # fmt: skip
    assert (second["throttle"], second["processes"]) == ([], {})


def test_what_a_gpu_does_not_report_is_absent_and_a_lost_one_is_left_out(driver: Path) -> None:
    (only,) = polled(driver, NVML_COUNT="2", NVML_LOST="1,0", NVML_UNSUPPORTED="0,1", NVML_NO_VIOLATIONS="0,1")

    assert (only["index"], only["throttle"], only["throttled_ns"]) == (1, None, {})


@pytest.mark.parametrize(("state", "words"), [({"NVML_INIT": "9"}, "NVML: "), ({"NVML_COUNT": "0"}, "no GPU")])
def test_without_a_gpu_the_reason_is_named(driver: Path, state: dict[str, str], words: str) -> None:
    assert words in polled(driver, **state)


def test_an_answer_that_is_late_is_missing_and_a_driver_that_comes_back_is_heard() -> None:
    class Hangs:
        def __init__(self) -> None:
            self.free, self.polls = threading.Event(), 0

        def read(self) -> list[GpuSample]:
            self.polls += 1
            if self.polls == 2:
                self.free.wait(30)
            return [gpu()]

    now = [0.0]
    reader = Hangs()
    poller = GpuPoller(0.001, lambda: reader, lambda: now[0])
    wait_until(lambda: reader.polls == 2, "the driver to hang")
    assert (poller.mode, len(poller.latest())) == (NVML, 1)

    now[0] = LATE_SECONDS + 1
    assert (poller.mode, poller.latest()) == (LATE, [])

    reader.free.set()
    wait_until(lambda: poller.mode == NVML, "the driver to come back")
    poller.stop()


def test_no_driver_is_a_mode_with_a_reason() -> None:
    poller = GpuPoller(1.0, lambda: "no driver here")
    wait_until(lambda: poller.mode == NONE, "the answer")

    assert (poller.reason, poller.latest()) == ("no driver here", [])


def test_throttling_between_two_polls_counts_although_no_poll_saw_it() -> None:
    book = GpuStats()
    for held in (100, 100, 250, 250):
        book.add([gpu(throttled_ns={THERMAL: held})])

    assert book.throttling.began == {("GPU-0", THERMAL): 1}
    assert book.throttling.now["GPU-0"] == frozenset()
    assert book.throttled_ns == {("GPU-0", THERMAL): 150}


def test_throttling_that_polls_see_begins_once() -> None:
    book = GpuStats()
    for held, seen in ((0, ()), (50, (POWER,)), (150, (POWER,)), (160, ()), (160, (POWER,))):
        book.add([gpu(throttled_ns={POWER: held}, throttle=frozenset(seen))])

    assert book.throttling.began == {("GPU-0", POWER): 2}


def test_a_stretch_keeps_the_worst_and_is_reported_once(tmp_path: Path) -> None:
    book, store = GpuStats(), TraceStore(tmp_path / "a.db")
    book.add([gpu(sm_mhz=1900, sm_max_mhz=1980, throttled_ns={THERMAL: 0}), gpu(1)])
    book.add([gpu(sm_mhz=900, sm_max_mhz=1980, throttled_ns={THERMAL: 3_000_000}, throttle=frozenset({THERMAL, HW}))])
    store.gpus(book.drain_window(), 100.0)
    store.gpus(book.drain_window(), 101.0)
    store.close()

    rows = [dict(zip(GPUS, row, strict=True)) for row in gpus(tmp_path / "a.db", Filter(begin=0, end=200))]

    assert [(row["uuid"], row["sm_mhz"], row["thermal"], row["hw"], row["power"]) for row in rows] == [
        ("GPU-0", 900, 0.5, 0.5, 0.0), ("GPU-1", None, 0.0, 0.0, 0.0)
    ]  # fmt: skip
    assert rows[0]["thermal_ms"] == 3.0


def test_an_idle_gpu_s_clock_is_not_the_one_that_throttling_left(tmp_path: Path) -> None:
    book, store = GpuStats(), TraceStore(tmp_path / "a.db")
    capped = gpu(sm_mhz=1455, sm_max_mhz=1980, throttle=frozenset({POWER, SW}))
    idle = gpu(sm_mhz=345, sm_max_mhz=1980, throttle=frozenset())
    for number, polls in enumerate(([idle, idle], [idle, capped, capped, idle], [idle])):
        for poll in polls:
            book.add([poll])
        store.gpus(book.drain_window(), 100.0 + number)
    store.close()

    rows = [dict(zip(GPUS, row, strict=True)) for row in gpus(tmp_path / "a.db", Filter(begin=0, end=200))]
    (use,) = read_time_window(tmp_path / "a.db", Filter(begin=0, end=200)).gpus

    assert [row["sm_mhz"] for row in rows] == [345, 1455, 345]
    assert (use.sm_mhz, use.sm_max_mhz) == (1455, 1980)


def test_a_database_of_an_older_agent_has_no_gpus_and_can_be_read(tmp_path: Path) -> None:
    TraceStore(tmp_path / "a.db").close()
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        database.execute("DROP TABLE gpu_samples")

    assert gpus(tmp_path / "a.db", Filter(begin=0, end=1)) == []
    assert list(read_time_window(tmp_path / "a.db", Filter(begin=0, end=1)).gpus) == []


def test_a_throttled_gpu_is_a_cause_with_evidence_and_stands_behind_slow_calls() -> None:
    hot = GpuUse(
        index=3, uuid="GPU-3", throttled={"thermal": 0.4, "sw": 0.05}, throttled_seconds={"thermal": 12.0},
        sm_mhz=900, sm_max_mhz=1980,
    )  # fmt: skip
    histogram = [0] * 10 + [90] + [0] * 9 + [10] + [0] * 11
    tail, throttled = sorted(
        find_causes(TimeWindow(gpus=[hot], histogram={(7, "cudaMemcpy"): histogram})),
        key=lambda one: one.kind,
        reverse=True,
    )

    assert (throttled.kind, throttled.severity) == ("gpu-throttled", Severity.HIGH)
    assert throttled.evidence == (
        "thermal: 40% of the polls", "thermal: 12.0 s by the driver's own count", "clock down to 900 of 1980 MHz"
    )  # fmt: skip
    assert (tail.kind, tail.evidence[1]) == ("tail", "GPU 3 (GPU-3) is throttled: thermal")


def test_a_gpu_at_its_power_limit_is_as_usual_and_stands_behind_nothing() -> None:
    busy = GpuUse(index=0, uuid="GPU-0", throttled={"power": 1.0, "sw": 1.0}, sm_mhz=1455, sm_max_mhz=1980)
    slow_calls = {(7, "cudaMemcpy"): [0] * 10 + [90] + [0] * 9 + [10] + [0] * 11}

    (limit,) = find_causes(TimeWindow(gpus=[busy], histogram=slow_calls))

    assert (limit.kind, limit.severity) == ("gpu-throttled", Severity.LOW)
    assert limit.summary == "GPU 0 (GPU-0) is at its power limit"
    assert "clock down to 1455 of 1980 MHz" in limit.evidence


def test_a_power_brake_of_the_hardware_is_severe() -> None:
    (found,) = find_causes(TimeWindow(gpus=[GpuUse(index=0, uuid="a", throttled={"power": 0.5, "hw": 0.5})]))

    assert (found.severity, found.summary) == (Severity.HIGH, "GPU 0 (a) is throttled: power, hw")


def test_a_gpu_that_is_free_and_not_full_is_no_cause() -> None:
    assert find_causes(TimeWindow(gpus=[GpuUse(index=0, uuid="a", throttled={"sw": 0.09}, memory=0.9)])) == []
    (full,) = find_causes(TimeWindow(gpus=[GpuUse(index=0, uuid="a", memory=0.97)]))
    assert full.kind == "gpu-memory"


def test_gpus_are_exported_under_the_published_names() -> None:
    ledger = TraceStats()
    ledger.gpus.add([gpu(sm_mhz=1500, processes={7: 5}, throttle=frozenset({SW}))])
    sent = build_request(ledger, (), None, "n", "", 1, 1).resource_metrics[0].scope_metrics[0]
    points = {one.name: one.gauge.data_points for one in sent.metrics}

    assert points[metrics.GPU_MEMORY_USED][0].as_int == 20
    assert points[metrics.GPU_MEMORY_FRAGMENTATION][0].as_double == pytest.approx(0.1)
    assert points[metrics.GPU_CLOCK_SM][0].as_int == 1_500_000_000
    assert {pair.key: pair.value for pair in points[metrics.GPU_MEMORY_PROCESS][0].attributes}["gpu.uuid"]
    assert [points[name][0].as_int for name in (metrics.GPU_THROTTLE_SW, metrics.GPU_THROTTLE_HW)] == [1, 0]


def series(page: str, name: str) -> float | None:
    """The value of one series."""
    return next((float(line.split()[-1]) for line in page.splitlines() if line.startswith(name + " ")), None)


@pytest.mark.ebpf
def test_a_tracer_next_to_a_driver_serves_keeps_explains_and_reports_consumers(driver: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_text(
        f"NVML_REASONS=0x40\nNVML_SM_MHZ=900\nNVML_USED_GIB=20\nNVML_PIDS={os.getpid()}\nNVML_PID_GIB=12\n"
    )
    lines = tmp_path / "lines.sock"
    database = tmp_path / "trace.db"
    environment = {"LD_LIBRARY_PATH": str(driver), "NVML_FILE": str(state)}
    command = [
        str(BIN / "ingero-agent"), "trace", "--db", str(database), "--prometheus", "127.0.0.1:0", "--remediate",
        "--remediate-socket", str(lines), "--gpu-interval", "0.1s",
    ]  # fmt: skip
    ports = tmp_path / "ports.json"
    with (
        process(tmp_path / "trace.log", *command, **environment) as agent,
        process(
            tmp_path / "sink.log", str(BIN / "ingero-sink"), "--socket-path", str(lines), "--listen", "127.0.0.1:0",
            "--reconnect-delay", "0.1s", "--ports-file", str(ports),
        ),
    ):  # fmt: skip
        wait_until(lambda: "started" in agent.words() and ports.exists(), "both")
        sink = json.loads(ports.read_text())["metrics"]

        def page(port: int) -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                return str(answer.read().decode())

        wait_until(lambda: "ingero_sink_connected 1.0" in page(sink), "the sink")
        changed = tmp_path / "changed"
        changed.write_text(state.read_text().replace("PID_GIB=12", "PID_GIB=13"))
        changed.replace(state)
        held = f'gpu_memory_process_allocated_bytes{{gpu_uuid="GPU-0",pid="{os.getpid()}"}}'
        traced = listening_port(agent)
        wait_until(lambda: series(page(traced), held) == 13 << 30, "the memory on the page")
        wait_until(lambda: 'events_total{type="memory"}' in page(sink), "a line about memory")
        text = page(traced)
    assert series(text, 'gpu_throttle_thermal_active{gpu_uuid="GPU-0"}') == 1
    assert 'ingero_trace_capability{capability="gpus",mode="nvml"} 1.0' in text
    done = subprocess.run(
        [BIN / "ingero-agent", "explain", "--db", database], capture_output=True, text=True, timeout=60
    )
    assert "gpu-throttled" in done.stdout
