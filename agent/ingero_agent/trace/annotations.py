"""Annotations of programs about themselves: lines of JSON on a unix socket, such as the current step.

One line, version 1: `{"v": 1, "labels": {"step": "12"}, "ts": NS, "pid": PID, "start_time": TICKS, "span_start": NS,
"span_end": NS}`. Only `labels` is required. `ts` defaults to now, `pid` to the sender's. Times are
nanoseconds since the epoch. `start_time` is field 22 of /proc/PID/stat; it distinguishes two processes that had the
same number.

A sender may annotate processes of its own user, root those of all users. A refused line is answered with the reason
and counted; the other lines are not affected.
"""

import asyncio
import contextlib
import json
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field, ValidationError
from pydantic_core import ErrorDetails

from ingero_agent.event_socket import listen
from ingero_agent.trace.discovery import parse_size

VERSION: Final = 1
MAX_LINE: Final = 16 * 1024
MAX_LABELS: Final = 32
MAX_VALUE: Final = 256
LINES_A_SECOND: Final = 1000
MAX_SENDERS: Final = 64
MAX_WAITING: Final = 20_000
"""Most annotations that wait to be written; beyond it new ones are refused."""

_CREDENTIALS: Final = struct.Struct("=iII")


@dataclass(frozen=True)
class PeerCredentials:
    """Credentials of the sender as the kernel reports them."""

    pid: int
    uid: int
    gid: int


@dataclass(frozen=True)
class ProcessIdentity:
    """A process as it is now: when it started (clock ticks after the machine's start), and its user."""

    start_time: int
    uid: int


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """One accepted line. Times in nanoseconds since the epoch; `start_time` in clock ticks since boot."""

    timestamp: int
    labels: Mapping[str, str]
    pid: int
    start_time: int
    span_start: int | None
    span_end: int | None
    peer: PeerCredentials


_Number = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
_Key = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
_Text = Annotated[str, Field(strict=True, max_length=MAX_VALUE)]


class _Line(BaseModel):
    """A line as it is sent; keys that are not known are ignored."""

    v: Literal[1] = 1
    labels: dict[_Key, _Text] = Field(min_length=1, max_length=MAX_LABELS)
    ts: _Number | None = None
    pid: _Number | None = None
    start_time: _Number | None = None
    span_start: _Number | None = None
    span_end: _Number | None = None


class AnnotationRefused(Exception):
    """A refused line. `reason` is the counter's label; the text says what is wrong."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def process_identity(pid: int, proc: Path = Path("/proc")) -> ProcessIdentity | None:
    """The process that has this number now; `None` when there is none."""
    try:
        start, _ = parse_size((proc / str(pid) / "stat").read_text(errors="replace"))
        return ProcessIdentity(start, (proc / str(pid)).stat().st_uid)
    except (OSError, IndexError, ValueError):
        return None


def parse_annotation(
    line: bytes, peer: PeerCredentials, now_ns: int, find: Callable[[int], ProcessIdentity | None]
) -> Annotation:
    """Read one line of a sender. `find` looks a process up. Raises `AnnotationRefused`."""
    try:
        given = _Line.model_validate_json(line)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_context=False)[0]) from None
    pid, begin, end = given.pid if given.pid is not None else peer.pid, given.span_start, given.span_end
    if begin is not None and end is not None and end < begin:
        raise AnnotationRefused("span", "span_end is before span_start")
    process = find(pid)
    if process is None:
        raise AnnotationRefused("no_process", f"pid: there is no process {pid}")
    if given.start_time not in (None, process.start_time):
        raise AnnotationRefused("no_process", f"start_time: process {pid} started at {process.start_time}")
    if peer.uid not in (0, process.uid):
        raise AnnotationRefused("not_yours", f"pid: process {pid} is another user's")
    return Annotation(
        timestamp=now_ns if given.ts is None else given.ts, labels=given.labels, pid=pid,
        start_time=process.start_time, span_start=begin, span_end=end, peer=peer,
    )  # fmt: skip


def _refusal(problem: ErrorDetails) -> AnnotationRefused:
    path = [str(part) for part in problem["loc"]]
    if not path:
        return AnnotationRefused("not_json", f"the line is no JSON object: {problem['msg']}")
    reason = {"v": "version", "labels": "labels"}.get(path[0], "number")
    if path[-1] == "[key]":
        return AnnotationRefused(reason, "labels: a key has 1 to 64 of A-Z, a-z, 0-9, '_', '.' and '-'")
    return AnnotationRefused(reason, f"{'.'.join(path)}: {problem['msg']}")


class AnnotationSocket:
    """Listens for annotations. `refused` counts lines by reason, `taken` the accepted ones; `take` returns them."""

    def __init__(
        self, path: Path, group: int | None = None, clock: Callable[[], float] = time.monotonic,
        find: Callable[[int], ProcessIdentity | None] = process_identity,
    ) -> None:  # fmt: skip
        self.path = path
        self.refused: Counter[str] = Counter()
        self.taken = 0
        self._group, self._clock, self._find = group, clock, find
        self._waiting: deque[Annotation] = deque()
        self._senders: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen. Raises `OSError`."""
        self._server = await listen(self.path, self._group, "--annotate-socket", self._serve, MAX_LINE)

    async def stop(self) -> None:
        """Disconnect senders and remove the path."""
        if self._server is None:
            return
        self._server.close()
        for writer in list(self._senders):
            writer.close()
        self.path.unlink(missing_ok=True)

    def take(self) -> list[Annotation]:
        """Return the annotations since the previous call; callable from any thread."""
        found: list[Annotation] = []
        with contextlib.suppress(IndexError):
            while len(found) < MAX_WAITING:
                found.append(self._waiting.popleft())
        return found

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._senders) >= MAX_SENDERS:
            self.refused["too_many_senders"] += 1
            writer.close()
            return
        self._senders.add(writer)
        credentials = writer.get_extra_info("socket").getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
        )
        peer = PeerCredentials(*_CREDENTIALS.unpack(credentials))
        try:
            await self._read(reader, writer, peer)
        except (ConnectionError, OSError):
            self.refused["connection"] += 1
        finally:
            self._senders.discard(writer)
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: PeerCredentials) -> None:
        second, lines = self._clock(), 0
        while True:
            try:
                line = await reader.readuntil(b"\n")
            except asyncio.IncompleteReadError as error:
                line = error.partial
                if not line:
                    return
            except asyncio.LimitOverrunError:
                self._answer(writer, AnnotationRefused("too_long", f"the line is longer than {MAX_LINE} bytes"))
                return
            now = self._clock()
            if now - second >= 1:
                second, lines = now, 0
            lines += 1
            try:
                self._line(line, peer, lines)
            except AnnotationRefused as refused:
                self._answer(writer, refused)

    def _line(self, line: bytes, peer: PeerCredentials, lines: int) -> None:
        if not line.strip():
            return
        if lines > LINES_A_SECOND:
            raise AnnotationRefused("too_many_lines", f"more than {LINES_A_SECOND} lines in a second")
        if len(self._waiting) >= MAX_WAITING:
            raise AnnotationRefused("busy", "too many annotations wait to be written")
        self._waiting.append(parse_annotation(line, peer, time.time_ns(), self._find))
        self.taken += 1

    def _answer(self, writer: asyncio.StreamWriter, refused: AnnotationRefused) -> None:
        """Send the reason. A sender that does not read gets it once its buffer has space, or never."""
        self.refused[refused.reason] += 1
        if writer.transport.get_write_buffer_size() < MAX_LINE:
            writer.write(json.dumps({"error": str(refused)}).encode() + b"\n")


def send_annotation(path: Path, labels: Mapping[str, str], pid: int | None = None) -> str:
    """Send one annotation of a process, by default the caller's. Returns why it was refused, or an empty text.

    Raises `OSError`.
    """
    line = {"v": VERSION, "labels": labels, **({} if pid is None else {"pid": pid})}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.settimeout(5)
        channel.connect(str(path))
        channel.sendall(json.dumps(line).encode() + b"\n")
        channel.shutdown(socket.SHUT_WR)
        answer = channel.makefile("rb").readline(MAX_LINE)
    return str(json.loads(answer).get("error", answer)) if answer else ""
