"""Creates the Binding of a pod, and finds out whether it was stored if the reply was lost."""

from __future__ import annotations

import asyncio

from extender.cluster import ClusterError, Conflict, NotFound, TooMany, Unavailable, Writer
from extender.extension.binding_cycle import BindError, BindingCycle, BindOutcomeUnknown
from extender.extension.claim_writes import ClaimWrites
from extender.extension.live_reads import LANDING_SECONDS
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
        pod = cycle.pod
        try:
            async with asyncio.timeout_at(cycle.started + seconds):
                try:
                    await self._writer.bind_pod(pod.key, pod.uid, cycle.node, annotations)
                except (Conflict, Unavailable, TooMany) as error:
                    await self._confirm(cycle, claims, annotations, error)
        except TimeoutError:
            raise BindOutcomeUnknown(f"binding pod {pod.key}: no answer within {seconds:g} s of the call") from None

    async def _confirm(
        self, cycle: BindingCycle, claims: list[Claim], annotations: dict[str, str], error: ClusterError
    ) -> None:
        """Read whether a Binding was stored whose reply was lost or a fault. Returns if the pod is on the node.

        A Binding whose reply was lost may be stored a little later, so the first read waits for it: after an error the
        bind takes its claims back. The claims are read before the Binding is sent again: another process may have taken
        them over or deallocated them. Raises BindError if the Binding was not stored, BindOutcomeUnknown if no read
        succeeds in time.
        """
        key, uid, node = cycle.pod.key, cycle.pod.uid, cycle.node
        deadline = asyncio.get_running_loop().time() + _UNSURE_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(_pause(error))
            try:
                pod = await self._writer.read_pod(key)
                if pod.uid == uid and pod.node_name == node:
                    return
                if pod.uid != uid or pod.node_name or pod.deleting or isinstance(error, Conflict):
                    raise BindError(f"binding pod {key}: {error}")
                await self._claims.check_unchanged(cycle, claims)
                await self._writer.bind_pod(key, uid, node, annotations)
                return
            except NotFound:
                raise BindError(f"pod {key} does not exist any more") from None
            except (Conflict, Unavailable, TooMany) as again:
                error = again
        raise BindOutcomeUnknown(f"binding pod {key}: {error}")


def _pause(error: ClusterError) -> float:
    """Seconds until the API server has stored the Binding, or may be asked again."""
    if isinstance(error, TooMany):
        return error.retry_after
    return 0.0 if isinstance(error, Conflict) else LANDING_SECONDS
