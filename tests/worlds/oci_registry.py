"""A registry of OCI artifacts in memory, on loopback, as much of the distribution specification as a push and a pull
need."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    contents: dict[str, tuple[str, bytes]]  # media type and bytes, by path: blobs, and manifests by tag and by digest

    def log_message(self, *_: object) -> None:
        """Nothing: a test says what failed."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        kind, content = self.contents.get(urlsplit(self.path).path, ("", None))
        self._answer(404 if content is None else 200, content or b"", kind)

    def do_POST(self) -> None:
        self._body()
        self._answer(202, location=f"{urlsplit(self.path).path}upload")

    def do_PUT(self) -> None:
        content = self._body()
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        path = urlsplit(self.path).path.replace("/uploads/upload", f"/{digest}")
        by_digest = f"{path.rpartition('/')[0]}/{digest}"
        self.contents[path] = self.contents[by_digest] = self.headers.get("Content-Type", ""), content
        self._answer(201, location=by_digest)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, code: int, content: bytes = b"", kind: str = "", location: str = "") -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        if kind:
            self.send_header("Content-Type", kind)
            self.send_header("Docker-Content-Digest", f"sha256:{hashlib.sha256(content).hexdigest()}")
        if location:
            self.send_header("Location", location)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextmanager
def oci_registry() -> Iterator[str]:
    """The address of a registry, without TLS."""
    handler = type("Handler", (_Handler,), {"contents": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
