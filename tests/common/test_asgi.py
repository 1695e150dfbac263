"""Listening: an address that was announced takes connections."""

import socket

from ingero_kit.asgi import bind


def test_whoever_reads_the_port_may_connect_before_it_is_served() -> None:
    _, ours = bind(None, "127.0.0.1:0", None, 1.0)
    with ours, socket.create_connection(ours.getsockname(), timeout=5):
        pass
