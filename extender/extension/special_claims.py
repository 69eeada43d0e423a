"""The special claim of a pod's extended resources: a pod has at most one, even if several processes bind the pod."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from extender.cluster import Conflict, NotFound, TooMany, Unavailable, Writer
from extender.extension.binding_cycle import BindError
from extender.extension.live_reads import read_pod
from extender.model import Claim, ObjectKey, Pod

_TRIES = 5  # per write, as client-go's DefaultRetry
_RETRY_SECONDS = 0.1


class SpecialClaims:
    """Names special claims in the status of their pods, and deletes them."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def map(self, pod: Pod, claim: Claim, mappings: Iterable[tuple[str, str, str]]) -> None:
        """Name the claim in the pod's status, guarded by the pod's resourceVersion.

        If two processes bind one pod, the first that writes the status continues. Raises BindError if the pod is
        bound, or if its status names a special claim of another process; ClusterError if the write fails repeatedly.
        """
        wanted = tuple(mappings)
        for attempt in range(_TRIES):
            try:
                if pod.extended_claim not in ("", claim.key.name):
                    await self._reject_second(pod, claim)
                await self._writer.map_special_claim(pod, claim, wanted)
                return
            except (Conflict, Unavailable, TooMany):
                if attempt == _TRIES - 1:
                    raise
                await asyncio.sleep(_RETRY_SECONDS * attempt)
                fresh = await self._writer.read_pod(pod.key)
                if fresh.uid != pod.uid or fresh.deleting or fresh.node_name:
                    raise BindError(f"pod {pod.key} was bound, deleted or recreated in the meantime") from None
                pod = fresh

    async def _reject_second(self, pod: Pod, claim: Claim) -> None:
        named = ObjectKey(pod.key.namespace, pod.extended_claim)
        try:
            other = await self._writer.read_claim(named)
        except NotFound:
            return  # the attempt that created the claim has ended
        if other.uid != claim.uid and other.special_for == pod.uid:
            raise BindError(f"pod {pod.key} has the extended-resource claim {named} of another process")

    async def remove(self, claim: Claim, pod_key: ObjectKey, pod_uid: str) -> bool:
        """Deallocate and delete the special claim of a pod. False if the claim is in use.

        Raises ClusterError if the writes fail repeatedly.
        """
        for attempt in range(_TRIES):
            try:
                return await self._remove(claim, pod_key, pod_uid)
            except NotFound:
                return True
            except (Conflict, Unavailable, TooMany):
                if attempt == _TRIES - 1:
                    raise
                await asyncio.sleep(_RETRY_SECONDS * (attempt + 1))
        raise AssertionError("the last try returns or raises")

    async def _remove(self, claim: Claim, pod_key: ObjectKey, pod_uid: str) -> bool:
        """The pod uses the claim if its spec names the claim, or if it has a node and its status names the claim.

        Another process uses it if it has written its mark since. Other pods may have become consumers of the claim by
        its name. Then only this pod is removed from the consumers.
        """
        fresh = await self._writer.read_claim(claim.key)
        pod = await read_pod(self._writer, pod_key, pod_uid)
        name = claim.key.name
        uses = pod is not None and (pod.names(name) or (pod.node_name and pod.extended_claim == name))
        is_of_other = fresh.writer != claim.writer and not fresh.is_being_taken_back
        if fresh.uid != claim.uid or uses or is_of_other:
            return False
        if any(consumer.uid != pod_uid for consumer in fresh.reserved_for):
            await self._writer.remove_consumer(fresh, pod_uid)
            return False
        await self._writer.delete_claim(fresh)
        return True
