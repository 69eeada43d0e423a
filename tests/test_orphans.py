"""The collector of orphans leaves a claim alone that is no longer Berth's, and forgets the claims that are gone."""

from __future__ import annotations

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
