"""Asks NCCL's RAS service for its status, like `ncclras -f json`.

The service answers lines: each command has an answer of one line, but the answer to STATUS ends with the connection.
"""

import re
import socket
import time
from typing import Final

from ingero_analyze.diagnose.sources import MAX_FILE_BYTES, SourceError, text
from ingero_kit.addresses import parse_endpoint

COLLECT_SECONDS: Final = 10
"""How long the service may wait for the other processes of the job. NCCL adds as much once more at most."""

ANSWER_SECONDS: Final = 2.0 * COLLECT_SECONDS + 5.0
"""How long the whole exchange may take."""

PROTOCOL: Final = 2
MAX_LINE: Final = 4096
MAX_STATUS: Final = min(256 << 20, MAX_FILE_BYTES)

_ADDRESS: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]*):\d{1,5}")


def is_address(place: str) -> bool:
    """Whether a text has the form HOST:PORT, :PORT or [IPv6]:PORT."""
    return _ADDRESS.fullmatch(place) is not None


def fetch_status(address: str, seconds: float = ANSWER_SECONDS, limit: int = MAX_STATUS) -> bytes:
    """The status as JSON text. Raises `SourceError` when the service does not answer, or not as NCCL does."""
    try:
        endpoint = parse_endpoint(address)
    except ValueError as error:
        raise SourceError(str(error)) from None
    deadline = time.monotonic() + seconds
    try:
        with socket.create_connection(endpoint, timeout=seconds) as connection:
            exchange = _RasConnection(connection, deadline)
            exchange.ask(f"CLIENT PROTOCOL {PROTOCOL}", "SERVER PROTOCOL ")
            exchange.ask(f"TIMEOUT {COLLECT_SECONDS}", "OK")
            exchange.ask("SET FORMAT json", "OK")
            return exchange.status(limit)
    except TimeoutError:
        raise SourceError(f"no complete answer within {seconds:g} s") from None
    except OSError as error:
        raise SourceError(f"the RAS service of NCCL does not answer: {error.strerror or error}") from None
    except UnicodeError:
        raise SourceError("no host can have this name") from None


class _RasConnection:
    """The lines sent and received over one connection, all before one deadline."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection, self._deadline = connection, deadline
        self._received = b""

    def ask(self, command: str, expected: str) -> None:
        """Send a command and check the line that answers it."""
        self._send(command)
        while b"\n" not in self._received:
            part = self._receive()
            if not part:
                raise SourceError(f"the connection was closed instead of an answer to {command}")
            self._received += part
            if len(self._received) > MAX_LINE:
                raise SourceError(f"the answer to {command} has no end of line in {MAX_LINE} bytes")
        line, _, self._received = self._received.partition(b"\n")
        answer = line.decode("utf-8", "replace")
        if not answer.upper().startswith(expected):
            hint = "; JSON needs NCCL 2.28.7 or later" if command.startswith("SET FORMAT") else ""
            raise SourceError(
                f"{command} was answered by {text(answer, 80)!r}, {expected.strip()!r} was expected{hint}"
            )

    def status(self, limit: int) -> bytes:
        """Send STATUS and read to the end of the connection."""
        self._send("STATUS")
        parts, size = [self._received], len(self._received)
        while part := self._receive():
            parts.append(part)
            size += len(part)
            if size > limit:
                raise SourceError(f"the status is larger than {limit} bytes")
        if not size:
            raise SourceError("the connection was closed instead of an answer to STATUS")
        return b"".join(parts)

    def _send(self, command: str) -> None:
        self._wait()
        self._connection.sendall(f"{command}\n".encode())

    def _receive(self) -> bytes:
        self._wait()
        return self._connection.recv(1 << 16)

    def _wait(self) -> None:
        """Limit the next operation to what remains of the time."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
