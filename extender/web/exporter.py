"""The process that answers scrapes: none of them reaches the one that answers kube-scheduler.

`exporting` starts this file by its path, with the file descriptor of a listening socket as the only argument, and writes the
text to standard input, each time after its length in four bytes. It lives as long as standard input is open. Of the standard
library it takes what is small: http.server alone would double its memory and its work per scrape.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import BinaryIO

_STALE_SECONDS = 15.0  # Berth writes every second or few: older text says that it hangs, and a scrape must not look as if all were well
_REQUEST_SECONDS = 5.0  # for a request to arrive, and for its answer to leave
_MOST_CONNECTIONS = 64
_LONGEST_LINE, _MOST_LINES = 8_192, 100  # of a request
_LAST_IN_LINE = 19  # niceness: where cores are few, a scrape takes none from whoever answers filters
_OLD = b"Berth has written nothing for a while: it hangs, or has just started\n"


class Exporter(ThreadingTCPServer):
    """Answers GET /metrics with the last text, one request per connection."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listening: socket.socket) -> None:
        super().__init__(listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self._text, self._written = b"", float("-inf")

    def write(self, text: bytes) -> None:
        """From now on this is the text."""
        self._text, self._written = text, time.monotonic()

    def answer(self, method: bytes, path: bytes) -> tuple[bytes, bytes]:
        """HTTP status and body."""
        if method not in (b"GET", b"HEAD"):
            return b"405 Method Not Allowed", b"only GET and HEAD are answered here\n"
        if path.partition(b"?")[0] != b"/metrics":
            return b"404 Not Found", b"only /metrics is here\n"
        fresh = time.monotonic() - self._written < _STALE_SECONDS
        return (b"200 OK", self._text) if fresh else (b"503 Service Unavailable", _OLD)

    def verify_request(self, request: object, client_address: object) -> bool:  # noqa: ARG002 - as the library calls it
        """Whether a connection is taken."""
        return threading.active_count() < _MOST_CONNECTIONS

    def handle_error(self, request: object, client_address: object) -> None:
        """Who asks and goes away is not worth a line."""


class _Handler(StreamRequestHandler):
    server: Exporter
    timeout = _REQUEST_SECONDS

    def handle(self) -> None:
        words = self.rfile.readline(_LONGEST_LINE).split()
        lines = iter(lambda: self.rfile.readline(_LONGEST_LINE).strip(), b"")
        if len(words) != 3 or sum(1 for _, _ in zip(range(_MOST_LINES), lines, strict=False)) == _MOST_LINES:  # noqa: PLR2004 - method, path, version
            return
        status, text = self.server.answer(words[0], words[1])
        head = b"HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        self.wfile.write(head % (status, len(text)) + (text if words[0] != b"HEAD" else b""))


def texts(source: BinaryIO) -> bytes | None:
    """The next text; None at the end."""
    length = source.read(4)
    text = source.read(int.from_bytes(length)) if len(length) == 4 else b""  # noqa: PLR2004 - its size, see above
    return text or None


def answer(listening: socket.socket, source: BinaryIO) -> None:
    """Answer until the source ends."""
    with Exporter(listening) as exporter:
        threading.Thread(target=exporter.serve_forever, daemon=True).start()
        while text := texts(source):
            exporter.write(text)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: whoever writes decides when it is over
    os.nice(_LAST_IN_LINE)
    answer(socket.socket(fileno=int(sys.argv[1])), sys.stdin.buffer)
