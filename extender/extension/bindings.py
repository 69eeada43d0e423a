"""Creates the Binding of a pod, and finds out whether it was stored if the reply was lost."""

from __future__ import annotations

import asyncio

from extender.cluster import ClusterError, Conflict, NotFound, TooMany, Unavailable, Writer
from extender.extension.binding_cycle import BindError, BindingCycle, BindOutcomeUnknown
from extender.extension.claim_writes import ClaimWrites
from extender.extension.live_reads import IN_FLIGHT_GRACE_SECONDS
from extender.model import Claim

_UNSURE_SECONDS = 20.0  # how long to read whether a Binding was stored


class Bindings:
    """Writes Bindings with the pod's UID."""

    def __init__(self, writer: Writer, claims: ClaimWrites) -> None:
        self._writer = writer
        self._claims = claims

    async def create(
        self, cycle: BindingCycle, claims: list[Claim], annotations: dict[str, str], seconds: float
    ) -> None:
        """Bind the pod of a cycle, at most `seconds` after the call began. `annotations` go to the pod.

        Raises BindError if the Binding was not stored, BindOutcomeUnknown if that is not known in time.
        """
        key, now = cycle.pod.key, asyncio.get_running_loop().time()
        end = min(cycle.started + seconds, now + _UNSURE_SECONDS)
        error: ClusterError | None = None
        may_be_stored = True
        try:
            async with asyncio.timeout_at(end):
                while (error := await self._send(cycle, annotations)) is not None:
                    may_be_stored = not isinstance(error, TooMany)  # the API server refused it unread
                    if await self._is_stored(cycle, claims, error):
                        return
                    may_be_stored = True
        except TimeoutError:
            if not may_be_stored:
                raise BindError(f"binding pod {key}: {error}") from None
            took = end - cycle.started
            raise BindOutcomeUnknown(f"binding pod {key}: no answer within {took:.3g} s of the call") from None

    async def _send(self, cycle: BindingCycle, annotations: dict[str, str]) -> ClusterError | None:
        """Send the Binding. Returns an error after which it is to be sent again, unless it was stored."""
        try:
            await self._writer.bind_pod(cycle.pod.key, cycle.pod.uid, cycle.node, annotations)
        except (Conflict, Unavailable, TooMany) as error:
            return error
        return None

    async def _is_stored(self, cycle: BindingCycle, claims: list[Claim], error: ClusterError) -> bool:
        """Read whether a Binding was stored that got this error. If not, the caller may send it again.

        A Binding whose reply was lost may be stored a little later, so the first read waits for it: after an error the
        bind takes its claims back. The claims are read before the Binding is sent again: another process may have taken
        them over or deallocated them. Raises BindError if the Binding was not stored, and must not be sent again.
        """
        key, uid, node, refused = cycle.pod.key, cycle.pod.uid, cycle.node, error
        while True:
            await asyncio.sleep(_pause(error))
            try:
                pod = await self._writer.read_pod(key)
                if pod.uid == uid and pod.node_name == node:
                    return True
                if pod.uid != uid or pod.node_name or pod.deleting or isinstance(refused, Conflict):
                    raise BindError(f"binding pod {key}: {refused}")
                await self._claims.check_unchanged(cycle, claims)
                return False
            except NotFound:
                raise BindError(f"pod {key} does not exist any more") from None
            except (Conflict, Unavailable, TooMany) as again:
                error = again


def _pause(error: ClusterError) -> float:
    """Seconds until the API server has stored the Binding, or may be asked again."""
    if isinstance(error, TooMany):
        return error.retry_after
    return 0.0 if isinstance(error, Conflict) else IN_FLIGHT_GRACE_SECONDS
