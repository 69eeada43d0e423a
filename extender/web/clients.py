"""Which clients' certificates are answered, beyond the authority that the TLS layer asks for."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


def names_of(certificate: dict[str, Any]) -> set[str]:
    """Common name and DNS names of a certificate as `SSLSocket.getpeercert` gives it."""
    common = {value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"}
    return common | {value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"}


def only_client(name: str) -> type[asyncio.Protocol]:
    """uvicorn's protocol that hangs up on every client whose certificate does not bear the name."""

    class OnlyClient(HttpToolsProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn's own
            super().connection_made(transport)
            names = names_of(transport.get_extra_info("peercert") or {})
            if name not in names:
                structlog.get_logger("berth.tls").warning("client refused", wanted=name, certificate=sorted(names))
                transport.abort()

    return OnlyClient
