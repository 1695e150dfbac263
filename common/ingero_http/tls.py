"""TLS of a listener from files that may be replaced while it runs."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from ingero_http.file_watcher import FileWatcher

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class CertificateError(OSError):
    """Certificate files that cannot be used; the text names the file and the reason."""


class TlsFiles(Protocol):
    """The files for TLS of a listener; implemented by `ServerTls` and by settings models."""

    @property
    def cert_file(self) -> Path:
        """Certificate chain, PEM."""

    @property
    def key_file(self) -> Path:
        """Private key, PEM."""

    @property
    def client_ca_file(self) -> Path | None:
        """Authorities that client certificates must come from; with it, client certificates are required."""


@dataclass(frozen=True, kw_only=True)
class ServerTls:
    """TLS of a listener, see `TlsFiles`."""

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Build a context from the current files; raises `CertificateError` when they cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(files.cert_file, files.key_file)
        if files.client_ca_file:
            context.load_verify_locations(files.client_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:
        raise CertificateError(f"{files.cert_file}: the TLS files cannot be used: {error}") from None
    return context


class ReloadingContext:
    """A listener's context that follows its files: new connections use their current content.

    Each reload builds a new context, because a context cannot drop an authority that it has trusted.
    """

    def __init__(
        self, files: TlsFiles, prepare: Callable[[ssl.SSLContext], ssl.SSLContext] = lambda context: context
    ) -> None:
        self._files, self._prepare = files, prepare
        self._watched = FileWatcher((files.cert_file, files.key_file, files.client_ca_file))
        self.context = prepare(server_context(files))

    def reload(self) -> None:
        """Read the files again. When they cannot be used, it keeps the old ones and raises `CertificateError`."""
        self.context = self._prepare(server_context(self._files))

    def follow(self) -> None:
        """Read the files again if they have changed; files that cannot be used are logged once a change."""
        if not self._watched.changed():
            return
        try:
            self.reload()
            log.info("certificates_reloaded")
        except OSError as error:
            log.error("certificates_not_reloaded", reason=str(error))
