"""The collector of orphans leaves a claim alone that is no longer Berth's, and forgets the claims that are gone."""

from __future__ import annotations

import gc
import tracemalloc
from typing import cast

from extender.cache import ClusterCache
from extender.cluster import ApiClient, Writer
from extender.extension.orphans import OrphanCollector
from extender.model import Claim, Consumer, ObjectKey
from extender.runtime import Supervisor
from extender.sandbox.apiserver.status_errors import ApiError
from tests.eventually import eventually
from tests.running_berth import berthing, claim
from tests.tenant_worlds import MARK, allocated, collector_without_grace, intercept, patch, stored


async def test_an_allocation_that_lost_the_mark_of_berth_is_not_taken_back() -> None:
    """The watch has not shown yet that another writer has the claim now."""
    async with berthing({"n1": "t4-4"}) as b:
        b.cluster.apply(claim("c"))
        allocated(b, "c", "gpu-0")
        await b.settled()

        def lose_the_mark(method: str, path: str) -> ApiError | None:
            if method == "GET" and path.endswith("/resourceclaims/c"):
                patch(b, "c", {"metadata": {"annotations": {MARK: None}}})
            return None

        intercept(b, lose_the_mark)
        orphans = collector_without_grace(b)
        orphans.sweep()
        assert orphans.busy
        await eventually(lambda: not orphans.busy)
        assert (orphans.skipped, orphans.without_consumer) == (1, 0)
        assert stored(b, "c")["status"]["allocation"]


def test_special_claims_that_are_gone_take_no_memory() -> None:
    """A filter request met each one, and then the claim was deleted."""
    cache = ClusterCache()
    writer = Writer(cast("ApiClient", None), "test")
    orphans = OrphanCollector(cache, writer, lambda: 0.0, Supervisor(), lambda _: False)
    tracemalloc.start()
    try:
        for number in range(1000):
            key = ObjectKey("default", f"p{number}-extended-resources-abcde")
            pod = Consumer(f"uid-of-p{number}", f"p{number}")
            made = Claim(key, f"u{number}", reserved_for=(pod,), owner_pod_uid=pod.uid, writer="other", extended=True)
            cache.apply_claim(key, made)
            orphans.remove_stale_special(key)
            cache.apply_claim(key, None)
        gc.collect()
        known, _ = tracemalloc.get_traced_memory()
        orphans.sweep()
        gc.collect()
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert known > 200_000, "until the next sweep, the collector knows all"
    assert left < 50_000
