"""Agents that push to several Fleets behind one address, and remember what they saw."""

import asyncio
import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ingero_contract import headers, routes
from ingero_contract.verdicts import parse_verdict
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_encode import encode_report

ATTEMPTS = 3
"""Connections that a push is tried on before it has failed; a real agent also tries again."""

ANSWER_SECONDS = 5.0
_VERDICT = headers.VERDICT.lower().encode()


class Front:
    """One address for several servers: connections go to each in turn, and past those that refuse."""

    def __init__(self, ports: list[int]) -> None:
        self.port = 0
        self._ports = ports
        self._turn = itertools.count()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Listen no longer."""
        if self._server:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in self._ports:
            port = self._ports[next(self._turn) % len(self._ports)]
            try:
                answers, upstream = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
            with contextlib.suppress(asyncio.CancelledError):  # else the loop reports every connection at the end
                await asyncio.gather(_copy(reader, upstream), _copy(answers, writer))
            return
        writer.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.CancelledError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
    target.close()


@dataclass
class Seen:
    """What the agents saw since it was last taken."""

    pushes: int = 0
    reconnected: int = 0
    """Pushes that another Fleet answered, because the connection had ended."""
    failed: int = 0
    accused: set[str] = field(default_factory=set)
    cleared: set[str] = field(default_factory=set)
    """Nodes that had been accused, and then got another verdict."""
    seconds: list[float] = field(default_factory=list)
    """How long every answered push took."""


class PushingAgents:
    """Simulated agents, one connection each. `slow` names nodes that work at half their speed."""

    def __init__(self, port: int, cluster: str, nodes: list[str], interval: float) -> None:
        self.slow: frozenset[str] = frozenset()
        self.seen = Seen()
        self._port, self._cluster, self._nodes, self._interval = port, cluster, nodes, interval
        self._accused: set[str] = set()

    def take(self) -> Seen:
        """What the agents saw since the last call."""
        found, self.seen = self.seen, Seen()
        return found

    async def run(self) -> None:
        """Push until cancelled."""
        await asyncio.gather(*(self._agent(number, node) for number, node in enumerate(self._nodes)))

    async def _agent(self, number: int, node: str) -> None:
        noise, loop = random.Random(node), asyncio.get_running_loop()
        due = loop.time() + self._interval * number / len(self._nodes)
        link: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        while True:
            await asyncio.sleep(max(0.0, due - loop.time()))
            due = max(due + self._interval, loop.time())
            started = loop.time()
            for attempt in range(ATTEMPTS):
                try:
                    link = link or await asyncio.open_connection("127.0.0.1", self._port)
                    async with asyncio.timeout(ANSWER_SECONDS):
                        verdict = await self._push(*link, self._request(node, noise))
                    self.seen.reconnected += attempt > 0
                    self._note(node, verdict, loop.time() - started)
                    break
                except (OSError, EOFError, TimeoutError):
                    if link:
                        link[1].close()
                    link = None
            else:
                self.seen.failed += 1

    def _note(self, node: str, verdict: bytes, seconds: float) -> None:
        self.seen.pushes += 1
        self.seen.seconds.append(seconds)
        line = parse_verdict(verdict.decode()) if verdict else None
        if line is None:
            return
        if line.is_straggler:
            self._accused.add(node)
            self.seen.accused.add(node)
        elif node in self._accused:
            self._accused.discard(node)
            self.seen.cleared.add(node)

    def _request(self, node: str, noise: random.Random) -> bytes:
        speed = (0.5 if node in self.slow else 1.0) * noise.uniform(0.99, 1.01)
        report = HealthReport(
            node_id=node, cluster_id=self._cluster, score=min(1.0, 0.97 * speed), throughput=min(1.0, 0.97 * speed),
            compute=0.9, memory=0.4, cpu=0.8, rate=100 * speed, detection_mode="fleet", workload_type="training",
            time_unix_nano=time.time_ns(),
        )  # fmt: skip
        body = encode_report(report).SerializeToString()
        return (
            f"POST {routes.OTLP_METRICS}?{routes.CLUSTER_PARAMETER}={self._cluster} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            f"content-type: application/x-protobuf\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode() + body

    async def _push(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
        """The verdict of the answer; empty without one."""
        writer.write(request)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        fields = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in head[1:])
        }
        await reader.readexactly(int(fields.get(b"content-length", b"0")))
        if b" 200 " not in head[0] + b" ":
            raise OSError(head[0].decode())
        return fields.get(_VERDICT, b"")


@contextmanager
def in_background(start: Callable[[], Coroutine[Any, Any, None]]) -> Iterator[None]:
    """Run a coroutine in a thread with a loop of its own, until the block ends."""
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def main() -> None:
        over, task = asyncio.Event(), asyncio.create_task(start())
        task.add_done_callback(lambda _: over.set())
        loops.append((asyncio.get_running_loop(), over))
        await over.wait()
        if task.done():
            task.result()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        yield
    finally:
        for loop, over in loops:
            loop.call_soon_threadsafe(over.set)
        thread.join(30)
