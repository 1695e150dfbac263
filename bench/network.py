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
from ingero_detect.links import RankPort  # noqa: E402
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
from ingero_testing.fabric_jobs import FAULTS, FabricJob, fabric_job, gpu_topology, inspector_exports, outcome_of  # noqa: E402

STEPS = 36


def links(jobs: int, seed: int) -> bool:
    """Print what Fleet names from the exports of NCCL Inspector, one step a tick, and how soon."""
    found = OutcomeTable()
    delays: list[int] = []
    with TemporaryDirectory() as folder:
        file = Path(folder, "topology.json")
        for number in range(jobs):
            job = fabric_job(number, seed, FAULTS[number % len(FAULTS)], STEPS)
            file.write_text(json.dumps(gpu_topology(job)))
            tracker, first = CollectivesTracker(NcclConfig(topology_file=file)), None
            for step in range(STEPS):
                for body in inspector_exports(job, step):
                    tracker.take(Push(Signal.METRICS, "json", body), 5.0 * step)
                tracker.judge(5.0 * step)
                first = step if first is None and tracker.network.now else first
            verdict = tracker.network.now.get("c")
            delays += [] if first is None else [first + 1 - job.onset]
            found.add(job, outcome(job, verdict), verdict)
    if delays:
        print(f"live: named {np.median(delays):.0f} ticks after the onset, {max(delays)} at most")
    return found.show("slow, live")


def cost(nodes: int) -> None:
    """Print what a tick costs for nodes of 8 ranks: tensor groups inside of nodes, rings of 8 nodes on rails."""
    ports = {
        f"n{node}:GPU{gpu}": RankPort(f"n{node}", f"mlx5_{gpu}", (f"leaf-{node // 16}-{gpu}", f"spine-{gpu}"))
        for node in range(nodes) for gpu in range(8)
    }  # fmt: skip
    rings = [[(node, gpu) for gpu in range(8)] for node in range(nodes)]
    rings += [[(node, gpu) for node in range(first, min(first + 8, nodes))]
              for first in range(0, nodes, 8) for gpu in range(8)]  # fmt: skip
    reader = PointReader(10_000, 1_000_000, GpuStates(1, 1.0))
    communicators, times, network = Communicators(reader), TransferTimes(), SlowNetwork(ports)
    random = np.random.default_rng(0)
    for number, ring in enumerate(rings):
        reader.comms.append(CommKey("c", f"{number:016x}", len(ring)))
        reader.sources += [PointSource("c", f"n{node}", "", f"GPU{gpu}") for node, gpu in ring]
        members = np.arange(len(reader.sources) - len(ring), len(reader.sources), dtype=np.int32)
        communicators.windows[number] = CommunicatorWindow(len(ring), members, 0.0)
    comm = np.arange(len(rings))
    slow = np.array([(nodes - 1, 3) in ring and len({node for node, _ in ring}) > 1 for ring in rings])
    adding = judging = 0.0
    for tick in range(24):
        times.next_tick()
        begin = time.process_time()
        for size in (1 << 20, 1 << 24):
            seconds = size * 1e-9 * np.exp(random.normal(0, 0.02, len(rings))) * np.where(slow, 2.0, 1.0)
            times.add(reader.comms, ["allreduce"], comm, 0 * comm, 0 * comm + size, seconds)
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
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    for nodes in (8, 128):
        cost(nodes)
    sys.exit(0 if links(chosen.jobs, chosen.seed) else 1)


if __name__ == "__main__":
    main()
