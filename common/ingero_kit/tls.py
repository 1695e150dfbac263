"""TLS from files for servers and clients, in the Collector's words (`cert_file`, `key_file`, `client_ca_file`)."""

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Self

from pydantic import model_validator

from ingero_kit.logs import get
from ingero_kit.settings import Settings, SettingsError
from ingero_kit.watched import WatchedFiles, reload_if_changed

log = get(__name__)


class ServerTls(Settings):
    """TLS of a listener."""

    cert_file: Path
    """Certificate chain, PEM."""
    key_file: Path
    """Private key, PEM."""
    client_ca_file: Path | None = None
    """Authorities that client certificates must come from; setting it makes client certificates required."""

    def context(self) -> ssl.SSLContext:
        """Build the context anew from the files, so that a reload picks up rotated certificates."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.load(context)
        return context

    def load(self, context: ssl.SSLContext) -> None:
        """Read the files into a context; raises `SettingsError` when they cannot be used."""
        try:
            context.load_cert_chain(self.cert_file, self.key_file)
            if self.client_ca_file:
                context.load_verify_locations(self.client_ca_file)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(f"{self.cert_file}: the TLS files cannot be used: {error}") from None


class LiveContext:
    """A listener's context that follows its files: new connections use what they hold now.

    It is made anew each time, because a context forgets no authority that it once trusted.
    """

    def __init__(
        self, tls: ServerTls, prepare: Callable[[ssl.SSLContext], ssl.SSLContext] = lambda context: context
    ) -> None:
        self._tls, self._prepare = tls, prepare
        self._files = WatchedFiles((tls.cert_file, tls.key_file, tls.client_ca_file))
        self.context = prepare(tls.context())

    def reload(self) -> None:
        """Read the files again.

        Raises `SettingsError` when they cannot be used; the old ones then stay.
        """
        self.context = self._prepare(self._tls.context())

    def follow(self) -> None:
        """Read the files again if they have changed."""
        reload_if_changed(self._files, self.reload, "certificates")


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
        """Build the context from the files."""
        try:
            context = ssl.create_default_context(cafile=str(self.ca_file) if self.ca_file else None)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.cert_file and self.key_file:
                context.load_cert_chain(self.cert_file, self.key_file)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(f"the TLS files cannot be used: {error}") from None
        return context
