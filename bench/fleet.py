"""The receiving side in figures: ours and a plain Go collector interleaved, each pinned to one core, load on another.

`make bench` prints the table; `make bench ARGS=--quick` takes a minute. The peer does none of Fleet's work.
"""

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/support"))

from ingero_fleet import statistics as rule  # noqa: E402
from ingero_fleet.scores import Limits, ScoreTable  # noqa: E402
from ingero_fleet.settings import IngeroConfig  # noqa: E402
from ingero_kit.otlp import HealthReport  # noqa: E402
from ingero_kit.otlp_server import free_port  # noqa: E402
from ingero_testing.processes import BIN, SHARED, Running, fleet, process, wait_until  # noqa: E402

PROTOCOLS = {"http/protobuf": ("otlp/http", 1.0), "http/json": ("otlp/http", 1.2), "grpc": ("otlp/grpc", 0.33)}


def load(port: int, protocol: str, seconds: float, *more: str) -> dict[str, float]:
    """One run of the load tool on the load core."""
    command = [
        str(BIN / "ingero-fleet"), "bench", "--json", "--endpoint", f"127.0.0.1:{port}", "--protocol", protocol,
        "--seconds", str(seconds), "--cpu", str(LOAD_CORE), *more,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60)
    if not done.stdout:
        raise SystemExit(f"bench: the load tool failed: {done.stderr}")
    facts: dict[str, float] = json.loads(done.stdout)
    if facts["errors"]:
        raise SystemExit(f"bench: errors under load: {facts['errors']}")
    return facts


@contextlib.contextmanager
def peer(folder: Path) -> Iterator[dict[str, int] | None]:
    """The plain collector on free ports, or nothing where it is not on this machine."""
    if SHARED is None:
        yield None
        return
    binaries = subprocess.run([SHARED / "peers/unpack"], capture_output=True, text=True, check=True).stdout.strip()
    ports = {"otlp/grpc": free_port(), "otlp/http": free_port()}
    config = re.sub(
        r"4317|4318",
        lambda found: str(ports["otlp/grpc" if found[0] == "4317" else "otlp/http"]),
        (SHARED / "peers/otelcol.yaml").read_text(),
    )
    (folder / "otelcol.yaml").write_text(config)
    with process(
        folder / "otelcol.log", f"{binaries}/otelcol", "--config", str(folder / "otelcol.yaml"), GOMAXPROCS="1"
    ) as running:
        os.sched_setaffinity(running.process.pid, {SERVER_CORE})
        wait_until(lambda: "ready" in running.words(), "the collector")
        yield ports


def pin(pid: int) -> None:
    """Pin all threads of a process to the server core."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {SERVER_CORE})


def threshold_of(nodes: int) -> float:
    """Milliseconds for one tick over so many nodes."""
    config = IngeroConfig()
    table = ScoreTable(Limits(nodes=nodes, clusters=10, ttl_seconds=1e9), config.cohort.by)
    random = np.random.default_rng(0)
    for number, score in enumerate(random.uniform(0.9, 1.0, nodes).tolist()):
        table.observe(HealthReport(node_id=f"n{number}", cluster_id="c", score=score, job_id=f"j{number % 100}"), 0)
    times = []
    for _ in range(5):
        frame = rule.Frame.take(table, 1.0)
        started = time.perf_counter()
        rule.compute(frame, rule.Memory(), config)
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)


def resident_megabytes(service: Running) -> float:
    """Resident memory as the process itself reports it."""
    page = httpx.get(service.url("telemetry", "/metrics")).text
    return next(
        float(line.split()[1]) / 1e6 for line in page.splitlines() if line.startswith("process_resident_memory")
    )


def row(what: str, ours: str, theirs: str, ratio: str, target: str, reached: bool | None) -> None:
    """One line of the table."""
    verdict = "–" if reached is None else "reached" if reached else "NOT REACHED"
    print(f"| {what} | {ours} | {theirs} | {ratio} | {target} | {verdict} |", flush=True)


def throughput(service: Running, other: dict[str, int] | None, rounds: int, seconds: float) -> dict[str, float]:
    """Pushes a second by protocol, ours and the peer's in turn."""
    medians: dict[str, float] = {}
    for protocol, (listener, target) in PROTOCOLS.items():
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(load(service.ports[listener], protocol, seconds)["pushes_per_second"])
            if other:
                theirs.append(load(other[listener], protocol, seconds)["pushes_per_second"])
        medians[protocol] = statistics.median(ours)
        if theirs:
            ratio = medians[protocol] / statistics.median(theirs)
            row(
                f"{protocol}, pushes/s", f"{medians[protocol]:,.0f}", f"{statistics.median(theirs):,.0f}",
                f"{ratio:.2f}", f"≥ {target}", ratio >= target,
            )  # fmt: skip
        else:
            row(f"{protocol}, pushes/s", f"{medians[protocol]:,.0f}", "no collector here", "–", f"≥ {target}", None)
    return medians


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round of each")
    quick = parser.parse_args().quick
    rounds, seconds = (1, 2.0) if quick else (5, 4.0)
    print("| what | ours | Go collector | ratio | target | |\n| --- | --- | --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as name, peer(Path(name)) as other:
        change = {"processors": {"ingero": {"push_interval": "5s", "quorum": {"statistical_min": 5}}}}
        with fleet(Path(name), change) as service:
            pin(service.process.pid)
            medians = throughput(service, other, rounds, seconds)
            rate = 0.6 * medians["http/protobuf"]
            facts = load(service.ports["otlp/http"], "http/protobuf", 2 * seconds, "--rate", f"{rate:.0f}")
            row(
                f"p99 at 60 % of saturation ({rate:,.0f}/s)", f"{facts['p99_ms']:.1f} ms", "–",
                "–", "< 20 ms", facts["p99_ms"] < 20,
            )  # fmt: skip
            load(service.ports["otlp/http"], "http/protobuf", 120, "--nodes", "100000", "--pushes", "100000")
            memory = resident_megabytes(service)
            row("resident memory with 100,000 nodes", f"{memory:.0f} MB", "–", "–", "< 200 MB", memory < 200)
    milliseconds = threshold_of(100_000)
    row("threshold of 100,000 nodes in 100 cohorts", f"{milliseconds:.1f} ms", "–", "–", "< 30 ms", milliseconds < 30)


CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, LOAD_CORE = CORES[0], CORES[-1]

if __name__ == "__main__":
    main()
