"""TLS of a listener from files that may be replaced while it runs."""

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ingero_http.followed_files import FollowedFiles


class CertificateError(OSError):
    """Certificate files that cannot be used; the text names the file and the reason."""


class TlsFiles(Protocol):
    """The files for TLS of a listener, as settings models have them."""

    @property
    def cert_file(self) -> Path:
        """Certificate chain, PEM."""

    @property
    def key_file(self) -> Path:
        """Private key, PEM."""

    @property
    def client_ca_file(self) -> Path | None:
        """Authorities that client certificates must come from; with it, client certificates are required."""


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


def follow_server_context(
    files: TlsFiles, prepare: Callable[[ssl.SSLContext], ssl.SSLContext]
) -> FollowedFiles[ssl.SSLContext]:
    """A listener's context that follows its files; `prepare` sets what the protocol needs.

    Changed files give a new context, because a context cannot drop an authority that it has trusted.
    """
    return FollowedFiles(
        "certificates",
        (files.cert_file, files.key_file, files.client_ca_file),
        lambda: prepare(server_context(files)),
    )
