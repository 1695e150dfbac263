"""The processes that run users' SQL: started when needed, reused, and killed when they do not respond."""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any, Final

import orjson

from ingero_echo import allocators
from ingero_echo.errors import EchoApiError
from ingero_echo.query_runner import CancelToken, QueryResult, cancelled, timed_out
from ingero_echo.settings import EchoConfig, cached_files
from ingero_echo.snapshots import SnapshotRegistry, Version
from ingero_echo.sql_worker import CANCEL, FILE_CHANGED, OPENED, READY, SqlWorkerConfig
from ingero_echo.window import NO_SOURCES
from ingero_kit.logs import get

log = get(__name__)

CANCEL_SECONDS: Final = 1.0
"""How long a query that was cancelled may take to end before its process is ended."""

OPEN_SECONDS: Final = 20.0
"""Longest time to start a process and to open the database in it."""

ENGINE_SHARE: Final = 0.6
"""Share of a worker's memory that the engine may take by its own count; the rest is for what it does not count."""

_HEAD: Final = 64 << 10
"""Longest head of an answer, bytes."""

_POLL_SECONDS: Final = 0.05
"""Seconds between two checks whether the query was cancelled."""


class _ProcessGone(Exception):
    """The process ended, or sent an invalid answer."""


class _DeadlineExceeded(Exception):
    """The time is over."""


class SqlProcess:
    """One process. It belongs to one question at a time; `end` may be called from any thread."""

    def __init__(self, setup: SqlWorkerConfig) -> None:
        self.version: Version | None = None
        self.busy = False
        self._spill = Path(setup.spill)
        variables = {name: value for name, value in os.environ.items() if name.startswith("PYTHON") or name == "PATH"}
        variables |= allocators.ENVIRONMENT  # reserved memory counts against a process's limit
        self._connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "ingero_echo.sql_worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), env=variables,
                cwd="/",
            )  # fmt: skip
        self.taken_away = False
        """Whether it was ended because of a checkpoint."""
        self.ask(asdict(setup))

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def failed(self) -> bool:
        """Whether it ended by itself during its work, for instance because it got no more memory."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CANCEL_SECONDS)
        return self._process.returncode not in (None, 0) and not self.taken_away

    def ask(self, question: dict[str, Any]) -> None:
        """Send a question."""
        self._send(orjson.dumps(question))

    def expect(self, state: bytes) -> None:
        """Wait until it reports that it has started, or that the database is open."""
        if not self._connection.poll(OPEN_SECONDS):
            raise _DeadlineExceeded
        found = self._receive(_HEAD)
        if found != state:
            raise _ProcessGone(found[:500].decode(errors="replace"))

    def answer(self, timeout: float, max_bytes: int, cancel: CancelToken) -> tuple[dict[str, Any], bytes]:
        """The head of the answer and its rows. Raises `_DeadlineExceeded` when the process does not respond."""
        deadline, sent_cancel = time.monotonic() + timeout + CANCEL_SECONDS, False
        while not self._connection.poll(_POLL_SECONDS):
            if cancel.requested and not sent_cancel:
                sent_cancel, deadline = True, time.monotonic() + CANCEL_SECONDS
                self._send(CANCEL)
            if time.monotonic() > deadline:
                raise _DeadlineExceeded
        head = orjson.loads(self._receive(_HEAD))
        return head, b"" if "code" in head else self._receive(max_bytes)

    def end(self) -> None:
        """Kill it, and remove its temporary files."""
        self.taken_away = True
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._spill, ignore_errors=True)

    def close(self) -> None:
        """End it and close its pipe; only its owner may call this."""
        self.end()
        self._connection.close()

    def _send(self, message: bytes) -> None:
        try:
            self._connection.send_bytes(message)
        except OSError:
            raise _ProcessGone("its pipe is closed") from None

    def _receive(self, max_bytes: int) -> bytes:
        try:
            return self._connection.recv_bytes(max_bytes)
        except (EOFError, OSError) as error:
            raise _ProcessGone(f"it ended, or its answer is too long: {error}") from None


class SqlPool:
    """Runs users' SQL; may be used from several threads. There are at most as many processes as running questions."""

    def __init__(self, config: EchoConfig) -> None:
        self._config = config
        self._readable = str(cached_files(config.read).absolute()) if config.read else ""
        path = config.store.path.absolute()
        self._spill = path.with_name(path.name + ".spill.sql")
        for left in path.parent.glob(self._spill.name + "*"):
            shutil.rmtree(left, ignore_errors=True)
        self._idle: list[SqlProcess] = []
        self._lock = threading.Lock()
        self._number = 0
        self.ended = 0
        """Processes that were killed, or that ended during a question."""

    def run(
        self,
        snapshots: SnapshotRegistry,
        text: str,
        clusters: frozenset[str] | None,
        limit: int,
        cancel: CancelToken,
        tables: Mapping[str, str] = NO_SOURCES,
    ) -> QueryResult:
        """The rows of a user's query over the store as it is now; blocks.

        Raises `EchoApiError`.
        """
        question = {
            "sql": text,
            "clusters": None if clusters is None else sorted(clusters),
            "limit": limit,
            "tables": {**tables},
        }
        for last in (False, True):
            head, rows = self._once(snapshots, question, cancel)
            if "code" not in head:
                return QueryResult(rows, bool(head["truncated"]), float(head["seconds"]))
            if head["code"] != FILE_CHANGED or last:
                break
        raise EchoApiError(head["code"], head["message"], head["hint"], head["status"], float(head["status"] == 503))

    def close(self) -> None:
        """End all idle processes."""
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            process.close()

    def _take(self) -> SqlProcess:
        """An idle process; the one that was used last, because it may have the newest version open."""
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.alive:
                    return process
                process.close()
            self._number += 1
            number = self._number
        store, query = self._config.store, self._config.query
        setup = SqlWorkerConfig(
            path=str(store.path.absolute()), spill=f"{self._spill}{number}",
            spill_mb=store.spill_limit_mb // query.sql_at_once, threads=store.threads,
            engine_mb=int(query.sql_memory_mb * ENGINE_SHARE), memory_mb=query.sql_memory_mb, timeout=query.timeout,
            max_bytes=query.max_bytes, readable=self._readable,
        )  # fmt: skip
        process = SqlProcess(setup)
        try:
            process.expect(READY)
        except (_ProcessGone, _DeadlineExceeded) as error:
            process.close()
            raise EchoApiError(
                "not_ready", f"no process for SQL could be started: {error}", "ask again", 503, 1
            ) from None
        return process

    def _once(
        self, snapshots: SnapshotRegistry, question: dict[str, Any], cancel: CancelToken
    ) -> tuple[dict[str, Any], bytes]:
        config = self._config.query
        process = self._take()
        keep = False
        try:
            with snapshots.opening(process) as version:
                process.ask({**question, "reopen": process.version != version})
                process.expect(OPENED)
                process.version, process.busy = version, True
            head, rows = process.answer(config.timeout, 2 * config.max_bytes + (1 << 20), cancel)
            keep = head.get("code") != FILE_CHANGED and not head["worn"]  # worn: it has used most of its memory limit
            return head, rows
        except _DeadlineExceeded:
            raise (cancelled() if cancel.requested else timed_out(config)) from None
        except _ProcessGone as gone:
            if not (process.busy and process.failed()):
                log.info("sql_process_replaced", reason=str(gone))
                return {"code": FILE_CHANGED, "message": str(gone), "hint": "ask again", "status": 503}, b""
            raise EchoApiError(
                "too_large", "the query ended the process that it ran in: it needs more memory than it may have",
                "narrow it: shorter texts, fewer rows, less nesting", status=422,
            ) from None  # fmt: skip
        finally:
            process.busy = False
            if keep:
                with self._lock:
                    self._idle.append(process)
            else:
                self.ended += 1
                process.close()
                snapshots.remove(process)
