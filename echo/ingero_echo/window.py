"""Restricts a question to its clusters and time window, by common table expressions that shadow the tables.

Every query of every interface goes through `scoped`. A query cannot miss its filter, because the table names that it
uses are already filtered.
"""

import datetime
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from ingero_contract.values import VerdictState
from ingero_contract.verdicts import ACTIONABLE
from ingero_echo.tables import TABLES

NO_SOURCES: Final[Mapping[str, str]] = MappingProxyType({})
"""Every table is the one of the database."""

LONG_NANOS: Final = 2 * 3600 * 10**9
"""Windows that begin longer ago than this are computed from partial sums."""

LATEST: Final = 2**63 - 1
"""The latest time that the time columns can hold."""


ACCUSED: Final = ", ".join(f"'{state}'" for state in sorted({*ACTIONABLE, VerdictState.SILENT}))
"""States of a verdict that accuses, as a list in SQL."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """`clusters` is `None` for all; `since` and `until` are nanoseconds since the epoch, `None` for no bound."""

    clusters: frozenset[str] | None = None
    since: int | None = None
    until: int | None = None


@dataclass(frozen=True)
class Sources:
    """What a question reads: an expression for FROM by table, where that is not the table of the database."""

    tables: Mapping[str, str] = field(default_factory=dict)
    as_of: Mapping[str, str] | None = None
    """For each writer the time up to which its events are whole; `None` where the database is the only one."""
    missing: tuple[str, ...] = ()
    """Writers whose newest events are missing."""

    def known_until(self, end: int) -> int:
        """The end of a window, or the earlier time up to which the events of all writers are whole; nanoseconds.

        What is missing after it is no silence.
        """
        return min([end, *(parse_moment(text, 0) or 0 for text in (self.as_of or {}).values())])


def literal(text: str) -> str:
    """An SQL string."""
    return "'" + text.replace("'", "''") + "'"


def scope_ctes(window: Window, tables: Mapping[str, str] = NO_SOURCES) -> str:
    """The common table expressions, without WITH."""
    seen = []
    if window.clusters is not None:
        names = ", ".join(literal(name) for name in sorted(window.clusters)) or "NULL"
        seen.append(f"cluster_id IN ({names})")
    within = list(seen)
    if window.since is not None:
        within.append(f'"timestamp" >= {moment(window.since)}')
    if window.until is not None:
        within.append(f'"timestamp" < {moment(window.until)}')
    named = [
        f"{table} AS NOT MATERIALIZED (SELECT * FROM {source}{_where(within)}{_open(table, source, window, seen)})"
        for table in TABLES
        for source in (tables.get(table, f"main.{table}"),)
    ]
    return ", ".join([*named, f"activity AS NOT MATERIALIZED ({_activity(window)})"])


def _where(conditions: list[str]) -> str:
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _open(table: str, source: str, window: Window, seen: list[str]) -> str:
    """Verdicts are recorded when they change: the newest one before the window counts in it where it accuses."""
    if table != "verdicts" or window.since is None:
        return ""
    before = _where([*seen, f'"timestamp" < {moment(window.since)}'])
    return (
        f" UNION ALL SELECT * FROM (SELECT * FROM {source}{before} QUALIFY row_number() OVER "
        f'(PARTITION BY cluster_id, node_id, source ORDER BY "timestamp" DESC) = 1) WHERE state IN ({ACCUSED})'
    )


def _activity(window: Window) -> str:
    """What nodes sent, event by event for short windows and from the partial sums for long ones.

    The sums stand for five minutes each, so a long window is cut at the next bucket.
    """
    if window.since is not None and time.time_ns() - window.since < LONG_NANOS:
        return (
            'SELECT "timestamp", cluster_id, node_id, metric_name, rank, 1 AS events, "timestamp" AS last, '
            "isfinite(coalesce(value_double, 'nan'))::BIGINT AS samples, value_double AS total, "
            "value_double AS lowest, value_double AS highest, event_id AS lowest_event, event_id AS highest_event "
            "FROM events"
        )
    return "SELECT * FROM node_rollups"


def scoped(sql: str, window: Window, tables: Mapping[str, str] = NO_SOURCES) -> str:
    """The query, restricted to the window."""
    return f"WITH {scope_ctes(window, tables)} SELECT * FROM (\n{sql}\n)"


def moment(nanos: int) -> str:
    """A constant of the column type of times."""
    return f"{literal(rfc3339(nanos).rstrip('Z'))}::TIMESTAMP_NS"


def rfc3339(nanos: int) -> str:
    """Nanoseconds since the epoch as RFC 3339 in UTC, nine decimals."""
    whole = datetime.datetime.fromtimestamp(nanos // 10**9, datetime.UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{nanos % 10**9:09d}Z"


def parse_moment(text: str, now: int) -> int | None:
    """Nanoseconds for `15m` (so long ago), RFC 3339, `now` or `all` (`None`).

    Raises `ValueError` with a message for the user.
    """
    from ingero_kit.settings import parse_duration  # imported late: it loads much that the SQL worker does not need

    if text == "all":
        return None
    if text == "now":
        return now
    back = parse_duration(text)
    if isinstance(back, float):
        return max(0, now - int(back * 1e9))
    try:
        when = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither a duration such as 15m, nor RFC 3339, nor now, nor all") from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=datetime.UTC)
    nanos = int(when.timestamp() * 1e6) * 1000
    if not 0 <= nanos < LATEST:
        raise ValueError(f"{text!r} is not between the years 1970 and 2262")
    return nanos
