"""The wiring of `ingero-echo read`: the same front ends as Echo's, over the shared tables. It keeps nothing."""

import asyncio
from collections.abc import Callable
from functools import partial

from ingero_contract import echo
from ingero_echo.app import Echo, run_service
from ingero_echo.database_file import LOGS
from ingero_echo.errors import EchoApiError
from ingero_echo.lake.reader import LakeReader
from ingero_echo.lake.sealer import open_lake
from ingero_echo.lake.tail import TailPage, fetch_page
from ingero_echo.settings import EchoConfig, ReadConfig, cached_files
from ingero_echo.store import Store
from ingero_kit.settings import SettingsError
from ingero_kit.tls import ClientTls
from ingero_kit.tokens import read_tokens


class Reader(Echo):
    """One reader. Its database holds only what writers have not sealed yet; it is made anew at each start."""

    def __init__(self, config: EchoConfig) -> None:
        if config.read is None or config.table is None:
            raise SettingsError("reading needs the sections `table` and `read`")
        self._read, self._table = config.read, config.table
        self._reader: LakeReader | None = None
        path = config.read.cache / "unsealed.duckdb"
        super().__init__(config.model_copy(update={"store": config.store.model_copy(update={"path": path})}))

    async def start(self) -> None:
        """Answer health checks at once, read the tables, then answer questions."""
        self._stack.callback(self._audit.close)
        await self._front_ends()
        store = await asyncio.to_thread(_empty_store, self.config, self._read)
        self._stack.callback(store.close)
        tails = partial(_tail, self._read)
        reader = LakeReader(store, self.config, self._read, partial(open_lake, self._table), tails)
        store.view = self._reader = reader
        reader.start()
        self._stack.push_async_callback(asyncio.to_thread, reader.stop)
        self._tasks.append(asyncio.create_task(self._open(store, reader)))
        self._tasks.append(asyncio.create_task(self._apps.run()))

    def _unready(self) -> EchoApiError | None:
        return super()._unready() and ((self._reader and self._reader.unready()) or super()._unready())

    async def _open(self, store: Store, reader: LakeReader) -> None:
        while not reader.ready:
            await asyncio.sleep(0.05)
        self._store = store


def _empty_store(config: EchoConfig, read: ReadConfig) -> Store:
    path = config.store.path
    for suffix in ("", *LOGS):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return Store.open(config.store, cached_files(read).absolute())


def _tail(read: ReadConfig, address: str, after: int) -> TailPage:
    """Ask a writer; token and authorities are read each time, so that they can be replaced."""
    token = read_tokens(read.token_file)[0].split()[0] if read.token_file else ""
    tls = ClientTls(ca_file=read.ca_file).context() if address.startswith("https") else None
    return fetch_page(f"{address}{echo.TAIL}?after={after}", token, tls)


def run(config: EchoConfig, announce: Callable[[dict[str, int]], None]) -> None:
    """Run until SIGTERM or SIGINT. Raises `SettingsError`."""
    run_service(lambda: Reader(config), announce)
