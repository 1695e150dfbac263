"""Bearer tokens from files: one or more per file, followed when the file changes, compared in constant time."""

import hashlib
import hmac
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Generic, TypeVar

from ingero_http.followed_files import FollowedFiles
from ingero_kit.files import not_utf8
from ingero_kit.settings import SettingsError

Identity = TypeVar("Identity")

CHECK_SECONDS: Final = 1.0
"""Seconds between two checks of a token file for changes."""


class TokenStore(Generic[Identity]):
    """The accepted tokens of a file with their identities. Only digests are kept; tokens are never logged or stored.

    `read` returns the identity by digest; it may raise `SettingsError` at first, and keeps the old tokens later. A
    token that leaves the file is accepted for `grace_seconds` more.
    """

    def __init__(
        self,
        file: Path,
        read: Callable[[Path], Mapping[bytes, Identity]],
        grace_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file, self._read, self._grace, self._clock = file, read, grace_seconds, clock
        self._accepted: list[tuple[bytes, Identity, float]] = []
        """Digest, identity and the time until which it is accepted."""
        self._followed = FollowedFiles("tokens", (file,), self._load, CHECK_SECONDS, clock)

    def find(self, authorization: bytes | str | None) -> Identity | None:
        """The identity of an Authorization header; compares all tokens, to take constant time."""
        given = bearer_digest(authorization)
        if given is None:
            return None
        accepted, now, found = self._followed.current(), self._clock(), None
        for digest, identity, until in accepted:
            if hmac.compare_digest(digest, given) and now < until:
                found = identity
        return found

    def _load(self) -> list[tuple[bytes, Identity, float]]:
        fresh, now = self._read(self._file), self._clock()
        leaving = [
            (digest, identity, min(until, now + self._grace))
            for digest, identity, until in self._accepted
            if digest not in fresh and now < until
        ]
        self._accepted = [*((digest, identity, math.inf) for digest, identity in fresh.items()), *leaving]
        return self._accepted


def bearer_digest(authorization: bytes | str | None) -> bytes | None:
    """SHA-256 of the token of an Authorization header; `None` for a header without a bearer token."""
    raw = authorization.encode("latin-1", "replace") if isinstance(authorization, str) else authorization or b""
    scheme, _, token = raw.partition(b" ")
    return hashlib.sha256(token.strip()).digest() if scheme.lower() == b"bearer" else None


def token_refusal(authorization: bytes | str | None) -> str:
    """Why a request with this Authorization header is not admitted, without the token."""
    sent = bearer_digest(authorization) is not None
    return "this bearer token is not accepted" if sent else "a bearer token is required"


def token_digest(token: str) -> bytes:
    """SHA-256 of a token; only this digest is stored."""
    return hashlib.sha256(token.encode()).digest()


def read_token_lines(file: Path) -> list[tuple[int, str]]:
    """The lines of a token file with their numbers, without blank lines and comments.

    Raises `SettingsError` when the file cannot be read or holds no token: an empty file must never mean "open".
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else not_utf8(error)
        raise SettingsError(f"{file}: the token file cannot be read: {reason}") from None
    found = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    found = [(number, line) for number, line in found if line and not line.startswith("#")]
    if not found:
        raise SettingsError(f"{file}: the token file holds no token")
    return found


def read_tokens(file: Path) -> list[str]:
    """The tokens of a file, one per line. Raises `SettingsError`."""
    return [line for _, line in read_token_lines(file)]


def read_digests(file: Path) -> dict[bytes, bool]:
    """The digests of a file of tokens that all may do the same. Raises `SettingsError`."""
    return {token_digest(token): True for token in read_tokens(file)}


def read_authorization(file: Path | None) -> str | None:
    """The Authorization header of a client, read for every request so that token rotation needs no restart.

    Raises `SettingsError` when the file cannot be read or its token is not valid in a header.
    """
    if file is None:
        return None
    token = read_tokens(file)[0]
    if not (token.isascii() and token.isprintable()):
        raise SettingsError(f"{file}: the token holds characters that no header can carry")
    return f"Bearer {token}"
