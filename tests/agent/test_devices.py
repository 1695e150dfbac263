"""GPUs through the real nvidia-ml-py over an imaginary driver, in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ingero_agent.health.throttle import Throttle, Throttling, throttle_kinds
from ingero_testing.nvml import build_nvml

READINGS = """
import json, os, sys
from ingero_agent.devices import find_gpus
from ingero_kit import logs
logs.configure("error")
readings = json.loads(sys.argv[1])
os.environ.update(readings[0])
read = find_gpus()
for variables in readings:
    os.environ.update(variables)
    reading = read()
    throttle = {gpu: sorted(kinds) for gpu, kinds in reading.throttle.items()}
    print(json.dumps([reading.model, reading.count, reading.memory_headroom, reading.unreadable, throttle]))
"""
MODEL = "NVIDIA Imaginary 80GB"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_nvml(tmp_path_factory.mktemp("nvml"))


def readings(driver: Path, *states: dict[str, str]) -> list[Any]:
    """Readings of one agent, one for every state of the driver."""
    done = subprocess.run(
        [sys.executable, "-c", READINGS, json.dumps(states)], capture_output=True, text=True, timeout=60,
        env={**os.environ, "LD_LIBRARY_PATH": str(driver)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_memory_is_summed_and_throttling_reported_by_gpu(driver: Path) -> None:
    state = {"NVML_COUNT": "2", "NVML_USED_GIB": "20,60", "NVML_REASONS": "0x44,0x1"}

    assert readings(driver, state) == [[MODEL, 2, 0.5, 0, {"GPU-0": ["hw", "power", "sw", "thermal"], "GPU-1": []}]]


def test_a_lost_gpu_is_counted_and_the_others_are_read(driver: Path) -> None:
    well = {"NVML_COUNT": "2", "NVML_USED_GIB": "20,60"}

    first, second = readings(driver, well, {"NVML_LOST": "1,0", "NVML_REASONS": "0,4"})

    assert first == [MODEL, 2, 0.5, 0, {"GPU-0": [], "GPU-1": []}]
    assert second == [MODEL, 2, 0.25, 1, {"GPU-1": ["power", "sw"]}]


def test_model_and_count_outlive_a_driver_that_stops_to_answer(driver: Path) -> None:
    _, second, third = readings(driver, {"NVML_COUNT": "4"}, {"NVML_COUNT_FAILS": "999"}, {"NVML_COUNT_FAILS": "0"})

    assert second == [MODEL, 4, None, 4, {}]
    assert third[2] == 1.0


def test_a_gpu_that_has_no_reading_is_not_called_throttled(driver: Path) -> None:
    [reading] = readings(driver, {"NVML_COUNT": "2", "NVML_UNSUPPORTED": "1,0", "NVML_REASONS": "4,4"})

    assert reading == [MODEL, 2, 1.0, 0, {"GPU-1": ["power", "sw"]}]


def test_a_driver_that_is_not_loaded_is_a_node_without_gpus(driver: Path) -> None:
    assert readings(driver, {"NVML_INIT": "9"}) == [["", 0, None, 0, {}]]


def test_a_machine_without_the_library_is_a_node_without_gpus(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("no library at all")

    assert readings(tmp_path, {}) == [["", 0, None, 0, {}]]


def test_no_gpu_at_all(driver: Path) -> None:
    assert readings(driver, {"NVML_COUNT": "0"}) == [["", 0, None, 0, {}]]


# What the bits mean.


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (0x000, set()),
        (0x001, set()),
        (0x002, {"sw"}),
        (0x004, {"power", "sw"}),
        (0x008, {"hw"}),
        (0x010, {"sw"}),
        (0x020, {"thermal", "sw"}),
        (0x040, {"thermal", "hw"}),
        (0x080, {"power", "hw"}),
        (0x100, {"sw"}),
        (0x800, {"hw"}),
        (1 << 63, {"hw"}),
        (0x025, {"power", "thermal", "sw"}),
    ],
)
def test_each_reason_is_of_its_kinds(bits: int, expected: set[str]) -> None:
    assert throttle_kinds(bits) == expected


def test_what_begins_is_counted_once_until_it_ends() -> None:
    hot, cool = {"a": frozenset({Throttle.THERMAL})}, {"a": frozenset[Throttle]()}
    throttling = Throttling()
    for seen in (hot, hot, cool, hot, {}, hot):
        throttling = throttling.advance(seen)

    assert throttling.began == {("a", Throttle.THERMAL): 3}
    assert throttling.active == {Throttle.THERMAL}
    assert throttling.advance({}).active == frozenset()
