"""Judges the certificate in `spec.tlsSecret`: when it ends, and for which name. Pure."""

from datetime import UTC, datetime
from typing import Final

from cryptography import x509

from ingero_operator.conditions import Condition, no, yes
from ingero_operator.errors import ReconcileError

VALID: Final = "CertificateValid"
DAYS: Final = 14
SHARE: Final = 0.25
"""A certificate counts as expiring in the last `DAYS`, and not before the last quarter of its validity: short-lived
certificates are renewed by then."""

_UNREADABLE: Final = (
    ValueError, TypeError, x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType
)  # fmt: skip
"""What the library raises for parts of a certificate that are damaged or that it does not know."""


def judge_certificate(chain: bytes, secret: str, name: str, now: float) -> Condition:
    """Whether the first certificate of a PEM chain is valid now, for some time, and for a DNS name."""
    where = f"spec.tlsSecret: the certificate in Secret {secret}"
    try:
        found = x509.load_pem_x509_certificates(chain)[0]
        names = _names(found)
    except _UNREADABLE:
        message = f"{where} cannot be read: tls.crt must be a PEM chain that begins with the server's"
        return no(VALID, "CertificateUnreadable", message)
    begins, ends, moment = found.not_valid_before_utc, found.not_valid_after_utc, datetime.fromtimestamp(now, UTC)
    if moment >= ends:
        return no(VALID, "CertificateExpired", f"{where} expired at {_text(ends)}: renew it")
    if moment < begins:
        message = f"{where} is valid only from {_text(begins)} on: check the clocks, or issue it anew"
        return no(VALID, "CertificateNotYetValid", message)
    if not {name, f"*.{name.partition('.')[2]}"} & names:
        return no(VALID, "CertificateName", f"{where} does not name {name}: issue it with that DNS name in its SAN")
    left = ends - moment
    if left.days < DAYS and left < SHARE * (ends - begins):
        message = f"{where} expires at {_text(ends)}: renew it; Secrets that change are followed without a restart"
        return no(VALID, "CertificateExpiring", message)
    return yes(VALID, "Valid", f"{where} is valid until {_text(ends)}")


def certificate_errors(judged: Condition | None) -> list[ReconcileError]:
    """The error of a certificate that clients refuse; none while it is valid."""
    if judged is None or judged.holds or judged.reason == "CertificateExpiring":
        return []
    return [ReconcileError(judged.reason, judged.message, stalls=False)]


def _names(found: x509.Certificate) -> set[str]:
    try:
        extension = found.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return set()
    return {name.lower() for name in extension.value.get_values_for_type(x509.DNSName)}


def _text(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
