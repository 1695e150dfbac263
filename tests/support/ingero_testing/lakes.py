"""Databases that are sealed into shared tables in a folder, and what a reader of both sees."""

import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import duckdb

from ingero_echo.errors import EchoApiError
from ingero_echo.ingest import decode_request
from ingero_echo.lake.catalog import LakeCatalog
from ingero_echo.lake.layout import restored
from ingero_echo.lake.reader import LakeReader
from ingero_echo.lake.sealer import Sealer, open_lake
from ingero_echo.lake.tail import TailGone, TailPage, read_page, tail_page
from ingero_echo.settings import EchoConfig, IngestConfig, ReadConfig, StoreConfig, TableConfig, cached_files
from ingero_echo.store import Store
from ingero_echo.tables import TABLES
from ingero_echo.writer import Writer
from ingero_kit.otlp_signal import Signal
from ingero_testing import telemetry


def table_config(folder: Path, shard: str = "0", **more: Any) -> TableConfig:
    """Shared tables in a folder, with a catalog in SQLite."""
    folder.mkdir(parents=True, exist_ok=True)
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}
    return TableConfig(
        catalog=catalog, warehouse=f"file://{folder}/tables", shard=shard, **{"keep": 0.0, "max_rows": 50, **more}
    )


class Shard:
    """A database with its writer and sealer, in this process."""

    def __init__(self, path: Path, config: TableConfig, connect: Any = open_lake, source: bool = False) -> None:
        self.store = Store.open(StoreConfig(path=path))
        self.writer = Writer(self.store, IngestConfig(group_wait=0))
        self.writer.start()
        self.sealer = Sealer(self.store, self.writer.call, connect, config, self.writer.take_over if source else None)

    def put(self, message: Any, signal: Signal = Signal.LOGS) -> int:
        """Write a request; returns the number of repeats."""
        body = message.SerializeToString()
        batch = decode_request(signal, "protobuf", body, "", time.time_ns(), lambda _: True)
        done: Future[int] = self.writer.put(batch, len(body))
        return done.result()

    def seal(self) -> None:
        """Seal all that was written."""
        while self.sealer.seal():
            pass

    def close(self) -> None:
        self.writer.stop()
        self.store.close()


@dataclass
class OpenReader:
    """A reader in this process, which polls tables and writers on request."""

    store: Store
    lake: LakeReader
    config: EchoConfig

    def follow(self) -> None:
        """See the newest version of the tables, then what is not sealed."""
        self.lake.refresh()
        for shard in self.config.read.shards if self.config.read else ():
            while self.lake.poll(shard):
                pass


@contextmanager
def open_reader(folder: Path, tables: TableConfig, shards: Mapping[str, Shard], **read: Any) -> Iterator[OpenReader]:
    """A reader of writers in this process."""
    settings = ReadConfig(cache=folder / "cache", shards={name: name for name in shards}, **read)
    place = StoreConfig(path=folder / "cache" / "unsealed.duckdb")
    config = EchoConfig(insecure=True, table=tables, read=settings, store=place)

    def tail(name: str, after: int) -> TailPage:
        try:
            return read_page(tail_page(shards[name].store, after))
        except EchoApiError as error:
            raise TailGone(str(error)) from None

    store = Store.open(place, cached_files(settings).absolute())
    store.view = reader = LakeReader(store, config, settings, lambda: open_lake(tables), tail)
    opened = OpenReader(store, reader, config)
    try:
        opened.follow()
        yield opened
    finally:
        store.close()


def seen(config: TableConfig, connection: Any, table: str = "events", shard: str = "0") -> Counter[Any]:
    """The rows of one table that a reader sees: those of the shared table, and those above its boundary."""
    pinned = LakeCatalog(config).pin(table)
    columns = restored(table)
    found: Counter[Any] = Counter()
    if pinned.files:
        names = [one.location.removeprefix("file://") for one in pinned.files]
        with duckdb.connect() as engine:
            found.update(engine.execute(f"SELECT {columns} FROM read_parquet({names})").fetchall())
    boundary = pinned.boundaries[shard].sealed if shard in pinned.boundaries else -1
    found.update(connection.execute(f"SELECT * FROM {table} WHERE seq > ?", [boundary]).fetchall())
    return found


def seal_until_killed(path: Path, config: TableConfig, seed: int, channel: Connection) -> None:
    """Write batches of one event and seal them at random until killed; report the id of each batch once it is
    written."""
    dice = random.Random(seed)
    shard = Shard(path, config)
    channel.send("")
    while True:
        (event,), message = telemetry.numbered(1)
        shard.put(message)
        channel.send(event)
        if not dice.randrange(5):
            shard.sealer.seal()
        if channel.poll():
            os._exit(3)


__all__ = ["TABLES", "Shard", "seal_until_killed", "seen", "table_config"]
