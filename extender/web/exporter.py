"""The process that answers scrapes: none of them reaches the one that answers kube-scheduler.

`exporting` starts this file by its path, with the file descriptor of a listening socket as the only argument, and writes the
text to standard input, each time after its length in four bytes. It lives as long as standard input is open. It does as little
as it can, as it shares cores with filter: one request per connection, one after the other, in a tenth of a millisecond each.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from typing import BinaryIO

_STALE_SECONDS = 15.0  # Berth writes every second or few: older text says that it hangs, and a scrape must not look as if all were well
_REQUEST_SECONDS = 1.0  # for a request to arrive, and for its answer to leave: others wait meanwhile
_LONGEST_REQUEST = 16_384  # bytes
_LAST_IN_LINE = 19  # niceness
_OLD = b"Berth has written nothing for a while: it hangs, or has just started\n"


class Exporter:
    """Answers GET /metrics with the last text."""

    def __init__(self) -> None:
        self._text, self._written = b"", float("-inf")

    def write(self, text: bytes) -> None:
        """From now on this is the text."""
        self._text, self._written = text, time.monotonic()

    def serve(self, listening: socket.socket) -> None:
        """Answer until the socket is shut down."""
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):  # who asks and goes away is not worth a line
                request = received(connection)
                connection.settimeout(_REQUEST_SECONDS)
                connection.sendall(self._reply(request))

    def _reply(self, request: bytes) -> bytes:
        method, path = (*request.split(b" ", 2), b"", b"")[:2]
        status, text = self._answer(method, path.partition(b"?")[0])
        head = b"HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        head += b"X-Content-Type-Options: nosniff\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        return head % (status, len(text)) + (text if method != b"HEAD" else b"")

    def _answer(self, method: bytes, path: bytes) -> tuple[bytes, bytes]:
        """HTTP status and body."""
        if method not in (b"GET", b"HEAD"):
            return b"405 Method Not Allowed", b"only GET and HEAD are answered here\n"
        if path != b"/metrics":
            return b"404 Not Found", b"only /metrics is here\n"
        fresh = time.monotonic() - self._written < _STALE_SECONDS
        return (b"200 OK", self._text) if fresh else (b"503 Service Unavailable", _OLD)


def received(connection: socket.socket) -> bytes:
    """A request, which has no body. Raises OSError where it does not arrive."""
    request, until = b"", time.monotonic() + _REQUEST_SECONDS
    while b"\r\n\r\n" not in request and len(request) < _LONGEST_REQUEST:
        connection.settimeout(max(until - time.monotonic(), 0.001))
        part = connection.recv(_LONGEST_REQUEST)
        if not part:
            raise ConnectionResetError
        request += part
    return request


def texts(source: BinaryIO) -> bytes | None:
    """The next text; None at the end."""
    length = source.read(4)
    text = source.read(int.from_bytes(length)) if len(length) == 4 else b""  # noqa: PLR2004 - its size, see above
    return text or None


def answer(listening: socket.socket, source: BinaryIO) -> None:
    """Answer until the source ends."""
    exporter = Exporter()
    threading.Thread(target=exporter.serve, args=(listening,), daemon=True).start()
    while text := texts(source):
        exporter.write(text)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: whoever writes decides when it is over
    os.nice(_LAST_IN_LINE)
    answer(socket.socket(fileno=int(sys.argv[1])), sys.stdin.buffer)
