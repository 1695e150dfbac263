"""Manages several receiver processes on the same ports: starts them, collects their reports, replaces those that end.

The kernel spreads connections over the processes (`SO_REUSEPORT`), so a node's pushes come to one of them while it
keeps its connection. Each process keeps a score map and hands over new reports on request; only Fleet's process
judges. When a process dies, the reports since the last request are lost, and no more.
"""

import asyncio
import socket
import struct
import sys
from collections.abc import Callable
from typing import Final

import orjson

from ingero_fleet.intake import Observe
from ingero_fleet.receivers.ingest import listeners
from ingero_fleet.receivers.messages import (
    MessageKind,
    decode_batch,
    decode_push,
    encode_message,
    encode_verdict_cache,
    read_message,
)
from ingero_fleet.receivers.traffic import TRAFFIC_JSON, Traffic, total
from ingero_fleet.score_table import ScoreTable
from ingero_fleet.settings import FleetConfig
from ingero_fleet.verdict_cache import VerdictCache
from ingero_http.sockets import open_sockets
from ingero_kit.addresses import parse_endpoint
from ingero_kit.backoff import Backoff
from ingero_kit.logs import get

log = get(__name__)

START_SECONDS: Final = 30.0
"""How long a process may take until it listens."""

COLLECT_SECONDS: Final = 1.0
"""Longest wait of a tick for the reports of the processes; later ones count in the next tick."""

HUNG_SECONDS: Final = 30.0
"""How long a process may fail to deliver reports before it is killed and replaced."""

STOP_SECONDS: Final = 15.0
"""How long a process may take to finish before it is killed."""


class ReceiverHandle:
    """One process and its link."""

    def __init__(self, number: int, process: asyncio.subprocess.Process, link: socket.socket) -> None:
        self.number = number
        self.process = process
        self.traffic = Traffic()
        self.done = asyncio.Event()
        self.late_since: float | None = None
        """The first of the consecutive ticks for which it delivered no reports."""
        self._link = link

    async def connect(self) -> None:
        """Open Fleet's side of the link."""
        self._reader, self._writer = await asyncio.open_connection(sock=self._link)

    def send(self, *messages: bytes) -> None:
        """Queue messages; a closed link is noticed by the reader."""
        if not self._writer.is_closing():
            self._writer.writelines(messages)

    async def ready(self) -> None:
        """Wait until the process listens; raises `OSError` with its reason when it cannot."""
        try:
            kind, body = await asyncio.wait_for(read_message(self._reader), START_SECONDS)
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            raise OSError(f"receiver process {self.number} did not start") from None
        if kind is MessageKind.FAILED:
            raise OSError(body.decode())

    async def listen(self, table: ScoreTable, observe: Observe) -> None:
        """Take the process's messages until it ends."""
        try:
            while True:
                kind, body = await read_message(self._reader)
                if kind is MessageKind.BATCH:
                    table.merge(decode_batch(body))
                elif kind is MessageKind.PUSH:
                    observe(*decode_push(body))
                elif kind is MessageKind.DONE:
                    self.traffic = TRAFFIC_JSON.validate_json(body)
                    self.done.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except (ValueError, KeyError, TypeError, struct.error) as error:
            log.error("receiver_not_understood", number=self.number, reason=f"{type(error).__name__}: {error}")
            self._end_now()
        except Exception:
            log.exception("receiver_failed", number=self.number)
            self._end_now()
        finally:
            self.done.set()
            self._writer.close()

    def _end_now(self) -> None:
        if self.process.returncode is None:
            self.process.kill()

    def check_hung(self, now: float) -> None:
        """Note a tick without reports; a process that hangs is killed, which the task that listens to it notices."""
        if self.late_since is None:
            self.late_since = now
        elif now - self.late_since > HUNG_SECONDS and self.process.returncode is None:
            log.error("receiver_hangs", number=self.number, seconds=round(now - self.late_since, 1))
            self.process.kill()

    async def end(self) -> None:
        """Wait for the process; one that does not finish is killed."""
        try:
            await asyncio.wait_for(self.process.wait(), STOP_SECONDS)
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        """End the process at once, and close the link."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        self._writer.close()


class ReceiverPool:
    """The receiver processes of one Fleet."""

    def __init__(
        self, config: FleetConfig, table: ScoreTable, clock_offset: Callable[[], float], observe: Observe
    ) -> None:
        """`clock_offset`: seconds by which Fleet's clock is ahead of the monotonic one, for receivers that start."""
        self.restarts = 0
        self._config, self._table, self._clock_offset = config, table, clock_offset
        self._observe = observe
        self._ports: dict[str, int] = {}
        self._reserved: list[socket.socket] = []
        self._running: dict[int, ReceiverHandle] = {}
        self._supervising: list[asyncio.Task[None]] = []
        self._ended = Traffic()
        self._verdict_cache = VerdictCache()
        self._stopping = False

    async def start(self) -> dict[str, int]:
        """Bind the ports and start the processes; raises `OSError` with a message when they cannot listen."""
        for name, settings in listeners(self._config):
            reserved = _reserve(*parse_endpoint(settings.endpoint))
            self._reserved.append(reserved)
            self._ports[name] = int(reserved.getsockname()[1])
        count = self._config.receivers.otlp.processes
        try:
            started = await asyncio.gather(*(self._start(number) for number in range(count)))
        except OSError:
            await self.stop()
            raise
        self._supervising = [asyncio.create_task(self._supervise(receiver)) for receiver in started]
        return dict(self._ports)

    async def gather(self) -> None:
        """Collect the reports that the processes received since the last call."""
        receivers = list(self._running.values())
        for receiver in receivers:
            receiver.done.clear()
            receiver.send(encode_message(MessageKind.COLLECT))
        waiting = {asyncio.create_task(receiver.done.wait()): receiver for receiver in receivers}
        if waiting:
            in_time, check_hung = await asyncio.wait(waiting, timeout=COLLECT_SECONDS)
            for task in in_time:
                waiting[task].late_since = None
            for task in check_hung:
                task.cancel()
                waiting[task].check_hung(asyncio.get_running_loop().time())

    def publish(self, verdict_cache: VerdictCache) -> None:
        """Send the new verdict cache to every process."""
        self._verdict_cache = verdict_cache
        messages = list(encode_verdict_cache(verdict_cache))
        for receiver in self._running.values():
            receiver.send(*messages)

    def reload(self) -> None:
        """Have every process read tokens and certificates again."""
        for receiver in self._running.values():
            receiver.send(encode_message(MessageKind.RELOAD))

    def traffic(self) -> Traffic:
        """Counts over all processes, ended ones included."""
        found = total([self._ended, *(receiver.traffic for receiver in self._running.values())])
        found.totals["receiver_restarts"] = self.restarts
        return found

    def facts(self) -> dict[str, int]:
        """Facts on the processes for Fleet's health page."""
        return {"receivers": len(self._running), "receiver_restarts": self.restarts}

    async def stop(self) -> None:
        """Let every process finish pending requests and hand over its reports."""
        self._stopping = True
        receivers = list(self._running.values())
        for receiver in receivers:
            receiver.send(encode_message(MessageKind.STOP))
        await asyncio.gather(*(receiver.end() for receiver in receivers))
        for task in self._supervising:
            task.cancel()
        await asyncio.gather(*self._supervising, return_exceptions=True)
        for reserved in self._reserved:
            reserved.close()

    async def _start(self, number: int) -> ReceiverHandle:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "ingero_fleet.receivers.process",
                str(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
            )
        receiver = ReceiverHandle(number, process, ours)
        await receiver.connect()
        self._running[number] = receiver
        hello = {
            "config": self._config.model_dump(mode="json"), "ports": self._ports,
            "clock_offset": self._clock_offset(),
        }  # fmt: skip
        receiver.send(encode_message(MessageKind.HELLO, orjson.dumps(hello)))
        try:
            await receiver.ready()
        except BaseException:
            await receiver.kill()
            del self._running[number]
            raise
        receiver.send(*encode_verdict_cache(self._verdict_cache))
        return receiver

    async def _supervise(self, receiver: ReceiverHandle) -> None:
        """Listen to a process, and replace it when it ends."""
        number = receiver.number
        backoff = Backoff(first=0.2, longest=30.0)
        attempt = 0
        while True:
            began = asyncio.get_running_loop().time()
            await receiver.listen(self._table, self._observe)
            await receiver.end()
            self._running.pop(number, None)
            self._ended = total([self._ended, receiver.traffic.gone()])
            if self._stopping:
                return
            log.error("receiver_ended", number=number, status=receiver.process.returncode)
            attempt = 0 if asyncio.get_running_loop().time() - began > 60 else attempt + 1
            while True:
                await asyncio.sleep(backoff.delay(attempt))
                self.restarts += 1
                try:
                    receiver = await self._start(number)
                    log.info("receiver_replaced", number=number)
                    break
                except OSError as error:
                    log.error("receiver_failed", number=number, reason=str(error))
                except Exception:
                    log.exception("receiver_failed", number=number)
                attempt += 1


def _reserve(host: str, port: int) -> socket.socket:
    """Bind without listening, so that the port is known and stays reserved while processes are replaced.

    The port is first bound exclusively, because sharing it with another service would go unnoticed.
    """
    if port:
        for alone in open_sockets(host, port, listen=False):
            alone.close()
    reserved = open_sockets(host, port, reuse_port=True, listen=False)
    for other in reserved[1:]:
        other.close()
    return reserved[0]
