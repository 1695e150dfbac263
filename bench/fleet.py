"""Measures the receivers: Fleet, a plain Go collector and Python servers in turn, each pinned to one core.

`make bench` prints the table; `make bench ARGS=--quick` takes a minute, `ARGS=--receivers` compares receivers only.
The load comes from another core. The peers do none of Fleet's work.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]

from ingero_contract import headers, routes  # noqa: E402
from ingero_fleet import threshold_rule as rule  # noqa: E402
from ingero_fleet.processor_settings import IngeroConfig  # noqa: E402
from ingero_fleet.score_snapshot import ScoreSnapshot  # noqa: E402
from ingero_fleet.score_table import ScoreLimits, ScoreTable  # noqa: E402
from ingero_kit.health_report import HealthReport  # noqa: E402
from ingero_kit.otlp_encode import encode_report  # noqa: E402
from ingero_testing.processes import BIN, SHARED, Running, fleet, free_port, next_line, process, wait_until  # noqa: E402

PROTOCOLS = {"http/protobuf": ("otlp/http", 1.0), "http/json": ("otlp/http", 1.2), "grpc": ("otlp/grpc", 0.33)}

QUORUM = {"statistical_min": 5}


def settings(interval: str, **more: object) -> dict[str, object]:
    """Settings of a Fleet that is measured."""
    return {"processors": {"ingero": {"push_interval": interval, "quorum": QUORUM, **more}}}


CHANGE = settings("5s")

LIGHT = 1000
"""Pushes a second of a light load."""


def load(port: int, protocol: str, seconds: float, *more: str) -> dict[str, float]:
    """Run the load tool once on the load core."""
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


@dataclass(frozen=True)
class Peer:
    """A server to compare with: its process, and its ports by listener."""

    pid: int
    ports: dict[str, int]


@contextlib.contextmanager
def peer(folder: Path) -> Iterator[Peer | None]:
    """The plain collector on free ports, or `None` where it is not installed."""
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
        yield Peer(running.process.pid, ports)


def pin(pid: int) -> None:
    """Pin all threads of a process to the server core."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {SERVER_CORE})


@contextlib.contextmanager
def python_peer(kind: str) -> Iterator[Peer]:
    """A server of `bench/peers.py`, pinned."""
    started = subprocess.Popen([sys.executable, ROOT / "bench/peers.py", kind], stdout=subprocess.PIPE)
    try:
        ports = json.loads(next_line(started))
        pin(started.pid)
        yield Peer(started.pid, ports)
    finally:
        started.terminate()
        started.wait()


def threshold_of(nodes: int) -> float:
    """Milliseconds for one tick over so many nodes."""
    config = IngeroConfig()
    table = ScoreTable(ScoreLimits(nodes=nodes, clusters=10, ttl_seconds=1e9), config.cohort.by)
    random = np.random.default_rng(0)
    for number, score in enumerate(random.uniform(0.9, 1.0, nodes).tolist()):
        table.observe(HealthReport(node_id=f"n{number}", cluster_id="c", score=score, job_id=f"j{number % 100}"), 0)
    times = []
    for _ in range(5):
        scores = ScoreSnapshot.take(table, 1.0)
        started = time.perf_counter()
        rule.compute(scores, rule.RuleState(), config)
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)


class Resident(threading.Thread):
    """Resident memory of a process in MB, sampled a hundred times a second while the block runs."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.ended = pid, threading.Event()
        self.seen: list[float] = []

    def run(self) -> None:
        """Sample until the block has ended."""
        while not self.ended.wait(0.01):
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
            self.seen.append(pages * os.sysconf("SC_PAGE_SIZE") / 1e6)

    def __enter__(self) -> "Resident":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.join()


def row(what: str, ours: str, theirs: str, ratio: str, target: str, reached: bool | None) -> None:
    """One line of the table."""
    verdict = "–" if reached is None else "reached" if reached else "NOT REACHED"
    print(f"| {what} | {ours} | {theirs} | {ratio} | {target} | {verdict} |", flush=True)


def throughput(service: Running, other: Peer | None, rounds: int, seconds: float) -> dict[str, float]:
    """Pushes a second by protocol, Fleet and the peer in turn; the ratio is the median over the rounds."""
    medians: dict[str, float] = {}
    for protocol, (listener, target) in PROTOCOLS.items():
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(load(service.ports[listener], protocol, seconds)["pushes_per_second"])
            if other:
                theirs.append(load(other.ports[listener], protocol, seconds)["pushes_per_second"])
        medians[protocol] = statistics.median(ours)
        if theirs:
            ratio = statistics.median(one / other for one, other in zip(ours, theirs, strict=True))
            row(
                f"{protocol}, pushes/s", f"{medians[protocol]:,.0f}", f"{statistics.median(theirs):,.0f}",
                f"{ratio:.2f}", f"≥ {target}", ratio >= target,
            )  # fmt: skip
        else:
            row(f"{protocol}, pushes/s", f"{medians[protocol]:,.0f}", "no collector here", "–", f"≥ {target}", None)
    return medians


def pushes_per_processor_second(pid: int, port: int, protocol: str, seconds: float) -> float:
    """Pushes per second of the server's processor in one run of the load tool, independent of other load."""
    before = cpu_seconds(pid)
    pushes = load(port, protocol, seconds)["pushes"]
    return pushes / (cpu_seconds(pid) - before)


def compare_receivers(service: Running, other: Peer | None, rounds: int, seconds: float) -> None:
    """Pushes per processor second: Fleet, its receivers without any work, other Python servers, and Go."""
    for protocol, listener, kind, target in (
        ("grpc", "otlp/grpc", "grpc.aio", 2.0), ("http/protobuf", "otlp/http", "uvicorn", 1.5),
    ):  # fmt: skip
        with python_peer("receivers") as receivers, python_peer(kind) as python:
            servers = {
                "Fleet": (service.process.pid, service.ports[listener]),
                "our receivers without work": (receivers.pid, receivers.ports[listener]),
                kind: (python.pid, python.ports[listener]),
                **({"Go collector": (other.pid, other.ports[listener])} if other else {}),
            }
            found: dict[str, list[float]] = {name: [] for name in servers}
            for _ in range(rounds):
                for name, (pid, port) in servers.items():
                    found[name].append(pushes_per_processor_second(pid, port, protocol, seconds))
        for name, bound in (("Fleet", None), ("our receivers without work", target)):
            for against in [each for each in (kind, "Go collector") if each in found]:
                ratio = statistics.median(one / two for one, two in zip(found[name], found[against], strict=True))
                judged = bound if against == kind else None
                row(
                    f"{protocol}, pushes per processor second, {name}", f"{statistics.median(found[name]):,.0f}",
                    f"{statistics.median(found[against]):,.0f} ({against})", f"{ratio:.2f}",
                    f"≥ {judged}" if judged else "–", ratio >= judged if judged else None,
                )  # fmt: skip


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Suspend one of the processes while the block runs."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def waits_for_ticks(folder: Path, rounds: int, seconds: float) -> None:
    """How long a push waits for ticks over 100,000 nodes: light load on two Fleets in turn, one of which never ticks.

    Steal time of a virtual machine delays both alike. Under such a light load most ticks compute thresholds and find
    nodes that have dropped; every sixth judges all nodes.
    """
    light = ("--nodes", f"{LIGHT * seconds:.0f}", "--rate", f"{LIGHT}", "--connections", "8")
    found: dict[str, list[float]] = {"5s": [], "1h": []}
    with contextlib.ExitStack() as stack:
        # A Fleet that is suspended for a while must not forget nodes.
        ticking, still = (
            stack.enter_context(fleet(folder / interval, settings(interval, ttl_multiplier=1000)))
            for interval in found
        )
        for service in (ticking, still):
            pin(service.process.pid)
            load(service.ports["otlp/http"], "http/protobuf", 120, "--nodes", "100000", "--pushes", "100000")
        with Resident(ticking.process.pid) as resident:
            for _ in range(rounds):
                for interval, (one, other) in zip(found, ((ticking, still), (still, ticking)), strict=True):
                    with stopped(other.process.pid):
                        facts = load(one.ports["otlp/http"], "http/protobuf", seconds, *light)
                    found[interval].append(facts["p999_ms"])
    ours, without = (statistics.median(values) for values in found.values())
    row(
        "p99.9 of a push with 100,000 nodes, ticks every 5 s; then without ticks, and what ticks add",
        f"{ours:.1f} ms", f"{without:.1f} ms (no ticks)", f"{ours - without:+.1f} ms", "< 5 ms", ours - without < 5,
    )  # fmt: skip
    memory, most = statistics.median(resident.seen), max(resident.seen)
    what = f"resident memory with 100,000 nodes (inside of a tick up to {most:.0f} MB)"
    row(what, f"{memory:.0f} MB", "–", "–", "< 200 MB", memory < 200)


def restart(folder: Path) -> None:
    """Push intervals from a restart after kill -9 to the first response with a threshold."""
    interval, port = 2.0, free_port()
    change = {
        **settings(f"{interval}s"),
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
    }
    body = [encode_report(HealthReport(node_id=f"n{number}", cluster_id="c", score=0.95)).SerializeToString()
            for number in range(20)]  # fmt: skip
    kind = {"content-type": "application/x-protobuf"}

    def until_threshold(service: Running) -> float:
        started = time.monotonic()
        with httpx.Client() as client:
            while True:
                answers = [
                    client.post(service.url("otlp/http", routes.OTLP_METRICS), content=item, headers=kind)
                    for item in body
                ]
                if all(headers.THRESHOLD in answer.headers for answer in answers):
                    return (time.monotonic() - started) / interval
                time.sleep(0.05)

    with fleet(folder, change) as service:
        until_threshold(service)
        service.process.kill()
        service.process.wait()
    with fleet(folder, change) as service:
        intervals = until_threshold(service)
    row("restart to threshold, push intervals", f"{intervals:.2f}", "–", "–", "≤ 2", intervals <= 2)


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def scaling(folder: Path, seconds: float) -> None:
    """Pushes per processor second with one receiver and with four; wall time shows nothing on so few cores."""
    found = {}
    for processes in (1, 2, 4):
        change = {**CHANGE, "receivers": {"otlp": {"processes": processes}}}
        with fleet(folder / str(processes), change) as service:
            pid = service.process.pid
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            receivers = [int(child) for child in children] or [pid]
            load(service.ports["otlp/http"], "http/protobuf", 1.0, "--nodes", "10000")
            before, judge = sum(map(cpu_seconds, receivers)), cpu_seconds(pid)
            pushes = load(service.ports["otlp/http"], "http/protobuf", seconds, "--nodes", "10000")["pushes"]
            found[processes] = pushes / (sum(map(cpu_seconds, receivers)) - before)
            share = (cpu_seconds(pid) - judge) / seconds
        if processes > 1:
            ratio = found[processes] / found[1]
            row(
                f"{processes} receivers: pushes per processor second and receiver (judge: {share:.0%} of a core)",
                f"{found[processes]:,.0f}", f"{found[1]:,.0f} (one process)", f"{ratio:.2f}", "≥ 0.8", ratio >= 0.8,
            )  # fmt: skip


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round of each")
    parser.add_argument(
        "--receivers", action="store_true", help="compare the receivers with other servers, nothing else"
    )
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each, the figures are medians")
    arguments = parser.parse_args()
    quick = arguments.quick
    rounds, seconds = (1, 2.0) if quick else (arguments.rounds, 3.0)
    print("| what | ours | Go collector | ratio | target | |\n| --- | --- | --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as name, peer(Path(name)) as other:
        with fleet(Path(name), CHANGE) as service:
            pin(service.process.pid)
            compare_receivers(service, other, rounds, seconds)
            if arguments.receivers:
                return
            medians = throughput(service, other, rounds, seconds)
            rate = 0.6 * medians["http/protobuf"]
            late = statistics.median(
                load(service.ports["otlp/http"], "http/protobuf", seconds, "--rate", f"{rate:.0f}")["p99_ms"]
                for _ in range(rounds)
            )
            row(f"p99 at 60 % of saturation ({rate:,.0f}/s)", f"{late:.1f} ms", "–", "–", "< 20 ms", late < 20)
        waits_for_ticks(Path(name) / "ticks", rounds, 11.0)
        restart(Path(name) / "restart")
        scaling(Path(name) / "scaling", 2 * seconds)
    milliseconds = threshold_of(100_000)
    row("threshold of 100,000 nodes in 100 cohorts", f"{milliseconds:.1f} ms", "–", "–", "< 30 ms", milliseconds < 30)


CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, LOAD_CORE = CORES[0], CORES[-1]

if __name__ == "__main__":
    main()
