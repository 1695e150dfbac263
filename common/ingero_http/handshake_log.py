"""Why TLS handshakes fail, in the log: each reason once in a while, so that no client can fill it."""

import ssl
import time
from collections.abc import Callable
from typing import Final

from ingero_http.structured_logs import structlog

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

SECONDS_BETWEEN: Final = 600.0
"""How long a reason is not logged again."""

MAX_REASONS: Final = 16
"""Most reasons in that time; further ones are only counted."""

HINTS: Final = {
    "HTTP_REQUEST": "it sent plain HTTP: it must use https, and not --fleet-insecure or tls.insecure",
    "WRONG_VERSION_NUMBER": "it did not speak TLS: it must not use --fleet-insecure or tls.insecure",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the certificate's authority: give it the CA file",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it refuses the certificate: is the name that it connects to in it?",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it sent no client certificate, which client_ca_file requires",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not of an authority in client_ca_file, or has expired",
}
"""By OpenSSL's reason: what the client has to change."""


class HandshakeLog:
    """The failed handshakes of one listener."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged: dict[str, float] = {}

    def failed(self, error: OSError, client: str) -> None:
        """Log why a handshake failed. A client that only closes, as probes of a port do, gives no reason."""
        if not isinstance(error, ssl.SSLError):
            return
        reason, now = str(getattr(error, "reason", "") or error), self._clock()
        self._logged = {one: at for one, at in self._logged.items() if now - at < SECONDS_BETWEEN}
        if reason in self._logged or len(self._logged) >= MAX_REASONS:
            return
        self._logged[reason] = now
        hint = HINTS.get(reason, "")
        log.warning("tls_handshake_failed", client=client, reason=str(error), **({"hint": hint} if hint else {}))
