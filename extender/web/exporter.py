"""The process that answers scrapes: none of them reaches the one that answers kube-scheduler.

`exporting` starts this file by its path, with the file descriptor of a listening socket as the only argument, and writes the
text to standard input, each time after its length in four bytes. It lives as long as standard input is open. Only the standard
library is used, and little of it: the process stays small.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import BinaryIO

_STALE_SECONDS = 15.0  # Berth writes every second or few: older text says that it hangs, and a scrape must not look as if all were well
_IDLE_SECONDS = 120.0  # Prometheus keeps its connection between two scrapes
_MOST_CONNECTIONS = 64
_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exporter(ThreadingHTTPServer):
    """Answers GET /metrics with the last text."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listening: socket.socket) -> None:
        super().__init__(listening.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self._text, self._written = b"", float("-inf")

    def write(self, text: bytes) -> None:
        """From now on this is the text."""
        self._text, self._written = text, time.monotonic()

    @property
    def text(self) -> bytes | None:
        """The last text; None where it is too old to be believed."""
        return self._text if time.monotonic() - self._written < _STALE_SECONDS else None

    def verify_request(self, request: object, client_address: object) -> bool:  # noqa: ARG002 - as the library calls it
        """Whether a connection is taken."""
        return threading.active_count() < _MOST_CONNECTIONS


class _Handler(BaseHTTPRequestHandler):
    server: Exporter
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "berth", ""
    timeout = _IDLE_SECONDS
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        text = self.server.text
        if self.path.partition("?")[0] != "/metrics":
            self._answer(404, b"only /metrics is here")
        elif text is None:
            self._answer(503, b"Berth has written nothing for a while: it hangs, or has just started")
        else:
            self._answer(200, text)

    do_HEAD = do_GET  # noqa: N815 - the library calls it so

    def _answer(self, status: int, text: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", _TYPE)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Scrapes are not worth a line."""


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
    answer(socket.socket(fileno=int(sys.argv[1])), sys.stdin.buffer)
