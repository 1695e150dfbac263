"""A receiver process: takes pushes on shared ports and answers them from the latest verdict cache.

It is started by `ingero_fleet.receivers.pool` with one end of a socket pair and hands its reports over on request. It
ends on request, or when the socket closes.
"""

import asyncio
import contextlib
import gc
import signal
import socket
import sys
from typing import Final

import orjson
import uvloop

from ingero_fleet.receivers.ingest import IngestService, try_reload
from ingero_fleet.receivers.messages import (
    PART,
    MessageKind,
    VerdictCacheDecoder,
    encode_batch,
    encode_message,
    encode_push,
    read_message,
)
from ingero_fleet.receivers.traffic import TRAFFIC_JSON
from ingero_fleet.score_table import ScoreTable
from ingero_fleet.settings import FleetConfig
from ingero_kit import logs
from ingero_kit.clock import SlewedClock
from ingero_kit.otlp_receiver import Push
from ingero_kit.process_memory import GcFreezer
from ingero_kit.settings import SettingsError

DRAIN_SECONDS: Final = 5.0
"""How long a stop waits for pending requests."""

MAX_UNSENT: Final = 32 << 20
"""Octets that may wait to be handed over; further pushes with collectives or taints are dropped and counted."""


class ReceiverProcess:
    """One receiver and its link."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._decoder = VerdictCacheDecoder()
        self._gc_freezer = GcFreezer()

    async def run(self) -> int:
        """Serve until asked to stop; the exit status is 0 unless the listeners could not be opened."""
        _, body = await read_message(self._reader)
        hello = orjson.loads(body)
        config = FleetConfig.model_validate(hello["config"])
        logs.configure(config.service.telemetry.logs.level)
        self._clock = SlewedClock(hello["clock_offset"])
        self._table = ScoreTable.of(config.processors.ingero)
        self._ingest = IngestService(config, self._table, self._clock, self._observe)
        try:
            await self._ingest.listen(hello["ports"])
        except (SettingsError, OSError) as error:
            self._writer.write(encode_message(MessageKind.FAILED, str(error).encode()))
            await self._writer.drain()
            return 1
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 50, 50)
        self._writer.write(encode_message(MessageKind.READY))
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await self._follow()
        await self._ingest.stop_listening(DRAIN_SECONDS)
        await self._hand_over()
        await self._ingest.stop_sending(DRAIN_SECONDS)
        self._writer.close()
        return 0

    async def _follow(self) -> None:
        while True:
            kind, body = await read_message(self._reader)
            if kind is MessageKind.STOP:
                return
            if kind is MessageKind.COLLECT:
                await self._hand_over()
            elif kind is MessageKind.NODE_VERDICTS:
                self._decoder.add_overrides(body)
            elif kind is MessageKind.VERDICT_CACHE:
                self._ingest.intake.verdict_cache = self._decoder.verdict_cache(body)
            elif kind is MessageKind.RELOAD:
                try_reload(self._ingest.reload)

    async def _hand_over(self) -> None:
        """Send all new reports, in parts between which pushes are answered."""
        self._table.expire(self._clock())
        while not self._writer.is_closing():
            batch = self._table.take_fresh(PART)
            if not batch.names:
                break
            self._writer.write(encode_message(MessageKind.BATCH, encode_batch(batch)))
            await self._writer.drain()
            await asyncio.sleep(0)
        self._gc_freezer.freeze_if_grown(len(self._table))
        if not self._writer.is_closing():
            self._writer.write(encode_message(MessageKind.DONE, TRAFFIC_JSON.dump_json(self._ingest.traffic())))

    def _observe(self, push: Push, now: float) -> None:
        if self._writer.transport.get_write_buffer_size() > MAX_UNSENT:
            self._ingest.intake.rejected["collectives and taint records that Fleet cannot keep up with"] += 1
            return
        self._writer.write(encode_message(MessageKind.PUSH, encode_push(push, now)))


async def main(end: socket.socket) -> int:
    """Run a receiver on its end of the link. Signals are handled by Fleet, which informs its receivers."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, lambda: None)
    reader, writer = await asyncio.open_connection(sock=end)
    try:
        return await ReceiverProcess(reader, writer).run()
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0


if __name__ == "__main__":
    sys.exit(uvloop.run(main(socket.socket(fileno=int(sys.argv[1])))))
