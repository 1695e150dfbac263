"""Bearer tokens from files: one or more per file, re-read on demand, compared in constant time."""

import hashlib
import hmac
from pathlib import Path

from ingero_kit.settings import SettingsError


class Tokens:
    """The accepted bearer tokens. Only digests are kept; the tokens themselves are never logged or stored."""

    def __init__(self, *tokens: str) -> None:
        self._digests = tuple(token_digest(token) for token in tokens)

    @classmethod
    def read(cls, file: Path) -> "Tokens":
        """Read one token a line; blank lines and lines that begin with # are skipped.

        Raises `SettingsError` when the file cannot be read or holds no token: an empty file must never mean "open".
        """
        return cls(*read_tokens(file))

    def accept(self, authorization: bytes | str | None) -> bool:
        """Whether an Authorization header has one of the tokens; compares all of them, to take constant time."""
        given = bearer_digest(authorization)
        if given is None:
            return False
        accepted = False
        for digest in self._digests:
            accepted |= hmac.compare_digest(digest, given)
        return accepted


def bearer_digest(authorization: bytes | str | None) -> bytes | None:
    """SHA-256 of the token of an Authorization header; `None` for a header without a bearer token."""
    raw = authorization.encode("latin-1", "replace") if isinstance(authorization, str) else authorization or b""
    scheme, _, token = raw.partition(b" ")
    return hashlib.sha256(token.strip()).digest() if scheme.lower() == b"bearer" else None


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
        reason = error.strerror if isinstance(error, OSError) else error
        raise SettingsError(f"{file}: the token file cannot be read: {reason}") from None
    found = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    found = [(number, line) for number, line in found if line and not line.startswith("#")]
    if not found:
        raise SettingsError(f"{file}: the token file holds no token")
    return found


def read_tokens(file: Path) -> list[str]:
    """The tokens of a file, one per line. Raises `SettingsError`."""
    return [line for _, line in read_token_lines(file)]


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
