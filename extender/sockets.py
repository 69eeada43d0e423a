"""Addresses to listen on: taken before anything else is begun, so that one in use is told in one sentence."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from extender.model import WireError, one_line


def listen_on(option: str, host: str, port: int) -> list[socket.socket]:
    """Bound sockets, one for each address of the host. Raises WireError naming option and address."""
    address = f"[{host}]:{port}" if ":" in host else f"{one_line(host)}:{port}"
    with ExitStack() as undo:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            bound = [undo.enter_context(_bound(family, where)) for family, _, _, _, where in dict.fromkeys(found)]
        except (OSError, ValueError) as error:  # ValueError: a name that no DNS can hold
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise WireError(option, f"cannot listen on {address}: {reason}") from error
        undo.pop_all()
    return bound


def _bound(family: int, where: tuple[object, ...]) -> socket.socket:
    # Named, because asyncio sets TCP_NODELAY only where the protocol is: replies in two parts would wait for an ACK.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(where)
        made.listen()  # until then a second socket could have the address, too
    except OSError:
        made.close()
        raise
    return made
