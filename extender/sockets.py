"""Listening sockets. A command binds them before it starts anything, so that an address in use is a one-line error."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from extender.base.berth_errors import WireError
from extender.base.text_limits import one_line


def listen_on(option: str, host: str, port: int) -> list[socket.socket]:
    """One listening socket for each address of the host. Raises WireError, which names option and address."""
    address = f"[{host}]:{port}" if ":" in host else f"{one_line(host)}:{port}"
    with ExitStack() as undo:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            bound = [undo.enter_context(_bound(family, where)) for family, _, _, _, where in dict.fromkeys(found)]
        except (OSError, ValueError) as error:  # ValueError: the host is not a valid DNS name
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise WireError(option, f"cannot listen on {address}: {reason}") from error
        undo.pop_all()
    return bound


def _bound(family: int, where: tuple[object, ...]) -> socket.socket:
    # asyncio sets TCP_NODELAY only if the protocol is given. Without it, a reply in two parts waits for an ACK.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(where)
        made.listen()  # before listen, a second socket could bind the same address
    except OSError:
        made.close()
        raise
    return made
