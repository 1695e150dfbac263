"""A synchronised job without GPU, root or NCCL: ranks compute, all-reduce a vector over sockets, push their waits.

Each rank is a process that computes (sleeps, and multiplies a small matrix), sends its vector to the hub and waits
for the sum. Its waiting time is its data point of the collective, pushed to Fleet every second as the trace agent
does. After SIGUSR1 one rank computes longer. `python -m scripts.ranks --fleet URL` runs until it is ended.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import signal
import socket
import struct
import sys
import threading
import time
from urllib.parse import urlsplit

import numpy as np

from ingero_contract import attributes, metrics, routes

VECTOR = 256
PUSH_SECONDS = 1.0
HEADER = struct.Struct("=B")


def receive(stream: socket.socket, size: int) -> bytes:
    """Receive exactly so many bytes; ends the process when the peer is gone."""
    parts = bytearray()
    while len(parts) < size:
        part = stream.recv(size - len(parts))
        if not part:
            sys.exit(0)
        parts += part
    return bytes(parts)


class Pusher(threading.Thread):
    """Pushes the points of one rank in the background."""

    def __init__(self, flags: argparse.Namespace, rank: int) -> None:
        super().__init__(daemon=True)
        self.flags, self.rank = flags, rank
        self.points: list[tuple[int, float, int]] = []

    def run(self) -> None:
        """Push until the process ends; ranks push at different moments."""
        time.sleep(PUSH_SECONDS * self.rank / self.flags.ranks)
        while True:
            time.sleep(PUSH_SECONDS)
            taken, self.points = self.points, []
            with contextlib.suppress(OSError, http.client.HTTPException):
                self._post(taken)

    def _post(self, points: list[tuple[int, float, int]]) -> None:
        """Send one export. Points that Fleet does not accept are lost."""
        flags = self.flags
        common = [
            {"key": attributes.NCCL_OP_TYPE, "value": {"stringValue": "ncclAllReduce"}},
            {"key": attributes.NCCL_COMM_HASH, "value": {"stringValue": flags.comm}},
            {"key": attributes.NCCL_RANK, "value": {"intValue": self.rank}},
            {"key": attributes.NCCL_NRANKS, "value": {"intValue": flags.ranks}},
        ]
        data = [
            {"timeUnixNano": str(moment), "asDouble": waited,
             "attributes": [*common, {"key": attributes.NCCL_SEQ, "value": {"intValue": seq}}]}
            for moment, waited, seq in points
        ]  # fmt: skip
        metric = {"name": metrics.COLLECTIVE_BARRIER_WAIT, "unit": "ms", "gauge": {"dataPoints": data}}
        resource = [
            {"key": attributes.NODE_ID, "value": {"stringValue": f"node-{self.rank}"}},
            {"key": attributes.CLUSTER_ID, "value": {"stringValue": flags.cluster}},
        ]
        block = {"resource": {"attributes": resource}, "scopeMetrics": [{"metrics": [metric]}]}
        address = urlsplit(flags.fleet)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=5)
        body = json.dumps({"resourceMetrics": [block]})
        connection.request("POST", routes.OTLP_METRICS, body, {"content-type": "application/json"})
        connection.getresponse().read()
        connection.close()


def run_first() -> None:
    """Raise the priority where permitted: steps stand for a GPU's work, which other programs do not slow down."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def work(flags: argparse.Namespace, rank: int, hub: socket.socket) -> None:
    """Run one rank until the hub is gone."""
    run_first()
    pusher, noise = Pusher(flags, rank), random.Random(rank)
    pusher.start()
    vector = np.full(VECTOR, rank, np.float32)
    matrix = np.random.default_rng(rank).standard_normal((64, 64))
    seq, hurt = 0, False
    while True:
        begun, wanted = time.monotonic(), flags.step * (1 + noise.uniform(-flags.jitter, flags.jitter))
        if hurt and rank == flags.late:
            wanted += flags.step * flags.extra
        matrix = np.tanh(matrix @ matrix.T / 64)
        time.sleep(max(0.0, begun + wanted - time.monotonic()))
        moment, arrived = time.time_ns(), time.monotonic()
        hub.sendall(vector.tobytes())
        answer = receive(hub, HEADER.size + vector.nbytes)
        waited = time.monotonic() - arrived
        seq += 1
        hurt = bool(HEADER.unpack_from(answer)[0])
        pusher.points.append((moment, 1000 * waited, seq))


def add_up(ranks: list[socket.socket]) -> None:
    """The hub: when every rank has arrived it sends the sum, and whether a rank is to be late; the order rotates."""
    hurt = [False]
    signal.signal(signal.SIGUSR1, lambda *_: hurt.__setitem__(0, True))
    signal.signal(signal.SIGUSR2, lambda *_: hurt.__setitem__(0, False))
    parent, step = os.getppid(), 0
    while os.getppid() == parent:
        total = np.zeros(VECTOR, np.float32)
        for stream in ranks:
            total += np.frombuffer(receive(stream, total.nbytes), np.float32)
        answer = HEADER.pack(hurt[0]) + total.tobytes()
        for place in range(len(ranks)):
            ranks[(place + step) % len(ranks)].sendall(answer)
        step += 1


def parser(prog: str, words: str | None) -> argparse.ArgumentParser:
    """The flags of a job."""
    found = argparse.ArgumentParser(prog=prog, description=words)
    found.add_argument("--fleet", required=True, help="Fleet's OTLP/HTTP address")
    found.add_argument("--cluster", default="lab", help="the cluster's name")
    found.add_argument("--comm", default="00000000000000ab", help="hash of the communicator")
    found.add_argument("--ranks", type=int, default=8, help="processes (default 8)")
    found.add_argument("--step", type=float, default=0.1, help="seconds of a step (default 0.1)")
    found.add_argument(
        "--jitter", type=float, default=0.01, help="uniform jitter of a step, as a share (default 0.01)"
    )
    found.add_argument("--late", type=int, default=-1, help="the rank that is late after SIGUSR1")
    found.add_argument(
        "--extra", type=float, default=0.05, help="how much longer it computes, as a share (default 0.05)"
    )
    return found


def main() -> None:
    """Fork the ranks and serve as their hub."""
    flags = parser("ranks", __doc__).parse_args()
    ends: list[socket.socket] = []
    for rank in range(flags.ranks):
        ours, theirs = socket.socketpair()
        if not os.fork():
            for other in [*ends, ours]:
                other.close()
            work(flags, rank, theirs)
        theirs.close()
        ends.append(ours)
    add_up(ends)


if __name__ == "__main__":
    main()
