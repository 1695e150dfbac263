"""Bearer tokens from files: one or several a file, re-read on demand, compared in constant time."""

import hashlib
import hmac
from pathlib import Path

from ingero_kit.settings import SettingsError


class Tokens:
    """The accepted bearer tokens. Only digests are kept; the tokens themselves are never logged or stored."""

    def __init__(self, *tokens: str) -> None:
        self._digests = tuple(_digest(token) for token in tokens)

    @classmethod
    def read(cls, file: Path) -> "Tokens":
        """Read one token a line; blank lines and lines that begin with # are skipped.

        Raises `SettingsError` when the file cannot be read or holds no token: an empty file must never mean "open".
        """
        return cls(*read_tokens(file))

    def accept(self, authorization: bytes | str | None) -> bool:
        """Whether an Authorization header carries one of the tokens; every token is compared, always."""
        if authorization is None:
            return False
        text = authorization.decode("latin-1") if isinstance(authorization, bytes) else authorization
        scheme, _, token = text.partition(" ")
        if scheme.lower() != "bearer":
            return False
        given = _digest(token.strip())
        accepted = False
        for digest in self._digests:
            accepted |= hmac.compare_digest(digest, given)
        return accepted


def read_tokens(file: Path) -> list[str]:
    """Return the tokens of a file, one a line."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SettingsError(f"{file}: the token file cannot be read: {error.strerror}") from None
    tokens = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not tokens:
        raise SettingsError(f"{file}: the token file holds no token")
    return tokens


def read_authorization(file: Path | None) -> str | None:
    """The Authorization header of a client, read anew for every request so that rotation needs no restart.

    Raises `SettingsError` when the file cannot be read or its token cannot travel in a header.
    """
    if file is None:
        return None
    token = read_tokens(file)[0]
    if not (token.isascii() and token.isprintable()):
        raise SettingsError(f"{file}: the token holds characters that no header can carry")
    return f"Bearer {token}"


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
