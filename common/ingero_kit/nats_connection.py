"""A connection to a NATS cluster, made in the background, and made again whenever it ends."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.errors import APIError

from ingero_kit.connection_stats import ConnectionStats, describe
from ingero_kit.logs import get
from ingero_kit.nats_settings import NatsServersConfig
from ingero_kit.settings import SettingsError

log = get(__name__)

API_SECONDS: Final = 3.0
"""How long a request about streams may take."""

RETRY_SECONDS: Final = 0.2
"""Pause between two attempts to connect."""

PING_SECONDS: Final = 2
"""A server that leaves two pings of this interval unanswered is replaced by another one."""

COPIES: Final = 3
"""Copies of what is stored, where the servers are a cluster."""

_NOT_CLUSTERED: Final = 10074

Made = TypeVar("Made")


class NatsConnection:
    """One client at a time. `client` and `jetstream` are the current ones; they may change after every await."""

    def __init__(self, config: NatsServersConfig, stats: ConnectionStats) -> None:
        """Raises `SettingsError` for credentials or TLS files that cannot be used."""
        self._config, self._stats = config, stats
        self._tls = config.tls
        self._options = credentials(config.credentials_file)
        self._context()
        self._connected = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._stopping = False
        self.client = Client()
        self.jetstream: JetStreamContext = self.client.jetstream()

    def start(self) -> None:
        """Begin to connect."""
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Close the connection."""
        self._stopping = True
        if self._running:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        await self._close()

    async def ready(self) -> JetStreamContext:
        """Wait until there is a connection."""
        while not self.client.is_connected:
            self._connected.clear()
            await self._connected.wait()
        return self.jetstream

    async def _run(self) -> None:
        while True:
            closed = asyncio.Event()
            try:
                await self._connect(closed)
                await closed.wait()
            except (NatsError, OSError, SettingsError) as error:
                self._stats.failed("connect", error)
            await self._close()
            await asyncio.sleep(RETRY_SECONDS)

    async def _connect(self, closed: asyncio.Event) -> None:
        client = self.client = Client()
        self.jetstream = client.jetstream(timeout=API_SECONDS)

        async def on_error(error: Exception) -> None:
            self._stats.events["client_error"] += 1
            if client.is_connected:
                log.info("log_client_error", reason=describe(error))
            else:
                self._stats.failed("connect", error)
                if client._transport:  # the client replaces the transport of a failed attempt without closing it
                    client._transport.close()  # type: ignore[no-untyped-call]

        async def on_disconnect() -> None:
            self._connected.clear()
            if not self._stopping:
                self._stats.failed("connect", ConnectionError("the connection ended"))
            if context := self._context_if_usable():
                client.options["tls"] = context

        async def on_connect() -> None:
            self._stats.events["connected"] += 1
            self._stats.worked("connect")
            self._connected.set()

        async def on_close() -> None:
            closed.set()

        context = self._context()
        await client.connect(
            list(self._config.servers),
            name="ingero",
            max_reconnect_attempts=-1,
            reconnect_time_wait=RETRY_SECONDS,  # type: ignore[arg-type]  # fractions are meant, see its use
            connect_timeout=2,
            ping_interval=PING_SECONDS,
            pending_size=0,  # nothing is kept for later while disconnected: reports would be sent with a wrong age
            error_cb=on_error,
            disconnected_cb=on_disconnect,
            reconnected_cb=on_connect,
            closed_cb=on_close,
            **({"tls": context} if context else {}),
            **self._options,
        )
        await on_connect()

    async def _close(self) -> None:
        self._connected.clear()
        try:
            async with asyncio.timeout(API_SECONDS):
                await self.client.close()
        except (NatsError, OSError, TimeoutError) as error:
            log.warning("log_client_not_closed", reason=describe(error))

    def _context(self) -> Any:
        return self._tls.context() if self._tls and not self._tls.insecure else None

    def _context_if_usable(self) -> Any:
        """TLS from the current files, so that replaced ones count at the next connection."""
        try:
            return self._context()
        except SettingsError as error:
            log.error("log_certificates_not_reloaded", reason=str(error))
            return None


async def with_copies(create: Callable[[int], Awaitable[Made]]) -> Made:
    """Create something with three copies, or with one if the server is not part of a cluster.

    A cluster that lacks a server at the moment raises, so that nothing is made with fewer copies for good.
    """
    try:
        return await create(COPIES)
    except APIError as error:
        if error.err_code != _NOT_CLUSTERED:
            raise
    return await create(1)


def credentials(file: Path | None) -> Mapping[str, Any]:
    """Options of the client for a credentials file, which it reads at every connection.

    Raises `SettingsError` if the file holds neither an NKEY seed nor a user's credentials.
    """
    if file is None:
        return {}
    try:
        text = file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"credentials_file: {file} cannot be read: {describe(error)}") from None
    if "BEGIN NATS USER JWT" in text and "BEGIN USER NKEY SEED" in text:
        return {"user_credentials": str(file)}
    if text.strip().startswith("SU") and len(text.split()) == 1:
        return {"nkeys_seed": str(file)}
    raise SettingsError(
        f"credentials_file: {file} holds neither an NKEY seed (SU…) nor the credentials of a NATS user"
    )
