"""Authentication and authorisation: tokens from a file, scopes, rotation with a grace period, rate limits."""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from ingero_echo.errors import EchoApiError
from ingero_kit.settings import SettingsError
from ingero_kit.tokens import TokenStore, read_token_lines, token_digest


class Scope(StrEnum):
    """A permission of a token."""

    INGEST = "ingest"
    READ = "read"
    SQL = "sql"
    METRICS = "metrics"
    BACKUP = "backup"


USUAL: Final = frozenset({Scope.INGEST, Scope.READ, Scope.SQL, Scope.METRICS})
"""Scopes of a token that names none."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The identity of a token. `clusters` is `None` for all, `digest` the SHA-256 of the token in hexadecimal."""

    name: str
    digest: str = ""
    scopes: frozenset[Scope] = USUAL
    clusters: frozenset[str] | None = None

    def may(self, scope: Scope) -> bool:
        """Whether the token has a scope."""
        return scope in self.scopes

    def require(self, scope: Scope) -> None:
        """Raise `EchoApiError` unless the token has a scope."""
        if not self.may(scope):
            hint = "have it added to the token's line"
            raise EchoApiError("forbidden", f"the token lacks the scope {scope}", hint, status=403)

    def sees(self, cluster: str) -> bool:
        """Whether the token may access a cluster."""
        return self.clusters is None or cluster in self.clusters


ANONYMOUS: Final = Identity(name="anybody", scopes=frozenset(Scope))
"""The caller where no tokens are configured, which works on loopback only."""


def read_tokens(file: Path) -> dict[bytes, Identity]:
    """Read a token file: a line is the token, then `name=`, `scopes=a,b` and `clusters=a,b` in any order.

    Blank lines and lines that begin with # are skipped. Raises `SettingsError` with the line's number, never with
    the token: a file without any token must not mean "open".
    """
    found: dict[bytes, Identity] = {}
    for number, line in read_token_lines(file):
        words = line.split()
        digest = token_digest(words[0])
        if digest in found:
            raise SettingsError(f"{file}: line {number}: this token stands in the file twice")
        try:
            found[digest] = _identity(digest, words[1:])
        except ValueError as error:
            raise SettingsError(f"{file}: line {number}: {error}") from None
    return found


def _identity(digest: bytes, words: list[str]) -> Identity:
    name, scopes, clusters = digest.hex()[:12], USUAL, None
    for word in words:
        key, equals, value = word.partition("=")
        parts = [part for part in value.split(",") if part]
        if key == "name" and value:
            name = value
        elif key == "scopes" and parts:
            unknown = [part for part in parts if part not in set(Scope)]
            if unknown:
                raise ValueError(f"no such scope: {unknown[0]} (there are {', '.join(Scope)})")
            scopes = frozenset(Scope(part) for part in parts)
        elif key == "clusters" and parts:
            clusters = frozenset(parts)
        else:
            hint = f"{key}=" if equals else "a word without ="
            raise ValueError(f"name=, scopes= or clusters= with a value was expected, not {hint}")
    return Identity(name=name, digest=digest.hex(), scopes=scopes, clusters=clusters)


class Callers:
    """Finds the identity of a caller; every caller is `ANONYMOUS` where no token file is configured."""

    def __init__(self, file: Path | None, grace_seconds: float) -> None:
        self._tokens = TokenStore(file, read_tokens, grace_seconds) if file else None

    @property
    def open(self) -> bool:
        """Whether no tokens are configured."""
        return self._tokens is None

    def find(self, authorization: bytes | str | None) -> Identity | None:
        """The identity of an Authorization header."""
        return self._tokens.find(authorization) if self._tokens else ANONYMOUS


@dataclass
class _Bucket:
    level: float
    at: float


def caller_key(identity: Identity | None) -> str:
    """A name of the caller, for counters by token."""
    return "" if identity is None else identity.digest or identity.name


def fingerprint(authorization: bytes) -> str:
    """SHA-256 of the token of an Authorization header, in hexadecimal; of the empty text if there is none."""
    return hashlib.sha256(authorization.partition(b" ")[2].strip()).hexdigest()


MAX_BUCKETS: Final = 10_000
"""Most callers that a rate limit remembers; the one with the oldest request is forgotten."""


@dataclass
class RateLimit:
    """A token bucket for each caller: a bearer token, or an address."""

    per_second: float
    burst: int
    clock: Callable[[], float] = time.monotonic
    _buckets: OrderedDict[str, _Bucket] = field(default_factory=OrderedDict)

    def wait(self, caller: str) -> float:
        """Count one request. Returns the seconds to wait before the next try, 0 when it is allowed."""
        now = self.clock()
        bucket = self._buckets.setdefault(caller, _Bucket(float(self.burst), now))
        self._buckets.move_to_end(caller)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        bucket.level = min(float(self.burst), bucket.level + (now - bucket.at) * self.per_second)
        bucket.at = now
        if bucket.level < 1:
            return (1 - bucket.level) / self.per_second
        bucket.level -= 1
        return 0.0
