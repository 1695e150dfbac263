"""Asks NCCL's RAS service for its status, like `ncclras -f json`.

The service answers lines: each command has an answer of one line, but the answer to STATUS ends with the connection.
NCCL 2.28.7 and later know JSON.
"""

import asyncio
import contextlib
import os
import re
import socket
from enum import StrEnum
from typing import Final

from ingero_contract.json_values import text
from ingero_kit.addresses import parse_endpoint

COLLECT_SECONDS: Final = 10
"""How long the service may wait for the other processes of the job. NCCL adds as much once more at most."""

ANSWER_SECONDS: Final = 2.0 * COLLECT_SECONDS + 5.0
"""How long the whole exchange may take."""

GREETING_SECONDS: Final = 2.0
GREETINGS: Final = 4
"""How long the first answer may take, and on how many connections; the one after these has whatever time is left.

All processes of a host listen at one address (SO_REUSEPORT), and the kernel picks one for each connection, also one
that stands still."""

PROTOCOL: Final = 2
MAX_LINE: Final = 4096

_ADDRESS: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]*):\d{1,5}")


class RasFailure(StrEnum):
    """Why there is no status."""

    REFUSED = "refused"
    TIMEOUT = "timeout"
    PROTOCOL = "protocol"
    TOO_LARGE = "too_large"


class RasUnavailable(ValueError):
    """The service does not answer, or not as NCCL does; the text says how."""

    def __init__(self, failure: RasFailure, words: str) -> None:
        super().__init__(words)
        self.failure = failure


def is_address(place: str) -> bool:
    """Whether a text has the form HOST:PORT, :PORT or [IPv6]:PORT."""
    return _ADDRESS.fullmatch(place) is not None


async def fetch_status(
    address: str, limit: int, seconds: float = ANSWER_SECONDS, greeting: float = GREETING_SECONDS
) -> bytes:
    """The status as JSON text, of at most `limit` bytes, within `seconds`. Raises `RasUnavailable`.

    `greeting`: seconds until another connection is tried, because the process behind this one stands still.
    """
    try:
        host, port = parse_endpoint(address)
        async with asyncio.timeout(seconds):
            for _ in range(GREETINGS):
                with contextlib.suppress(_Silent):
                    return await _exchange(host, port, limit, greeting)
            return await _exchange(host, port, limit, None)
    except TimeoutError:
        raise RasUnavailable(RasFailure.TIMEOUT, f"no complete answer within {seconds:g} s") from None
    except OSError as error:
        words = f"the RAS service of NCCL does not answer: {_in_words(error)}"
        raise RasUnavailable(RasFailure.REFUSED, words) from None
    except UnicodeError:
        raise RasUnavailable(RasFailure.REFUSED, "no host can have this name") from None
    except RasUnavailable:
        raise
    except ValueError as error:
        raise RasUnavailable(RasFailure.REFUSED, str(error)) from None


class _Silent(Exception):
    """No answer to the greeting."""


async def _exchange(host: str, port: int, limit: int, greeting: float | None) -> bytes:
    """The status over one connection, whose first answer must come within so many seconds. Raises `_Silent`."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        exchange = _RasConnection(reader, writer)
        try:
            async with asyncio.timeout(greeting):
                await exchange.ask(f"CLIENT PROTOCOL {PROTOCOL}", "SERVER PROTOCOL ")
        except TimeoutError:
            raise _Silent from None
        await exchange.ask(f"TIMEOUT {COLLECT_SECONDS}", "OK")
        await exchange.ask("SET FORMAT json", "OK")
        return await exchange.status(limit)
    finally:
        writer.transport.abort()


def _in_words(error: OSError) -> str:
    """The system's words; several addresses of a host may each have failed."""
    if isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno) if error.errno else "no address of the host accepts a connection"


class _RasConnection:
    """The lines sent and received over one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._received = b""

    async def ask(self, command: str, expected: str) -> None:
        """Send a command and check the line that answers it."""
        await self._send(command)
        while b"\n" not in self._received:
            part = await self._reader.read(1 << 16)
            if not part:
                raise _not_nccl(f"the connection was closed instead of an answer to {command}")
            self._received += part
            if len(self._received) > MAX_LINE:
                raise _not_nccl(f"the answer to {command} has no end of line in {MAX_LINE} bytes")
        line, _, self._received = self._received.partition(b"\n")
        answer = line.decode("utf-8", "replace")
        if not answer.upper().startswith(expected):
            hint = "; JSON needs NCCL 2.28.7 or later" if command.startswith("SET FORMAT") else ""
            raise _not_nccl(
                f"{command} was answered by {text(answer, 80)!r}, {expected.strip()!r} was expected{hint}"
            )

    async def status(self, limit: int) -> bytes:
        """Send STATUS and read to the end of the connection."""
        await self._send("STATUS")
        parts, size = [self._received], len(self._received)
        while part := await self._reader.read(1 << 16):
            parts.append(part)
            size += len(part)
            if size > limit:
                raise RasUnavailable(RasFailure.TOO_LARGE, f"the status is larger than {limit} bytes")
        if not size:
            raise _not_nccl("the connection was closed instead of an answer to STATUS")
        return b"".join(parts)

    async def _send(self, command: str) -> None:
        self._writer.write(f"{command}\n".encode())
        await self._writer.drain()


def _not_nccl(words: str) -> RasUnavailable:
    return RasUnavailable(RasFailure.PROTOCOL, words)
