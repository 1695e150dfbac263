"""Repeats are known from memory: they cost others nothing, and the database answers what memory cannot."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import duckdb
import pytest

from ingero_contract import attributes, echo, metrics
from ingero_echo.dedup import Deduplicator, identities, identity, identity_suffix
from ingero_echo.ingest import decode_request
from ingero_echo.settings import IngestConfig, StoreConfig
from ingero_echo.store import Store
from ingero_echo.writer import WriteFailed, Writer
from ingero_kit.otlp_signal import Signal
from ingero_testing import telemetry
from ingero_testing.processes import wait_until

ID = "11111111-2222-3333-4444-555555555555"
OTHER = "11111111-2222-3333-4444-666666666666"


class Watched:
    """A connection that keeps what was asked of it, and fails on request."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.statements: list[str] = []
        self.failing: list[str] = []
        """Beginnings of statements that raise once; a commit does so after it was written."""
        self.cursors = True

    def execute(self, sql: str, *more: Any) -> Any:
        self.statements.append(sql.split()[0])
        found = next((start for start in self.failing if sql.startswith(start)), None)
        if found is None:
            return self._connection.execute(sql, *more)
        self.failing.remove(found)
        if found == "COMMIT":
            self._connection.execute(sql)
        raise duckdb.IOException("IO Error: No space left on device")

    def cursor(self) -> Any:
        if not self.cursors:
            raise duckdb.IOException("IO Error: cannot be read")
        return self._connection.cursor()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class Service:
    """A store and its writer, in this process."""

    def __init__(self, folder: Path) -> None:
        self.store = Store.open(StoreConfig(path=folder / "e.duckdb"))
        self.watched = self.store.connection = Watched(self.store.connection)
        self.writer = Writer(self.store, IngestConfig())

    def start(self) -> None:
        """Begin, and wait until the newest identities are read back."""
        self.writer.start()
        wait_until(lambda: not self.looks_up(telemetry.numbered(1)[1]), "memory to be complete")
        self.watched.statements.clear()

    def looks_up(self, message: Any) -> bool:
        before = self.writer.counters.lookups
        self.put(message).result(60)
        return self.writer.counters.lookups > before

    def put(self, message: Any) -> Future[int]:
        body = message.SerializeToString()
        signal = Signal.LOGS if hasattr(message, "resource_logs") else Signal.METRICS
        batch = decode_request(signal, "protobuf", body, "", time.time_ns(), lambda _: True)
        assert not batch.rejected
        return self.writer.put(batch, len(body))

    def together(self, *messages: Any) -> list[int]:
        """Write them in one group; the repeats found in each."""
        gate = threading.Event()
        self.writer.call(lambda: gate.wait(60))
        waiting = [self.put(message) for message in messages]
        gate.set()
        return [done.result(60) for done in waiting]

    def rows(self, table: str, columns: str = "event_id::VARCHAR") -> list[Any]:
        return self.store.cursor().execute(f"SELECT {columns} FROM {table} ORDER BY ALL").fetchall()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path)
    yield made
    made.writer.stop()
    made.store.close()


def verdict(event_id: str, node: str = "n0", state: str = "straggler") -> tuple[str, str, dict[str, Any]]:
    values = {attributes.EVENT_ID: event_id, attributes.VERDICT_STATE: state, attributes.NODE_ID: node}
    return metrics.VERDICT_EVENT, "", values


def test_senders_that_repeat_add_no_statement_to_the_groups_of_others(service: Service) -> None:
    service.start()
    repeated = [telemetry.numbered(100)[1] for _ in range(2)]
    service.together(*repeated)
    one_group = [*service.watched.statements]
    for _ in range(5):
        honest = [telemetry.numbered(100)[1] for _ in range(6)]
        service.watched.statements.clear()

        found = service.together(*honest[:3], *repeated, *honest[3:])

        assert found == [0, 0, 0, 100, 100, 0, 0, 0]
        assert service.watched.statements == one_group == ["BEGIN", "INSERT", "INSERT", "COMMIT"]
    assert len(set(service.rows("events"))) == len(service.rows("events")) >= 200 + 5 * 600


def test_a_group_of_repeats_touches_the_database_not_at_all(service: Service) -> None:
    service.start()
    request = telemetry.numbered(100)[1]
    service.together(request)
    service.watched.statements.clear()

    assert service.together(request, request) == [100, 100]
    assert service.watched.statements == []


def test_of_a_request_that_was_written_in_part_the_rest_is_written(service: Service) -> None:
    service.start()
    old, new = telemetry.numbered(100)[1], telemetry.numbered(50)[1]
    service.together(old)
    both = telemetry.logs([])
    for message in (new, old):
        both.resource_logs.extend(message.resource_logs)
    service.watched.statements.clear()

    assert service.together(both, both, new) == [100, 150, 50]
    assert "SELECT" not in service.watched.statements
    assert len(set(service.rows("events"))) == len(service.rows("events"))


def test_an_event_that_comes_twice_in_one_request_keeps_what_is_derived_from_it(service: Service) -> None:
    service.start()
    twice = telemetry.logs([verdict(ID), verdict(OTHER, "n1"), verdict(ID)])

    assert service.together(twice) == [1]
    assert service.rows("verdicts", "event_id::VARCHAR, node_id") == [(ID, "n0"), (OTHER, "n1")]


def test_what_is_derived_goes_with_its_own_event_where_several_share_an_id(service: Service) -> None:
    service.start()
    service.together(telemetry.logs([("note", "", {attributes.EVENT_ID: ID}), verdict(OTHER)]))
    chain = (echo.CAUSAL_CHAIN_EVENT, "", {attributes.EVENT_ID: OTHER, echo.CAUSAL_CHAIN_ID: "c1"})
    mixed = telemetry.logs([("note", "", {attributes.EVENT_ID: ID}), verdict(ID), verdict(OTHER), chain])

    assert service.together(mixed) == [2]
    assert service.rows("verdicts") == [(ID,), (OTHER,)]
    assert service.rows("causal_chains") == [(OTHER,)]


def test_a_write_that_nobody_could_confirm_is_found_once(service: Service) -> None:
    service.start()
    request = telemetry.numbered(100)[1]
    before = len(service.rows("events"))
    service.watched.failing = ["COMMIT", "SELECT count(*)"]
    with pytest.raises(WriteFailed):
        service.together(request)

    lookups = [service.looks_up(request) for _ in range(3)]

    assert lookups == [True, False, False]
    assert len(service.rows("events")) == before + 100


def test_while_nothing_is_remembered_a_group_is_found_in_one_query_and_undated_events_are_no_repeats(
    service: Service,
) -> None:
    service.watched.cursors = False
    service.writer.start()
    dated = telemetry.numbered(10)[1]
    undated = telemetry.logs([("note", "", {})], at=0)

    first = service.together(dated, undated, telemetry.numbered(10)[1])
    again = service.together(dated, undated, telemetry.numbered(10)[1])

    service.watched.cursors = True
    assert (first, again) == ([0, 0, 0], [10, 0, 0])
    assert service.watched.statements.count("SELECT") == service.writer.counters.lookups == 2
    assert len(service.rows("events")) == 32


def test_an_identity_is_the_same_for_one_event_and_for_many_and_other_events_have_others() -> None:
    ids = [number.to_bytes(8, "big") * 2 for number in range(10_000)]

    many = identities(b"".join(ids), (identity_suffix("m", f"c{number % 3}") for number in range(10_000)))

    assert many == [identity(one, "m", f"c{number % 3}") for number, one in enumerate(ids)]
    assert len(set(many)) == 10_000
    assert len({identity(ids[0], name, cluster) for name in ("m", "n") for cluster in ("a", "b")}) == 4


def some(*numbers: int) -> list[bytes]:
    return [number.to_bytes(24, "big") for number in numbers]


def test_the_memory_of_repeats_is_bounded() -> None:
    repeats = Deduplicator(100)
    repeats.complete([])
    for start in range(0, 10_000, 50):
        assert repeats.all_new(some(*range(start, start + 50)))
        repeats.add(some(*range(start, start + 50)))

    assert len(repeats) <= 250
    assert not repeats.all_new(some(*range(9_990, 10_010)))
    assert repeats.all_new(some(1, 2))
    assert not repeats.all_new(some(20_000, 20_000))


def test_before_the_past_is_known_nothing_counts_as_new() -> None:
    repeats = Deduplicator(100)
    repeats.add(some(3))

    assert not repeats.all_new(some(1))
    assert repeats.uncertain({*some(1, 3)}) == {*some(1)}
    repeats.complete(some(7))
    assert repeats.all_new(some(1))
    assert repeats.uncertain({*some(1, 3, 7)}) == set()
    assert repeats.written({*some(1, 3, 7)}) == {*some(3, 7)}


def test_doubts_end_when_the_event_is_written_or_forgotten() -> None:
    repeats = Deduplicator(100)
    repeats.complete([])
    repeats.mark_uncertain(some(1, 2))

    assert (repeats.uncertain({*some(1, 2, 3)}), repeats.written({*some(1, 2, 3)})) == ({*some(1, 2)}, set())
    repeats.add(some(1))
    assert (repeats.uncertain({*some(1, 2)}), repeats.written({*some(1, 2)})) == ({*some(2)}, {*some(1)})
    for start in range(1000, 2000, 50):
        repeats.mark_uncertain(some(*range(start, start + 50)))
    assert repeats.all_new(some(1, 2))
    assert len(repeats.uncertain({*some(*range(2000))})) <= len(repeats) <= 250
