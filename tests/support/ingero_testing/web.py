"""Plain HTTP for tests: one client with a new connection each time (`httpx.get` loads all authorities every time)."""

import asyncio
from typing import Any

import httpx

web = httpx.Client(verify=False, timeout=60, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))


def stop_reading(writer: asyncio.StreamWriter) -> None:
    """Simulate a client that does not read what it is sent."""
    transport: Any = writer.transport  # uvloop's transports have the method but are no asyncio.Transport
    transport.pause_reading()
