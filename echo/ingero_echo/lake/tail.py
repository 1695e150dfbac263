"""Pages of rows by order of arrival, from a writer to the readers of the shared tables: one Arrow stream."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Final

from ingero_echo.arrays import pa
from ingero_echo.errors import EchoApiError, UserError
from ingero_echo.lake.plan import cut
from ingero_echo.store import Store
from ingero_echo.tables import TABLES

PAGE_ROWS: Final = 50_000
"""Most events of a page that has more than one transaction."""

GONE: Final = 410
"""Status for rows that were sealed and deleted: the reader needs a newer version of the tables."""

_TIMEOUT_SECONDS: Final = 10.0
_MAX_PAGE: Final = 256 << 20


@dataclass(frozen=True)
class TailPage:
    """The rows of all tables after one transaction through another."""

    store: str
    through: int
    complete: bool
    """Whether nothing had arrived after them."""
    tables: dict[str, pa.Table]


class TailGone(UserError):
    """The rows are no longer in the writer's database: they are sealed."""


def tail_page(store: Store, after: int) -> bytes:
    """The page after an order of arrival. Raises `EchoApiError`."""
    with store.cursor() as cursor:
        cursor.execute("BEGIN")
        identity, deleted = cursor.execute("SELECT store::VARCHAR, deleted FROM sealing").fetchall()[0]
        if after < deleted:
            raise EchoApiError("gone", f"rows through {deleted} are sealed and deleted", "read the tables", GONE)
        counts = cursor.execute(
            "SELECT seq, count(*) FROM events WHERE seq > ? GROUP BY seq ORDER BY seq", [after]
        ).fetchall()
        through = cut(counts, PAGE_ROWS)
        complete = through is None or through == counts[-1][0]
        through = after if through is None else through
        parts = {}
        for table in TABLES:
            rows = cursor.sql(f"SELECT * FROM {table} WHERE seq > {int(after)} AND seq <= {through}").to_arrow_table()
            parts[table] = _stream(rows)
        cursor.execute("ROLLBACK")
    head = {"store": [identity], "through": [through], "complete": [complete]}
    return _stream(pa.table({**head, **{name: pa.array([part], pa.large_binary()) for name, part in parts.items()}}))


def read_page(content: bytes) -> TailPage:
    """The page of an answer. Raises `UserError`."""
    try:
        (row,) = pa.ipc.open_stream(content).read_all().to_pylist()
        tables = {table: pa.ipc.open_stream(row[table]).read_all() for table in TABLES}
        return TailPage(str(row["store"]), int(row["through"]), bool(row["complete"]), tables)
    except (pa.ArrowException, KeyError, TypeError, ValueError):
        raise UserError("the answer is not a page of rows", "is this the API of an Echo of this version?") from None


def fetch_page(url: str, token: str, tls: ssl.SSLContext | None) -> TailPage:
    """Ask a writer. Raises `TailGone`, or `UserError`."""
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS, context=tls) as answer:
            return read_page(answer.read(_MAX_PAGE))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == GONE:
            raise TailGone("rows are sealed and deleted") from None
        raise UserError(f"HTTP {error.code}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot be reached: {error}") from None


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())
