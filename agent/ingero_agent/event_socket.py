"""The unix socket that consumers read. Every line goes to every consumer; only a slow consumer loses lines."""

import asyncio
import contextlib
import os
import socket
import stat
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from ingero_contract.events import MAX_LINE, Event
from ingero_kit.logs import get

log = get(__name__)

DEFAULT_PATH: Final = Path("/run/ingero/remediate.sock")
MAX_CONSUMERS: Final = 16
QUEUED_LINES: Final = 256
DRAIN_SECONDS: Final = 0.2


def default_socket_path(name: str = DEFAULT_PATH.name) -> Path:
    """The socket's path: in the system's folder if it is writable, otherwise in a private folder of this user."""
    if os.access("/run", os.W_OK) or os.access(DEFAULT_PATH.parent, os.W_OK):
        return DEFAULT_PATH.with_name(name)
    base = os.environ.get("XDG_RUNTIME_DIR") or f"{tempfile.gettempdir()}/ingero-{os.getuid()}"
    return Path(base) / "ingero" / name


async def listen(
    path: Path,
    group: int | None,
    flag: str,
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    limit: int = 4096,
) -> asyncio.Server:
    """Listen on a path, for this user or one group; a stale socket file is replaced, anything else is refused.

    `flag` is the setting that the error message names. Raises `OSError`, also where another process listens.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o750 if group is not None else 0o700)
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(f"{path} exists and is no socket; remove it or choose another {flag}")
        if _answers(path):
            raise OSError(f"another process listens on {path}; end it or choose another {flag}")
        path.unlink()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Python 3.11 logs an error for a handler that is cancelled, as at the end of the loop.
        with contextlib.suppress(asyncio.CancelledError):
            await serve(reader, writer)

    mask = os.umask(0o177)
    try:
        server = await asyncio.start_unix_server(handle, path, limit=limit)
    except OSError as error:
        raise OSError(f"cannot listen on {path}: {error.strerror or error}; choose another {flag}") from None
    finally:
        os.umask(mask)
    if group is not None:
        os.chown(path, -1, group)
    path.chmod(0o700 if group is None else 0o770)
    log.info("socket", path=str(path))
    return server


def _answers(path: Path) -> bool:
    """Whether a process listens on a socket file."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:  # its queue of connections is full
            return True
        except OSError:
            return False
    return True


class EventSocket:
    """Listens on a path. Group access only when a group id is given."""

    def __init__(self, path: Path, group: int | None = None) -> None:
        self.path = path
        self.dropped: Counter[str] = Counter()
        self.sent = 0
        self._group = group
        self._consumers: dict[asyncio.Queue[bytes], asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen; a stale socket file is replaced, anything else at the path is left alone and refused."""
        self._server = await listen(self.path, self._group, "--remediate-socket", self._serve)

    @property
    def consumers(self) -> int:
        """Connected consumers."""
        return len(self._consumers)

    def publish(self, event: Event) -> None:
        """Queue a line for every consumer; never waits."""
        line = event.to_json().encode() + b"\n"
        if len(line) > MAX_LINE:
            self.dropped["too_long"] += 1
            return
        if not self._consumers:
            self.dropped["no_client"] += 1
        for lines in self._consumers:
            if lines.full():
                self.dropped["slow_client"] += 1
                lines.get_nowait()
                lines.task_done()
            lines.put_nowait(line)

    async def stop(self) -> None:
        """Allow queued lines a short time to be sent, then close and remove the path."""
        if self._server is None:
            return
        self._server.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(lines.join() for lines in self._consumers)), DRAIN_SECONDS)
        for writer in self._consumers.values():
            writer.close()
        self.path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send lines until the consumer disconnects; what it sends is ignored."""
        if len(self._consumers) >= MAX_CONSUMERS:
            self.dropped["too_many_clients"] += 1
            writer.close()
            return
        lines = asyncio.Queue[bytes](QUEUED_LINES)
        self._consumers[lines] = writer
        sender = asyncio.create_task(self._send(lines, writer))
        try:
            with contextlib.suppress(ConnectionError):
                while await reader.read(1024):
                    pass
        finally:
            del self._consumers[lines]
            sender.cancel()
            writer.close()

    async def _send(self, lines: asyncio.Queue[bytes], writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(await lines.get())
                await writer.drain()
                self.sent += 1
                lines.task_done()
        except OSError:
            self.dropped["write_error"] += 1
            writer.close()
