"""The process that users' SQL runs in: `python -m ingero_echo.sql_worker`, started by `sql_pool`.

The engine's own limits do not cover all of its functions: some cannot be interrupted, some take memory that it does
not count, and planning counts none. So a user's query runs, from parsing on, in a process whose memory the system
limits, and that can be killed. Through its pipe it reads its limits, then questions, each a message in JSON, or
`CANCEL`. It answers with a message in JSON and one with the rows as an Arrow stream.
"""

import contextlib
import importlib
import os
import queue
import resource
import signal
import sys
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import duckdb
import orjson

from ingero_echo.arrays import pa
from ingero_echo.errors import EchoApiError
from ingero_echo.query_runner import CancelToken, arrow_stream, run_query
from ingero_echo.sandbox import sandbox_query
from ingero_echo.tables import lockdown
from ingero_echo.window import Window

IDLE_SECONDS: Final = 600.0
"""A worker without questions ends after this time."""

LAST_RESORT_SECONDS: Final = 5
"""How long after a question's time limit the system ends the process, if Echo has not done so."""

READY: Final = b"ready"
OPENED: Final = b"opened"
CANCEL: Final = b"cancel"
FILE_CHANGED: Final = "moved"
"""Code for a file that changed under the snapshot: the query is run again."""


@dataclass(frozen=True)
class SqlWorkerConfig:
    """The configuration of a worker, its first line of input."""

    path: str
    spill: str
    spill_mb: int
    threads: int
    engine_mb: int
    """What the engine may take by its own count."""
    memory_mb: int
    """What the process may take beyond what it takes idle."""
    timeout: float
    max_bytes: int
    readable: str = ""
    """Folder with files that the engine may read."""


class Worker:
    """One worker; `serve` until the other end of the pipe is closed."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._setup = SqlWorkerConfig(**orjson.loads(pipe.recv_bytes()))
        self._connection: Any = None
        self._bound = 0
        self._cancel = CancelToken()
        self._questions: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def serve(self) -> None:
        """Answer questions, one after the other."""
        self._pipe.send_bytes(READY)
        threading.Thread(target=self._listen, daemon=True).start()
        while True:
            try:
                question = self._questions.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                return
            signal.setitimer(signal.ITIMER_REAL, self._setup.timeout + LAST_RESORT_SECONDS)
            self._answer(question)
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _listen(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = self._pipe.recv_bytes()
                if message == CANCEL:
                    self._cancel.request()
                else:
                    self._cancel = CancelToken()
                    self._questions.put(orjson.loads(message))
        os._exit(0)

    def _answer(self, question: dict[str, Any]) -> None:
        try:
            if question["reopen"]:
                self._open()
            self._pipe.send_bytes(OPENED)
            clusters = question["clusters"]
            window = Window(clusters=None if clusters is None else frozenset(clusters))
            sql = sandbox_query(question["sql"], window, self._connection.cursor(), question["tables"])
            result = run_query(self._connection.cursor(), sql, {}, self._setup, question["limit"], self._cancel)
            rows = arrow_stream(result.table)
        except EchoApiError as refused:
            if refused.code == "storage":
                refused.code = FILE_CHANGED
            self._say({"code": refused.code, "message": str(refused), "hint": refused.hint, "status": refused.status})
        except (duckdb.IOException, duckdb.FatalException, duckdb.SerializationException) as error:
            self._say({"code": FILE_CHANGED, "message": str(error)[:500], "hint": "ask again", "status": 503})
        except (MemoryError, pa.ArrowException, duckdb.Error) as error:
            message = f"it needs more than it may have: {error!s:.300}"
            self._say({"code": "too_large", "message": message, "hint": "narrow it", "status": 422})
        else:
            self._say({"truncated": result.truncated, "seconds": result.seconds})
            self._pipe.send_bytes(rows)

    def _say(self, content: dict[str, Any]) -> None:
        worn = self._bound - _data_bytes() < self._setup.memory_mb << 18  # a quarter is left
        self._pipe.send_bytes(orjson.dumps({**content, "worn": worn}))

    def _open(self) -> None:
        """Open the file as it is now. The memory in use at the first time is the base of the limit."""
        setup, first = self._setup, self._connection is None
        if self._connection is not None:
            self._connection.close()
        self._connection = duckdb.connect(
            setup.path, read_only=True,
            config={
                "memory_limit": f"{setup.engine_mb}MB", "threads": setup.threads, "temp_directory": setup.spill,
                "max_temp_directory_size": f"{setup.spill_mb}MB",
            },
        )  # fmt: skip
        for setting in lockdown(setup.readable):
            self._connection.execute(f"SET {setting}")
        if first:
            self._bound = _data_bytes() + (setup.memory_mb << 20)
            resource.setrlimit(resource.RLIMIT_DATA, (self._bound, self._bound))


def _data_bytes() -> int:
    """What the system counts against RLIMIT_DATA: private memory that can be written."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData"))


def main() -> None:
    """Run on the pipe whose number is the argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        os.nice(5)
        Path("/proc/self/oom_score_adj").write_text("1000")
    importlib.import_module("pyarrow")  # before the first question, whose time and memory are limited
    Worker(Connection(int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()
