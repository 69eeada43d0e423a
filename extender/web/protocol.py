"""uvicorn's HTTP protocol as Berth needs it: pages wait before they are even parsed, and only named clients are answered."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from extender.service.supervisor import Supervisor
from extender.service.turns import Turns
from extender.web.asgi import WHOLE

_CALLS = (b"POST /filter ", b"POST /prioritize ", b"POST /bind ", b"POST /preempt ")  # how a request of kube-scheduler begins


def names_of(certificate: dict[str, Any]) -> set[str]:
    """Common name and DNS names of a certificate as `SSLSocket.getpeercert` gives it."""
    common = {value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"}
    return common | {value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"}


def protocol(turns: Turns, supervisor: Supervisor, client_name: str | None) -> type[asyncio.Protocol]:
    """uvicorn's protocol, in which requests for pages wait for their turn. With `client_name` it hangs up on every client
    whose certificate does not bear the name."""

    class Protocol(HttpToolsProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn's own
            super().connection_made(transport)
            self._held: list[bytes] = []
            names = names_of(transport.get_extra_info("peercert") or {})
            if client_name is not None and client_name not in names:
                structlog.get_logger("berth.tls").warning("client refused", wanted=client_name, certificate=sorted(names))
                transport.abort()

        def data_received(self, data: bytes) -> None:
            if self._held:
                self._held.append(data)
            elif not data.startswith(_CALLS) and (self.cycle is None or self.cycle.response_complete):
                self._held.append(data)
                task = supervisor.spawn("page", self._take_turn())
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
            else:
                turns.coming()
                super().data_received(data)
                if self.cycle is not None and not self.cycle.more_body:
                    self.cycle.scope[WHOLE] = True  # type: ignore[literal-required] # a key of our own

        async def _take_turn(self) -> None:
            """Parsing a request, and all that uvicorn does for it, takes longer than a slice of work."""
            await turns.pause()
            data = b"".join(self._held)
            self._held.clear()
            if not self.transport.is_closing():
                try:
                    super().data_received(data)
                except BaseException:
                    self.transport.abort()  # as the loop does where a protocol raises
                    raise

    return Protocol
