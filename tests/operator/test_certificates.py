"""What the certificate in spec.tlsSecret is worth, from its PEM and the time."""

import random
import ssl
from datetime import UTC, datetime, timedelta

import pytest
import trustme

from ingero_operator.certificates import certificate_errors, judge_certificate

NAME = "prod-fleet.ml.svc"
NOW = datetime(2030, 1, 1, tzinfo=UTC)
AUTHORITY = trustme.CA()


def chain(*names: str, begins: datetime = NOW, days: float = 90) -> bytes:
    issued = AUTHORITY.issue_cert(*names, not_before=begins, not_after=begins + timedelta(days=days))
    return issued.cert_chain_pems[0].bytes()


@pytest.mark.parametrize(
    ("pem", "reason"),
    [
        (chain(NAME), "Valid"),
        (chain("localhost", "*.ml.svc"), "Valid"),
        (chain(NAME, days=1), "Valid"),
        (chain("prod-fleet", "*.svc"), "CertificateName"),
        (chain(NAME, begins=NOW - timedelta(days=90)), "CertificateExpired"),
        (chain(NAME, begins=NOW + timedelta(hours=1)), "CertificateNotYetValid"),
        (chain(NAME, begins=NOW - timedelta(days=77)), "CertificateExpiring"),
        (chain(NAME, begins=NOW - timedelta(days=75)), "Valid"),
        (chain(NAME, begins=NOW - timedelta(hours=20), days=1), "CertificateExpiring"),
        (b"x", "CertificateUnreadable"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "CertificateUnreadable"),
    ],
    ids=[
        "name",
        "wildcard",
        "one day, all of it left",
        "other names",
        "over",
        "not begun",
        "13 of 90 days left",
        "15 of 90 days left",
        "4 hours of a day left",
        "rubbish",
        "no certificate inside",
    ],
)
def test_a_certificate_is_judged_by_its_time_and_its_names(pem: bytes, reason: str) -> None:
    judged = judge_certificate(pem, "tls", NAME, NOW.timestamp())

    assert (judged.type, judged.reason, judged.holds) == ("CertificateValid", reason, reason == "Valid")
    refused = reason not in ("Valid", "CertificateExpiring")
    assert [error.reason for error in certificate_errors(judged)] == ([reason] if refused else [])


@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
def test_a_damaged_certificate_is_unreadable_and_no_accident() -> None:
    der, dice = ssl.PEM_cert_to_DER_cert(chain(NAME).decode()), random.Random(1)
    reasons = set()
    for _ in range(5000):
        damaged = bytearray(der)
        damaged[dice.randrange(len(der))] = dice.randrange(256)
        pem = ssl.DER_cert_to_PEM_cert(bytes(damaged)).encode()
        reasons.add(judge_certificate(pem, "tls", NAME, NOW.timestamp()).reason)

    assert {"Valid", "CertificateUnreadable", "CertificateName"} <= reasons


def test_the_message_has_the_cure() -> None:
    lacking = judge_certificate(chain("other"), "tls", NAME, NOW.timestamp())
    ended = judge_certificate(chain(NAME), "tls", NAME, (NOW + timedelta(days=91)).timestamp())

    assert lacking.message.endswith(f"Secret tls does not name {NAME}: issue it with that DNS name in its SAN")
    assert ended.message.endswith("Secret tls expired at 2030-04-01T00:00:00Z: renew it")
    assert certificate_errors(None) == []
