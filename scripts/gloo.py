"""The job of `scripts.ranks` as PyTorch runs it: ranks of `torch.distributed` that wait in gloo's all_reduce.

No GPU, root or NCCL is needed, but PyTorch is (`make torch`). After SIGUSR1 one rank computes longer.
"""

import argparse
import contextlib
import importlib.util
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scripts.ranks import VECTOR, Pusher, parser, run_first

FOLDER = Path(__file__).resolve().parents[1] / ".tools/torch"
MATRIX = 64


def has_torch() -> bool:
    """Whether PyTorch is installed, in the environment or by `make torch`."""
    return FOLDER.joinpath("torch").is_dir() or importlib.util.find_spec("torch") is not None


def import_torch() -> Any:
    """PyTorch with one thread; what the environment has comes first."""
    sys.path.append(str(FOLDER))
    torch: Any = importlib.import_module("torch")
    importlib.import_module("torch.distributed")
    torch.set_num_threads(1)
    return torch


def work(torch: Any, flags: argparse.Namespace, rank: int, store: Path, parent: int) -> None:
    """One rank, until its parent or a peer is gone."""
    hurt = [False]
    signal.signal(signal.SIGUSR1, lambda *_: hurt.__setitem__(0, True))
    signal.signal(signal.SIGUSR2, lambda *_: hurt.__setitem__(0, False))
    run_first()
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}/rendezvous", rank=rank, world_size=flags.ranks
    )
    pusher, noise = Pusher(flags, rank), random.Random(rank)
    pusher.start()
    vector, matrix = torch.zeros(VECTOR), torch.randn(MATRIX, MATRIX)
    seq = 0
    while os.getppid() == parent:
        begun, wanted = time.monotonic(), flags.step * (1 + noise.uniform(-flags.jitter, flags.jitter))
        if hurt[0] and rank == flags.late:
            wanted += flags.step * flags.extra
        matrix = torch.tanh(matrix @ matrix.T / MATRIX)
        time.sleep(max(0.0, begun + wanted - time.monotonic()))
        vector.fill_(rank)
        moment, arrived = time.time_ns(), time.monotonic()
        torch.distributed.all_reduce(vector)
        seq += 1
        pusher.points.append((moment, 1000 * (time.monotonic() - arrived), seq))
        if vector[0] != flags.ranks * (flags.ranks - 1) / 2:
            raise SystemExit("gloo: the sum is wrong")


def rank_process(torch: Any, flags: argparse.Namespace, rank: int, store: Path, parent: int) -> None:
    """Run `work` in a forked process, which never returns; a lost peer is no error."""
    status = 1
    try:
        with contextlib.suppress(RuntimeError):
            work(torch, flags, rank, store, parent)
        status = 0
    finally:
        sys.stdout.flush()
        os._exit(status)


def main() -> None:
    """Fork the ranks, forward signals to the late one, and end when the first rank ends."""
    flags = parser("gloo", __doc__).parse_args()
    # Imported before the fork, so that it is loaded once and not by each rank.
    torch = import_torch()
    store, parent = Path(tempfile.mkdtemp(prefix="ingero-gloo-")), os.getpid()
    ranks: list[int] = []
    for rank in range(flags.ranks):
        child = os.fork()
        if not child:
            rank_process(torch, flags, rank, store, parent)
        ranks.append(child)
    ending = False

    def to_the_late_rank(number: int, _: object) -> None:
        if flags.late >= 0:
            os.kill(ranks[flags.late], number)

    def end(*_: object) -> None:
        nonlocal ending
        ending = True
        for rank in ranks:
            os.kill(rank, signal.SIGKILL)

    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, to_the_late_rank)
    signal.signal(signal.SIGTERM, end)
    try:
        _, status = os.wait()
    finally:
        shutil.rmtree(store, ignore_errors=True)
    sys.exit(0 if ending else f"gloo: a rank ended with status {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main()
