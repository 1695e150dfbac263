"""Listening sockets, and how many files a process may open."""

import contextlib
import errno
import resource
import socket
from typing import Final

_MOST_FILES: Final = 1 << 20
"""Upper limit of the open files that are requested, because some programs iterate over all possible ones."""

BACKLOG: Final = 4096
"""Connections that the system queues before they are accepted."""

_NO_SUCH_ADDRESS: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


def open_sockets(
    host: str, port: int, *, purpose: str = "", reuse_port: bool = False, listen: bool = True
) -> list[socket.socket]:
    """A socket for each address of a host, all on one port; port 0 picks a free one.

    No host means every address; `::` takes IPv4 as well. Raises `OSError` whose text names address and purpose.
    """
    failure: OSError | None = None
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        if not host:
            found.sort(key=lambda item: item[0] != socket.AF_INET6)
        for family, _, _, _, address in dict.fromkeys(found):
            taken = sockets[0].getsockname()[1] if sockets else port
            try:
                sockets.append(_open(family, (address[0], taken, *address[2:]), reuse_port, listen))
            except OSError as error:
                if error.errno not in _NO_SUCH_ADDRESS and not (sockets and not port):
                    raise
                failure = error
            if sockets and not host:
                break
        if not sockets:
            raise failure or OSError("it has no address")
    except OSError as error:
        for one in sockets:
            one.close()
        where = f"{format_address(host, port)} for {purpose}" if purpose else format_address(host, port)
        raise OSError(f"cannot listen on {where}: {error.strerror or error}") from None
    return sockets


def _open(family: int, address: tuple[str | int, ...], reuse_port: bool, listen: bool) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != "::")
        one.bind(address)
        if listen:
            one.listen(BACKLOG)
    except OSError:
        one.close()
        raise
    return one


def format_address(host: str, port: int) -> str:
    """host:port, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def allow_open_files() -> int:
    """Raise this process's limit of open files as far as the system allows; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft == resource.RLIM_INFINITY:
        return _MOST_FILES
    if soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            return most
    return soft
