"""What programs say of themselves: checked, bounded, kept, and joined to what they did meanwhile."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from ingero_agent.cli import main
from ingero_agent.trace.annotations import (
    LINES_A_SECOND,
    MAX_LABELS,
    MAX_LINE,
    MAX_SENDERS,
    Annotation,
    AnnotationRefused,
    AnnotationSocket,
    PeerCredentials,
    ProcessIdentity,
    parse_annotation,
    process_identity,
    send_annotation,
)
from ingero_agent.trace.events import Collective
from ingero_agent.trace.queries import ANNOTATIONS, Filter, annotations
from ingero_agent.trace.sockets import Sockets
from ingero_agent.trace.store import TraceStore
from ingero_testing.processes import wait_until

ME = PeerCredentials(os.getpid(), os.getuid(), os.getgid())
SOMEONE = ProcessIdentity(start_time=50, uid=1000)


def line(**fields: object) -> bytes:
    return json.dumps({"v": 1, "labels": {"step": "12"}, **fields}).encode()


def read(data: bytes, peer: PeerCredentials = ME, process: ProcessIdentity | None = SOMEONE) -> Annotation:
    return parse_annotation(data, peer, 777, lambda _: process)


@contextmanager
def listening(folder: Path) -> Iterator[AnnotationSocket]:
    """A socket whose clock stands still, so that everything comes within one second."""
    server = AnnotationSocket(folder / "annotate.sock", clock=lambda: 0.0)
    sockets = Sockets(None, server)
    try:
        yield server
    finally:
        sockets.close()


def test_what_is_left_out_is_filled_in_from_the_kernel() -> None:
    found = read(b'{"labels": {"step": "12"}}', PeerCredentials(9, 1000, 1000))

    assert (found.pid, found.start_time, found.timestamp, found.span_start) == (9, 50, 777, None)
    assert read(line(ts=5, pid=8, start_time=50, span_start=1, span_end=2), PeerCredentials(9, 0, 0)) == Annotation(
        timestamp=5,
        labels={"step": "12"},
        pid=8,
        start_time=50,
        span_start=1,
        span_end=2,
        peer=PeerCredentials(9, 0, 0),
    )


@pytest.mark.parametrize(
    ("data", "reason", "place"),
    [
        (b"rubbish", "not_json", "line"),
        (b"[1]", "not_json", "line"),
        (b"[" * 9000, "not_json", "line"),
        (line(v=2), "version", "v:"),
        (line(ts="now"), "number", "ts:"),
        (line(pid=True), "number", "pid:"),
        (line(span_start=-1), "number", "span_start:"),
        (line(span_end=2**63), "number", "span_end:"),
        (line(span_start=5, span_end=4), "span", "span_end"),
        (line(start_time=49), "no_process", "start_time:"),
        (line(labels={}), "labels", "labels:"),
        (line(labels={"a b": "c"}), "labels", "labels:"),
        (line(labels={"a" * 65: "c"}), "labels", "labels:"),
        (line(labels={"step": 12}), "labels", "labels.step:"),
        (line(labels={"step": "1" * 257}), "labels", "labels.step:"),
        (line(labels={f"k{number}": "" for number in range(MAX_LABELS + 1)}), "labels", "labels:"),
    ],
)
def test_a_bad_line_is_refused_and_the_place_named(data: bytes, reason: str, place: str) -> None:
    with pytest.raises(AnnotationRefused, match=place) as refused:
        read(data, PeerCredentials(9, 1000, 1000))

    assert refused.value.reason == reason


def test_only_root_may_speak_for_another_users_process_and_nobody_for_one_that_is_gone() -> None:
    assert read(line(pid=5), PeerCredentials(9, 0, 0)).pid == 5
    with pytest.raises(AnnotationRefused, match="another user's"):
        read(line(pid=5), PeerCredentials(9, 1001, 1001))
    with pytest.raises(AnnotationRefused, match="no process 5"):
        read(line(pid=5), PeerCredentials(9, 0, 0), None)


@given(st.binary(max_size=300))
def test_any_line_is_taken_or_refused(data: bytes) -> None:
    try:
        read(data, PeerCredentials(9, 0, 0))
    except AnnotationRefused as refused:
        assert str(refused)


def test_a_process_is_known_by_its_start(tmp_path: Path) -> None:
    mine = process_identity(os.getpid())

    assert mine
    assert (mine.uid, mine.start_time > 0) == (os.getuid(), True)
    assert process_identity(2**22 + 1) is None
    assert process_identity(5, tmp_path) is None


def test_a_sender_is_answered_only_when_refused_and_the_rest_of_its_lines_are_taken(tmp_path: Path) -> None:
    with listening(tmp_path) as server:
        with socket.socket(socket.AF_UNIX) as channel:
            channel.settimeout(60)
            channel.connect(str(server.path))
            channel.sendall(line() + b"\n\nrubbish\n" + line(labels={"step": "13"}))
            channel.shutdown(socket.SHUT_WR)
            answers = channel.makefile("rb").readlines()
        (answer,) = answers
        assert json.loads(answer)["error"].startswith("the line is no JSON object")
        found = server.take()

    assert [(one.labels, one.pid, one.peer) for one in found] == [
        ({"step": "12"}, ME.pid, ME),
        ({"step": "13"}, ME.pid, ME),
    ]
    assert (server.taken, server.refused) == (2, {"not_json": 1})
    assert not server.path.exists()


def test_lines_beyond_the_rate_are_refused_and_counted(tmp_path: Path) -> None:
    with listening(tmp_path) as server, socket.socket(socket.AF_UNIX) as channel:
        channel.settimeout(60)
        channel.connect(str(server.path))
        channel.sendall((line() + b"\n") * (LINES_A_SECOND + 7))
        channel.shutdown(socket.SHUT_WR)
        assert len(channel.makefile("rb").readlines()) == 7

    assert (server.taken, server.refused) == (LINES_A_SECOND, {"too_many_lines": 7})


def test_a_line_that_is_too_long_ends_its_sender_and_no_other(tmp_path: Path) -> None:
    with listening(tmp_path) as server:
        with socket.socket(socket.AF_UNIX) as channel:
            channel.connect(str(server.path))
            channel.settimeout(60)
            channel.sendall(b"x" * (MAX_LINE + 10))
            assert b"longer than" in channel.makefile("rb").readline()
        assert send_annotation(server.path, {"step": "1"}) == ""

    assert (server.taken, server.refused["too_long"]) == (1, 1)


def test_senders_are_bounded(tmp_path: Path) -> None:
    with listening(tmp_path) as server:
        channels = [socket.socket(socket.AF_UNIX) for _ in range(MAX_SENDERS + 1)]
        for channel in channels:
            channel.settimeout(60)
            channel.connect(str(server.path))
        wait_until(lambda: server.refused["too_many_senders"] == 1, "the refusal")
        for channel in channels:
            channel.close()


def test_the_command_says_it_of_the_process_that_runs_it(tmp_path: Path) -> None:
    with listening(tmp_path) as server:
        good = CliRunner().invoke(main, ["annotate", "step=7", "phase=a=b", "--annotate-socket", str(server.path)])
        bad = CliRunner().invoke(main, ["annotate", "a b=7", "--socket", str(server.path)])
        found = server.take()

    assert (good.exit_code, bad.exit_code) == (0, 1), good.output
    assert "labels: a key has" in bad.stderr
    assert [(one.labels, one.pid) for one in found] == [({"step": "7", "phase": "a=b"}, os.getppid())]


def test_without_a_tracer_the_command_says_what_to_run(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["annotate", "step=7", "--socket", str(tmp_path / "none.sock")])

    assert done.exit_code == 1
    assert "ingero-agent trace --annotate" in done.stderr


def collective(arrival_ns: int, pid: int = 7) -> Collective:
    return Collective(
        pid=pid, tid=pid, operation="ncclAllReduce", op_code=3, communicator="c", rank=0, nranks=2, device=0, seq=1,
        exact=True, dtype=7, reduce_op=0, size=4, arrival_ns=arrival_ns, enqueue_ns=1, blocked_ns=2_000_000,
        end_ns=arrival_ns + 1,
    )  # fmt: skip


def test_a_span_is_joined_to_the_collectives_of_its_process_within_it(tmp_path: Path) -> None:
    store = TraceStore(tmp_path / "a.db")
    store.add([], 10.0, {7: "train"}, [collective(at) for at in (4, 5, 8, 9)] + [collective(6, pid=8)])
    said = Annotation(
        timestamp=9_000_000_000, labels={"step": "12"}, pid=7, start_time=1, span_start=5, span_end=9, peer=ME
    )
    point = Annotation(
        timestamp=9_500_000_000, labels={"done": "1"}, pid=9, start_time=1, span_start=None, span_end=None, peer=ME
    )
    store.annotations([said, point])
    store.close()

    rows = annotations(tmp_path / "a.db", Filter(begin=0, end=20))

    assert [dict(zip(ANNOTATIONS, row, strict=True)) for row in rows] == [
        {"time": 9.0, "process": "train", "pid": 7, "labels": "step=12", "span_ms": 0.0, "collectives": 2,
         "blocked_ms": 4.0},
        {"time": 9.5, "process": "", "pid": 9, "labels": "done=1", "span_ms": None, "collectives": None,
         "blocked_ms": None},
    ]  # fmt: skip
