"""Counts what each bearer pushes, for one audit line a minute for each instead of one for each push."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from ingero_echo.auth import Identity, fingerprint

INTERVAL_SECONDS: Final = 60.0
"""Time between two audit lines of a bearer."""

MAX_BEARERS: Final = 1000
"""Most bearers with a line of their own; the others share one without a hash."""

MAX_CLUSTERS: Final = 100
"""Most clusters that a line names."""


@dataclass(slots=True)
class _Pushes:
    """What one bearer sent since its last line."""

    name: str | None
    counts: Counter[str] = field(default_factory=Counter)
    clusters: set[str] = field(default_factory=set)


class IngestAudit:
    """What each bearer pushed since the last lines; `write` adds a line to the audit log."""

    def __init__(self, write: Callable[..., None]) -> None:
        self._write = write
        self._bearers: dict[str, _Pushes] = {}

    def count(self, identity: Identity, clusters: set[str] | frozenset[str] = frozenset(), **counts: int) -> None:
        """Add counts of an accepted bearer; without tokens there is nobody to count for."""
        if not identity.digest:
            return
        pushes = self._of(identity.digest, identity.name)
        pushes.counts.update(counts)
        if clusters and len(pushes.clusters) < MAX_CLUSTERS:
            pushes.clusters.update(clusters)

    def refuse(self, authorization: bytes | str | None, identity: Identity | None) -> None:
        """Count a request whose token is missing, wrong, or lacks the scope."""
        given = authorization.encode("latin-1", "replace") if isinstance(authorization, str) else authorization or b""
        digest = identity.digest if identity else fingerprint(given)
        self._of(digest, identity.name if identity else None).counts["unauthenticated"] += 1

    def _of(self, digest: str, name: str | None) -> _Pushes:
        if digest not in self._bearers and len(self._bearers) >= MAX_BEARERS:
            digest, name = "", None
        return self._bearers.setdefault(digest, _Pushes(name))

    def write_lines(self) -> None:
        """Write a line for each bearer that sent something, and start again."""
        bearers, self._bearers = self._bearers, {}
        for digest, pushes in bearers.items():
            fields: dict[str, Any] = {name: pushes.counts[name] for name in _COUNTS}
            clusters = sorted(pushes.clusters)[:MAX_CLUSTERS]
            self._write(token_sha256=digest, name=pushes.name, method="OTLP", **fields, clusters=clusters)


_COUNTS: Final = ("requests", "bytes", "events", "rejected", "malformed", "rate_limited", "unauthenticated")
"""Requests and their bytes as decoded, events that were taken, records that were left out, unreadable requests, and
requests that were refused because of the rate limit or the token."""
