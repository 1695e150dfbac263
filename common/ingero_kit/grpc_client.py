"""What every gRPC client of ours needs: credentials from files, and how long a busy server asks to wait."""

import ssl
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from ingero_kit.backoff import MAX_RETRY_AFTER
from ingero_kit.tls import ClientTls

STATUS_DETAILS: Final = "grpc-status-details-bin"
"""Trailing metadata with a google.rpc.Status; a server that is busy puts RetryInfo into it."""


def metadata_of(metadata: Any) -> dict[str, str | bytes]:
    """Initial or trailing metadata by key, empty where there was none."""
    return dict(metadata or ())


def retry_delay(details: bytes | str | None) -> float | None:
    """Seconds that the RetryInfo of a google.rpc.Status asks for, bounded; `None` when there is none."""
    if not isinstance(details, bytes):
        return None
    try:
        for detail in Status.FromString(details).details:
            info = RetryInfo()
            if detail.Unpack(info):
                seconds = float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)
                return min(max(seconds, 0.0), MAX_RETRY_AFTER)
    except DecodeError:
        return None
    return None


def channel_credentials(tls: ClientTls) -> grpc.ChannelCredentials:
    """A channel's TLS, from what the files hold now. Raises `OSError` when one cannot be read."""
    return grpc.ssl_channel_credentials(
        tls.ca_file.read_bytes() if tls.ca_file else _system_authorities(),
        tls.key_file.read_bytes() if tls.key_file else None,
        tls.cert_file.read_bytes() if tls.cert_file else None,
    )


def _system_authorities() -> bytes | None:
    """The authorities that the system trusts, as HTTP does; `None` leaves gRPC's own list."""
    found = ssl.create_default_context().get_ca_certs(binary_form=True)
    return "".join(ssl.DER_cert_to_PEM_cert(der) for der in found).encode() or None
