"""What the tracer counts, and why a node straggles, go through Fleet to Echo, whose questions answer."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ingero_agent.devices import GpuReading
from ingero_agent.loop import PushLoop
from ingero_agent.push import FleetClient
from ingero_agent.settings import AgentSettings
from ingero_agent.sources.scripted import ScriptedSource, Stage
from ingero_agent.trace.counts import CallCount
from ingero_agent.trace.export import build_request
from ingero_agent.trace.gpu_stats import GpuSample
from ingero_agent.trace.probes.table import DIRECTIONS, FUNCTIONS, SCHED_SWITCH, Function
from ingero_agent.trace.stats import NcclProcess, TraceStats
from ingero_agent.trace.store import TraceStore
from ingero_contract import echo, metrics, routes
from ingero_kit.otlp_client import ClientConfig
from ingero_kit.otlp_encode import to_json
from ingero_kit.tls import ClientTls
from ingero_testing.processes import Running, fleet, wait_until
from ingero_testing.processes import echo as start_echo
from ingero_testing.web import web

JSON = {"content-type": "application/json"}
SECOND = 10**9
Services = tuple[Running, Running]


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """Fleet, which gives no verdict yet, and the Echo that it forwards to."""
    folder = tmp_path_factory.mktemp("services")
    with start_echo(folder / "echo") as store:
        change = {
            "exporters": {"otlphttp": {"endpoint": store.url("otlp/http", ""), "tls": {"insecure": True}}},
            "processors": {"ingero": {"push_interval": "600s"}},
            "service": {
                "pipelines": {
                    "metrics": {"exporters": ["prometheus", "otlphttp"]},
                    "logs": {"exporters": ["otlphttp"]},
                }
            },
        }
        with fleet(folder / "fleet", change) as service:
            yield service, store


def ask(store: Running, question: str, **arguments: Any) -> Any:
    got = web.post(store.url("api", echo.TOOLS + echo.TOOL_PREFIX + question), json=arguments)
    assert got.status_code == 200, got.text
    return got.json()


def function(name: str) -> Function:
    return next(one for one in FUNCTIONS if one.name == name)


def export(service: Running, stats: TraceStats, node: str, now_ns: int, start_ns: int) -> None:
    body = to_json(build_request(stats, [], None, node, "counted", now_ns, start_ns, "job"))
    got = web.post(service.url("otlp/http", routes.OTLP_METRICS), content=body, headers=JSON)
    assert (got.status_code, got.json()) == (200, {})


def work(stats: TraceStats, launches: int) -> None:
    copies, host_to_device = function("cudaMemcpyAsync"), DIRECTIONS.index("h2d")
    octaves = tuple(4 if octave == 20 else 0 for octave in range(32))
    stats.add(
        [
            CallCount(function("cudaLaunchKernel"), 7, launches - 10),
            CallCount(function("cuGraphLaunch"), 8, 10),
            CallCount(copies, 7, 4, SECOND, size=10**9, kind=host_to_device, histogram=octaves),
            CallCount(function("cudaMalloc"), 7, 3, 3000, size=4096),
            CallCount(function("ncclAllReduce"), 7, 5, 5000, size=1 << 20),
            CallCount(SCHED_SWITCH, 7, 2, 50_000_000),
        ]
    )


def test_the_questions_about_counters_answer_with_what_was_traced(services: Services) -> None:
    service, store = services
    gpu = GpuSample(index=0, uuid="GPU-1", used=50 << 30, free=20 << 30, total=80 << 30)
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

    def answer(question: str) -> Any:
        return ask(store, question, cluster_id="counted")

    wait_until(
        lambda: [row["seconds"] for row in answer("memcpy_bandwidth_summary")["rows"]] == [40, 40], "all exports"
    )

    launched = answer("kernel_launch_summary")
    assert [(row["node_id"], row["launches"]) for row in launched["rows"]] == [("n1", 1200), ("n0", 3000)]
    assert launched["rows"][1]["launches_per_second"] == pytest.approx(75)
    assert launched["summary"].startswith("Fewest launches: n1, 1,200")
    copied = answer("memcpy_bandwidth_summary")["rows"][0]
    assert (copied["direction"], copied["bytes"], copied["p50"]) == ("h2d", 3e9, pytest.approx(0.1))
    fragmented = answer("memfrag_hotspots")["rows"]
    assert [(row["gpu"], row["newest"]) for row in fragmented] == [("GPU-1", 0.125)] * 2
    process, other = answer("find_nccl_processes")["rows"]
    assert (process["node_id"], other["node_id"]) == ("n0", "n1")
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


def straggle(folder: Path, service: Running, *, ticks: int = 20, interval: float = 10.0) -> None:
    """A node loses its pace after half of the ticks, because its job has no processor."""
    now = time.time() - ticks * interval
    file, half = folder / "trace.db", ticks // 2
    stages = [Stage(seconds=half * interval), Stage(seconds=1, launches_per_second=20)]

    async def run() -> None:
        nonlocal now
        endpoint = f"127.0.0.1:{service.ports['otlp/http']}"
        config = AgentSettings(
            fleet_endpoint=endpoint, fleet_cluster_id="starved", fleet_node_id="n0", signal_db_path=file,
            warmup_samples=5, fleet_push_interval=interval, fleet_persist_path=folder / "baseline.json",
        )  # fmt: skip
        client = FleetClient(ClientConfig(endpoint=endpoint, cluster="starved", tls=ClientTls(insecure=True)))
        loop = PushLoop(config, ScriptedSource(stages), GpuReading, client, None, lambda: now)
        store = TraceStore(file)
        for tick in range(ticks):
            now += interval
            waited = 0.9 if tick >= half else 0.0
            store.add([CallCount(SCHED_SWITCH, 7, 100, int(waited * interval * 1e9))], now, {7: "train"})
            await loop.tick()
            assert loop.chains
            await loop.chains.close()
        store.close()
        await client.close()
        assert loop.straggler

    asyncio.run(asyncio.wait_for(run(), 60))


def test_the_cause_of_a_straggler_is_a_causal_chain(services: Services, tmp_path: Path) -> None:
    service, store = services
    straggle(tmp_path, service)

    def chains() -> Any:
        return ask(store, "causal_chains", cluster_id="starved")["rows"]

    wait_until(lambda: [(row["severity"], row["events"]) for row in chains()] == [("HIGH", 2)], "the cause")
    (chain,) = chains()
    assert (chain["nodes"], chain["root_cause"]) == (["n0"], "cpu-starved")
    assert chain["summary"].startswith("threads of train (7) wanted a processor and had none")
    assert chain["found"].startswith("time between being ready to run and running")
    assert "processors of its own" in chain["advice"]
    records = ask(store, "event_history", event_ids=chain["evidence"])["rows"]
    assert {record["causal_chain_id"] for record in records} == {chain["causal_chain_id"]}
    (why,) = ask(store, "why_not", cluster_id="starved", node_id="n0")["rows"]
    assert (why["cause"], why["causal_chain_id"]) == (chain["summary"], chain["causal_chain_id"])
    anomalies = ask(store, "anomaly_stream", cluster_id="starved")["rows"]
    assert chain["summary"] in {row["detail"] for row in anomalies if row["anomaly"] == "causal_chain"}
