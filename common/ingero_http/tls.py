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
    load_chain(context, files.cert_file, files.key_file)
    if files.client_ca_file:
        load_authorities(context, files.client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def load_chain(context: ssl.SSLContext, cert_file: Path, key_file: Path) -> None:
    """Load a certificate chain and its private key. Raises `CertificateError`, which names the file at fault.

    A key with a passphrase is refused: OpenSSL would ask the terminal for it, and a service would wait there.
    """
    _check_readable(cert_file)
    _check_readable(key_file)
    asked = False

    def no_passphrase() -> str:
        nonlocal asked
        asked = True
        return ""

    try:
        context.load_cert_chain(cert_file, key_file, no_passphrase)
    except ssl.SSLError as error:
        if asked:
            raise CertificateError(f"{key_file}: the private key has a passphrase; remove it") from None
        if error.reason == "KEY_VALUES_MISMATCH":
            text = f"the private key does not belong to the first certificate of {cert_file}"
            raise CertificateError(f"{key_file}: {text}") from None
        if _certificates(cert_file):
            raise CertificateError(f"{key_file}: no private key in PEM: {error}") from None
        raise CertificateError(f"{cert_file}: no certificate in PEM: {error}") from None


def load_authorities(context: ssl.SSLContext, file: Path) -> None:
    """Trust the authorities of a file. Raises `CertificateError`, which names the file."""
    _check_readable(file)
    try:
        context.load_verify_locations(file)
    except ssl.SSLError as error:
        raise CertificateError(f"{file}: no certificate in PEM: {error}") from None


def _check_readable(file: Path) -> None:
    try:
        with file.open("rb"):
            return
    except OSError as error:
        raise CertificateError(f"{file}: the TLS file cannot be read: {error.strerror}") from None


def _certificates(file: Path) -> bool:
    """Whether a file has certificates in PEM."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(file)
    except OSError:
        return False
    return True


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
