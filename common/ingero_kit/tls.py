"""TLS settings of servers and clients, named as the OpenTelemetry Collector names them."""

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeVar

from pydantic import model_validator

from ingero_http.followed_files import FollowedFiles
from ingero_http.tls import CertificateError, load_authorities, load_chain
from ingero_kit.settings import Settings, SettingsError

Made = TypeVar("Made")


class ServerTls(Settings):
    """TLS of a listener, as `ingero_http.tls.TlsFiles` wants it."""

    cert_file: Path
    """Certificate chain, PEM."""
    key_file: Path
    """Private key, PEM."""
    client_ca_file: Path | None = None
    """Authorities that client certificates must come from; setting it makes client certificates required."""


class ClientTls(Settings):
    """TLS of an outgoing connection."""

    insecure: bool = False
    """Speak plain text."""
    ca_file: Path | None = None
    """Authorities to trust instead of the system's."""
    cert_file: Path | None = None
    """Client certificate, PEM."""
    key_file: Path | None = None
    """Client key, PEM."""

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together")
        if self.insecure and (self.ca_file or self.cert_file):
            raise ValueError("insecure cannot be combined with TLS files")
        return self

    def context(self) -> ssl.SSLContext:
        """Build a context from the files."""
        try:
            if self.ca_file:
                load_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), self.ca_file)
            context = ssl.create_default_context(cafile=str(self.ca_file) if self.ca_file else None)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.cert_file and self.key_file:
                load_chain(context, self.cert_file, self.key_file)
        except CertificateError as error:
            raise SettingsError(str(error)) from None
        return context

    def follow(self, make: Callable[[], Made]) -> FollowedFiles[Made]:
        """What `make` builds from the files, built again when they change."""
        return FollowedFiles("client_certificates", (self.ca_file, self.cert_file, self.key_file), make)
