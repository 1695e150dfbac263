"""What goes onward is sent or counted, whatever the transport does."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ingero_fleet.exporters import Exporter, Permanent
from ingero_fleet.settings import OtlpExporterConfig
from ingero_kit.otlp_server import Push, Signal

PUSH = Push(Signal.METRICS, "protobuf", b"\n\0")


class Transport:
    def __init__(self, send: Callable[[], Awaitable[None]]) -> None:
        self.sent = asyncio.Event()
        self._send = send

    async def send(self, signal: Signal, body: bytes) -> None:
        self.sent.set()
        await self._send()

    async def close(self) -> None:
        """Nothing is open."""


def exporter(transport: Transport) -> Exporter:
    made = Exporter("otlp", OtlpExporterConfig(endpoint="127.0.0.1:1"), transport, asyncio.get_running_loop())
    made.start()
    return made


@pytest.mark.parametrize("error", [Permanent("no"), RuntimeError("a library's surprise")])
def test_a_batch_that_fails_is_counted_and_the_next_one_is_sent(error: Exception) -> None:
    errors = [error]

    async def send() -> None:
        if errors:
            raise errors.pop()

    async def work() -> tuple[int, int]:
        made = exporter(Transport(send))
        made.put(PUSH)
        while not made.counters.dropped_permanent:
            await asyncio.sleep(0)
        made.put(PUSH)
        await made.stop(10)
        return made.counters.dropped_permanent, made.counters.sent

    assert asyncio.run(asyncio.wait_for(work(), 30)) == (1, 1)


def test_what_is_under_way_when_the_time_to_stop_is_over_is_counted() -> None:
    async def work() -> int:
        transport = Transport(asyncio.Event().wait)  # type: ignore[arg-type]
        made = exporter(transport)
        made.put(PUSH)
        await transport.sent.wait()
        made.put(PUSH)
        await made.stop(0.01)
        return made.counters.dropped_elapsed

    assert asyncio.run(asyncio.wait_for(work(), 30)) == 2
