"""What the tracer counts goes through Fleet to Echo, whose questions about launches, copies and memory answer."""

import time
from pathlib import Path
from typing import Any

import pytest

from ingero_agent.trace.counts import CallCount
from ingero_agent.trace.export import build_request
from ingero_agent.trace.gpu_stats import GpuSample
from ingero_agent.trace.probes.table import DIRECTIONS, FUNCTIONS, SCHED_SWITCH, Function
from ingero_agent.trace.stats import NcclProcess, TraceStats
from ingero_contract import echo, metrics, routes
from ingero_kit.otlp_encode import to_json
from ingero_testing.processes import Running, fleet, wait_until
from ingero_testing.processes import echo as start_echo
from ingero_testing.web import web

JSON = {"content-type": "application/json"}
SECOND = 10**9


def function(name: str) -> Function:
    return next(one for one in FUNCTIONS if one.name == name)


def export(service: Running, stats: TraceStats, node: str, now_ns: int, start_ns: int) -> None:
    body = to_json(build_request(stats, [], None, node, "c", now_ns, start_ns, "job"))
    got = web.post(service.url("otlp/http", routes.OTLP_METRICS), content=body, headers=JSON)
    assert (got.status_code, got.json()) == (200, {})


def work(stats: TraceStats, launches: int, *, scale: int = 1) -> None:
    copies, host_to_device = function("cudaMemcpyAsync"), DIRECTIONS.index("h2d")
    octaves = tuple(4 * scale if octave == 20 else 0 for octave in range(32))
    stats.add(
        [
            CallCount(function("cudaLaunchKernel"), 7, launches - 10),
            CallCount(function("cuGraphLaunch"), 8, 10),
            CallCount(copies, 7, 4 * scale, SECOND, size=scale * 10**9, kind=host_to_device, histogram=octaves),
            CallCount(function("cudaMalloc"), 7, 3, 3000, size=4096),
            CallCount(function("ncclAllReduce"), 7, 5, 5000, size=1 << 20),
            CallCount(SCHED_SWITCH, 7, 2, 50_000_000),
        ]
    )


def test_the_questions_about_counters_answer_with_what_was_traced(tmp_path: Path) -> None:
    gpu = GpuSample(index=0, uuid="GPU-1", used=50 << 30, free=20 << 30, total=80 << 30)
    with start_echo(tmp_path / "echo") as store:
        change = {
            "exporters": {"otlphttp": {"endpoint": store.url("otlp/http", ""), "tls": {"insecure": True}}},
            "service": {"pipelines": {"metrics": {"exporters": ["prometheus", "otlphttp"]}}},
        }
        with fleet(tmp_path / "fleet", change) as service:
            begun = time.time_ns() - 60 * SECOND
            for node, launches in (("n0", 1000), ("n1", 400)):
                stats = TraceStats()
                stats.nccl_processes = [NcclProcess(7, "python", "/usr/lib/libnccl.so.2.27", "2.27")]
                stats.gpus.add([gpu])
                for tick in range(4):
                    work(stats, launches)
                    export(service, stats, node, begun + 10 * tick * SECOND, begun)
                # A tracer that starts again counts from 0.
                stats = TraceStats()
                work(stats, 50)
                export(service, stats, node, begun + 40 * SECOND, begun + 35 * SECOND)

            def ask(question: str, **arguments: Any) -> Any:
                url = store.url("api", echo.TOOLS + echo.TOOL_PREFIX + question)
                got = web.post(url, json={"cluster_id": "c", **arguments})
                assert got.status_code == 200, got.text
                return got.json()

            wait_until(lambda: len(ask("find_nccl_processes")["rows"]) == 2, "Echo to know both nodes")
            wait_until(
                lambda: [row["seconds"] for row in ask("memcpy_bandwidth_summary")["rows"]] == [40, 40], "all exports"
            )

            launched = ask("kernel_launch_summary")
            assert [(row["node_id"], row["launches"]) for row in launched["rows"]] == [("n1", 1200), ("n0", 3000)]
            assert launched["rows"][1]["launches_per_second"] == pytest.approx(75)
            assert launched["summary"].startswith("Fewest launches: n1, 1,200")
            copied = ask("memcpy_bandwidth_summary")["rows"][0]
            assert (copied["direction"], copied["bytes"], copied["p50"]) == ("h2d", 3e9, pytest.approx(0.1))
            fragmented = ask("memfrag_hotspots")["rows"]
            assert [(row["gpu"], row["newest"]) for row in fragmented] == [("GPU-1", 0.125)] * 2
            process = ask("find_nccl_processes")["rows"][0]
            assert (process["pid"], process["comm"], process["version"]) == ("7", "python", "2.27")
            assert process["library"] == "/usr/lib/libnccl.so.2.27"

            names = f"('{metrics.OPERATION_COUNT}', '{metrics.CPU_STALL_TOTAL}')"
            statement = (
                "SELECT coalesce(json_extract_string(attributes, '$.operation'), metric_name), max(value_double) "
                f"FROM events WHERE metric_name IN {names} AND node_id = 'n0' GROUP BY ALL"
            )
            counted = dict(web.post(store.url("api", echo.SQL), json={"sql": statement}).json()["rows"])
            assert counted == {
                "cudaLaunchKernel": 3960, "cudaGraphLaunch": 40, "cudaMemcpyAsync": 16, "cudaMalloc": 12,
                "ncclAllReduce": 20, "sched_switch": 8, metrics.CPU_STALL_TOTAL: 200_000_000,
            }  # fmt: skip
