"""What Fleet names in simulated jobs with a slow part of the network, and what that costs: `make bench-network`."""

import argparse
import json
import logging
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import structlog

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "support"), str(Path(__file__).parent)]

from fabric_table import OutcomeTable  # noqa: E402
from ingero_detect.network.links import RankPort  # noqa: E402
from ingero_detect.network.topology import ports_of  # noqa: E402
from ingero_fleet.collectives.communicators import Communicators  # noqa: E402
from ingero_fleet.collectives.gpu_states import GpuStates  # noqa: E402
from ingero_fleet.collectives.points import CommKey, PointReader, PointSource  # noqa: E402
from ingero_fleet.collectives.slow_network import SlowNetwork  # noqa: E402
from ingero_fleet.collectives.tracker import CollectivesTracker  # noqa: E402
from ingero_fleet.collectives.transfer_times import TransferTimes  # noqa: E402
from ingero_fleet.collectives.window import CommunicatorWindow  # noqa: E402
from ingero_fleet.processor_settings import NcclConfig  # noqa: E402
from ingero_kit.otlp_receiver import Push  # noqa: E402
from ingero_kit.otlp_signal import Signal  # noqa: E402
from ingero_testing.fabric_jobs import (  # noqa: E402
    FAULTS,
    GPUS,
    FabricJob,
    fabric_job,
    gpu_topology,
    inspector_exports,
    outcome_of,
)  # fmt: skip

STEPS = 36


def links(jobs: int, seed: int, whole: bool) -> bool:
    """Print what Fleet names, one step a tick, and how soon. `whole`: from the exports of NCCL Inspector."""
    found, accused = OutcomeTable(), OutcomeTable()
    delays: list[int] = []
    begin = time.process_time()
    for number in range(jobs):
        job = fabric_job(number, seed, FAULTS[number % len(FAULTS)], STEPS)
        if whole:
            network, first, nodes = exported(job)
            guilty = {job.name} if job.kind == "node" else set()
            worth = "innocent" if nodes - guilty else "missed" if guilty - nodes else "right"
            accused.add(job, worth, f"accuses a rank of {sorted(nodes)}")
        else:
            network, first = matched(job)
        verdict = network.now.get("c")
        delays += [] if first is None else [first + 1 - job.onset]
        found.add(job, outcome(job, verdict), verdict)
    way = "from exports" if whole else "from matched collectives"
    print(f"live, {way}: {1000 * (time.process_time() - begin) / jobs:.0f} ms of a processor a job")
    if delays:
        print(f"named {np.median(delays):.0f} ticks after the onset, {max(delays)} at most")
    good = found.show("slow, live")
    return good and (not whole or accused.show("straggler ranks"))


def exported(job: FabricJob) -> tuple[SlowNetwork, int | None, set[str]]:
    """Judge what NCCL Inspector exports: the network, the first step with a verdict, nodes of accused ranks."""
    nodes: set[str] = set()
    first = None
    with TemporaryDirectory() as folder:
        file = Path(folder, "topology.json")
        file.write_text(json.dumps(gpu_topology(job)))
        tracker = CollectivesTracker(NcclConfig(topology_file=file))
    for step in range(STEPS):
        for body in inspector_exports(job, step):
            tracker.take(Push(Signal.METRICS, "json", body), 5.0 * step)
        tracker.judge(5.0 * step)
        nodes |= {node for _, node in tracker.stragglers}
        first = step if first is None and tracker.network.now else first
    return tracker.network, first, nodes


def matched(job: FabricJob) -> tuple[SlowNetwork, int | None]:
    """Judge the job's collectives as Fleet has them once their points are matched; the first step with a verdict."""
    columns = {name: values[job.columns["kind"] == "collective"] for name, values in job.columns.items()}
    groups, group = np.unique(columns["group"], return_inverse=True)
    ops, members = zip(*(name.split(":") for name in groups.tolist()), strict=True)
    rings = sorted(set(members))
    communicators = communicators_of(
        [[divmod(int(rank), GPUS) for rank in ring.split("-")] for ring in rings], "node-"
    )
    comm, op = np.array([rings.index(ring) for ring in members]), np.unique(ops, return_inverse=True)[1]
    order = np.lexsort((group, columns["step"]))
    starts = np.flatnonzero(np.diff(columns["step"][order] * len(groups) + group[order], prepend=-1))
    seconds = np.minimum.reduceat(columns["duration"][order], starts).reshape(STEPS, len(groups))
    network, times, first = SlowNetwork(ports_of(gpu_topology(job))), TransferTimes(), None
    for step in range(STEPS):
        times.next_tick()
        times.add(communicators.reader.comms, sorted(set(ops)), comm, op, 0 * comm + 1, seconds[step])
        network.tick(communicators, times, 5.0 * step)
        first = step if first is None and network.now else first
    return network, first


def communicators_of(rings: list[list[tuple[int, int]]], prefix: str) -> Communicators:
    """Communicators of these members: number of the node, and of the GPU in it."""
    reader = PointReader(10_000, 1_000_000, GpuStates(1, 1.0))
    communicators = Communicators(reader)
    for number, ring in enumerate(rings):
        reader.comms.append(CommKey("c", f"{number:016x}", len(ring)))
        reader.sources += [PointSource("c", f"{prefix}{node}", "", f"GPU{gpu}") for node, gpu in ring]
        members = np.arange(len(reader.sources) - len(ring), len(reader.sources), dtype=np.int32)
        communicators.windows[number] = CommunicatorWindow(len(ring), members, 0.0)
    return communicators


def cost(nodes: int) -> None:
    """Print what a tick costs for nodes of 8 ranks: tensor groups inside of nodes, rings of 8 nodes on rails."""
    ports = {
        f"n{node}:GPU{gpu}": RankPort(f"n{node}", f"mlx5_{gpu}", (f"leaf-{node // 16}-{gpu}", f"spine-{gpu}"))
        for node in range(nodes) for gpu in range(8)
    }  # fmt: skip
    rings = [[(node, gpu) for gpu in range(8)] for node in range(nodes)]
    rings += [[(node, gpu) for node in range(first, min(first + 8, nodes))]
              for first in range(0, nodes, 8) for gpu in range(8)]  # fmt: skip
    communicators, times, network = communicators_of(rings, "n"), TransferTimes(), SlowNetwork(ports)
    random = np.random.default_rng(0)
    comm = np.arange(len(rings))
    slow = np.array([(nodes - 1, 3) in ring and len({node for node, _ in ring}) > 1 for ring in rings])
    adding = judging = 0.0
    for tick in range(24):
        times.next_tick()
        begin = time.process_time()
        for size in (1 << 20, 1 << 24):
            seconds = size * 1e-9 * np.exp(random.normal(0, 0.02, len(rings))) * np.where(slow, 2.0, 1.0)
            times.add(communicators.reader.comms, ["allreduce"], comm, 0 * comm, 0 * comm + size, seconds)
        between = time.process_time()
        network.tick(communicators, times, 5.0 * tick)
        adding, judging = adding + between - begin, judging + time.process_time() - between
    print(f"{8 * nodes} ranks, {len(times)} series: {1000 * adding / 24:.1f} ms of a processor a tick to add, "
          f"{1000 * judging / 24:.1f} to judge; {network.now['c']['kind']}")  # fmt: skip


def outcome(job: FabricJob, verdict: dict[str, Any] | None) -> str:
    """What Fleet's verdict is worth."""
    if verdict is None:
        return "right" if job.fault in ("nothing", "node") else "missed"
    return outcome_of(job, verdict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--exports", type=int, default=0, help="also judge so many jobs from exports, with their ranks"
    )
    chosen = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    for nodes in (8, 128):
        cost(nodes)
    good = links(chosen.jobs, chosen.seed, whole=False)
    if chosen.exports:
        good &= links(chosen.exports, chosen.seed, whole=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
