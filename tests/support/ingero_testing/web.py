"""Plain HTTP for tests: one client, a new connection each time (`httpx.get` reads all authorities every time)."""

import asyncio
from typing import Any

import httpx

web = httpx.Client(verify=False, limits=httpx.Limits(max_keepalive_connections=0))


def stop_reading(writer: asyncio.StreamWriter) -> None:
    """Play a client that does not read what it is sent."""
    transport: Any = writer.transport  # uvloop's have the method without being an asyncio.Transport
    transport.pause_reading()
