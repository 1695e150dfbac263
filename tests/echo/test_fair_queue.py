"""Senders of events take turns: one that fills the queue delays the others by its share, and leaves them room."""

from pathlib import Path
from typing import Any

import pytest

from ingero_echo.fair_queue import FairQueue
from ingero_echo.ingest_batch import Batch
from ingero_echo.settings import IngestConfig, StoreConfig
from ingero_echo.store import Store
from ingero_echo.writer import QueueFull, Writer

MB = 1 << 20


def test_senders_are_taken_in_turns_and_each_in_its_own_order() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(4):
        queue.put("a", f"a{number}")
    queue.put("b", "b0")
    queue.put("c", "c0")
    first = [queue.pop() for _ in range(3)]
    queue.put("b", "b1")

    rest = []
    while queue:
        rest.append(queue.pop())

    assert first == ["a0", "b0", "c0"]
    assert rest == ["a1", "b1", "a2", "a3"]
    with pytest.raises(IndexError):
        queue.pop()


@pytest.fixture
def writer(tmp_path: Path) -> Any:
    store = Store.open(StoreConfig(path=tmp_path / "e.duckdb"))
    yield Writer(store, IngestConfig(queue_mb=8))
    store.close()


def test_a_sender_that_fills_the_queue_is_asked_to_retry_before_the_others_are(writer: Writer) -> None:
    for _ in range(6):
        writer.check_room(MB, "greedy", {})
        writer.put(Batch(identities=[b"i"]), MB, "greedy")

    with pytest.raises(QueueFull):
        writer.check_room(MB, "greedy", {})
    for _ in range(2):
        writer.check_room(MB, "modest", {})
        writer.put(Batch(identities=[b"i"]), MB, "modest")
    with pytest.raises(QueueFull):
        writer.check_room(MB, "late", {})

    assert (writer.waiting_bytes, writer.counters.refused) == (8 * MB, 2)


def test_what_is_still_being_read_counts_for_its_sender(writer: Writer) -> None:
    with pytest.raises(QueueFull):
        writer.check_room(MB, "greedy", {"greedy": 6 * MB})
    writer.check_room(MB, "modest", {"greedy": 6 * MB})
    writer.check_room(20 * MB, "modest", {})  # a single large request fits an empty queue
