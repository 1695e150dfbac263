"""Addresses to listen on or to connect to, as people write them. Pure."""

from typing import Annotated

from pydantic import AfterValidator


def parse_endpoint(text: str, default_host: str = "127.0.0.1") -> tuple[str, int]:
    """Split `host:port`, `:port` (the default host) or `[v6]:port`.

    Raises `ValueError` in words when it is none of these.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()):
        raise ValueError(f"{text!r} is not host:port")
    if int(port) > 65535:
        raise ValueError(f"{text!r} is not host:port: no port is larger than 65535")
    return (host.strip("[]") or default_host), int(port)


def parse_listen(text: str) -> tuple[str, int]:
    """`parse_endpoint` for a listener whose missing host, then empty, means every address."""
    return parse_endpoint(text, "")


def _checked(text: str) -> str:
    parse_endpoint(text)
    return text


Endpoint = Annotated[str, AfterValidator(_checked)]
"""`host:port` in settings; port 0 takes a free one, which the start-up line names."""
