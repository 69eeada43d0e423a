"""Lists of bound pods: bound memory, whatever the pods' authors write."""

from __future__ import annotations

import tracemalloc

import orjson

from extender.api.fields import Json
from extender.api.object_meta import ObjectKey
from extender.api.pod_groups import GroupKey, GroupSource
from extender.cluster import Writer
from extender.cluster.api_errors import TooLong

_PEAK = 48 << 20  # a page of 2 MiB takes 20 times as much decoded
_PODS = 6  # twice the limit, decoded at once


class Namespace:
    """An API client that lists large bound pods, as many in a page as fit. It counts the largest page."""

    def __init__(self) -> None:
        self._pods = [orjson.dumps(_bound(number)) for number in range(_PODS)]

    async def get(self, path: str, params: dict[str, str], most_bytes: int = 32 << 20) -> Json:
        assert path == "/api/v1/namespaces/default/pods"
        start = int(params.get("continue", "0"))
        end = min(start + int(params["limit"]), _PODS)
        items = self._pods[start:end]
        if sum(map(len, items)) > most_bytes:
            raise TooLong("")
        following = str(end) if end < _PODS else ""
        listed = orjson.loads(b"[%b]" % b",".join(items))
        return {"kind": "PodList", "items": listed, "metadata": {"resourceVersion": "1", "continue": following}}


def _bound(number: int) -> Json:
    annotations = {"berth.dev/group": "g", "berth.dev/group-min": "3"}
    metadata = {"namespace": "default", "name": f"p{number}", "uid": f"u{number}", "annotations": annotations}
    return {"metadata": metadata, "spec": {"nodeName": "n1", "nodeSelector": {f"k{i}": "v" for i in range(60_000)}}}


async def test_large_bound_pods_take_little_memory_when_a_gang_asks_for_them() -> None:
    """Twenty-six such pods once took 500 MiB, and answers waited 1.9 s."""
    writer = Writer(Namespace())  # type: ignore[arg-type]  # a fake
    tracemalloc.start()
    try:
        found = await writer.read_bound_members("default")
        assert not await writer.read_has_bound_member(ObjectKey("default", "other"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == {GroupKey("default", GroupSource.BERTH, "g"): {f"u{number}": "n1" for number in range(_PODS)}}
    assert peak < _PEAK
