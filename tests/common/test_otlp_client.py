"""Which failures the OTLP client calls worth a retry, by the protocol's specification."""

import re

import pytest

from ingero_kit.otlp_client import ClientConfig, DeliveryFailure, Disposition, explained, grpc_failure, http_failure
from ingero_kit.otlp_http_client import otlp_url
from ingero_kit.settings import SettingsError

RETRY, SPLIT, DROP = Disposition.RETRY, Disposition.SPLIT, Disposition.DROP


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (200, None),
        (204, None),
        (302, (DeliveryFailure.REFUSED, DROP)),
        (400, (DeliveryFailure.REFUSED, SPLIT)),
        (401, (DeliveryFailure.UNAUTHENTICATED, RETRY)),
        (404, (DeliveryFailure.REFUSED, DROP)),
        (413, (DeliveryFailure.REFUSED, SPLIT)),
        (429, (DeliveryFailure.BUSY, RETRY)),
        (500, (DeliveryFailure.SERVER_ERROR, SPLIT)),
        (501, (DeliveryFailure.SERVER_ERROR, DROP)),
        (502, (DeliveryFailure.SERVER_ERROR, RETRY)),
        (503, (DeliveryFailure.BUSY, RETRY)),
        (504, (DeliveryFailure.SERVER_ERROR, RETRY)),
    ],
)
def test_http_statuses(status: int, expected: tuple[DeliveryFailure, Disposition] | None) -> None:
    assert http_failure(status) == expected


@pytest.mark.parametrize(
    ("code", "retry_after", "expected"),
    [
        ("UNAVAILABLE", None, (DeliveryFailure.UNREACHABLE, RETRY)),
        ("UNAVAILABLE", 1.0, (DeliveryFailure.BUSY, RETRY)),
        ("RESOURCE_EXHAUSTED", None, (DeliveryFailure.BUSY, SPLIT)),
        ("RESOURCE_EXHAUSTED", 0.0, (DeliveryFailure.BUSY, RETRY)),
        ("DEADLINE_EXCEEDED", None, (DeliveryFailure.TIMEOUT, RETRY)),
        ("INVALID_ARGUMENT", None, (DeliveryFailure.REFUSED, SPLIT)),
        ("UNAUTHENTICATED", None, (DeliveryFailure.UNAUTHENTICATED, RETRY)),
        ("UNIMPLEMENTED", None, (DeliveryFailure.REFUSED, DROP)),
    ],
)
def test_grpc_statuses(code: str, retry_after: float | None, expected: tuple[DeliveryFailure, Disposition]) -> None:
    assert grpc_failure(code, retry_after) == expected


@pytest.mark.parametrize(
    ("said", "url", "hint"),
    [
        ("ConnectError: All connection attempts failed", "http://fleet/v1/metrics", "names no port, so it is 80"),
        ("ConnectError: All connection attempts failed", "https://fleet/v1/metrics", "names no port, so it is 443"),
        ("ConnectError: All connection attempts failed", "http://fleet:9/v1/metrics", "anything listen on fleet:9?"),
        ("[SSL: WRONG_VERSION_NUMBER]", "https://fleet:4318", "speaks no TLS"),
        ("UNAVAILABLE: Socket closed", "http://fleet:4317", "may require TLS"),
        ("UNAVAILABLE: Socket closed", "https://fleet:4317", "a client certificate"),
        ("UNAVAILABLE: recvmsg:Connection reset by peer (104)", "https://fleet:4317", "a client certificate"),
        ("UNAVAILABLE: sendmsg: Broken pipe (32)", "https://fleet:4317", "a client certificate"),
        ("WriteError", "https://fleet:4318", "a client certificate"),
    ],
)
def test_a_failed_connection_is_explained(said: str, url: str, hint: str) -> None:
    assert explained(said, url).startswith(f"{said} (") and hint in explained(said, url)


def test_a_path_in_the_endpoint_is_kept_and_not_repeated() -> None:
    assert otlp_url(ClientConfig(endpoint="https://c/otlp"), "/v1/logs") == "https://c/otlp/v1/logs"
    assert otlp_url(ClientConfig(endpoint="c:1/v1/logs", cluster="a b"), "/v1/logs").endswith(
        ":1/v1/logs?cluster_id=a%20b"
    )


@pytest.mark.parametrize("endpoint", ["http://c:port", "c:99999", ":4318", "c:0", "http://["])
def test_an_address_without_a_usable_host_and_port_is_refused(endpoint: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(endpoint)):
        otlp_url(ClientConfig(endpoint=endpoint), "/v1/logs")
