"""Runs of an event store, one after the other: opened, used, and closed in order or killed in the middle."""

import os
import random
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from ingero_echo import retention
from ingero_echo.ingest import decode_request
from ingero_echo.settings import IngestConfig, RetentionConfig, StoreConfig
from ingero_echo.store import Store
from ingero_echo.writer import Writer
from ingero_kit.otlp_signal import Signal
from ingero_testing import telemetry

DAY: Final = 86_400 * 10**9

_ROWS = (
    "INSERT INTO events SELECT uuid(), make_timestamp_ns(? + i), now()::TIMESTAMP, 'logs', 'c', 'n' || i % 8, ?, "
    "random(), NULL, NULL, NULL, uuid()::VARCHAR, '{}', 1 FROM range(?) r(i)"
)

Held = dict[str, int]
"""Number of events by name."""


def held(store: Store) -> Held:
    """The number of events by name in a store."""
    return dict(store.connection.execute("SELECT metric_name, count(*) FROM events GROUP BY 1").fetchall())


def live_in_order(path: Path, before: Held, dice: random.Random) -> Held:
    """Open, check the content, write, checkpoint and delete in random order, and close; returns the content then.

    Events are named after their day, counted from 1; retention keeps four days.
    """
    store = Store.open(StoreConfig(path=path, wal_limit_mb=dice.choice([1, 2, 32])))
    try:
        found = held(store)
        assert found == before, f"{found} instead of {before}"
        day = max(map(int, found), default=0)
        for _ in range(dice.randrange(1, 5)):
            match dice.randrange(4):
                case 0:
                    store.checkpoint()
                case 1:
                    retention.sweep(store, RetentionConfig(age=4.0 * 86_400), (day + 1) * DAY)
                case _:
                    day += 1
                    rows = dice.choice([10, 500, 5_000])
                    store.connection.execute(_ROWS, [day * DAY, str(day), rows])
        return held(store)
    finally:
        store.close()


def live_until_killed(path: Path, seed: int, channel: Connection) -> None:
    """Send the content, then write batches and run checkpoints until killed; report each batch before and after.

    The message before a batch has its unique name and its size.
    """
    dice = random.Random(seed)
    store = Store.open(StoreConfig(path=path, wal_limit_mb=1))
    channel.send(held(store))
    writer = Writer(store, IngestConfig(group_wait=0))
    writer.start()
    for number in range(1000):
        size = dice.choice([10, 100, 1_000])
        name = f"{seed}.{number}"
        channel.send((name, size))
        message = telemetry.logs([(name, f"{size} {place}", {}) for place in range(size)])
        body = message.SerializeToString()
        batch = decode_request(Signal.LOGS, "protobuf", body, "", time.time_ns(), lambda _: True)
        writer.put(batch, len(body)).result()
        channel.send(name)
        if not dice.randrange(4):
            writer.call(store.checkpoint)
    os._exit(3)
