"""The sink's ledger and its page."""

import asyncio
import errno
import socket
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from ingero_agent.event_socket import EventSocket
from ingero_contract.events import MemoryEvent, StragglerResolvedEvent, StragglerStateEvent, parse_line
from ingero_sink.app import consume, read_lines
from ingero_sink.cli import main
from ingero_sink.stats import MAX_TYPES, SinkStats


def state(node: str = "n", rank: int | None = None) -> StragglerStateEvent:
    return StragglerStateEvent(
        node_id=node, cluster_id="c", score=0.1, threshold=0.8, detection_mode="fleet", dominant_signal="cpu",
        timestamp="2026-01-01T00:00:00Z", rank=rank, world_size=None if rank is None else 8,
    )  # fmt: skip


def resolved(node: str = "n") -> StragglerResolvedEvent:
    return StragglerResolvedEvent(node_id=node, cluster_id="c", timestamp="2026-01-01T00:00:00Z")


def book(ledger: SinkStats, *lines: str | bytes) -> SinkStats:
    for line in lines:
        ledger.record_line(line.encode() if isinstance(line, str) else line, 1.0)
    return ledger


def test_an_event_survives_its_line_and_rank_zero_is_a_rank() -> None:
    event = state(rank=0)

    assert parse_line(event.to_json()) == ("straggler_state", event)
    assert '"rank":0' in event.to_json()


def test_a_straggler_appears_once_and_goes_when_resolved() -> None:
    ledger = book(SinkStats(), state().to_json(), state().to_json())
    assert list(ledger.active) == [("c", "n")]

    book(ledger, resolved().to_json())

    assert ledger.active == {}
    assert ledger.events == {"straggler_state": 2, "straggler_resolved": 1}


@pytest.mark.parametrize(
    "line", ["rubbish", "{}", '{"type": 5}', '{"type": "straggler_state"}', "[1]", "\xff", "[" * 5000]
)
def test_rubbish_is_counted(line: str) -> None:
    assert book(SinkStats(), line).parse_errors == 1


def test_unknown_types_and_fields_are_legal() -> None:
    ledger = book(
        SinkStats(), '{"type": "inference_outlier", "pid": 1}', state().to_json().replace("{", '{"new": 1, ', 1)
    )

    assert ledger.parse_errors == 0
    assert ledger.events == {"inference_outlier": 1, "straggler_state": 1}


def test_the_oldest_node_goes_when_the_cap_is_reached() -> None:
    ledger = book(SinkStats(max_nodes=2), *(state(name).to_json() for name in "abac"))

    assert list(ledger.active) == [("c", "b"), ("c", "c")]
    assert ledger.dropped == 1


def test_types_are_bounded() -> None:
    ledger = book(SinkStats(), *(f'{{"type": "t{number}"}}' for number in range(200)))

    assert len(ledger.events) <= MAX_TYPES + 1
    assert sum(ledger.events.values()) == 200


def test_a_line_that_is_too_long_is_skipped_and_counted_once() -> None:
    async def work() -> SinkStats:
        reader, ledger = asyncio.StreamReader(limit=300), SinkStats()
        reader.feed_data(b"x" * 2000 + b"\n" + state().to_json().encode() + b"\n" + b"y" * 900)
        reader.feed_eof()
        await read_lines(reader, ledger, lambda: 1.0)
        return ledger

    ledger = asyncio.run(work())

    assert (ledger.events, ledger.parse_errors) == ({"straggler_state": 1}, 2)


@given(st.binary(max_size=200))
def test_any_line_is_booked_or_counted(line: bytes) -> None:
    book(SinkStats(), line)


def test_ready_while_connected_or_shortly_after_an_event() -> None:
    ledger = SinkStats()
    assert not ledger.ready(100.0, 60)

    ledger.connections = 1
    assert ledger.ready(100.0, 60)

    ledger.connections = 0
    ledger.record_line(state().to_json().encode(), 100.0)
    assert ledger.ready(160.0, 60)
    assert not ledger.ready(161.0, 60)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--listen", "nowhere"], "flag --listen: listen: 'nowhere' is not host:port (got 'nowhere')"),
        (
            ["--reconnect-delay", "soon"],
            "flag --reconnect-delay: reconnect_delay: "
            "a duration such as 5s, 1m30s or 250ms was expected (got 'soon')",
        ),
        (
            ["--readiness-window", "2d"],
            "flag --readiness-window: readiness_window: Input should be less than 86400 (got 172800.0)",
        ),
    ],
)
def test_a_wrong_flag_is_named(flags: list[str], words: str) -> None:
    done = CliRunner().invoke(main, flags)

    assert (done.exit_code, done.stderr.strip()) == (2, f"ingero-sink: {words}")


def test_a_port_that_is_taken_is_an_error_in_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        done = CliRunner().invoke(main, ["--listen", place])

    assert done.exit_code == 1
    assert f"ingero-sink: {place}: " in done.stderr


def test_a_path_is_taken_from_a_process_that_ended_and_from_no_other(tmp_path: Path) -> None:
    async def both() -> None:
        path = tmp_path / "remediate.sock"
        with socket.socket(socket.AF_UNIX) as ended:
            ended.bind(str(path))
        first = EventSocket(path)
        await first.start()
        try:
            with pytest.raises(OSError, match=r"another process listens on .*--remediate-socket"):
                await EventSocket(path).start()
            with socket.socket(socket.AF_UNIX) as consumer:
                consumer.connect(str(path))
        finally:
            await first.stop()

    asyncio.run(both())


@pytest.mark.parametrize(
    ("name", "words"),
    [("missing/" + 100 * "x" + "/s", "AF_UNIX path too long"), ("s", "Permission denied")],
)
def test_a_socket_that_cannot_be_made_is_named_with_its_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    """Root may write everywhere, so that the refusal of the system is played."""

    async def refused(*_: object, **__: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied")

    if words == "Permission denied":
        monkeypatch.setattr(asyncio, "start_unix_server", refused)
    path = tmp_path / name

    with pytest.raises(OSError, match=f"^cannot listen on {path}: {words}; choose another --remediate-socket$"):
        asyncio.run(EventSocket(path).start())


def test_a_sink_says_once_why_it_has_no_agent(tmp_path: Path) -> None:
    path = tmp_path / "remediate.sock"
    ledger = SinkStats(sockets=1)

    async def tried() -> None:
        with capture_logs() as logs:
            reader = asyncio.create_task(consume(path, ledger, lambda: 1.0, 0.001))
            try:
                async with asyncio.timeout(30):
                    while not logs:
                        await asyncio.sleep(0.001)
                    path.write_text("no socket")
                    while len(logs) < 2:
                        await asyncio.sleep(0.001)
            finally:
                reader.cancel()
        assert [line["event"] for line in logs] == ["not_connected", "not_connected"]
        assert ["No such file" in logs[0]["reason"], "refused" in logs[1]["reason"]] == [True, True]

    asyncio.run(tried())


def test_an_agent_that_ends_with_a_consumer_connected_reports_no_error(tmp_path: Path) -> None:
    errors: list[dict[str, object]] = []

    async def end(consumer: socket.socket) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        sender = EventSocket(tmp_path / "remediate.sock")
        await sender.start()
        consumer.connect(str(sender.path))
        while not sender.consumers:
            await asyncio.sleep(0)
        await sender.stop()

    with socket.socket(socket.AF_UNIX) as consumer:
        asyncio.run(end(consumer))

    assert errors == []


async def _read_both(folder: Path) -> SinkStats:
    push, trace = EventSocket(folder / "remediate.sock"), EventSocket(folder / "trace.sock")
    ledger = SinkStats(sockets=2)
    await push.start()
    readers = [asyncio.create_task(consume(one.path, ledger, lambda: 1.0, 0.01)) for one in (push, trace)]
    try:
        async with asyncio.timeout(30):
            while ledger.connections < 1:
                await asyncio.sleep(0)
            assert (ledger.connected, ledger.ready(1.0, 60)) == (False, True)
            await trace.start()
            while not ledger.connected or not push.consumers or not trace.consumers:
                await asyncio.sleep(0.001)
            push.publish(state())
            trace.publish(
                MemoryEvent(pid=1, gpu_id=0, allocated_bytes=5, total_vram=10, utilization_pct=50.0,
                            last_alloc_size=0, timestamp_ns=1)
            )  # fmt: skip
            while ledger.events.total() < 2:
                await asyncio.sleep(0.001)
            assert list(ledger.active) == [("c", "n")]
            await push.stop()
            while ledger.active:
                await asyncio.sleep(0.001)
            assert ledger.connections == 1
    finally:
        for reader in readers:
            reader.cancel()
        await push.stop()
        await trace.stop()
    return ledger


def test_the_sockets_of_both_agents_are_read_and_a_straggler_does_not_outlive_its_agent(tmp_path: Path) -> None:
    ledger = asyncio.run(_read_both(tmp_path))

    assert ledger.events == {"straggler_state": 1, "memory": 1}
