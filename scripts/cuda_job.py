"""A job of PyTorch over NCCL on a real GPU: tensor groups inside of data groups, or a model that DDP or FSDP trains.

Any number of ranks share one GPU.

NCCL refuses two ranks on one GPU of one host. Here each rank says that it is a host of its own (`NCCL_HOSTID`), so
NCCL connects them by sockets; everything else is as on many machines: its kernels, its communicators, PyTorch's
Flight Recorder and the RAS service. After SIGUSR1 one rank is late, after SIGUSR2 no longer.

The first line it prints, once all ranks have exchanged something, is `ready`, the address of the RAS service and the
ranks' process ids. On standard input it takes

- `go`: begin the steps;
- `dump FOLDER`: each rank writes what its Flight Recorder has, and how long its steps took since the last dump;
- `profile FOLDER`: each rank writes a trace of PyTorch's profiler over its next steps;
- the end of input, which ends the job.

Both are answered by the word and the number of ranks that did it.
"""

import argparse
import contextlib
import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.controlplane import free_ports

WIDTH = 2048
"""Rows and columns of the matrices that a step multiplies."""
WIDE = 8192
"""Those of the products by which a rank is late on its GPU: few, so that launching them takes its host no time."""
GRADIENTS = 1 << 20
"""Elements of the gradients that a data group adds up in a step."""
MODEL, BLOCKS, BUCKET = 384, 6, 8
"""A trained model: its width, its number of layers, and the megabytes of gradients that DDP sends at once."""
BATCH = (16, 128)
"""Sequences of a step, and their tokens."""
BUFFER = 2000
"""Entries that the Flight Recorder keeps."""
PROFILED = 20
"""Steps in a trace of the profiler."""
READY_SECONDS = 120.0
ANSWER_SECONDS = {"dump": 5.0, "profile": 60.0}


def parser() -> argparse.ArgumentParser:
    """The flags."""
    found = argparse.ArgumentParser(prog="python -m scripts.cuda_job", description=__doc__)
    found.add_argument("--ranks", type=int, default=4)
    found.add_argument("--tensor", type=int, default=1, help="ranks of a tensor group, neighbours")
    found.add_argument("--layers", type=int, default=4)
    found.add_argument("--step", type=float, default=0.05, help="seconds on the host before each step")
    found.add_argument("--products", type=int, default=4, help="products of matrices on the GPU in each layer")
    found.add_argument("--late", type=int, default=-1)
    found.add_argument("--extra", type=float, default=0.05, help="seconds by which the late rank is late")
    found.add_argument("--how", choices=["host", "gpu"], default="host", help="sleeps, or has more work on its GPU")
    found.add_argument("--model", choices=["ddp", "fsdp"], help="train a transformer, with all ranks in one group")
    found.add_argument("--read-loss", type=int, default=1, help="steps of the model until its loss is read, a wait")
    found.add_argument("--timeout", type=float, default=600.0, help="seconds until PyTorch gives up a collective")
    found.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    return found


def groups(ranks: int, tensor: int) -> tuple[list[list[int]], list[list[int]]]:
    """The tensor groups (neighbours) and the data groups (same place in each tensor group)."""
    return (
        [list(range(first, first + tensor)) for first in range(0, ranks, tensor)],
        [list(range(place, ranks, tensor)) for place in range(tensor)],
    )


def trained(torch: Any, device: Any, how: str) -> Callable[[], Any]:
    """A transformer whose replicas (`ddp`) or shards (`fsdp`) are the ranks; calling it trains one step.

    Returns the loss of the step, which lies on the GPU: nothing has waited for it.
    """
    model = torch.nn.Sequential(
        *(torch.nn.TransformerEncoderLayer(MODEL, 8, 4 * MODEL, 0.0, batch_first=True) for _ in range(BLOCKS))
    ).to(device)
    if how == "ddp":
        parallel = importlib.import_module("torch.nn.parallel")
        model = parallel.DistributedDataParallel(model, device_ids=[device.index], bucket_cap_mb=BUCKET)
    else:
        shard = importlib.import_module("torch.distributed.fsdp").fully_shard
        for block in model:
            shard(block)
        shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(*BATCH, MODEL, device=device)

    def train() -> Any:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return train


class Rank:
    """One rank: runs steps until its standard input ends."""

    def __init__(self, flags: argparse.Namespace) -> None:
        self.flags, self.late = flags, False
        self.torch: Any = importlib.import_module("torch")
        self.distributed: Any = importlib.import_module("torch.distributed")
        self.begin, self.ended = threading.Event(), threading.Event()
        self.durations: list[float] = []
        self.traces: Path | None = None
        signal.signal(signal.SIGUSR1, lambda *_: setattr(self, "late", True))
        signal.signal(signal.SIGUSR2, lambda *_: setattr(self, "late", False))

    def commands(self) -> None:
        """Take commands until the input ends, then end the process, whatever its other threads wait for."""
        for line in sys.stdin:
            word, _, folder = line.strip().partition(" ")
            if word == "go":
                self.begin.set()
            elif word == "dump":
                self.dump(Path(folder))
                self.say("dump")
            elif word == "profile":
                self.traces = Path(folder)
        os._exit(0)

    def say(self, word: str) -> None:
        """Write one line."""
        sys.stdout.write(f"{word}\n")
        sys.stdout.flush()

    def dump(self, folder: Path) -> None:
        """Write what the Flight Recorder has, and the durations of the steps."""
        core: Any = importlib.import_module("torch._C._distributed_c10d")
        folder.joinpath(f"rank_{self.flags.rank}").write_bytes(core._dump_nccl_trace())
        taken, self.durations = self.durations, []
        folder.joinpath(f"steps_{self.flags.rank}.json").write_text(json.dumps(taken))

    def run(self) -> None:
        """Initialise, wait for `go`, and run steps for ever."""
        torch, distributed, flags = self.torch, self.distributed, self.flags
        device = torch.device("cuda", flags.rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        wait = importlib.import_module("datetime").timedelta(seconds=flags.timeout)
        distributed.init_process_group(
            "nccl", init_method=os.environ["INGERO_RENDEZVOUS"], rank=flags.rank, world_size=flags.ranks,
            timeout=wait, device_id=device,
        )  # fmt: skip
        tensors, datas = groups(flags.ranks, flags.tensor)
        made = [[(ranks, distributed.new_group(ranks, timeout=wait)) for ranks in kind] for kind in (tensors, datas)]
        tensor, data = (next(group for ranks, group in kind if flags.rank in ranks) for kind in made)
        left, right = (torch.randn(WIDTH, WIDTH, device=device, dtype=torch.bfloat16) for _ in range(2))
        gradients = torch.ones(GRADIENTS, device=device)
        wide = torch.randn(WIDE, WIDE, device=device, dtype=torch.bfloat16) if flags.how == "gpu" else left
        product = torch.empty_like(wide)
        train = trained(torch, device, flags.model) if flags.model else None
        steps = 0

        def products(count: int) -> Any:
            result = left
            for _ in range(count):
                result = torch.tanh(result @ right / WIDTH**0.5)
            return result

        def longer(count: int) -> None:
            for _ in range(count):
                torch.mm(wide, wide, out=product)

        def step() -> None:
            nonlocal steps
            time.sleep(flags.step + (flags.extra if self.late and flags.how == "host" else 0.0))
            if train:
                if self.late and flags.how == "gpu":
                    longer(slower)
                loss, steps = train(), steps + 1
                if not steps % flags.read_loss:
                    loss.item()
                return
            for layer in range(flags.layers):
                result = products(flags.products)
                if self.late and flags.how == "gpu" and layer == 0:
                    longer(slower)
                if flags.tensor > 1:
                    distributed.all_reduce(result, group=tensor)
            gradients.fill_(flags.rank)
            distributed.all_reduce(gradients, group=data)
            if int(gradients[0].item()) != sum(range(flags.rank % flags.tensor, flags.ranks, flags.tensor)):
                raise SystemExit("cuda_job: the sum is wrong")

        slower = 0
        if flags.how == "gpu":
            longer(5)
            torch.cuda.synchronize()
            begun = time.monotonic()
            longer(50)
            torch.cuda.synchronize()
            slower = round(50 * flags.extra / (time.monotonic() - begun))
        distributed.barrier()
        step()
        self.say("ready")
        self.begin.wait()
        while True:
            if self.traces:
                self.profile(self.traces, step)
                self.traces = None
            begun = time.monotonic()
            step()
            self.durations.append(time.monotonic() - begun)

    def profile(self, folder: Path, step: Callable[[], None]) -> None:
        """Write a trace of the next steps."""
        profiler: Any = importlib.import_module("torch.profiler")
        with profiler.profile(activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA]) as found:
            for number in range(PROFILED):
                with profiler.record_function(f"ProfilerStep#{number}"):
                    step()
        found.export_chrome_trace(str(folder / f"rank_{self.flags.rank}.json"))
        self.say("profile")


def start(flags: argparse.Namespace, rank: int, environment: dict[str, str]) -> subprocess.Popen[str]:
    """Start the process of one rank, which ends with its input."""
    return subprocess.Popen(
        [sys.executable, "-m", "scripts.cuda_job", *sys.argv[1:], "--rank", str(rank)], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**{name: value.replace("{rank}", str(rank)) for name, value in environment.items()},
             "NCCL_HOSTID": f"rank-{rank}", "RANK": str(rank), "WORLD_SIZE": str(flags.ranks), "LOCAL_RANK": "0"},
    )  # fmt: skip


def environment_of_ranks() -> dict[str, str]:
    """Variables of all ranks; what the caller has set stays, and `{rank}` in it becomes the rank."""
    rendezvous, ras = free_ports(2)
    defaults = {
        "INGERO_RENDEZVOUS": f"tcp://127.0.0.1:{rendezvous}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1",
        "NCCL_RAS_ADDR": f"127.0.0.1:{ras}", "TORCH_FR_BUFFER_SIZE": str(BUFFER),
        "TORCH_NCCL_ENABLE_TIMING": "1", "OMP_NUM_THREADS": "1",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "900",
    }  # fmt: skip
    return {**defaults, **os.environ}


def main() -> None:
    """Start the ranks, pass commands and signals on, and end with the input or with the first rank that ends."""
    flags = parser().parse_args()
    if flags.rank >= 0:
        rank = Rank(flags)
        threading.Thread(target=rank.commands, daemon=True).start()
        rank.run()
    environment = environment_of_ranks()
    ranks = [start(flags, rank, environment) for rank in range(flags.ranks)]
    said: queue.Queue[tuple[int, str]] = queue.Queue()

    def listen(number: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout
        for line in process.stdout:
            said.put((number, line.strip()))
        said.put((number, "ended"))

    for number, process in enumerate(ranks):
        threading.Thread(target=listen, args=(number, process), daemon=True).start()

    def to_the_late_rank(number: int, _: object) -> None:
        if flags.late >= 0:
            ranks[flags.late].send_signal(number)

    def collect(word: str, seconds: float, wanted: int) -> int:
        got, deadline = set[int](), time.monotonic() + seconds
        while len(got) < wanted:
            try:
                number, line = said.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                return len(got)
            if line == "ended":
                raise SystemExit(f"cuda_job: rank {number} ended with status {ranks[number].wait()}")
            if line == word:
                got.add(number)
        return len(got)

    try:
        if collect("ready", READY_SECONDS, len(ranks)) < len(ranks):
            raise SystemExit(f"cuda_job: not ready within {READY_SECONDS:g} s")
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, to_the_late_rank)
        print("ready", environment["NCCL_RAS_ADDR"], *(process.pid for process in ranks), flush=True)
        for line in sys.stdin:
            for process in ranks:
                assert process.stdin
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(line)
                    process.stdin.flush()
            word = line.split(" ")[0]
            if word in ANSWER_SECONDS:
                print(word, collect(word, ANSWER_SECONDS[word], len(ranks)), flush=True)
    finally:
        for process in ranks:
            process.kill()
            process.wait(30)


if __name__ == "__main__":
    main()
