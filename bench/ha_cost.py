"""What the shared log costs a replica: with three real Fleets and many nodes, and in one process by step."""

import math
import random
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ha_table import row
from ingero_contract import routes
from ingero_contract.values import NodeState
from ingero_fleet.processor_settings import ProcessorsConfig
from ingero_fleet.replication.log_bodies import BatchHead, Marker, encode_reports
from ingero_fleet.replication.ordered_log import LogMessage
from ingero_fleet.replication.parts import PART_BYTES, pack, unpack
from ingero_fleet.replication.publisher import BATCH_NODES
from ingero_fleet.replication.replicated_state import ReplicatedState
from ingero_fleet.score_table import ScoreTable
from ingero_fleet.state_machine import StateMachine
from ingero_kit.health_report import HealthReport
from scripts.demo_ha import FLEETS
from scripts.lab import Lab, laboratory
from scripts.nats_servers import NatsServers, nats_servers

if TYPE_CHECKING:
    from ha import Kills

WARMUP = 30
TICKS = 5
"""Ticks that are measured, after the warm-up."""
COHORT = 512
"""Nodes of one job."""
PUBLISHED = re.compile(r"^ingero_fleet_log_published_bytes(?:_total)? (\S+)", re.MULTILINE)


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def published(run: "Kills") -> float:
    """Bytes that all Fleets have published."""
    total = 0.0
    for number in run.running():
        page = run.get(number, "telemetry", "/metrics")
        found = PUBLISHED.search(page.text) if page else None
        total += float(found[1]) if found else math.nan
    return total


def large(
    new_run: Callable[[Lab, NatsServers, int, float], "Kills"], nodes: int, seconds: float, interval: float = 5.0
) -> None:
    """Cost of the log and the tick with many nodes; the last Fleet receives no pushes."""
    with laboratory("bench-ha") as lab, nats_servers(lab.folder / "nats", count=3) as servers:
        run = new_run(lab, servers, nodes, interval)
        run.begin()
        run.load.ports = run.load.ports[:-1]
        with run.load.running():
            lab.wait("every Fleet to know every node", run.known, 600)
            pids = [lab.processes[f"fleet-{number}"].pid for number in range(FLEETS)]
            before, volume, began = [cpu_seconds(pid) for pid in pids], published(run), time.monotonic()
            rounds = run.load.rounds
            lab.wait("the measured time", lambda: time.monotonic() - began > seconds, seconds + 60)
            took = time.monotonic() - began
            shares = [(cpu_seconds(pid) - cpu) / took for pid, cpu in zip(pids, before, strict=True)]
            volume = (published(run) - volume) / took / 1e6
            every = took / max(1, run.load.rounds - rounds)
            process = lab.processes.pop(f"fleet-{FLEETS - 1}")
            process.kill()
            process.wait(30)
            began = time.monotonic()
            run.start_fleet(FLEETS - 1)
            lab.wait("a Fleet to be ready", lambda: run.get(FLEETS - 1, "health", routes.FLEET_HEALTH), 120)
            ready = time.monotonic() - began
    each = f"{nodes:,} nodes, each pushes every {every:.1f} s, a tick every {interval:g} s: "
    row(f"{each}share of a core for log and tick (a Fleet without pushes)",
        f"{shares[-1]:.1%}", "≤ 15 %", shares[-1] <= 0.15)  # fmt: skip
    rest = ", ".join(f"{share:.1%}" for share in shares[:-1])
    row("the same, share of a core of Fleets that receive half of the pushes, all work", rest, "–", None)
    row("the same, published by all Fleets", f"{volume:.2f} MB/s", "≤ 1 MB/s", volume <= 1)
    row("the same, start to ready after kill -9", f"{ready:.1f} s", "≤ 10 s", ready <= 10)


def cost(nodes: int, interval: float = 5.0) -> None:
    """Processor time of a replica for each tick, by step, in one process and without a server."""
    config = ProcessorsConfig.model_validate(
        {"ingero": {"push_interval": interval, "max_nodes": nodes, "cohort": {"by": ["job_id"]}}}
    )
    table, noise = ScoreTable.of(config.ingero), partial(random.Random(1).uniform, 0.94, 0.96)
    for number in range(nodes):
        report = HealthReport(
            node_id=f"node-{number:07d}", cluster_id="bench", job_id=f"job-{number // COHORT}",
            score=noise(), throughput=noise(), compute=noise(), memory=noise(), cpu=noise(), rate=100 * noise(),
            state=NodeState.ACTIVE, workload_type="training",
        )  # fmt: skip
        table.observe(report, 0.0)
    began = time.process_time()
    bodies, head = [], BatchHead("bench", 0)
    while (batch := table.take_fresh(BATCH_NODES)).names:
        bodies.append(encode_reports(head, batch, 0.0))
    encoding = time.process_time() - began
    began = time.process_time()
    packed = [pack(body, PART_BYTES) for body in bodies]
    packing = time.process_time() - began
    state = ReplicatedState(lambda export: StateMachine(config, 0.0, export, export), "bench")
    applying = ticking = 0.0
    sequence = keys = 0
    for tick in range(1, WARMUP + TICKS + 1):
        measured = tick > WARMUP
        began = time.process_time()
        for headers, parts in packed:
            sequence, keys = sequence + 1, keys + 1
            body = unpack(headers, b"".join(parts))
            state.apply(LogMessage(sequence, tick * interval, "batch", f"bench-{keys}", body))
        applied = time.process_time()
        sequence += 1
        marker = Marker("tick", tick, "bench", "bench", 0)
        state.apply(LogMessage(sequence, tick * interval, "marker", f"tick-{tick}", marker.encode()))
        if measured:
            applying += (applied - began) / TICKS
            ticking += (time.process_time() - applied) / TICKS
    size = sum(len(part) for _, parts in packed for part in parts)
    share = (applying + ticking) / interval
    row(f"{nodes:,} nodes, one process: processor seconds a tick to encode; compress; decode and merge; judge",
        f"{encoding:.3f}; {packing:.3f}; {applying:.3f}; {ticking:.3f}", "–", None)  # fmt: skip
    row(f"{nodes:,} nodes: share of a core a replica with ticks of {interval:g} s; bytes a tick in the log",
        f"{share:.1%}; {size / 1e6:.2f} MB", "≤ 15 %" if nodes == 100_000 else "–",
        share <= 0.15 if nodes == 100_000 else None)  # fmt: skip
