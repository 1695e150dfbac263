"""Parses addresses to listen on or to connect to. Pure."""

import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator


def parse_endpoint(text: str, default_host: str = "127.0.0.1") -> tuple[str, int]:
    """Split `host:port`, `:port` (the default host) or `[v6]:port`.

    Raises `ValueError` with an explanation for anything else.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()):
        raise ValueError(f"{text!r} is not host:port")
    if int(port) > 65535:
        raise ValueError(f"{text!r} is not host:port: no port is larger than 65535")
    return (host.strip("[]") or default_host), int(port)


def parse_listen(text: str) -> tuple[str, int]:
    """`parse_endpoint` for a listener: a missing host gives an empty one, which means every address."""
    return parse_endpoint(text, "")


def _checked(text: str) -> str:
    parse_endpoint(text)
    return text


Endpoint = Annotated[str, AfterValidator(_checked)]
"""`host:port` in settings; port 0 picks a free one, which the start-up line names."""

OptionalEndpoint = Annotated[str, AfterValidator(lambda text: text and _checked(text))]
"""`Endpoint`, or empty for none."""


def without_user(text: str) -> str:
    """A text without the users and passwords of the addresses in it, for logs and errors."""
    return re.sub(r"(?<=//)[^/@\s]*@", "", text)


def is_loopback(endpoint: str) -> bool:
    """Whether only this machine can reach an endpoint."""
    return is_local_name(parse_endpoint(endpoint)[0])


def is_local_request(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request is addressed to this machine and comes from no page of another host (by Host and Origin).

    A listener that requires no token must check this, because a page can let its own name resolve to this machine.
    """
    origin, host = headers.get(b"origin"), headers.get(b"host")
    return (origin is None or _names_us(origin.partition(b"://")[2])) and (host is None or _names_us(host))


def _names_us(authority: bytes) -> bool:
    text = authority.decode("latin-1").lower()
    return is_local_name(text[1 : text.find("]")] if text.startswith("[") else text.partition(":")[0])


def is_local_name(name: str) -> bool:
    """Whether a host's name or address means this machine only; an empty one means every address."""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
